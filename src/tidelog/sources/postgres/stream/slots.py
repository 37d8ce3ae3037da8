"""Creates the replication slot, takes it over, and checks that it still has the needed changes.

A slot serves only one event log, read through the same publications. A capture may end the backend
of another reader of its slot, and advances the slot: so the slot must be its own. Two things show
that. The walsender's ``application_name`` contains the event log's generation while it runs, and
the id of the log's copy: a directory that was copied with all its state, and that another capture
writes elsewhere, would take the slot from the first one. And a capture stores in its own state
store what it does with its slot, before it does it: an event log without records continues with a
slot only if it created that slot. (An event log with records has an end, which `check_position`
compares.)

The publications' OIDs are stored too. Decoding uses a publication as it was at each change: a
publication that was dropped and recreated causes an error for changes in between (up to PostgreSQL
17), or leaves them out with a warning in the server's log (18).

Nothing is stored in the source: a standby takes no writes, and with ``snapshot`` Tidelog writes
nothing there.

The slot is prepared for a failover of the source, when a physical standby is promoted and capture
continues there. PostgreSQL 17 and later copy a logical slot to the standbys if it has the property
``failover`` (manual, "Logical Replication Failover"). So the slot gets it wherever possible.
Earlier versions lose the slot with the server.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg import pq

from tidelog.codecs.postgres.pgoutput import lsn_text
from tidelog.errors import (
    ConnectionLostError,
    GapError,
    PreflightError,
    SourceBusyError,
    SourceError,
    TidelogError,
)
from tidelog.model.records import Resume
from tidelog.model.schema import double_quoted
from tidelog.ports import SourceId, StateStore
from tidelog.sources.postgres import async_results
from tidelog.sources.postgres.connect import (
    APPLICATION,
    Connection,
    connect_replication,
    limit_lock_wait,
    lsn_value,
    quote_literal,
)
from tidelog.sources.postgres.encodings import encoded
from tidelog.sources.postgres.errors import translate_errors
from tidelog.sources.postgres.stream.standby import (
    LOG_SNAPSHOT,
    hint_while_waiting,
    in_recovery,
    log_open_transactions,
    who_is_open,
)

logger = logging.getLogger(__name__)

# The slot's owner.


SLOT_KEY = "source-slot"
"""The state key. Its document: ``slot``, ``log`` (the event log's generation), ``publications``
(OID by name).
"""

NEW_LOG_ADVICE = (
    "Only a new dump can get the changes in between: `tidelog reset CONFIG` shows what is lost "
    "and asks; then start again"
)

_NAME_BYTES = 63  # NAMEDATALEN - 1, also of application_name
_LOG = "-log-"


def purpose_of(slot: str, generation: str | None, copy: str = "") -> str:
    """The part after ``tidelog-`` in the walsender's application_name. A slot's name has only ASCII
    letters.
    """
    if generation is None:
        return slot
    rest = f"{_LOG}{generation}" + (f".{copy}" if copy else "")
    return slot[: _NAME_BYTES - len(APPLICATION) - 1 - len(rest)] + rest


@dataclass(frozen=True, slots=True)
class SlotReader:
    """The current reader of a slot: a process of the server and what is known of its client."""

    pid: int
    application: str
    same_user: bool
    client: str
    since: str

    @property
    def is_capture(self) -> bool:
        """Return True if its name is that of a Tidelog capture."""
        return self.application.startswith(f"{APPLICATION}-")

    @property
    def generation(self) -> str | None:
        """The generation of the event log that it reads for; None if its name has none, as in early
        versions.
        """
        before, found, log = self.application.rpartition(_LOG)
        return log.partition(".")[0] if found and before else None

    @property
    def copy(self) -> str:
        """The copy id of that event log; empty if its name has none."""
        return self.application.rpartition(_LOG)[2].partition(".")[2]

    def __str__(self) -> str:
        return (
            f"{self.application or 'an unnamed program'!r} (process {self.pid} of the server, "
            f"from {self.client}, since {self.since} UTC)"
        )


def reader_of(connection: Connection, slot: str) -> SlotReader | None:
    """The slot's reader; None if there is none."""
    deadline = time.monotonic() + LEAVE_TIMEOUT_S
    while True:
        row = connection.execute(
            b"SELECT a.pid IS NOT NULL, s.active_pid, coalesce(a.application_name, ''), "
            b"a.usename IS NOT DISTINCT FROM current_user, "
            b"coalesce(host(a.client_addr), 'the local socket'), "
            b"coalesce(to_char(a.backend_start AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS'), '?') "
            b"FROM pg_catalog.pg_replication_slots s "
            b"LEFT JOIN pg_catalog.pg_stat_activity a ON a.pid = s.active_pid "
            b"WHERE s.slot_name = %s AND s.active_pid IS NOT NULL",
            (slot,),
        ).fetchone()
        if row is None:
            return None
        # The server reads its slots, then its processes: between the two the reader ended.
        if row[0] or time.monotonic() > deadline:
            return SlotReader(*row[1:])
        time.sleep(_POLL_S)


def publications_of(connection: Connection, names: Sequence[str]) -> dict[str, int]:
    """The OIDs of the existing publications."""
    rows: list[tuple[str, int]] = connection.execute(
        b"SELECT pubname, oid::int8 FROM pg_catalog.pg_publication WHERE pubname = ANY (%s)",
        (list(names),),
    ).fetchall()
    return dict(rows)


class SlotOwner:
    """The event log that the slot is read for, and what it stored about the slot.

    Args:
        slot: the slot's name.
        state: the store of the note; None: this object, for its lifetime.
    """

    def __init__(self, slot: str, state: StateStore | None = None) -> None:
        self._slot = slot
        self._state = state
        self._note: dict[str, Any] = {}
        self.generation: str | None = None
        self.copy = ""
        """The copy id of the event log."""

    @property
    def purpose(self) -> str:
        return purpose_of(self._slot, self.generation, self.copy)

    def claim(self) -> None:
        """Store that the slot is about to be created for this event log."""
        self._put({"slot": self._slot, "log": self.generation})

    @property
    def claimed(self) -> bool:
        """True if the slot was created for this event log."""
        note = self._get()
        return note.get("slot") == self._slot and note.get("log") == self.generation

    def note_publications(self, connection: Connection, names: Sequence[str]) -> None:
        """Store the publications that the slot is read through from now on."""
        note = {"slot": self._slot, "log": self.generation}
        found = publications_of(connection, names)
        if (noted := {**note, "publications": found}) != self._get():
            self._put(noted)

    def check_publications(
        self, connection: Connection, names: Sequence[str], reached: int
    ) -> None:
        """Check that the publications are those that the slot was always read through.

        Args:
            connection: a connection to the database.
            names: the configured publications.
            reached: the end of the event log, for the message.

        Raises GapError.
        """
        noted: dict[str, int] = self._get().get("publications", {}) if self.claimed else {}
        found = publications_of(connection, names)
        for name in names:
            if name not in found:
                what = f"publication {name!r} does not exist any more"
            elif noted and name not in noted:
                what = (
                    f"publication {name!r} is not one that slot {self._slot!r} was read through "
                    f"until now ({', '.join(noted)}: see source.publication)"
                )
            elif noted and noted[name] != found[name]:
                what = f"publication {name!r} was dropped and recreated"
            else:
                continue
            raise GapError(
                f"{what}; the event log holds changes up to {lsn_text(reached)}, and those after "
                f"it that were written without this publication are not decoded. {NEW_LOG_ADVICE}"
            )

    def require(self, reader: SlotReader | None) -> None:
        """Check by its reader that the slot does not serve another event log or another copy of it.
        Raises PreflightError.
        """
        if reader is None or not reader.is_capture or self.generation is None:
            return
        if reader.generation not in (None, self.generation):
            raise PreflightError(
                f"slot {self._slot!r} is read by {reader} into another event log, "
                f"{reader.generation}; ours is {self.generation}. That capture was not disturbed: "
                "set source.slot and source.publication to names that no other capture has"
            )
        if reader.copy and self.copy and reader.copy != self.copy:
            raise PreflightError(
                f"slot {self._slot!r} is read by {reader} into another copy of this event log: a "
                "slot serves one of them. That capture was not disturbed, and this copy is of no "
                "use any more. For a capture of your own start a new event log, with a slot and a "
                "publication (source.slot, source.publication) that no other capture has. If the "
                "event log was moved here, stop the capture that still runs where it was"
            )

    def refuse_new(self, reader: SlotReader | None) -> PreflightError:
        """The error for a slot that exists although this event log is new."""
        own = (
            "Give this capture a slot of its own: set source.slot and source.publication to names "
            "that no other capture has"
        )
        drop = f"SELECT pg_drop_replication_slot({quote_literal(self._slot).strip()})"
        if reader is not None:
            return PreflightError(
                f"slot {self._slot!r} is read by {reader}, and this event log is new: another "
                f"capture needs the slot, and was not disturbed. {own}. If this event log is to "
                f"take the other one's place, stop that capture and drop its slot: {drop}"
            )
        return PreflightError(
            f"slot {self._slot!r} exists already, and this event log is new: another event log, "
            f"whose capture does not run, may need what the slot keeps. {own}. If nothing needs "
            f"it any more, drop it, and it is created again: {drop}"
        )

    def _get(self) -> dict[str, Any]:
        if self._state is None:
            return self._note
        document = self._state.get(SLOT_KEY)
        return {} if document is None else dict(document.value)

    def _put(self, note: dict[str, Any]) -> None:
        if self._state is None:
            self._note = note
        else:
            self._state.put(SLOT_KEY, note, None)


# Failover.

FAILOVER_MIN_VERSION = 17


def can_fail_over(connection: Connection) -> bool:
    """Return True if a new slot can have ``failover``: not a slot of a standby's own."""
    return connection.info.server_version >= FAILOVER_MIN_VERSION * 10_000 and not in_recovery(
        connection
    )


def prepare_failover(connection: Connection, dsn: str, slot: str) -> None:
    """Set the slot's property ``failover`` if it was created without it. The slot must have no
    reader.
    """
    if not can_fail_over(connection):
        return
    _warn_of_idle_standbys(connection)
    row = connection.execute(
        "SELECT failover FROM pg_catalog.pg_replication_slots WHERE slot_name = %s", (slot,)
    ).fetchone()
    if row is None or row[0]:
        return
    try:
        _set_failover(dsn, slot)
    except TidelogError as error:
        logger.warning("slot %r will be lost if a standby is promoted: %s", slot, error)
    else:
        logger.info("slot %r is now copied to standbys (failover)", slot)


def _warn_of_idle_standbys(connection: Connection) -> None:
    """Warn of standby slots without a reader: the server sends logical slots only what these slots
    have received.
    """
    rows = connection.execute(
        "SELECT name FROM unnest(string_to_array("
        "replace(current_setting('synchronized_standby_slots'), ' ', ''), ',')) name "
        "WHERE name <> '' AND NOT EXISTS (SELECT FROM pg_catalog.pg_replication_slots "
        "WHERE slot_name = trim(both '\"' from name) AND active)"
    ).fetchall()
    for (name,) in rows:
        logger.warning(
            "synchronized_standby_slots names %s, which has no reader: the server sends "
            "capture nothing until it has one. Take it out of the list "
            "(docs/how-to/source-failover.md)",
            name,
        )


def check_same_timeline(reported: SourceId | None, found: SourceId) -> None:
    """Check that the server still has the timeline reported before, under which captured changes
    are recorded. Raises ConnectionLostError: another server was promoted in between.
    """
    if reported is not None and reported.timeline != found.timeline:
        raise ConnectionLostError(
            f"the source went from timeline {reported.timeline} to {found.timeline} while capture "
            "started: a standby was promoted; it is tried again"
        )


def _set_failover(dsn: str, slot: str) -> None:
    """Set the property with a walsender's command: SQL can't change a slot."""
    pgconn = connect_replication(dsn, purpose="capture")
    try:
        command = f"ALTER_REPLICATION_SLOT {double_quoted(slot)} (FAILOVER true)"
        result = async_results.run_command(pgconn, encoded(pgconn, command))
        if result.status != pq.ExecStatus.COMMAND_OK:
            message = result.error_field(pq.DiagnosticField.MESSAGE_PRIMARY) or b"connection lost"
            raise TidelogError(f"the server refuses: {message.decode(errors='replace')}")
    except psycopg.Error as error:
        raise ConnectionLostError(f"the replication connection was lost: {error}") from None
    finally:
        pgconn.finish()


# The slot.

CREATE_TIMEOUT = "120s"
TAKE_OVER_TIMEOUT_S = 30.0
LEAVE_TIMEOUT_S = 5.0
_POLL_S = 0.05

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


def drop_unread_slot(connection: Connection, slot: str) -> None:
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
        time.sleep(_POLL_S)
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
    """The error for a missing slot that an event log needs. ``promoted``: the server was a standby
    when the event log was written.
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


def take_over(connection: Connection, slot: str, owner: SlotOwner) -> None:
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
        time.sleep(_POLL_S)
