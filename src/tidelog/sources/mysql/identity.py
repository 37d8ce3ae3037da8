"""Identifies the server, and verifies that it is the one that the event log was captured from.

MySQL servers have a uuid. MariaDB's ``server_uid`` is built from the network card's address and the
port, so it changes when a container is recreated. For MariaDB the ``server_id`` identifies the
server, and the creation times of binlog files show that its log was reset.
"""

from __future__ import annotations

import contextlib
import struct
from dataclasses import replace

from tidelog.codecs.mysql.binlog.events import HEADER_BYTES, EventType
from tidelog.codecs.mysql.binlog.items import position_text, unpack_position
from tidelog.codecs.mysql.flavor import Flavor
from tidelog.codecs.mysql.server_urls import ServerUrl
from tidelog.errors import (
    ConnectionLostError,
    GapError,
    SourceChangedError,
)
from tidelog.model.records import Resume
from tidelog.ports import SourceId
from tidelog.sources.mysql.connect import Connection
from tidelog.sources.mysql.stream.failover import NEW_LOG_ADVICE, NEW_LOG_OR_SETTING
from tidelog.sources.mysql.stream.positions import FILE_START, RESET, LogFiles
from tidelog.sources.mysql.stream.replication import BinlogStream


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
        SourceChangedError: the server's log was reset.
        GapError: what follows ``resume`` was purged.
    """
    if resume is None:
        return
    number, offset = unpack_position(resume.acknowledge)
    known = f"the event log ends at {position_text(resume.acknowledge)}"
    if resume.acknowledge > end:
        raise SourceChangedError(
            f"{known}, beyond the end of the source's binlog at {files.describe(end)}: its binlog "
            f"was reset ({RESET}), or the server was restored from a backup; {NEW_LOG_ADVICE}"
        )
    if offset > files.sizes.get(number, offset):
        raise SourceChangedError(
            f"{known}, but the source's binlog file {files.name(number)} ends before that, at "
            f"{files.sizes[number]}, and later files follow it: the server was restored to an "
            "earlier state (a copy of its data directory, a snapshot of its disk), or lost the "
            "end of the file in a crash (sync_binlog is not 1), and has written more since. The "
            f"event log may no longer match the source's history: {NEW_LOG_ADVICE}"
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


def log_recreated_error(name: str) -> SourceChangedError:
    """The error for a log file that is not the one that was read before."""
    return SourceChangedError(
        f"binlog file {name} was recreated since it was read: the source's binlog was reset "
        f"({RESET}), or the server was restored from a backup; {NEW_LOG_ADVICE}"
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
