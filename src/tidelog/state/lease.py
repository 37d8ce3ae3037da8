"""A lease in a document: an election over any store that compares and sets.

No two hosts' clocks are compared. The holder counts its time from before it asks for a renewal;
another takes over once *it* has seen the same version for as long as the lease lasts. So the
holder's deadline, which is a fifth earlier, always comes first, whatever the clocks say; only their
rates must agree to a fifth.
"""

from __future__ import annotations

import json
import secrets
import threading
import time
from contextlib import suppress
from typing import Any, Final

from tidelog.errors import LeaseLostError, StateConflictError
from tidelog.ports import Document, Lease, StateStore
from tidelog.state.lease_polling import MOST, LeasePolling
from tidelog.system.processes import has_ended, this_process

MARGIN: Final = 0.2
"""The last part of a lease: its holder no longer acts, and nobody else begins."""

_SLACK_S: Final = 2.0
_LOOKED_S: Final = 0.5
"""A look that is due is made and answered within this time."""
ON_WATCH_S: Final = 0.1
"""Between two looks at a lease that is about to be given back,"""
_WATCH_S: Final = 10.0
"""for so long at most, beyond the time for which its holder leads on."""
_NOBODY: Final[dict[str, Any]] = {"holder": None, "process": {}}


class LeaseElection:
    """`tidelog.ports.Election` over a `tidelog.ports.StateStore`.

    One that starts while a lease runs waits its whole length, as it can't know when it was renewed;
    but a holder that ended on the same host is succeeded at once.
    """

    def __init__(
        self,
        documents: StateStore,
        name: str,
        holder: str,
        ttl_s: float,
        *,
        first_epoch: int = 1,
        look_every_s: float = 0.0,
    ) -> None:
        """Args:
        documents: of elections alone; it is closed with this.
        name: what is led.
        holder: for people; instances with equal holders still exclude each other.
        ttl_s: how long a lease lasts without renewal; the holder acts for four fifths of it.
        first_epoch: epochs start here or above.
        look_every_s: while another leads, the store is asked about so often at least, and as
            seldom as `LeasePolling` says, however often `acquire` is called; that a holder on this
            host ended is seen without asking. 0: at each call.
        """
        self._documents = documents
        self.name = name
        self.holder = holder
        self.ttl_s = ttl_s
        self._instance = secrets.token_hex(8)
        self._process = this_process()
        self._lock = threading.Lock()
        # Also above what this process has seen of a store that was wiped since.
        self._next_epoch = first_epoch
        self._version = self._written = 0  # the epoch of that version
        self._unsure = False
        self._look_every_s = look_every_s
        self._looks = LeasePolling(look_every_s)
        self._look_at = 0.0
        self._found = dict(_NOBODY)
        self._seen: tuple[str, float] = ("", 0.0)
        self._held_s = ttl_s
        self._renewed = False
        self._leaving = False
        self._left: tuple[tuple[str, int], float] = (("", 0), 0.0)

    @property
    def on_watch(self) -> bool:
        """Is the lease that `acquire` found about to be given back?"""
        return time.monotonic() < self._left[1]

    @property
    def patience_s(self) -> float:
        """How long the lease that `acquire` found may still run if it is not renewed; 0: it was
        renewed.
        """
        return 0.0 if self._renewed else self._held_s + 3 * self._look_every_s + _SLACK_S

    def acquire(self) -> Lease | None:
        with self._lock:
            asked = time.monotonic()
            if asked < self._look_at and not has_ended(self._found["process"]):
                return None
            found, seen = self._look(), self._seen[1]
            if found is not None and self._held(found):
                self._look_at = self._next_look(asked, found.value, self._seen[1] != seen)
                self._found = found.value
                return None
            self._look_at, self._found = 0.0, dict(_NOBODY)
            epoch = self._next_epoch
            begun = time.monotonic()
            unsure, self._unsure = self._unsure, True
            try:
                self._write(epoch, found.version if found else 0)
            except StateConflictError:
                self._unsure = unsure  # an earlier attempt of ours may have come late
                return None
            self._unsure = self._leaving = False
            self._next_epoch = epoch + 1
            self._found = {**_NOBODY, "holder": self.holder}
            return self._lease(epoch, begun)

    def renew(self, lease: Lease) -> Lease:
        with self._lock:
            begun = time.monotonic()
            try:
                self._write(lease.epoch, self._version)
            except StateConflictError:
                found = self._look()
                if found is None or not self._ours(found, lease):
                    raise self._lost(lease, found) from None
                try:  # an earlier renewal was made after all
                    self._write(lease.epoch, found.version)
                except StateConflictError:
                    raise self._lost(lease, self._look()) from None
            return self._lease(lease.epoch, begun)

    def announce(self, lease: Lease) -> float:
        """Say that the lease is about to be given back; after how many seconds all that stand by
        have seen it, and look often.
        """
        if not self._look_every_s:
            return 0.0
        self._leaving = True
        self.renew(lease)
        return self._look_every_s + _LOOKED_S

    def release(self, lease: Lease) -> None:
        """Let others take over at once; the epoch is kept. Does nothing if the lease is lost."""
        with self._lock:
            self._found = dict(_NOBODY)
            if self._written == lease.epoch:
                with suppress(StateConflictError):
                    self._write(lease.epoch, self._version, **_NOBODY)
                    return
            found = self._look()  # a renewal that got no answer was made after all
            if found is None or not self._ours(found, lease):
                return
            with suppress(StateConflictError):
                self._write(lease.epoch, found.version, **_NOBODY)

    def leader(self) -> str | None:
        """Whom the document names, for people: of a lease that ran out by the wall clock nobody."""
        found = self._documents.get(self.name)
        if found is None or found.value["holder"] is None or has_ended(found.value["process"]):
            return None
        return str(found.value["holder"]) if found.value["until"] > time.time() else None

    def seen_leader(self) -> str | None:
        """Who has the lease, as `acquire` found it; without a look."""
        holder: str | None = self._found.get("holder")
        return holder

    def close(self) -> None:
        self._documents.close()

    def _next_look(self, asked: float, value: dict[str, Any], written: bool) -> float:
        """When to look again at a lease that another has."""
        if not self._look_every_s:
            return 0.0
        now = time.monotonic()
        if self._is_left(value):
            return now + ON_WATCH_S
        known = self._found.get("epoch")
        planned = self._looks.next(
            asked,
            now,
            renewed=written and known is not None,
            same_leader=known == value["epoch"],
            ttl_s=self._held_s,
        )
        return min(planned, self._seen[1] + self._held_s)

    def _look(self) -> Document | None:
        found = self._documents.get(self.name)
        if found is not None:
            self._next_epoch = max(self._next_epoch, found.value["epoch"] + 1)
        return found

    def _held(self, found: Document) -> bool:
        """May somebody act under it still?"""
        value = found.value
        if value["holder"] is None or has_ended(value["process"]):
            return False
        if value["instance"] == self._instance and self._unsure:
            return False  # our own, of an attempt that got no answer
        content = json.dumps([found.version, value], sort_keys=True)
        now = time.monotonic()
        # The holder's length, not ours: it may be configured otherwise.
        self._held_s = float(value["ttl_s"])
        if self._seen[0] != content:
            self._renewed = self._seen[0] != ""
            self._seen = (content, now)
        return now < self._seen[1] + self._held_s

    def _is_left(self, value: dict[str, Any]) -> bool:
        """Will its holder give it back soon? One that said so is watched for a while only."""
        if not value.get("leaving"):
            return False
        told = (value["instance"], value["epoch"])
        if self._left[0] != told:
            self._left = (told, time.monotonic() + self._held_s * MOST + _WATCH_S)
        return self.on_watch

    def _ours(self, found: Document, lease: Lease) -> bool:
        same = found.value["instance"] == self._instance and found.value["epoch"] == lease.epoch
        return same and found.value["holder"] is not None

    def _write(self, epoch: int, version: int, **other: Any) -> None:
        value: dict[str, Any] = {
            "holder": self.holder,
            "instance": self._instance,
            "process": self._process,
            "epoch": epoch,
            "ttl_s": self.ttl_s,
            "until": time.time() + self.ttl_s,
        }
        if self._leaving:
            value["leaving"] = True
        self._version = self._documents.put(self.name, value | other, version)
        self._written = epoch

    def _lease(self, epoch: int, begun: float) -> Lease:
        return Lease(self.holder, epoch, begun + self.ttl_s * (1 - MARGIN))

    def _lost(self, lease: Lease, found: Document | None) -> LeaseLostError:
        if found is None:
            why = "the state store has forgotten it"
        else:
            why = f"it expired and {found.value['holder'] or 'another'} took over"
        return LeaseLostError(
            f"the lease {self.name!r} of epoch {lease.epoch} is not ours any more: {why}. Restart "
            "from the event log's tail."
        )
