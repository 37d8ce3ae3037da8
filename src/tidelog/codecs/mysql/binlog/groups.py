"""Finds where transactions begin and end, and in which file, where the kernel does not.

The kernel processes most groups of events; this module the others: by GTIDs and statements. It
tracks which XA transactions are prepared, and when their rows are yielded, and it converts
MariaDB's compressed rows events to plain ones.
"""

from __future__ import annotations

import re
import struct
import zlib
from collections.abc import Generator, Iterator

import numpy as np

from tidelog.codecs.mysql.binlog import kernels as kernel
from tidelog.codecs.mysql.binlog.events import (
    CHECKSUM_BYTES,
    COMPRESSED_ROWS,
    HEADER_BYTES,
    EventType,
    Fields,
    Header,
    Query,
    changes_rows,
    first_words,
    inflated_rows,
    parse_format,
    parse_gtid,
    parse_heartbeat_v2,
    parse_mariadb_gtid,
    parse_rotate,
    parse_tagged_gtid,
    parse_xa_prepare,
    without_checksum,
)
from tidelog.codecs.mysql.binlog.items import (
    FormatSeen,
    GtidSource,
    GtidsSeen,
    MariaDbSource,
    QuerySeen,
    RolledBackSeen,
    RotateSeen,
    RowsOfPreparedTransaction,
    XaSeen,
    XaState,
    pack_position,
    parse_file_name,
)
from tidelog.codecs.mysql.binlog.scan_state import BATCH_BYTES, FAULTS, ScanState
from tidelog.codecs.mysql.binlog.tables import ScannedTables
from tidelog.codecs.mysql.flavor import Flavor, version_numbers
from tidelog.model.records import Int64s, Resume, UInt8s

# XA transactions.

_XID = re.compile(r"X'[0-9a-f]*'\s*,\s*X'[0-9a-f]*'\s*,\s*-?\d+", re.IGNORECASE)


class XaGroups:
    """The XA groups of one scan.

    Args:
        state: the scan's state.
        resumed_at: the scan's resume position.
        as_of: if set, yield the rows of prepared groups, as rows of the group that committed them.
    """

    def __init__(
        self, state: ScanState, resumed_at: int, as_of: RowsOfPreparedTransaction | None
    ) -> None:
        self._state = state
        self._resumed_at = resumed_at
        self._as_of = as_of
        self._prepared: dict[bytes, int] = {}

    @property
    def oldest_prepared(self) -> int | None:
        """The beginning of the oldest XA transaction that is prepared and neither committed nor
        rolled back; None: there is none.
        """
        return min(self._prepared.values(), default=None)

    def await_commit(self, xid: bytes) -> None:
        """Note that the group prepares an XA transaction: its rows wait for the commit."""
        state = self._state.slots
        self._state.xid = xid
        state[kernel.BEGUN] = 1
        if self._as_of is None:
            state[kernel.HELD] = 1
        else:
            state[kernel.RECORD_POSITION] = self._as_of.position
            state[kernel.COMMIT_TS] = self._as_of.commit_ts

    def statement(self, sql: str, words: tuple[str, ...]) -> Iterator[XaSeen]:
        """Process an XA statement with these first words."""
        verb = words[1] if len(words) > 1 else ""
        match = _XID.search(sql)
        xid = match.group().lower().replace("x'", "X'").replace(" ", "").encode() if match else b""
        if verb in ("START", "BEGIN"):
            if not xid:
                raise ValueError("xid")
            self.await_commit(xid)
        elif verb in ("COMMIT", "ROLLBACK"):
            if not xid:
                raise ValueError("xid")
            self._prepared.pop(xid, None)
            xa_state = XaState.COMMITTED if verb == "COMMIT" else XaState.ROLLED_BACK
            yield self._seen(xid, xa_state)
            self._state.close()
        elif verb != "END":
            raise self._state.fault(f"statement XA {verb} is not expected")

    def prepare(self, body: bytes) -> Iterator[XaSeen]:
        """Process an XA_PREPARE event."""
        if not self._state.xid:
            raise self._state.fault(f"XA_PREPARE event {FAULTS[kernel.OUTSIDE]}")
        xid, one_phase = parse_xa_prepare(body)
        if xid != self._state.xid:
            raise self._state.fault(
                "XA_PREPARE event does not end the XA transaction that was begun"
            )
        if self._as_of is None:
            if not one_phase:
                self._prepared[xid] = int(self._state.slots[kernel.GROUP_START])
            yield self._seen(xid, XaState.ONE_PHASE if one_phase else XaState.PREPARED)
        self._state.close()

    def _seen(self, xid: bytes, xa_state: XaState) -> XaSeen:
        state = self._state.slots
        begin = int(state[kernel.GROUP_START])
        end = int(state[kernel.FILE] | state[kernel.EVENT_END])
        durable = begin < self._resumed_at
        return XaSeen(xid, xa_state, begin, end, int(state[kernel.COMMIT_TS]), durable)

    def require_outside_xa(self, what: str) -> None:
        """Raise DecodeError if the current group's rows wait for a commit."""
        if self._state.slots[kernel.HELD]:
            raise self._state.fault(f"{what} is inside an XA transaction")


