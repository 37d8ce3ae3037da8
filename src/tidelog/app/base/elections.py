"""Elects the capture leader and the pipeline leader with leases in the state store, and copies a
state store to another one while no capture runs.

Each new lease gets an epoch above every epoch that the event log records.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable
from typing import Any

from tidelog.app.base.instances import PREFIX, pipeline_prefix, standbys
from tidelog.app.base.log_location import event_log_path
from tidelog.capture.leadership import POLL_EVERY_S
from tidelog.capture.session.start import STATUS_KEY
from tidelog.config import Config
from tidelog.errors import AnotherLeaderError, StateError, TidelogError, UsageError
from tidelog.eventlog.consumers import Consumers
from tidelog.eventlog.reader import EventLog
from tidelog.ports import Election, Lease, PolledElection, StateStore
from tidelog.state.lease_polling import POLL_SHARE
from tidelog.state.opening import open_election, pays_per_request

LEASE_NAME = "capture"
HANDOVER_KEY = "handover"
PATIENCE_S = 10.0


def pipeline_lease_name(name: str) -> str:
    """Return the name of this pipeline's lease."""
    return f"pipeline-{name}"


def handover_key(lease: str) -> str:
    """Return the key of the document that names the next leader."""
    return HANDOVER_KEY if lease == LEASE_NAME else f"{HANDOVER_KEY}-{lease}"


def request_handover(
    state: StateStore, lease: str, standby_prefix: str, leader: str, to: str | None
) -> str:
    """Request that ``leader`` hands the lease over to ``to`` (None: to any standby).

    Returns the id of the handover. Raises UsageError if ``to`` leads already or does not stand by,
    or if there is no standby.
    """
    names = [one["holder"] for one in standbys(state, standby_prefix)]
    if not names:
        what = "capture" if lease == LEASE_NAME else "process of the pipeline"
        raise UsageError(f"no {what} stands by: there is nobody to take over")
    if to == leader:
        raise UsageError(f"{to} leads already; {', '.join(names)} stands by")
    if to is not None and to not in names:
        raise UsageError(f"{to} does not stand by; {', '.join(names)} does")
    handover = secrets.token_hex(8)
    state.put(handover_key(lease), {"id": handover, "from": leader, "to": to}, None)
    return handover


