"""Who captures, and who delivers: elections in the state store, held against the event log."""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable
from typing import Any

from tidelog.app.instances import PREFIX, of_pipeline, standbys
from tidelog.app.log_location import log_place
from tidelog.capture.generation import STATUS_KEY
from tidelog.capture.leadership import POLL_EVERY_S
from tidelog.config import Config
from tidelog.errors import StateError, TidelogError, UsageError
from tidelog.eventlog.consumers import Consumers
from tidelog.eventlog.reader import EventLog
from tidelog.ports import Election, Lease, StateStore
from tidelog.state.lease_polling import MOST
from tidelog.state.opening import open_election, sparing

LEASE_NAME = "capture"
HANDOVER_KEY = "handover"
PATIENCE_S = 10.0


class LedElsewhereError(UsageError):
    """Another process leads what a command wants for itself."""


def pipeline_lease(name: str) -> str:
    """What the lease of the pipeline of this name is called."""
    return f"pipeline-{name}"


def handover_key(lease: str) -> str:
    """The key of the document that names the next leader."""
    return HANDOVER_KEY if lease == LEASE_NAME else f"{HANDOVER_KEY}-{lease}"


def leave_to(
    state: StateStore, lease: str, standby_prefix: str, leader: str, to: str | None
) -> str:
    """Have the lease left by ``leader`` to ``to`` (None: to any other): the id of this handover.

    Raises UsageError: it leads already, or it, or anybody, does not stand by.
    """
    found = [one["holder"] for one in standbys(state, standby_prefix)]
    if not found:
        what = "capture" if lease == LEASE_NAME else "process of the pipeline"
        raise UsageError(f"no {what} stands by: nobody would take over")
    if to == leader:
        raise UsageError(f"{to} leads already; {', '.join(found)} stands by")
    if to is not None and to not in found:
        raise UsageError(f"{to} does not stand by; {', '.join(found)} does")
    handover = secrets.token_hex(8)
    state.put(handover_key(lease), {"id": handover, "from": leader, "to": to}, None)
    return handover


class LogElection:
    """`tidelog.ports.Election` whose epochs are above all that the event log knows of.

    A state store that was wiped, or restored from a backup, counts from anew. The log knows better.
    It is asked each time a lease is won.
    """

    def __init__(
        self,
        config: Config,
        name: str,
        holder: str,
        newest_epoch: Callable[[], int],
        handicap_s: float = 0.0,
        *,
        state: StateStore | None,
        standby_prefix: str,
    ) -> None:
        """Args:
        config: of the capture or the pipeline.
        name: what is led.
        holder: who this is.
        newest_epoch: the greatest that the event log knows of.
        handicap_s: so long others go before us.
        state: where handovers are, and who stands by; it stays open. None: nobody is told of.
        standby_prefix: of the documents of those that stand by.
        """
        self._config = config
        self._name = name
        self._holder = holder
        self._newest_epoch = newest_epoch
        self._election = self._open(1)
        self._handicap_s = handicap_s
        # As often as it is asked for where each look is paid for.
        self._look_every_s = config.renewal_s[0] * MOST if sparing(config.state.place) else 0.0
        self._look_at = 0.0
        self._free_since: float | None = None
        self._state = state
        self._standby_prefix = standby_prefix
        self._not_before = 0.0
        self._handing_over = False
        self._seen_handover = ""

    @property
    def patience_s(self) -> float:
        """See `acquired`."""
        return _patience_s(self._election, 0.0)

    def acquire(self) -> Lease | None:
        if self._handing_over:  # the lease was lost before it was given back
            self._let_others_go_first()
        if time.monotonic() < self._not_before and not self._has_gone_first():
            return None
        if self._handicap_s and not self._is_our_turn():
            return None
        lease = self._election.acquire()
        if lease is None:
            return None
        try:
            if not self._is_meant():
                self._election.release(lease)
                return None
            newest = self._newest_epoch()
        except TidelogError:
            self._election.release(lease)
            raise
        if lease.epoch > newest:
            return lease
        self._election.release(lease)
        below, self._election = self._election, self._open(newest + 1)
        below.close()
        return self._election.acquire()

    @property
    def on_watch(self) -> bool:
        """Is the lease about to be given back by who has it?"""
        return bool(getattr(self._election, "on_watch", False))

    def announce(self, lease: Lease) -> float:
        """See `tidelog.state.lease.LeaseElection.announce`; 0: nobody has to be told."""
        if not self._look_every_s or not self._are_others():
            return 0.0
        announce = getattr(self._election, "announce", None)
        return 0.0 if announce is None else float(announce(lease))

    def renew(self, lease: Lease) -> Lease:
        return self._election.renew(lease)

    def release(self, lease: Lease) -> None:
        try:
            self._election.release(lease)
        finally:
            if self._handing_over:
                self._let_others_go_first()

    def hand_over(self, to: str | None) -> None:
        """Before the lease is released: leave it to ``to`` (None: to any other) for a while.

        Raises UsageError: it, or anybody, does not stand by.
        """
        assert self._state is not None
        self._seen_handover = leave_to(
            self._state, self._name, self._standby_prefix, self._holder, to
        )
        self._handing_over = True

    def handover_requested(self) -> bool:
        """Has somebody asked the leader, us, that another lead (`leave_to`)? Others go first, once
        the lease is released.
        """
        given = self._handover()
        if given is None or given["from"] != self._holder or given["id"] == self._seen_handover:
            return False
        self._seen_handover = given["id"]
        self._handing_over = True
        return True

    def leader(self) -> str | None:
        return self._election.leader()

    def seen_leader(self) -> str | None:
        """Who led when `acquire` last looked, without another look where looks are paid for."""
        seen: Callable[[], str | None] | None = getattr(self._election, "seen_leader", None)
        return self.leader() if seen is None or not self._look_every_s else seen()

    def close(self) -> None:
        self._election.close()

    def _are_others(self) -> bool:
        """Does anybody stand by?"""
        return self._state is not None and bool(standbys(self._state, self._standby_prefix))

    def _let_others_go_first(self) -> None:
        """From now on: to end what we led may have taken as long as others have patience."""
        self._handing_over = False
        self._not_before = time.monotonic() + PATIENCE_S

    def _has_gone_first(self) -> bool:
        """Does another process lead by now? Then nobody has to be let go first."""
        if not self._is_time_to_look():
            return False
        if self._election.leader() in (None, self._holder):
            return False
        self._not_before = 0.0
        return True

    def _is_time_to_look(self) -> bool:
        now = time.monotonic()
        if now < self._look_at:
            return False
        self._look_at = now + self._look_every_s
        return True

    def _is_meant(self) -> bool:
        """By a handover, once the lease is ours; one that is not taken up for a while counts no
        more.
        """
        given = self._handover()
        if self._state is None or given is None:
            return True
        ours = given["to"] in (None, self._holder) and given["from"] != self._holder
        if not ours and self._seen_handover != given["id"]:
            self._seen_handover = given["id"]
            self._not_before = time.monotonic() + PATIENCE_S
            return False
        self._state.delete(handover_key(self._name))
        return True

    def _is_named(self) -> bool:
        """Are we to lead by name?"""
        given = self._handover()
        return given is not None and given["to"] == self._holder

    def _handover(self) -> dict[str, Any] | None:
        found = None if self._state is None else self._state.get(handover_key(self._name))
        return None if found is None else found.value

    def _is_our_turn(self) -> bool:
        """Has the lease been free for as long as preferred zones have priority, or is it left to us
        by name?
        """
        now = time.monotonic()
        if not self._is_time_to_look():
            return False
        if self._election.leader() is not None:
            self._free_since = None
            return True  # the lease decides: by hosts' clocks it may seem to last
        self._free_since = self._free_since or now
        if now - self._free_since >= self._handicap_s:
            return True
        return self._is_named()

    def _open(self, first_epoch: int) -> Election:
        return open_election(
            self._config.state.place,
            self._name,
            self._holder,
            self._config.renewal_s[0],
            first_epoch=first_epoch,
        )


