"""Verifies the server that the log is read from: its version, its identity and its timeline."""

from __future__ import annotations

from typing import Any

import psycopg

from tidelog.errors import PreflightError, SourceChangedError
from tidelog.model.records import Resume
from tidelog.ports import SourceId
from tidelog.sources.postgres.chunks.watermarks import Strategy
from tidelog.sources.postgres.connect import lsn_text, lsn_value
from tidelog.sources.postgres.stream.replication import ReplicationStream
from tidelog.sources.postgres.stream.standby import check_standby, in_recovery

MIN_VERSION = 14

Connection = psycopg.Connection[tuple[Any, ...]]


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
    """The server and database that ``stream`` leads to.

    Raises SourceChangedError if it is not the ``expected`` one, or has lost the log up to
    ``resume``.
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
