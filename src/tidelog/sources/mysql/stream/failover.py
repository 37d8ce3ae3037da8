"""Identifies the server, and resumes capture on a promoted replica after the source's failover.

Positions are valid in one server's binlog only. GTIDs are valid on all: the transactions of the
event log are searched in the promoted server's binlog, and capture resumes at the first transaction
after them. That server's file numbers are shifted, so that positions grow (`ServerPin.shift`).

MySQL servers have a uuid. MariaDB's ``server_uid`` is built from the network card's address and the
port, so it changes when a container is recreated. For MariaDB the ``server_id`` identifies the
server, and the creation times of binlog files show that its log was reset.
"""

from __future__ import annotations

import contextlib
import logging
import struct
from dataclasses import replace

import numpy as np

from tidelog.codecs.mysql.binlog.events import HEADER_BYTES, EventType
from tidelog.codecs.mysql.binlog.items import GtidsSeen, position_text, unpack_position
from tidelog.codecs.mysql.flavor import Flavor
from tidelog.codecs.mysql.server_urls import ServerUrl
from tidelog.errors import ConnectionLostError, GapError, LogResetError, SourceChangedError
from tidelog.model.records import Resume
from tidelog.ports import SourceId
from tidelog.sources.mysql.connect import Connection
from tidelog.sources.mysql.errors import translate_errors
from tidelog.sources.mysql.stream.gtids import (
    Gtids,
    GtidSet,
    MariaDbGtids,
    contained,
    difference,
    executed_before_file,
    gtids_of,
    parse,
    read_gtids,
    union_of,
)
from tidelog.sources.mysql.stream.positions import FILE_START, RESET, LogFiles, has_gtids
from tidelog.sources.mysql.stream.replication import BinlogStream

logger = logging.getLogger(__name__)

NEW_LOG_ADVICE = "start a new event log and dump the tables again"
RESET_ADVICE = "run `tidelog reset CONFIG`, which has the tables dumped again"
NEW_LOG_OR_SETTING = f"{RESET_ADVICE}, or set source.snapshot: when_needed"
_MOST_NAMED = 300
"""Maximum length of GTIDs in a message, in characters."""
_MOST_STRANGE = 20


def file_shift(files: LogFiles, last: Resume) -> int:
    """The number to add to the server's file numbers so that all are after a position of the event
    log. ``files``: the files with the server's own numbers.
    """
    newest = max(unpack_position(last.acknowledge)[0], unpack_position(last.position)[0])
    return max(0, newest + 1 - unpack_position(files.first)[0])


def find_resume_position(
    connection: Connection,
    url: ServerUrl,
    files: LogFiles,
    end: int,
    last: Resume,
    before: SourceId,
    found: SourceId,
) -> Resume:
    """The position in another server's binlog at which the event log resumes.

    Args:
        connection: a connection to the new server.
        url: the new server.
        files: its binlog's files, shifted.
        end: its binlog's end.
        last: the end of the event log, as a position of the former server.
        before: the former server.
        found: the new server.

    Raises:
        SourceChangedError: transactions of the event log are missing there, or there are no GTIDs
            to compare.
        ConnectionLostError: it is a replica that has yet to receive transactions of the event log.
        GapError: it purged the following transactions, or has other transactions among those of the
            event log.
    """
    flavor = connection.flavor
    servers = f"{before.member} and {found.member}"
    with translate_errors("reading executed GTIDs"):
        if before.kind != found.kind or not last.executed or not has_gtids(connection):
            raise SourceChangedError(_not_comparable(before, found))
        held = parse(flavor, last.executed)
        begun = parse(flavor, last.begun)
        lacks = difference(
            union_of(held, begun), _executed_gtids(connection, union_of(held, begun))
        )
        receives = bool(lacks) and bool(connection.value("SELECT @@GLOBAL.read_only"))
    if receives:
        raise ConnectionLostError(
            f"source.url leads to another server ({servers}), which is read-only and has "
            f"not yet received transactions that the event log holds: {_shorten(lacks)}. Capture "
            "continues there once it has received them"
        )
    if lacks:
        raise SourceChangedError(
            f"source.url leads to another server ({servers}), which lacks transactions that the "
            f"event log holds: {_shorten(lacks)}. It is not a replica of the former one, or was "
            "promoted before it had received all: the source has lost them, while outputs may hold "
            f"them. Correct source.url, or {NEW_LOG_ADVICE}"
        )
    place, first = _first_uncaptured(url, files, end, held, flavor)
    if begun and first != str(begun):
        raise _errant_error(first, last.begun)
    logger.warning(
        "the source is another server (%s): capture continues at %s, after all transactions "
        "that the event log holds",
        servers,
        files.describe(place),
    )
    if begun:  # its durable records are read again, and skipped
        return Resume(place, place, last.ordinal, last.executed, last.begun)
    return replace(last, acknowledge=place)


