"""Finds where transactions begin and end, by GTIDs and statements.

The kernel processes most groups of events; this module the others.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Generator, Iterator

import numpy as np

from tidelog.codecs.mysql.binlog.events.gtids import (
    parse_gtid,
    parse_mariadb_gtid,
    parse_tagged_gtid,
)
from tidelog.codecs.mysql.binlog.events.header import EventType, Header
from tidelog.codecs.mysql.binlog.events.statements import Query, changes_rows, first_words
from tidelog.codecs.mysql.binlog.items import (
    GtidSource,
    GtidsSeen,
    MariaDbSource,
    QuerySeen,
    RolledBackSeen,
    XaSeen,
)
from tidelog.codecs.mysql.binlog.kernels import slots as kernel
from tidelog.codecs.mysql.binlog.scan.state import FAULTS, ScanState
from tidelog.codecs.mysql.binlog.scan.xa_groups import XaGroups
from tidelog.codecs.mysql.binlog.tables import ScannedTables
from tidelog.model.records import Resume, UInt8s


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