# GTIDs and statements.


class GtidSources:
    """The GTID sources of one scan.

    Attributes:
        all: the sources, by number.
        keys: uint8[..., 16], a uuid, or domain and server id, for each source.
    """

    def __init__(self, state: ScanState) -> None:
        self.all: tuple[GtidSource, ...] = ()
        self.keys: UInt8s = np.zeros((8, 16), dtype=np.uint8)
        self._state = state

    def number(self, source: GtidSource) -> int:
        """The source's number; a new source is added."""
        if source in self.all:
            return self.all.index(source)
        number = len(self.all)
        self.all = (*self.all, source)
        if number == len(self.keys):
            longer = np.zeros((2 * number, 16), dtype=np.uint8)
            longer[:number] = self.keys
            self.keys = longer
        if isinstance(source, MariaDbSource):
            key = struct.pack("<II8x", source.domain, source.server_id)
        elif source.tag:  # never matched by the kernel, which skips tagged events
            key = bytes(16)
        else:
            key = source.uuid.bytes
        self.keys[number] = np.frombuffer(key, dtype=np.uint8)
        self._state.slots[kernel.SOURCES] = number + 1
        return number


_BEGINS = re.compile(r"\bSTART\s+TRANSACTION\s*$", re.IGNORECASE)


class Groups:
    """The groups of one scan.

    Args:
        state: the scan's state.
        begin: the scan's resume position.
        tables: the tables with rows in the group.
        xa: the groups of XA transactions.

    Attributes:
        sources: the sources of transaction numbers.
        skipped: True if the current statement was processed before the scan began.
    """

    def __init__(
        self, state: ScanState, begin: Resume, tables: ScannedTables, xa: XaGroups
    ) -> None:
        self.sources = GtidSources(state)
        self.skipped = False
        self._state = state
        self._begin = begin
        self._tables = tables
        self._xa = xa

    def gtid(self, body: bytes, header: Header) -> Generator[GtidsSeen, None, bool]:
        """Process a GTID that the kernel does not: of an unknown source, tagged, or of XA."""
        state = self._state.slots
        if self._state.in_transaction:
            raise self._state.fault(f"GTID event {FAULTS[kernel.NESTED]}")
        if header.type == EventType.MARIADB_GTID:
            gtid = parse_mariadb_gtid(body, header.server_id)
        elif header.type == EventType.GTID_TAGGED:
            gtid = parse_tagged_gtid(body)
        else:
            gtid = parse_gtid(body, anonymous=header.type == EventType.ANONYMOUS_GTID)
        assert gtid.source is not None  # the kernel processes anonymous ones
        number = self.sources.number(gtid.source)
        if gtid.xid is None and header.type != EventType.GTID_TAGGED:
            return True
        self._state.open(gtid.commit_us or header.timestamp * 1_000_000)
        state[kernel.STANDALONE] = gtid.standalone
        state[kernel.BEGUN] = header.type == EventType.MARIADB_GTID and not gtid.standalone
        yield GtidsSeen(
            np.array([state[kernel.GROUP_START]], dtype=np.int64),
            np.array([gtid.number], dtype=np.int64),
            np.array([number], dtype=np.int32),
            self.sources.all,
        )
        if gtid.xid is not None and gtid.prepares:
            self._xa.await_commit(gtid.xid)
        return False

    def query(self, query: Query, header: Header) -> Iterator[QuerySeen | RolledBackSeen | XaSeen]:
        """Process a statement."""
        state = self._state.slots
        sql = query.text()
        keyword, words = first_words(sql)
        if not self._state.in_transaction:
            self._state.open(header.timestamp * 1_000_000)
        if keyword == "XA":
            yield from self._xa.statement(sql, words)
            return
        if keyword == "BEGIN" or words == ("START", "TRANSACTION"):
            if state[kernel.BEGUN] and state[kernel.NEXT_ORDINAL]:
                raise self._state.fault(f"BEGIN {FAULTS[kernel.NESTED]}")
            state[kernel.BEGUN] = 1
            return
        if keyword == "COMMIT":
            self._xa.require_outside_xa(keyword)
            self._state.close()
            return
        if keyword == "ROLLBACK":
            self._xa.require_outside_xa(keyword)
            yield from self.report_rollback()
            if "TO" not in words[1:3]:
                self._state.close()
            return
        if keyword in ("SAVEPOINT", "RELEASE"):
            return
        begins = not state[kernel.BEGUN] and _BEGINS.search(sql) is not None
        if begins:  # CREATE TABLE … SELECT of MySQL 8.0.21 and later
            state[kernel.BEGUN] = 1
        ordinal = int(state[kernel.NEXT_ORDINAL])
        here = int(state[kernel.RECORD_POSITION]), ordinal
        self.skipped = here <= self._state.last
        if keyword in ("TRUNCATE", "DELETE"):  # a DELETE of all rows is recorded as a truncate
            state[kernel.NEXT_ORDINAL] += 1
            if not self.skipped:
                state[kernel.LAST_POSITION], state[kernel.LAST_ORDINAL] = here
        alone = not state[kernel.BEGUN] and not state[kernel.HELD]
        end = int(state[kernel.FILE] | state[kernel.EVENT_END])
        begin = self._begin
        yield QuerySeen(
            database=query.database,
            sql=sql,
            position=here[0],
            ordinal=ordinal,
            end=end,
            commit_ts=int(state[kernel.COMMIT_TS]),
            keyword=keyword,
            changes_rows=changes_rows(words) or header.type == EventType.EXECUTE_LOAD_QUERY,
            alone=alone,
            # The stream begins before the acknowledged position, to read the last row's GTID again.
            durable=here <= (begin.position, begin.ordinal) or end <= begin.acknowledge,
            alter=query.status.alter,
            error_code=query.error_code,
            databases=query.status.databases,
            sql_mode=query.status.sql_mode,
            server_id=header.server_id,
            thread=query.thread,
            uses_temporary=header.uses_temporary,
        )
        if alone:
            self._state.close()

    def report_rollback(self) -> Iterator[RolledBackSeen]:
        """Report that the current group was rolled back after its rows were yielded."""
        state = self._state.slots
        tables = self._tables.changed_tables(int(state[kernel.GROUP_START]))
        ordinal = int(state[kernel.NEXT_ORDINAL])
        if tables and ordinal:
            position = int(state[kernel.RECORD_POSITION])
            yield RolledBackSeen(position, ordinal, tables, position < self._begin.position)


