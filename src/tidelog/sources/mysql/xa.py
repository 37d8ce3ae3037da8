"""XA transactions: prepared in one group of the log, decided in another one.

Rows of a prepared group are held back by not being taken: only where the group stands is kept. Once
XA COMMIT comes, the group is read again over a connection of its own, and its rows are records of
the XA COMMIT's position. Until all of them are durable a restart begins before the group.
"""

from __future__ import annotations

from dataclasses import dataclass

from tidelog.errors import GapError
from tidelog.sources.mysql.log_parts import prepared, read_part
from tidelog.sources.mysql.positions import FILE_START, LogFiles
from tidelog.sources.mysql.urls import ServerUrl
from tidelog.wire.binlog_items import XaSeen, XaState
from tidelog.wire.binlog_position import pack, unpack


@dataclass(frozen=True, slots=True)
class Group:
    """A prepared group's place: ``[begin, end)``."""

    begin: int
    end: int


class PreparedGroups:
    """The groups that are prepared and not decided, as far as the stream has shown them."""

    def __init__(self) -> None:
        self._groups: dict[bytes, Group] = {}

    def clear(self) -> None:
        self._groups.clear()

    def take(self, seen: XaSeen) -> Group | None:
        """Note a group that was prepared; the group that a decision is about, if it is known."""
        if seen.state is XaState.PREPARED:
            self._groups[seen.xid] = Group(seen.begin, seen.end)
            return None
        if seen.state is XaState.ONE_PHASE:
            return Group(seen.begin, seen.end)
        return self._groups.pop(seen.xid, None)


def find_prepared(url: ServerUrl, files: LogFiles, seen: XaSeen) -> Group:
    """A group that was prepared before the stream began, looked for from the newest file backward.

    Raises GapError if the log holds it no more.
    """
    last, _ = unpack(seen.begin)
    for number in sorted((n for n in files.sizes if n <= last), reverse=True):
        begin = pack(number, FILE_START)
        end = seen.begin if number == last else pack(number, files.sizes[number])
        parts = (part for _, part in read_part(url, files, begin, end))
        found = [Group(first, last) for first, last, xid in prepared(parts) if xid == seen.xid]
        if found:
            return found[-1]
    raise GapError(
        f"the XA transaction that is committed at {files.describe(seen.begin)} was prepared before "
        "the oldest binlog that the source still has: its rows can't be had. Begin a new event log "
        "and dump the tables again"
    )