class LogElection:
    """An election whose epochs are above every epoch in the event log (`tidelog.ports.Election`).

    A state store that was deleted, or restored from a backup, restarts its epochs. So each time a
    lease is acquired, its epoch is compared with the newest one in the event log.
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
        """Prepare the election; nothing is requested yet.

        Args:
            config: the configuration of the capture or the pipeline.
            name: the name of the lease.
            holder: the id of this process.
            newest_epoch: returns the greatest epoch in the event log.
            handicap_s: seconds to wait before taking a free lease, so that preferred zones win.
            state: the store of handover requests and standbys; the caller closes it. None: no
                handovers.
            standby_prefix: the key prefix of the standbys' documents.
        """
        self._config = config
        self._name = name
        self._holder = holder
        self._newest_epoch = newest_epoch
        self._election = self._open(1)
        self._handicap_s = handicap_s
        # Where requests cost money, no more often than the lease election polls.
        self._poll_every_s = (
            config.renewal_s[0] * POLL_SHARE if pays_per_request(config.state.location) else 0.0
        )
        self._poll_at = 0.0
        self._free_since: float | None = None
        self._another_led = False  # when `_may_try` asked last
        self._state = state
        self._standby_prefix = standby_prefix
        self._not_before = 0.0
        self._handing_over = False
        self._seen_handover = ""

    @property
    def max_wait_s(self) -> float:
        """Seconds to wait for a lease that is not renewed, see `acquire_lease`."""
        return _max_wait_s(self._election, 0.0)

    def acquire(self) -> Lease | None:
        if self._handing_over:  # the lease was lost before it was released
            self._let_others_go_first()
        if time.monotonic() < self._not_before and not self._another_leads():
            return None
        if self._handicap_s and not self._may_try():
            return None
        lease = self._election.acquire()
        if lease is None:
            return None
        try:
            if self._is_too_early() or not self._may_keep_lease():
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
    def release_announced(self) -> bool:
        """Whether the leader has announced that it will release the lease."""
        polled = self._election
        return isinstance(polled, PolledElection) and polled.release_announced

    def announce(self, lease: Lease) -> float:
        """Announce the release, see `tidelog.ports.PolledElection.announce`; 0: nothing to
        wait for.
        """
        if not self._poll_every_s or not self._has_standbys():
            return 0.0
        polled = self._election
        return polled.announce(lease) if isinstance(polled, PolledElection) else 0.0

    def renew(self, lease: Lease) -> Lease:
        return self._election.renew(lease)

    def release(self, lease: Lease) -> None:
        try:
            self._election.release(lease)
        finally:
            if self._handing_over:
                self._let_others_go_first()

    def hand_over(self, to: str | None) -> None:
        """Request that ``to`` (None: any standby) takes the lease after its release; call it
        before. Raises UsageError if ``to`` does not stand by, or if there is no standby.
        """
        assert self._state is not None
        self._seen_handover = request_handover(
            self._state, self._name, self._standby_prefix, self._holder, to
        )
        self._handing_over = True

    def handover_requested(self) -> bool:
        """Return True once an operator asked this leader to give up the lease. After the release,
        this process lets the standbys acquire the lease first.
        """
        handover = self._handover()
        if (
            handover is None
            or handover["from"] != self._holder
            or handover["id"] == self._seen_handover
        ):
            return False
        self._seen_handover = handover["id"]
        self._handing_over = True
        return True

    def leader(self) -> str | None:
        return self._election.leader()

    def last_seen_leader(self) -> str | None:
        """Return the leader that `acquire` saw last, without a request where requests cost."""
        last_seen: Callable[[], str | None] | None = getattr(
            self._election, "last_seen_leader", None
        )
        return self.leader() if last_seen is None or not self._poll_every_s else last_seen()

    def close(self) -> None:
        self._election.close()

    def _has_standbys(self) -> bool:
        """Return whether any process stands by."""
        return self._state is not None and bool(standbys(self._state, self._standby_prefix))

    def _let_others_go_first(self) -> None:
        """Let standbys acquire the lease first, for `PATIENCE_S` from now. Called after the
        release, because stopping the session may have taken as long as `PATIENCE_S`.
        """
        self._handing_over = False
        self._not_before = time.monotonic() + PATIENCE_S

    def _another_leads(self) -> bool:
        """Return whether another process leads by now, so that this one can stop waiting."""
        if not self._is_poll_due():
            return False
        if self._election.leader() in (None, self._holder):
            return False
        self._not_before = 0.0
        return True

    def _is_poll_due(self) -> bool:
        now = time.monotonic()
        if now < self._poll_at:
            return False
        self._poll_at = now + self._poll_every_s
        return True

    def _may_keep_lease(self) -> bool:
        """Return whether this process may keep the lease that it has just acquired.

        A pending handover that names another process gives that process `PATIENCE_S` to take the
        lease; after that, the handover is ignored.
        """
        handover = self._handover()
        if self._state is None or handover is None:
            return True
        ours = handover["to"] in (None, self._holder) and handover["from"] != self._holder
        if not ours and self._seen_handover != handover["id"]:
            self._seen_handover = handover["id"]
            self._not_before = time.monotonic() + PATIENCE_S
            return False
        self._state.delete(handover_key(self._name))
        return True

    def _named_in_handover(self) -> bool:
        """Return whether the pending handover names this process."""
        handover = self._handover()
        return handover is not None and handover["to"] == self._holder

    def _handover(self) -> dict[str, Any] | None:
        document = None if self._state is None else self._state.get(handover_key(self._name))
        return None if document is None else document.value

    def _may_try(self) -> bool:
        """Return whether this process may try to take the lease. True once the lease has been free
        for `handicap_s`, or if a handover names this process.
        """
        now = time.monotonic()
        if not self._is_poll_due():
            return False
        leader = self._election.leader()
        self._another_led = leader not in (None, self._holder)
        if leader is not None:
            self._free_since = None
            # the election decides: by the clocks of other hosts the lease may have expired
            return True
        self._free_since = self._free_since or now
        if now - self._free_since >= self._handicap_s:
            return True
        return self._named_in_handover()

    def _is_too_early(self) -> bool:
        """Return whether the lease just acquired was another process's a moment ago, so that it has
        not been free for `handicap_s`.
        """
        if not self._another_led or self._named_in_handover():
            return False
        self._free_since = time.monotonic()
        return True

    def _open(self, first_epoch: int) -> Election:
        return open_election(
            self._config.state.location,
            self._name,
            self._holder,
            self._config.renewal_s[0],
            first_epoch=first_epoch,
        )


class CaptureElection(LogElection):
    """Elects the capture leader; every leader's fence in the event log has its epoch."""

    def __init__(
        self,
        config: Config,
        holder: str,
        handicap_s: float = 0.0,
        state: StateStore | None = None,
        *,
        newest_epoch: Callable[[], int] | None = None,
    ) -> None:
        """``newest_epoch``: returns the greatest epoch in the event log; None: read from there."""
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
    """Elects the leader of a pipeline; the event log's consumer documents have its epochs."""

    def __init__(
        self,
        config: Config,
        holder: str,
        state: StateStore | None = None,
        *,
        waits: bool = True,
    ) -> None:
        """``waits``: whether preferred zones may acquire the lease first."""
        name = config.pipeline.name
        super().__init__(
            config,
            pipeline_lease_name(name),
            holder,
            lambda: _newest_reader(config),
            config.capture.handicap_s if waits else 0.0,
            state=state,
            standby_prefix=pipeline_prefix(name),
        )


