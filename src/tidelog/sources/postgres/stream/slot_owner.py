"""Verifies that a slot serves only one event log, read through the same publications.

A capture may end the backend of another reader of its slot, and advances the slot: so the slot must
be its own. Two things show that. The walsender's ``application_name`` contains the event log's
generation while it runs, and the id of the log's copy: a directory that was copied with all its
state, and that another capture writes elsewhere, would take the slot from the first one. And a
capture stores in its own state store what it does with its slot, before it does it: an event log
without records continues with a slot only if it created that slot. (An event log with records has
an end, which `slots.check_position` compares.)

The publications' OIDs are stored too. Decoding uses a publication as it was at each change: a
publication that was dropped and recreated causes an error for changes in between (up to PostgreSQL
17), or leaves them out with a warning in the server's log (18).

Nothing is stored in the source: a standby takes no writes, and with ``snapshot`` Tidelog writes
nothing there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import psycopg

from tidelog.errors import GapError, PreflightError
from tidelog.ports import StateStore
from tidelog.sources.postgres.connect import APPLICATION, lsn_text, quote_literal

Connection = psycopg.Connection[tuple[Any, ...]]

SLOT_KEY = "source-slot"
"""The state key. Its document: ``slot``, ``log`` (the event log's generation), ``publications``
(OID by name).
"""

NEW_LOG_ADVICE = (
    "Only a new dump can get the changes in between: move the event log's directory "
    "away, drop the slot if it exists, and start again; it dumps all tables into a new log"
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
    row = connection.execute(
        b"SELECT s.active_pid, coalesce(a.application_name, ''), a.usename IS NOT DISTINCT FROM "
        b"current_user, coalesce(host(a.client_addr), 'the local socket'), "
        b"coalesce(to_char(a.backend_start AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS'), '?') "
        b"FROM pg_catalog.pg_replication_slots s "
        b"LEFT JOIN pg_catalog.pg_stat_activity a ON a.pid = s.active_pid "
        b"WHERE s.slot_name = %s AND s.active_pid IS NOT NULL",
        (slot,),
    ).fetchone()
    return None if row is None else SlotReader(*row)


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