class CaptureElection(LogElection):
    """Who captures. The event log's chain has the fence of every leader."""

    def __init__(
        self,
        config: Config,
        holder: str,
        handicap_s: float = 0.0,
        state: StateStore | None = None,
        *,
        newest_epoch: Callable[[], int] | None = None,
    ) -> None:
        """``newest_epoch``: the greatest that the event log's chain knows of; None: it is asked."""
        super().__init__(
            config,
            LEASE_NAME,
            holder,
            newest_epoch or (lambda: _newest_fence(config)),
            handicap_s,
            state=state,
            standby_prefix=PREFIX,
        )


class PipelineElection(LogElection):
    """Who delivers a pipeline. What the log notes of those who read it has their epochs."""

    def __init__(
        self,
        config: Config,
        holder: str,
        state: StateStore | None = None,
        *,
        waits: bool = True,
    ) -> None:
        """``waits``: those of preferred zones go before us."""
        name = config.pipeline.name
        super().__init__(
            config,
            pipeline_lease(name),
            holder,
            lambda: _newest_reader(config),
            config.capture.handicap_s if waits else 0.0,
            state=state,
            standby_prefix=of_pipeline(name),
        )


def acquired(
    election: Election,
    untold_s: float = 0.0,
    where: str = "",
    what: str = "a capture",
    remedy: str = "stop it, and those that stand by, first",
    stop: threading.Event | None = None,
) -> Lease:
    """The lease, for a command that must be alone. A lease that is not renewed is waited for:
    nothing else shows that its holder was killed on another host.

    Args:
        election: may have a ``patience_s``, for how long the lease that it found may still run.
        untold_s: that of one which does not say.
        where: for people.
        what: leads, for people.
        remedy: what they do then.
        stop: nobody waits any more.

    Raises:
        LedElsewhereError: one leads, or ``stop`` was set.
    """
    begun = time.monotonic()
    stop = stop or threading.Event()
    while (lease := election.acquire()) is None:
        waited = time.monotonic() >= begun + _patience_s(election, untold_s)
        if waited or stop.wait(POLL_EVERY_S):
            leader = election.leader() or "unknown"
            raise LedElsewhereError(f"{what} leads{where} ({leader}): {remedy}")
    return lease


def _patience_s(election: Election, untold_s: float) -> float:
    return float(getattr(election, "patience_s", untold_s))


def _newest_fence(config: Config) -> int:
    path = log_place(config)
    newest = EventLog.open(path).newest() if EventLog.exists(path) else None
    return 0 if newest is None else newest.epoch


def _newest_reader(config: Config) -> int:
    path = log_place(config)
    if not EventLog.exists(path):
        return 0
    # All pipelines count: one may have a new name, and its destinations compare epochs.
    found = Consumers(EventLog.open(path).storage).all()
    return max((each.epoch for each in found), default=0)


def leader_of(election: LogElection) -> str | None:
    """Who leads, as `acquire` saw; None if nobody does, or the state store can't say."""
    try:
        return election.seen_leader()
    except StateError:
        return None


def leader_url(state: StateStore, election: Election) -> str | None:
    """Where the HTTP interface of who leads is, if it told."""
    try:
        document = state.get(STATUS_KEY)
        if document is None or document.value.get("holder") != election.leader():
            return None
    except StateError:
        return None
    url: str | None = document.value.get("url")
    return url
