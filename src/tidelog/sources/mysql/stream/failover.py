"""The source's own failover: a replica is promoted, and capture goes on there.

Positions are of one server's binlog. GTIDs hold on all: what the event log has by then is looked
for in the promoted server's binlog, and the first transaction behind it is where the log goes on.
The numbers of that server's files are shifted, so that positions grow (`ServerPin.shift`).
"""

from __future__ import annotations

import logging
from dataclasses import replace

import numpy as np

from tidelog.codecs.mysql.binlog.items import GtidsSeen
from tidelog.codecs.mysql.binlog.position import unpack
from tidelog.codecs.mysql.flavor import Flavor
from tidelog.errors import ConnectionLostError, GapError, SourceChangedError
from tidelog.model.mysql_urls import ServerUrl
from tidelog.model.records import Resume
from tidelog.ports import SourceId
from tidelog.sources.mysql.connect import Connection
from tidelog.sources.mysql.errors import translated
from tidelog.sources.mysql.stream.gtids import (
    Gtids,
    GtidSet,
    MariaDbGtids,
    before_file,
    inside,
    joined,
    named,
    parse,
    read_gtids,
    without,
)
from tidelog.sources.mysql.stream.positions import LogFiles, has_gtids

logger = logging.getLogger(__name__)

ANEW = "begin a new event log and dump the tables again"
AGAIN = f"{ANEW}, or set source.snapshot: when_needed"
_MOST_NAMED = 300
"""Letters of GTIDs in a message."""
_MOST_STRANGE = 20


def shift_behind(files: LogFiles, last: Resume) -> int:
    """What has to be added to the files' numbers, so that all lie behind a place of the event log.
    ``files``: as the server numbers them.
    """
    newest = max(unpack(last.acknowledge)[0], unpack(last.position)[0])
    return max(0, newest + 1 - unpack(files.first)[0])


def place_on(
    connection: Connection,
    url: ServerUrl,
    files: LogFiles,
    end: int,
    last: Resume,
    before: SourceId,
    found: SourceId,
) -> Resume:
    """Where another server's binlog goes on behind what the event log holds.

    Args:
        connection: to the server.
        url: of it.
        files: of its binlog, shifted.
        end: of its binlog.
        last: where the event log ends, by the binlog of the server before.
        before: that server.
        found: this one.

    Raises:
        SourceChangedError: it lacks what the event log holds, or there are no GTIDs to compare.
        ConnectionLostError: it is a replica that has yet to receive what the event log holds.
        GapError: it purged what follows, or has other transactions in the midst of what the event
            log holds.
    """
    flavor = connection.flavor
    servers = f"{before.member} and {found.member}"
    with translated("asking for executed GTIDs"):
        if before.kind != found.kind or not last.executed or not has_gtids(connection):
            raise SourceChangedError(_not_comparable(before, found))
        held = parse(flavor, last.executed)
        begun = parse(flavor, last.begun)
        lacks = without(joined(held, begun), _executed_there(connection, joined(held, begun)))
        receives = bool(lacks) and bool(connection.value("SELECT @@GLOBAL.read_only"))
    if receives:
        raise ConnectionLostError(
            f"source.url leads to another server ({servers}), which is read-only and lacks "
            f"transactions that the event log holds as yet: {_short(lacks)}. Capture goes on there "
            "once it has received them"
        )
    if lacks:
        raise SourceChangedError(
            f"source.url leads to another server ({servers}), which lacks transactions that the "
            f"event log holds: {_short(lacks)}. It is not a replica of the former one, or was "
            "promoted before it had received all: what outputs hold of these is lost in the "
            f"source. Correct source.url, or {ANEW}"
        )
    place, first = _first_behind(url, files, end, held, flavor)
    if begun and first != str(begun):
        raise _amid(first, last.begun)
    logger.warning(
        "the source is another server (%s): the log goes on at %s, behind all transactions that "
        "the event log holds",
        servers,
        files.describe(place),
    )
    if begun:  # its records that are durable already are read again, and skipped
        return Resume(place, place, last.ordinal, last.executed, last.begun)
    return replace(last, acknowledge=place)


def _executed_there(connection: Connection, asked: Gtids) -> Gtids:
    """What the server has executed of these, or more."""
    if isinstance(asked, GtidSet):
        text = connection.value("SELECT @@GLOBAL.gtid_executed")
        return GtidSet.parse(str(text))
    row = connection.row("SELECT @@GLOBAL.gtid_binlog_state, @@GLOBAL.gtid_slave_pos")
    assert row is not None
    logged, received = (MariaDbGtids.parse(str(text or "")) for text in row)
    # What it received before its binlog began: of a domain, the last of all servers alone is told.
    domains = {source.domain: number for source, number in received.last.items()}
    elder = {
        source: number
        for source, number in asked.last.items()
        if source not in logged.last and number <= domains.get(source.domain, 0)
    }
    return logged.union(MariaDbGtids(elder))


def _first_behind(
    url: ServerUrl, files: LogFiles, end: int, held: Gtids, flavor: Flavor
) -> tuple[int, str]:
    """The first transaction that is not held: where it begins, and its GTID (empty: there is none
    yet, and the place is the log's end). Raises GapError.
    """
    number, known = _file_to_read(url, files, held, flavor)
    behind: tuple[int, str] | None = None
    strange: list[str] = []
    for item in read_gtids(url, files, files.begin(number), end, flavor):
        if not isinstance(item, GtidsSeen):
            continue
        captured = inside(held, item)
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
            raise _amid(", ".join(strange), item.text(first + int(late[-1])))
        known = joined(known, named(item, flavor))
        if behind is not None and not without(held, known):
            return behind
    return behind or (end, "")


def _file_to_read(
    url: ServerUrl, files: LogFiles, held: Gtids, flavor: Flavor
) -> tuple[int, Gtids]:
    """The newest file before which nothing was executed that is not held, and what was."""
    before: Gtids | None = None
    for number in reversed(files.sizes):
        before = before_file(url, files, number, flavor)
        if before is not None and not without(before, held):
            return number, before
    lost = "" if before is None else f": {_short(without(before, held))}"
    raise GapError(
        f"the server that source.url leads to now has purged transactions that were not captured "
        f"yet{lost}. Keep binlogs for longer (binlog_expire_logs_seconds), then {AGAIN}"
    )


def _amid(strange: str, held: str) -> GapError:
    return GapError(
        "source.url leads to another server, and in its binlog transactions stand before some that "
        f"the event log holds, which the former server did not have there: {strange[:_MOST_NAMED]} "
        f"before {held}. They are errant transactions, written on the replica itself, or it "
        "commits in another order (replica_preserve_commit_order is OFF). What they changed is not "
        f"in the event log: {AGAIN}"
    )


def _not_comparable(before: SourceId, found: SourceId) -> str:
    return (
        f"the event log holds {before.kind} server {before.member}, but source.url "
        f"leads to {found.kind} server {found.member}, whose binlog has positions "
        "of its own, and there are no GTIDs to compare (gtid_mode is not ON, or an earlier version "
        f"wrote the event log's end): correct source.url, or {ANEW}. Before a replica that was "
        "promoted is captured, compare its executed GTIDs with those of the old server: what only "
        "the old one had is lost"
    )


def _short(gtids: Gtids) -> str:
    text = str(gtids)
    return text if len(text) <= _MOST_NAMED else f"{text[:_MOST_NAMED]}…"
