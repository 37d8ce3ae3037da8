"""Processes events that say which file the stream is in, and at which offset."""

from __future__ import annotations

from collections.abc import Iterator

from tidelog.codecs.mysql.binlog import position as binlog_position
from tidelog.codecs.mysql.binlog.events.fields import Fields
from tidelog.codecs.mysql.binlog.events.files import parse_format, parse_heartbeat_v2, parse_rotate
from tidelog.codecs.mysql.binlog.events.header import (
    HEADER_BYTES,
    EventType,
    Header,
    without_checksum,
)
from tidelog.codecs.mysql.binlog.items import FormatSeen, RolledBackSeen, RotateSeen
from tidelog.codecs.mysql.binlog.kernels import slots as kernel
from tidelog.codecs.mysql.binlog.scan.groups import Groups
from tidelog.codecs.mysql.binlog.scan.state import FAULTS, ScanState
from tidelog.codecs.mysql.binlog.tables import ScannedTables
from tidelog.codecs.mysql.flavor import Flavor, version_numbers


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
                state[kernel.OFFSET] = max(here, binlog_position.pack(0, exact))
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
        _, number = binlog_position.file_number(name)
        return binlog_position.pack(number + self._shift, 0)
