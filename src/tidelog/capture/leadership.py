"""One leader at a time: acquire the lease, capture until the session ends, start again.

Whatever ends a session, the next one starts at the event log's end with nothing kept in memory; so
a crash, a lost race and a lost connection are the same case.

In a graceful handover the old leader keeps capturing until the standbys poll the lease often. Where
each poll of a lease costs money, standbys poll rarely. So the lease first announces that it will be
released, and is released once all standbys have seen that and poll often: then there is a leader
almost all the time.
"""

from __future__ import annotations

import contextlib
import logging
import math
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any, Protocol, Self, TypeVar

from tidelog.errors import AppendRaceLostError, LeaseLostError, Policy, TidelogError
from tidelog.ports import Election, Lease, PolledElection
from tidelog.system.backoff import Backoff
from tidelog.system.processes import boot_clock, suspended_s

# Graceful handover.

logger = logging.getLogger(__name__)

_T = TypeVar("_T")

_TURN_S = 0.05


class HandoverWait:
    """Waits for ``stop`` and then for the standbys, in its own thread. Use it as a context manager.

    Args:
        stop: ends the session.
        announce: announces in the lease that it will be released; returns the seconds to keep
            capturing. None: no standby needs it.
    """

    def __init__(self, stop: threading.Event, announce: Callable[[], float] | None) -> None:
        self._stop = stop
        self._announce = announce
        self._over = threading.Event()
        self.ends = stop if announce is None else threading.Event()
        """Set when the session must end."""

    def __enter__(self) -> Self:
        if self._announce is not None:
            threading.Thread(target=self._wait, name="tidelog-handover", daemon=True).start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._over.set()

    def _wait(self) -> None:
        while not self._stop.is_set():
            if self._over.wait(_TURN_S):
                return
        assert self._announce is not None
        try:
            self._over.wait(_announced_s(self._announce))
        finally:
            self.ends.set()


def end_later(end: Callable[[], None], announce: Callable[[], float] | None) -> None:
    """Call `end` for a session that another process will lead, after the standbys were notified."""
    wait_s = 0.0 if announce is None else _announced_s(announce)
    if not wait_s:
        end()
        return
    timer = threading.Timer(wait_s, end)
    timer.daemon = True
    timer.start()


def _announced_s(announce: Callable[[], float]) -> float:
    """Announce the end; returns the seconds to keep capturing, 0 if the announcement failed."""
    try:
        return announce()
    except TidelogError as error:
        logger.info("the standbys could not be notified that the leader ends: %s", error)
        return 0.0


# The lease and its leader.

POLL_EVERY_S = 0.2
RENEW_AGAIN_S = 1.0
RETRY = Backoff(first=0.5, longest=5.0)
"""Short, because the only process captures nothing while it waits, even if the cause has gone."""


class LeaderSession(Protocol):
    """The work of one leadership, from the event log's end on."""

    def run(self, stop: threading.Event) -> bool:
        """Run until ``stop``, a failure, which is raised, or until all work is done: then True."""
        ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Leader:
    """The leader, for `tidelog status`; since when by its clock; ``url``: of its HTTP interface."""

    holder: str
    epoch: int
    zone: str | None
    since_ms: int
    url: str | None = None


class LeaseKeeper:
    """Renews a lease in its own thread; `check` raises once the lease may have ended."""

    def __init__(
        self,
        election: Election,
        lease: Lease,
        every_s: float,
        on_lease: Callable[[Lease], None] = lambda _lease: None,
        *,
        suspended: float | None = None,
    ) -> None:
        """Start to renew.

        Args:
            election: the election that gave the lease.
            lease: the lease to renew.
            every_s: seconds between two renewals.
            on_lease: called with the lease and after each renewal; its deadline is on `boot_clock`.
            suspended: `suspended_s` as of before the lease was requested; None: as of now.
        """
        self._election = election
        self._every_s = every_s
        self._on_lease = on_lease
        self._set_lease(lease, suspended_s() if suspended is None else suspended)
        self._stopped = threading.Event()
        self._releasing, self._released = threading.Lock(), False
        self._lost: LeaseLostError | None = None
        self._renewals = self._failures = 0
        self._thread = threading.Thread(target=self._keep, name="tidelog-lease", daemon=True)
        self._thread.start()

    @property
    def lease(self) -> Lease:
        return self._lease

    def _set_lease(self, lease: Lease, suspended: float) -> None:
        """``suspended``: as of before the lease was requested, as its deadline is."""
        self._lease, self._until = lease, lease.deadline + suspended
        self._on_lease(replace(lease, deadline=self._until))

    def check(self) -> None:
        """Raise LeaseLostError if the lease may have ended, and from then on always: the caller
        ends the session, which may wait for a running request, and a renewed lease would keep all
        others from leading in the meantime. Called before every append and before the state is
        changed.
        """
        if self._lost is not None:
            raise self._lost
        if self._stopped.is_set():  # a thread outlived its session
            raise LeaseLostError(f"the lease of epoch {self._lease.epoch} was released")
        if boot_clock() >= self._until:
            self._lost = LeaseLostError(
                f"the lease of epoch {self._lease.epoch} ended before it was renewed; another "
                "process may lead now. This one stands by"
            )
            raise self._lost

    def summary(self) -> dict[str, Any]:
        """For metrics: the lease's remaining time, and the counts of its renewals."""
        remaining_s = max(0.0, self._until - boot_clock())
        return {
            "remaining_s": round(remaining_s, 3),
            "renewals": self._renewals,
            "failures": self._failures,
        }

    @property
    def announce(self) -> Callable[[], float] | None:
        """Announces that the lease will be released; returns the seconds to keep leading. None: all
        standbys poll often enough without it.
        """
        polled = self._election
        return (
            (lambda: polled.announce(self._lease)) if isinstance(polled, PolledElection) else None
        )

    def _keep(self) -> None:
        pause_s = self._every_s
        while not self._stopped.wait(pause_s) and self._lost is None:
            pause_s = self._every_s
            try:
                suspended = suspended_s()
                self._set_lease(self._election.renew(self._lease), suspended)
                self._renewals += 1
            except LeaseLostError as error:
                self._lost = error
                return
            except TidelogError as error:  # the state store is down: the deadline decides
                self._failures += 1
                logger.warning("the lease could not be renewed: %s", error)
                pause_s = min(self._every_s, RENEW_AGAIN_S)

    def release(self) -> None:
        """Release the lease, once; `check` raises from now on."""
        self._stopped.set()
        with self._releasing:
            was_released, self._released = self._released, True
        if was_released:
            return
        self._thread.join(5)
        # Also a lost one: a renewal may have been running. Another process's lease is left alone.
        with contextlib.suppress(TidelogError):
            self._election.release(self._lease)


