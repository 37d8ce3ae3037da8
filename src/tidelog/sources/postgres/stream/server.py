"""Verifies the server that the log is read from: its version, identity, timeline and history.

The history must be the one that the event log was captured from. A server whose disk was restored
to an earlier state has the same system identifier and timeline. Once it has written past our
position, its control data does not show that. But its slot went back with it: it sends again what
was acknowledged since. (After a crash a slot goes back too, since the server writes it only from
time to time; then the history is unchanged.) So what the slot would send a second time is compared
with the event log's content of that part:

- the last transaction with records must be there, with its id and its commit time to the
  microsecond: then all before it is there too;
- the last record that was counted, of any table, must be at the same position;
- after that there must be nothing: it would have been counted.

A slot that did not go back was acknowledged up to the event log's end: then the restored disk
contains everything that the event log has.
"""

from __future__ import annotations

import struct
from typing import Any

import numpy as np

from tidelog.codecs.postgres.pgoutput import lsn_text
from tidelog.errors import PreflightError, SourceChangedError
from tidelog.model.records import Int64s, Resume, UInt8s
from tidelog.ports import LastTransaction, SourceId
from tidelog.sources.postgres.chunks.watermarks import Strategy
from tidelog.sources.postgres.connect import Connection, lsn_value
from tidelog.sources.postgres.stream.replication import EPOCH_2000_S, ReplicationStream
from tidelog.sources.postgres.stream.standby import check_standby, in_recovery

MIN_VERSION = 14


def check_server(sql: Connection, strategy: Strategy) -> None:
    """Raise PreflightError if the server can't be captured from."""
    if sql.info.server_version < MIN_VERSION * 10_000:
        raise PreflightError(
            f"PostgreSQL {sql.info.server_version // 10_000} is too old: {MIN_VERSION} or "
            "newer is needed"
        )
    level = one_value(sql, "SELECT pg_catalog.current_setting('wal_level')")
    if level != "logical":
        raise PreflightError(
            f"wal_level is {level}: ALTER SYSTEM SET wal_level = 'logical', then restart the server"
        )
    if in_recovery(sql):
        check_standby(sql, strategy)


def identify(
    stream: ReplicationStream, resume: Resume | None, expected: SourceId | None
) -> SourceId:
    """The server and database that ``stream`` leads to. Raises SourceChangedError if it is not the
    ``expected`` one, or has lost the log up to ``resume``.
    """
    found = stream.identify()
    source = SourceId("postgres", found.system, found.database, found.timeline)
    if expected is not None:
        check_database(source, expected)
        if resume is not None and expected.timeline not in (0, source.timeline):
            _check_timeline(stream, expected.timeline, source.timeline, resume)
    if resume is not None and resume.acknowledge > found.flushed:
        beyond = (
            f"the event log ends at {lsn_text(resume.acknowledge)}, beyond the end of the "
            f"source's own log at {lsn_text(found.flushed)}: "
        )
        if stream.in_recovery():
            raise SourceChangedError(
                f"{beyond}source.url leads to a standby that is behind the server which was "
                "captured. Wait until it has replayed so much, or correct source.url"
            )
        raise SourceChangedError(
            f"{beyond}the server was restored from a backup. Start a new event log and dump the "
            "tables again"
        )
    return source


def check_database(source: SourceId, expected: SourceId) -> None:
    """Raise SourceChangedError if they are not the same database of the same system."""
    if (expected.system, expected.database) != (source.system, source.database):
        raise SourceChangedError(
            f"the event log holds database {expected.database!r} of system "
            f"{expected.system}, but source.url leads to {source.database!r} of system "
            f"{source.system}: correct source.url, or start a new event log"
        )


def check_same(stream: ReplicationStream, expected: SourceId) -> None:
    """Raise SourceChangedError if ``stream`` leads to another database than the ``expected`` one,
    or to a server with an older timeline after a failover.
    """
    # A replication stream, because SQL shows a standby's timeline only after its next restartpoint.
    found = stream.identify()
    check_database(SourceId("postgres", found.system, found.database), expected)
    if found.timeline < expected.timeline:
        raise _timeline_error(
            stream, found.timeline, f"the event log holds timeline {expected.timeline}"
        )


def _timeline_error(stream: ReplicationStream, theirs: int, ours: str) -> SourceChangedError:
    where = f"the source is on timeline {theirs}, and {ours}: source.url leads to a "
    if stream.in_recovery():
        return SourceChangedError(
            f"{where}standby that has not reached the failover that started the newer timeline: it "
            "is behind, or follows a former primary. Wait until it has replayed it, let it follow "
            "the new primary, or correct source.url"
        )
    return SourceChangedError(
        f"{where}former primary, which another server has replaced. Correct source.url, and "
        "let applications write to the new one only"
    )


def _check_timeline(stream: ReplicationStream, ours: int, theirs: int, resume: Resume) -> None:
    """Accept a promotion only if it happened after all captured changes."""
    ours_to = max(resume.acknowledge, resume.position)
    where = f"the event log holds timeline {ours} up to {lsn_text(ours_to)}"
    if theirs < ours:
        # It has no history of later timelines, and would report that as missing WAL.
        raise _timeline_error(stream, theirs, where)
    forked: int | None = None
    for line in stream.timeline_history(theirs).splitlines():
        fields = line.split()
        if len(fields) >= 2 and fields[0] == str(ours):
            forked = lsn_value(fields[1])
    # A commit's record begins at its position: the server has it if the fork came after it.
    if forked is not None and forked >= resume.acknowledge and forked > resume.position:
        return
    begun = "does not come from it" if forked is None else f"already left it at {lsn_text(forked)}"
    raise SourceChangedError(
        f"the source is on timeline {theirs}, which {begun}; {where}: the standby that was "
        "promoted had not received all that was captured, so the event log and the outputs hold "
        "changes that the source lost in the failover. Start a new event log and dump the tables "
        "again; docs/how-to/source-failover.md says how to prevent it"
    )