def _executed_gtids(connection: Connection, asked: Gtids) -> Gtids:
    """The transactions that the server has executed, at least those among ``asked``."""
    if isinstance(asked, GtidSet):
        text = connection.value("SELECT @@GLOBAL.gtid_executed")
        return GtidSet.parse(str(text))
    row = connection.row("SELECT @@GLOBAL.gtid_binlog_state, @@GLOBAL.gtid_slave_pos")
    assert row is not None
    logged, received = (MariaDbGtids.parse(str(text or "")) for text in row)
    # Received before its binlog began: the server reports only the last number of a domain.
    domains = {source.domain: number for source, number in received.last.items()}
    elder = {
        source: number
        for source, number in asked.last.items()
        if source not in logged.last and number <= domains.get(source.domain, 0)
    }
    return logged.union(MariaDbGtids(elder))


def _first_uncaptured(
    url: ServerUrl, files: LogFiles, end: int, held: Gtids, flavor: Flavor
) -> tuple[int, str]:
    """The first transaction that is not in the event log: its position and its GTID. The GTID is
    empty if there is none yet; the position is then the log's end. Raises GapError.
    """
    number, known = _file_to_read(url, files, held, flavor)
    behind: tuple[int, str] | None = None
    strange: list[str] = []
    for item in read_gtids(url, files, files.begin(number), end, flavor):
        if not isinstance(item, GtidsSeen):
            continue
        captured = contained(held, item)
        others = np.flatnonzero(~captured).tolist()
        if len(strange) < _MOST_STRANGE:
            strange += [item.text(index) for index in others[:_MOST_STRANGE]]
        first = 0
        if behind is None:
            first = others[0] if others else len(item)
            if others:
                behind = int(item.position[first]), item.text(first)
        late = np.flatnonzero(captured[first:])
        if len(late):
            raise _errant_error(", ".join(strange), item.text(first + int(late[-1])))
        known = union_of(known, gtids_of(item, flavor))
        if behind is not None and not difference(held, known):
            return behind
    return behind or (end, "")


def _file_to_read(
    url: ServerUrl, files: LogFiles, held: Gtids, flavor: Flavor
) -> tuple[int, Gtids]:
    """The newest file before which only captured transactions ran, and these transactions."""
    before: Gtids | None = None
    for number in reversed(files.sizes):
        before = executed_before_file(url, files, number, flavor)
        if before is not None and not difference(before, held):
            return number, before
    lost = "" if before is None else f": {_shorten(difference(before, held))}"
    raise GapError(
        f"the server that source.url leads to now has purged transactions that were not captured "
        f"yet{lost}. Keep binlogs for longer (binlog_expire_logs_seconds), then "
        f"{NEW_LOG_OR_SETTING}"
    )


def _errant_error(strange: str, held: str) -> GapError:
    return GapError(
        "source.url leads to another server, and its binlog has transactions before some that "
        f"the event log holds, where the former server had none: {strange[:_MOST_NAMED]} "
        f"before {held}. They are errant transactions, written on the replica itself, or it "
        "commits in another order (replica_preserve_commit_order is OFF). What they changed is not "
        f"in the event log: {NEW_LOG_OR_SETTING}"
    )


