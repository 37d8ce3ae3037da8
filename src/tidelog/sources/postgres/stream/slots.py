"""Creates the replication slot, takes it over, and checks that it still has the needed changes."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import psycopg

from tidelog.errors import GapError, PreflightError, SourceBusyError, SourceError
from tidelog.model.records import Resume
from tidelog.sources.postgres.connect import limit_lock_wait, lsn_text, lsn_value
from tidelog.sources.postgres.errors import translate_errors
from tidelog.sources.postgres.stream.failover import can_fail_over
from tidelog.sources.postgres.stream.open_transactions import log_open_transactions, who_is_open
from tidelog.sources.postgres.stream.slot_owner import NEW_LOG_ADVICE, SlotOwner, reader_of
from tidelog.sources.postgres.stream.standby import LOG_SNAPSHOT, hint_while_waiting, in_recovery

Connection = psycopg.Connection[tuple[Any, ...]]

CREATE_TIMEOUT = "120s"
TAKE_OVER_TIMEOUT_S = 30.0
LEAVE_TIMEOUT_S = 5.0

# pg_replication_slots.invalidation_reason
_LOST = {
    "wal_removed": "its WAL was removed (max_slot_wal_keep_size)",
    "rows_removed": "the primary removed catalogue rows that it needs (hot_standby_feedback was "
    "off, or the standby has no slot on the primary)",
    "wal_level_insufficient": "wal_level was lowered on the primary",
    "idle_timeout": "nothing read it for too long (idle_replication_slot_timeout)",
}


@dataclass(frozen=True, slots=True)
class SlotState:
    """A row of pg_replication_slots."""

    plugin: str
    kind: str
    database: str
    active_pid: int | None
    confirmed: int
    restart: int
    lost: str | None  # why the slot can't be used any more
    two_phase: bool
    copy: bool  # the standby copies it from its primary, and nobody can read it there
    retained_bytes: int


def find_slot(connection: Connection, slot: str) -> SlotState | None:
    """The slot's current state; None if there is no such slot."""
    row = connection.execute(
        # Columns that not all versions have are read through JSON.
        b"SELECT s.plugin, s.slot_type, s.database, s.active_pid, s.confirmed_flush_lsn::text, "
        b"s.restart_lsn::text, s.wal_status, s.two_phase, "
        b"to_jsonb(s) ->> 'invalidation_reason', coalesce(to_jsonb(s) ->> 'conflicting', 'false'), "
        b"pg_catalog.pg_is_in_recovery() AND coalesce(to_jsonb(s) ->> 'synced', 'false') = 'true', "
        b"pg_catalog.pg_wal_lsn_diff(CASE WHEN pg_catalog.pg_is_in_recovery() "
        b"THEN pg_catalog.pg_last_wal_replay_lsn() ELSE pg_catalog.pg_current_wal_lsn() END, "
        b"s.restart_lsn)::int8 "
        b"FROM pg_catalog.pg_replication_slots s WHERE s.slot_name = %s",
        (slot,),
    ).fetchone()
    if row is None:
        return None
    (
        plugin,
        kind,
        database,
        pid,
        confirmed,
        restart,
        wal_status,
        two_phase,
        reason,
        conflict,
        copy,
        size,
    ) = row
    lost: str | None = None
    if reason is not None:  # PostgreSQL 17 on
        lost = _LOST.get(reason, reason)
    elif conflict == "true" and restart is not None:
        # 16 says so of every invalid slot; only one that lost its WAL has no restart position.
        lost = f"it conflicted with recovery: {_LOST['rows_removed']}"
    elif wal_status == "lost":
        lost = _LOST["wal_removed"]
    return SlotState(
        plugin=plugin or "",
        kind=kind,
        database=database or "",
        active_pid=pid,
        confirmed=lsn_value(confirmed) if confirmed else 0,
        restart=lsn_value(restart) if restart else 0,
        lost=lost,
        two_phase=bool(two_phase),
        copy=copy,
        retained_bytes=size or 0,
    )


def create_slot(connection: Connection, slot: str, connect: Callable[[], Connection]) -> int:
    """Create a logical slot; returns the position from which it has changes.

    The server waits for every transaction that is open now, hence the time limit. A standby also
    waits until its primary logs which those are. ``connect``: opens another connection, to find
    them.
    """
    standby = in_recovery(connection)
    failover = b", failover => true" if can_fail_over(connection) else b""
    connection.execute(f"SET statement_timeout = '{CREATE_TIMEOUT}'".encode())
    # The server waits for open transactions by their locks. Nobody waits for this session then.
    connection.execute(b"SET lock_timeout = 0")
    try:
        with hint_while_waiting(slot) if standby else log_open_transactions(slot, connect):
            row = connection.execute(
                b"SELECT lsn::text FROM pg_catalog.pg_create_logical_replication_slot"
                b"(%s, 'pgoutput'" + failover + b")",
                (slot,),
            ).fetchone()
    except psycopg.errors.ObjectNotInPrerequisiteState as error:
        # The standby's own wal_level was checked before: the primary's is too low.
        raise PreflightError(
            f"slot {slot!r} could not be created: {error.diag.message_primary}; on the primary: "
            "ALTER SYSTEM SET wal_level = 'logical', then restart it"
        ) from None
    except psycopg.errors.QueryCanceled:
        if standby:
            raise SourceError(
                f"slot {slot!r} was not created within {CREATE_TIMEOUT}: the standby waits for its "
                f"primary to log what runs there. On the primary run {LOG_SNAPSHOT} while capture "
                "starts, and end transactions that stay open (xact_start in pg_stat_activity)"
            ) from None
        raise SourceError(
            f"slot {slot!r} was not created within {CREATE_TIMEOUT}: every transaction that was "
            f"open before must end first. {who_is_open(connection)}"
        ) from None
    except psycopg.errors.ConfigurationLimitExceeded:
        raise PreflightError(
            f"slot {slot!r} could not be created: all replication slots are in use. Raise "
            "max_replication_slots and restart the server, or drop slots that nothing reads"
        ) from None
    finally:
        if not connection.closed and not connection.broken:
            connection.execute(b"SET statement_timeout = 0")
            limit_lock_wait(connection)
    assert row is not None
    return lsn_value(row[0])