def one_value(connection: Connection, query: str) -> Any:
    """The value of a query with one row and one column."""
    row = connection.execute(query.encode()).fetchone()
    assert row is not None
    return row[0]


# History.

_BEGIN, _MESSAGE = ord("B"), ord("M")
_ROWS = np.frombuffer(b"IUDTM", np.uint8)
_COUNTED_TAGS = np.frombuffer(b"BIUDTM", np.uint8)


def check_history(
    stream: ReplicationStream,
    slot: str,
    publications: list[str],
    confirmed: int,
    resume: Resume,
    last: LastTransaction | None,
) -> None:
    """Read once more what the slot sends up to ``resume``, and compare it. Close the stream
    afterwards.

    Args:
        stream: a separate connection that is not started.
        slot: a slot without a reader.
        publications: the publications that were always used.
        confirmed: the position from which the slot sends changes.
        resume: the end of the event log.
        last: the newest transaction with records in the event log.

    Raises SourceChangedError.
    """
    check = TimelineCheck(confirmed, resume, last)
    stream.start(slot, confirmed, publications)
    while not check.ended:
        received = stream.receive(1.0)
        if received is None:
            continue
        check.feed(received.data, received.offsets)
        if received.sent_up_to is not None and received.sent_up_to >= check.upto:
            check.end()


class TimelineCheck:
    """Compares pgoutput's messages from ``confirmed`` on. Arguments as `check_history`'s."""

    def __init__(self, confirmed: int, resume: Resume, last: LastTransaction | None) -> None:
        self._confirmed = confirmed
        self._resume = resume
        self._last = last if last is not None and last.position > confirmed else None
        self._position = resume.position if resume.position > confirmed else 0
        self._transaction = 0  # the commit position of the open transaction
        # A commit's record begins at its position.
        self.upto = max(resume.acknowledge, self._position + 1)
        self.ended = False

    def feed(self, data: UInt8s, offsets: Int64s) -> None:
        """Compare messages back to back, as `ReplicationStream.receive` returns them."""
        tags = data[offsets[:-1]]
        known = self._transaction <= self._resume.position
        # Rows of known transactions are skipped together, however many there are.
        relevant = (
            np.isin(tags, _COUNTED_TAGS) if not known else (tags == _BEGIN) | (tags == _MESSAGE)
        )
        for i in np.flatnonzero(relevant).tolist():
            start, end = int(offsets[i]), int(offsets[i + 1])
            if self.ended:
                return
            if tags[i] == _BEGIN:
                position, time_us, xid = struct.unpack_from("!qqI", data[start:end].tobytes(), 1)
                self._begin(position, time_us + EPOCH_2000_S * 1_000_000, xid)
                if known and position > self._resume.position:
                    # From here on rows count.
                    self.feed(data, offsets[i + 1 :])
                    return
            elif tags[i] == _MESSAGE:
                flags, position = struct.unpack_from("!Bq", data[start:end].tobytes(), 1)
                if not flags & 1:
                    self._message(position)
                elif not known:
                    self._unexpected(self._transaction)
            else:
                self._unexpected(self._transaction)

    def end(self) -> None:
        """Finish: nothing else precedes `upto`."""
        if self._last is not None:
            self._missing(f"transaction {self._last.xid} at {lsn_text(self._last.position)}")
        if self._position:
            self._missing(f"a record at {lsn_text(self._position)}")
        self.ended = True

    def _begin(self, position: int, commit_ts: int, xid: int) -> None:
        self._transaction = position
        last = self._last
        if last is not None and position >= last.position:
            if (position, commit_ts, xid) != (last.position, last.commit_ts, last.xid & 0xFFFFFFFF):
                self._missing(f"transaction {last.xid} at {lsn_text(last.position)}")
            self._last = None
        self._note_position(position)

    def _message(self, position: int) -> None:
        """Process a logical message outside of transactions."""
        self._note_position(position)
        if not self.ended and position > self._resume.position:
            self._unexpected(position)

    def _note_position(self, position: int) -> None:
        if self._position and position >= self._position:
            if position > self._position:
                self._missing(f"a record at {lsn_text(self._position)}")
            self._position = 0
        if position >= max(self._resume.acknowledge, self._resume.position):
            self.end()

    def _unexpected(self, position: int) -> None:
        raise SourceChangedError(
            f"the source has changes at {lsn_text(position)}, where there was nothing when the "
            f"event log passed it. {self._advice()}"
        )

    def _missing(self, what: str) -> None:
        raise SourceChangedError(
            f"the event log holds {what}, and the source has something else there. {self._advice()}"
        )

    def _advice(self) -> str:
        return (
            f"The source's history after {lsn_text(self._confirmed)} differs from the one that "
            f"was captured up to {lsn_text(self._resume.acknowledge)}, though server and timeline "
            "are the same: its disk was restored to an earlier state (a snapshot, a copied data "
            "directory) and written to since. Correct source.url, or start again: move the event "
            "log's directory away, drop the slot, and start capture; it dumps all tables into a "
            "new log"
        )