def acquire_lease(
    election: Election,
    default_wait_s: float = 0.0,
    where: str = "",
    what: str = "a capture",
    remedy: str = "stop it and its standbys first",
    stop: threading.Event | None = None,
) -> Lease:
    """Acquire the lease for a command that must run alone.

    If another process has the lease but does not renew it, wait until it expires: nothing else
    shows that a holder on another host was killed.

    Args:
        election: the election; ``max_wait_s`` of a `tidelog.ports.PolledElection` is the longest
            remaining time of the lease.
        default_wait_s: the remaining time to assume of any other election.
        where: a place for the error message.
        what: what leads, for the error message.
        remedy: what to do, for the error message.
        stop: ends the wait when set.

    Raises:
        AnotherLeaderError: another process leads, or ``stop`` was set.
    """
    begun = time.monotonic()
    stop = stop or threading.Event()
    while (lease := election.acquire()) is None:
        waited = time.monotonic() >= begun + _max_wait_s(election, default_wait_s)
        if waited or stop.wait(POLL_EVERY_S):
            leader = election.leader() or "unknown"
            raise AnotherLeaderError(f"{what} leads{where} ({leader}): {remedy}")
    return lease


def _max_wait_s(election: Election, default_wait_s: float) -> float:
    return election.max_wait_s if isinstance(election, PolledElection) else default_wait_s


def _newest_fence(config: Config) -> int:
    path = event_log_path(config)
    newest = EventLog.open(path).newest() if EventLog.exists(path) else None
    return 0 if newest is None else newest.epoch


def _newest_reader(config: Config) -> int:
    path = event_log_path(config)
    if not EventLog.exists(path):
        return 0
    # Epochs of all pipelines: a pipeline may have been renamed, and its destinations compare them.
    consumers = Consumers(EventLog.open(path).storage).all()
    return max((each.epoch for each in consumers), default=0)


def leader_of(election: LogElection) -> str | None:
    """Return the leader that `acquire` saw last; None: nobody leads, or the state store fails."""
    try:
        return election.last_seen_leader()
    except StateError:
        return None


def leader_url(state: StateStore, election: Election) -> str | None:
    """Return the URL of the leader's HTTP interface, if it has published one."""
    try:
        document = state.get(STATUS_KEY)
        if document is None or document.value.get("holder") != election.leader():
            return None
    except StateError:
        return None
    url: str | None = document.value.get("url")
    return url