def drop_unread_slot(connection: Connection, slot: str, *, pause_s: float = 0.05) -> None:
    """Drop the slot, if there is one, so that it can be created again.

    Its reader is not ended, unlike in `take_over`: after a gap it may be a capture into a copy of
    this event log. Raises SourceBusyError while there is one.
    """
    deadline = time.monotonic() + LEAVE_TIMEOUT_S
    while (reader := reader_of(connection, slot)) is not None:
        if time.monotonic() > deadline:
            raise SourceBusyError(
                f"slot {slot!r} can't be recreated while it is read by {reader}: stop that, or "
                "name another slot in source.slot"
            )
        time.sleep(pause_s)
    if find_slot(connection, slot) is not None:
        connection.execute("SELECT pg_catalog.pg_drop_replication_slot(%s)", (slot,))


def check_slot(state: SlotState, slot: str, database: str) -> None:
    """Check that capture can read the slot. Raises PreflightError or GapError."""
    advice = "it is another program's, so name another one in source.slot"
    if state.kind != "logical" or state.plugin != "pgoutput":
        what = state.plugin if state.kind == "logical" else state.kind
        raise PreflightError(f"slot {slot!r} is {what}, not a pgoutput slot: {advice}")
    if state.database != database:
        raise PreflightError(
            f"slot {slot!r} belongs to database {state.database!r}, not to {database!r}: name "
            "another one in source.slot"
        )
    if state.copy:
        raise PreflightError(
            f"slot {slot!r} is the standby's copy of its primary's, which is read only once the "
            "standby is promoted: let source.url lead to the primary (of several hosts by "
            "target_session_attrs=read-write), or name another slot in source.slot"
        )
    if state.two_phase:
        raise PreflightError(
            f"slot {slot!r} was created with two_phase, which is not read: {advice}"
        )
    if state.lost is not None:
        raise GapError(
            f"slot {slot!r} is invalid: {state.lost}; the source no longer has the changes after "
            f"{lsn_text(state.confirmed)}. {NEW_LOG_ADVICE}"
        )


def check_position(state: SlotState, slot: str, resume: Resume) -> None:
    """Raise GapError if the slot's confirmed position is after ``resume``: the server silently
    skips everything before it.
    """
    if state.confirmed > resume.acknowledge:
        raise GapError(
            f"the event log ends at {lsn_text(resume.acknowledge)}, but slot {slot!r} gives "
            f"changes only from {lsn_text(state.confirmed)} on: it was recreated, or something "
            f"else read it, or the event log lost its end. {NEW_LOG_ADVICE}"
        )


def missing_slot(slot: str, resume: Resume, promoted: bool) -> GapError:
    """The error for a missing slot that an event log needs.

    ``promoted``: the server was a standby when the event log was written.
    """
    why = (
        " on the server that was promoted: it was not copied there (docs/how-to/source-failover.md)"
        if promoted
        else " any more"
    )
    return GapError(
        f"slot {slot!r} does not exist{why}; the event log ends at "
        f"{lsn_text(resume.acknowledge)} and nothing kept the changes after it. {NEW_LOG_ADVICE}"
    )


def take_over(
    connection: Connection, slot: str, owner: SlotOwner, *, pause_s: float = 0.05
) -> None:
    """Make sure that nobody reads the slot.

    A capture into the same event log that still reads it is frozen or ending, because only the
    leader gets here: its backend is ended.

    Raises:
        SourceError: another program reads it.
        PreflightError: a capture into another event log reads it.
    """
    deadline = time.monotonic() + TAKE_OVER_TIMEOUT_S
    while (reader := reader_of(connection, slot)) is not None:
        if not reader.is_capture or not reader.same_user:
            raise SourceError(
                f"slot {slot!r} is being read by {reader}: stop that, or name another slot in "
                "source.slot"
            )
        owner.require(reader)
        if time.monotonic() > deadline:
            raise SourceError(
                f"slot {slot!r} is still held by process {reader.pid} of the server, which did not "
                f"end within {TAKE_OVER_TIMEOUT_S:.0f} s"
            )
        with translate_errors(f"ending the previous reader of slot {slot!r}"):
            connection.execute("SELECT pg_catalog.pg_terminate_backend(%s)", (reader.pid,))
        time.sleep(pause_s)