def lead(
    election: Election,
    open_session: Callable[[LeaseKeeper], LeaderSession],
    stop: threading.Event,
    *,
    renew_every_s: float,
    on_state: Callable[[str, str], None] = lambda _state, _reason: None,
    what: str = "capture",
    on_lease: Callable[[Lease], None] = lambda _lease: None,
    ready: Callable[[bool], None] = lambda _failed: None,
) -> None:
    """Stand by until this process is the leader, lead until the session ends, repeat until
    ``stop``.

    Args:
        election: gives the leases.
        open_session: opens a session at the event log's end; it appends the fence.
        stop: ends everything; what was read is made durable first.
        renew_every_s: seconds between renewals, at most half of the lease's length. It is polled
            more often, so that a released lease is acquired at once.
        on_state: called with ``standby``, ``leading`` or ``retrying``, and the reason.
        what: the thing that is led, for messages.
        on_lease: as in `LeaseKeeper`.
        ready: called before the lease is requested, with whether the last session failed; raises if
            something that a session needs is missing, perhaps for this process only. Returns soon
            once ``stop`` is set.

    Raises:
        TidelogError: if its policy is to stop.
    """
    failures, reported_at = 0, 0.0
    failed = False
    while not stop.is_set():
        try:
            ready(failed)
            if stop.is_set():
                return
            failed, suspended = False, suspended_s()
            lease = election.acquire()
        except TidelogError as error:
            if error.policy is Policy.STOP:
                raise
            logger.warning("the lease was not acquired: %s", error)
            on_state("retrying", str(error))
            stop.wait(min(renew_every_s, RETRY.longest))
            continue
        if lease is None:
            if time.monotonic() >= reported_at:
                on_state("standby", f"another {what} leads")
                reported_at = time.monotonic() + renew_every_s
            stop.wait(min(renew_every_s, POLL_EVERY_S))
            continue
        reported_at = 0.0
        keeper = LeaseKeeper(election, lease, renew_every_s, on_lease, suspended=suspended)
        began = math.inf
        session: LeaderSession | None = None
        try:
            session = open_session(keeper)
            began = time.monotonic()
            on_state("leading", "")
            with HandoverWait(stop, keeper.announce) as handover:
                if session.run(handover.ends):
                    return
        except TidelogError as error:
            if error.policy is Policy.STOP:
                raise
            if time.monotonic() - began >= RETRY.after(failures + 1):  # it ran for some time
                failures = 0
            logger.warning("%s starts again from what is durable: %s", what, error)
            failed = not isinstance(error, LeaseLostError)
            if failed:
                on_state("retrying", str(error))
            _close(session)
            session = None
            keeper.release()
            if isinstance(error, (LeaseLostError, AppendRaceLostError)):
                # No failure: the lease decides when this process may lead again. Report standby
                # only if another one leads: a race may have no winner, if a put's result is not
                # known.
                if not failed:
                    on_state("standby", str(error))
                stop.wait(RETRY.first)
                continue
            failures += 1
            stop.wait(RETRY.after(failures))
        finally:
            _close(session)
            keeper.release()


def _close(session: LeaderSession | None) -> None:
    if session is not None:
        with contextlib.suppress(TidelogError):
            session.close()