def _not_comparable(before: SourceId, found: SourceId) -> str:
    return (
        f"the event log holds {before.kind} server {before.member}, but source.url "
        f"leads to {found.kind} server {found.member}, whose binlog has positions "
        "of its own, and there are no GTIDs to compare (gtid_mode is not ON, or an earlier version "
        f"wrote the event log's end): correct source.url, or {NEW_LOG_ADVICE}. Before a "
        "replica that was promoted is captured, compare its executed GTIDs with those of the old "
        "server: what only the old one had is lost"
    )


def _shorten(gtids: Gtids) -> str:
    text = str(gtids)
    return text if len(text) <= _MOST_NAMED else f"{text[:_MOST_NAMED]}…"


def identify(connection: Connection, expected: SourceId | None = None) -> SourceId:
    """The server's id.

    It has the system of ``expected``, the source that the event log was captured from, if the
    server is of the same kind. Whether it has the same data is not checked. Raises PyMySQL's
    errors.
    """
    if connection.flavor is Flavor.MYSQL:
        server = str(connection.value("SELECT @@GLOBAL.server_uuid"))
    else:
        server = f"server-id-{connection.value('SELECT @@GLOBAL.server_id')}"
    kind = connection.flavor.value
    if expected is None or expected.kind != kind:
        return SourceId(kind, server, database="", timeline=0)
    named = "" if server == expected.system else server
    return replace(expected, server=named)


def check_log(
    files: LogFiles,
    resume: Resume | None,
    end: int,
) -> None:
    """Raise unless the server's log continues where ``resume`` ends.

    Raises:
        LogResetError: the server's log was reset.
        GapError: what follows ``resume`` was purged.
    """
    if resume is None:
        return
    number, offset = unpack_position(resume.acknowledge)
    known = f"the event log ends at {position_text(resume.acknowledge)}"
    if resume.acknowledge > end:
        raise LogResetError(
            f"{known}, beyond the end of the source's binlog at {files.describe(end)}: its binlog "
            f"was reset ({RESET}), or the server was restored from a backup; {RESET_ADVICE}"
        )
    if offset > files.sizes.get(number, offset):
        raise LogResetError(
            f"{known}, but the source's binlog file {files.name(number)} ends before that, at "
            f"{files.sizes[number]}, and later files follow it: the server was restored to an "
            "earlier state (a copy of its data directory, a snapshot of its disk), or lost the "
            "end of the file in a crash (sync_binlog is not 1), and has written more since. The "
            f"event log may no longer match the source's history: {RESET_ADVICE}"
        )
    if number not in files.sizes:
        raise GapError(
            f"{known}, but the source's binlog begins at {files.describe(files.first)}: what is "
            "in between was purged before it was captured. Keep binlogs for longer "
            f"(binlog_expire_logs_seconds), then {NEW_LOG_OR_SETTING}"
        )


def check_same(source: SourceId, expected: SourceId) -> None:
    """Raise SourceChangedError if they are not the same server."""
    if source.kind != expected.kind or source.member != expected.member:
        raise SourceChangedError(
            f"the event log ends with {expected.kind} server {expected.member}, but source.url "
            f"leads to {source.kind} server {source.member}: correct source.url, or wait until "
            "capture continues there"
        )


def log_recreated_error(name: str) -> LogResetError:
    """The error for a log file that is not the one that was read before."""
    return LogResetError(
        f"binlog file {name} was recreated since it was read: the source's binlog was reset "
        f"({RESET}), or the server was restored from a backup; {RESET_ADVICE}"
    )


def file_created(url: ServerUrl, files: LogFiles, number: int) -> int:
    """The creation time of a log file in seconds since 1970, from its format description event."""
    stream = BinlogStream(url, None, purpose="log-part", buffer_bytes=1 << 16)
    with contextlib.closing(stream):
        stream.start(files.name(number), FILE_START, wait=False)
        for _ in range(10):
            received = stream.receive(5.0)
            if received is None:
                continue
            for begin in received.offsets[:-1].tolist():
                header = received.data[begin : begin + HEADER_BYTES].tobytes()
                if header[4] == EventType.FORMAT_DESCRIPTION:
                    (created,) = struct.unpack_from("<I", header)
                    return int(created)
    raise ConnectionLostError(f"the server did not send the beginning of {files.name(number)}")