# Files.


class FileEvents:
    """The files of one scan.

    Args:
        state: the scan's state.
        flavor: the server that writes the log.
        tables: the scan's tables, cleared where the server started.
        groups: the scan's groups of events; a group that a file ends in was rolled back.
        shift: the difference between file numbers in positions and in names.
    """

    def __init__(
        self, state: ScanState, flavor: Flavor, tables: ScannedTables, groups: Groups, shift: int
    ) -> None:
        self._state = state
        self._flavor = flavor
        self._tables = tables
        self._groups = groups
        self._shift = shift
        self._placed = False

    def format(self, event: bytes, header: Header) -> Iterator[FormatSeen | RolledBackSeen]:
        """Process a format description: a file begins."""
        state = self._state.slots
        description = parse_format(event[HEADER_BYTES:])
        # The checksum is that of the closed file: without the flag that it is in use.
        closed = event[:17] + bytes([event[17] & 0xFE]) + event[18:]
        if description.checksum and without_checksum(closed) is closed:
            raise self._state.fault(f"format description {FAULTS[kernel.BAD_CHECKSUM]}")
        if description.binlog_version != 4:
            raise self._state.fault(f"binlog format {description.binlog_version} is not supported")
        if description.lengths[EventType.TABLE_MAP - 1 : EventType.TABLE_MAP] == b"\x06":
            raise self._state.fault("table ids of 4 bytes are not supported")
        started = description.created != 0
        if self._state.in_transaction:
            if not started:
                raise self._state.fault(f"format description {FAULTS[kernel.NESTED]}")
            # The server stopped while it wrote the group, which therefore was never committed.
            yield from self._groups.report_rollback()
            self._state.close()
        if started:
            self._tables.clear()  # table ids start again
        self._state.server_version = version_numbers(description.server_version)
        state[kernel.CHECKSUM] = description.checksum
        if not header.artificial:
            state[kernel.OFFSET] = state[kernel.EVENT_END]
        yield FormatSeen(description.server_version, bool(description.checksum), started)

    def position_event(self, body: bytes, header: Header) -> Iterator[RotateSeen]:
        """Process rotate and heartbeat events, which report the stream's position."""
        state = self._state.slots
        if header.type == EventType.ROTATE:
            name, offset = parse_rotate(body)
            file = self._file(name)
            place = file | offset
            if self._state.in_transaction and not header.artificial:
                raise self._state.fault(f"ROTATE event {FAULTS[kernel.NESTED]}")
            # Otherwise the server stopped at the file's end: the following format description shows
            # it.
            if self._placed and place < self._state.position:
                raise self._state.fault(f"ROTATE event {FAULTS[kernel.OUT_OF_ORDER]}")
            self._placed = True
            state[kernel.FILE] = file
            state[kernel.OFFSET] = offset
            yield RotateSeen(name, offset, header.artificial)
            return
        if self._state.in_transaction:
            return
        here = int(state[kernel.OFFSET])
        if header.type == EventType.HEARTBEAT_V2:
            name_of, exact = parse_heartbeat_v2(body)
            if name_of is not None and self._is_here(name_of) and exact is not None:
                state[kernel.OFFSET] = max(here, pack_position(0, exact))
        elif self._flavor is Flavor.MARIADB and not header.log_pos:
            # Beyond 4 GiB: the offset precedes the name (sql_repl.cc, send_heartbeat_event).
            fields = Fields(body)
            exact = fields.integer(8)
            if self._is_here(fields.rest().decode("utf-8")):
                state[kernel.OFFSET] = max(here, exact)
        elif self._is_here(body.decode("utf-8")):
            ahead = (header.log_pos - here) & 0xFFFFFFFF
            if header.log_pos and ahead < 1 << 31:
                state[kernel.OFFSET] = here + ahead

    def _is_here(self, name: str) -> bool:
        return self._file(name) == int(self._state.slots[kernel.FILE])

    def _file(self, name: str) -> int:
        """The position of the file's beginning."""
        _, number = parse_file_name(name)
        return pack_position(number + self._shift, 0)


