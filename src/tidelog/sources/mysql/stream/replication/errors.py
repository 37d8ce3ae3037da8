"""What it means that the server does not send its log."""

from __future__ import annotations

import re

from tidelog.errors import GapError, PreflightError, SourceError, TidelogError
from tidelog.sources.mysql.errors import BINLOG_FATAL, server_error

_LOST_SERVER = re.compile(r"same server_uuid|same server_id|server_uuid/server_id", re.IGNORECASE)
_PURGED = re.compile(
    r"could not find first log file|purged|not find .* binlog|Could not open log file"
    r"|Could not find GTID state|not in the master's binlog|has been purged|missing transactions"
    r"|log purge|impossible position|position > file size",
    re.IGNORECASE,
)


def refusal(doing: str, server_id: int, number: int, message: str) -> TidelogError:
    """What an error of the server means to whoever asked it for its log.

    Args:
        doing: what was asked for.
        server_id: ours.
        number: the error's.
        message: its text.
    """
    if number in (1045, 1227):
        return PreflightError(
            f"{doing}: the user lacks REPLICATION SLAVE: GRANT REPLICATION SLAVE ON *.* TO <user>"
        )
    if _LOST_SERVER.search(message):
        return SourceError(
            f"{doing}: another replica with the server_id {server_id} has "
            "connected, and the server keeps only one of them: give each capture (and each "
            "replica) its own source.server_id"
        )
    if number != BINLOG_FATAL:
        return server_error(number, message, doing)
    said = message.strip().splitlines()[0] if message.strip() else "no reason was given"
    if _PURGED.search(message):
        return GapError(
            f"{doing}: the source no longer has this part of its binlog ({said}). Keep "
            "binlogs for longer (binlog_expire_logs_seconds), then begin a new event log and "
            "dump the tables again, or set source.snapshot: when_needed"
        )
    if re.search(r"truncated in the middle of event", message, re.IGNORECASE):
        return GapError(
            f"{doing}: the binlog file ends in the midst of an event ({said}): the "
            "server, or its disk, failed while it wrote it, and it sends nothing of what "
            "follows in the next file. Begin a new event log, which dumps the tables again, or "
            "set source.snapshot: when_needed, which does so by itself"
        )
    if re.search(r"slave is not configured|checksum|log_bin|not open", message, re.IGNORECASE):
        return PreflightError(f"{doing}: {said}")
    if re.search(r"GTID_MODE", message):
        return PreflightError(f"{doing}: {said}")
    return SourceError(f"{doing}: {said} (error {number})")