# MariaDB's compressed rows events, and the events between them.

# The kernel, or their parser, needs more than the bytes of one such event.
_UNLIKE_OTHERS = frozenset(
    {
        EventType.ROTATE,
        EventType.HEARTBEAT,
        EventType.HEARTBEAT_V2,
        EventType.FORMAT_DESCRIPTION,
        EventType.TRANSACTION_PAYLOAD,
    }
)


def plain_events(
    data: UInt8s, offsets: Int64s, cursor: int, checksum: bool
) -> tuple[UInt8s, Int64s]:
    """About one batch of events from ``cursor`` on, decompressed, without checksums and back to
    back; and their offsets. Raises ValueError if the first event is torn.
    """
    parts: list[bytes] = []
    at = [0]
    while cursor < len(offsets) - 1 and at[-1] < BATCH_BYTES:
        start, end = int(offsets[cursor]), int(offsets[cursor + 1])
        event = data[start:end].tobytes()
        if len(event) < HEADER_BYTES + CHECKSUM_BYTES or event[4] in _UNLIKE_OTHERS:
            break
        if checksum:
            stored = int.from_bytes(event[-CHECKSUM_BYTES:], "little")
            event = event[:-CHECKSUM_BYTES]
            if zlib.crc32(event) != stored:
                break
        if int.from_bytes(event[9:13], "little") != end - start:
            break
        if event[4] in COMPRESSED_ROWS:
            event = inflated_rows(event)
        parts.append(event)
        at.append(at[-1] + len(event))
        cursor += 1
    if not parts:
        raise ValueError("length")
    joined = np.frombuffer(b"".join(parts), dtype=np.uint8)
    return joined, np.array(at, dtype=np.int64)
