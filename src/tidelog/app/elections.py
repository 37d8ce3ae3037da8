"""Who captures: the election in the state store, held against the event log."""

from __future__ import annotations

import secrets
import time
from typing import Any

from tidelog.app.log_location import log_place
from tidelog.app.roster import standbys
from tidelog.capture.leadership import ASK_EVERY_S
from tidelog.config import Config
from tidelog.errors import TidelogError, UsageError
from tidelog.eventlog.reader import EventLog
from tidelog.ports import Election, Lease, StateStore
from tidelog.state.opening import open_election, sparing

LEASE_NAME = "capture"
HANDOVER_KEY = "handover"
PATIENCE_S = 10.0


class CaptureElection:
    """`tidelog.ports.Election` whose epochs are above all that stand in the event log.

    A state store that was wiped, or restored from a backup, counts from anew. The log knows better:
    its chain has the fence of every leader. It is asked each time a lease is won.
    """

    def __init__(
        self,
        config: Config,
        holder: str,
        handicap_s: float = 0.0,
        state: StateStore | None = None,
    ) -> None:
        """Args:
        config: of the capture.
        holder: who this is.
        handicap_s: so long others go before us.
        state: where handovers are; it stays open.
        """
        self._config = config
        self._holder = holder
        self._election = self._open(1)
        self._handicap_s = handicap_s
        self._state = state
        self._not_before = 0.0
        self._handing_over = False
        self._seen_handover = ""
        # As often as it is asked for where each look is paid for.
        self._look_every_s = config.renewal_s[0] / 10 if sparing(config.state.place) else 0.0
        self._look_at = 0.0
        self._free_since: float | None = None

    @property
    def patience_s(self) -> float:
        """See `acquired`."""
        return _patience_s(self._election, 0.0)

    def acquire(self) -> Lease | None:
        if self._handing_over:  # the lease was lost before it was given back
            self._let_others_go_first()
        if time.monotonic() < self._not_before:
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
            newest = _newest_epoch(self._config)
        except TidelogError:
            self._election.release(lease)
            raise
        if lease.epoch > newest:
            return lease
        self._election.release(lease)
        below, self._election = self._election, self._open(newest + 1)
        below.close()
        return self._election.acquire()

    def hand_over(self, to: str | None) -> None:
        """Before the lease is released: leave it to ``to`` (None: to any other) for a while.

        Raises:
            UsageError: it, or anybody, does not stand by.
        """
        assert self._state is not None
        found = [one["holder"] for one in standbys(self._state)]
        if not found:
            raise UsageError("no capture stands by: nobody would take over")
        if to is not None and to not in found:
            raise UsageError(f"{to} does not stand by; {', '.join(found)} does")
        self._seen_handover = secrets.token_hex(8)
        value = {"id": self._seen_handover, "from": self._holder, "to": to}
        self._state.put(HANDOVER_KEY, value, None)
        self._handing_over = True

    def _let_others_go_first(self) -> None:
        """From now on: to end what we led may have taken as long as others have patience."""
        self._handing_over = False
        self._not_before = time.monotonic() + PATIENCE_S

    def _is_meant(self) -> bool:
        """Is nobody else to lead, by a handover? Asked once the lease is ours; one that is not
        taken up for a while counts no more.
        """
        given = self._handover()
        if self._state is None or given is None:
            return True
        ours = given["to"] in (None, self._holder) and given["from"] != self._holder
        if not ours and self._seen_handover != given["id"]:
            self._seen_handover = given["id"]
            self._not_before = time.monotonic() + PATIENCE_S
            return False
        self._state.delete(HANDOVER_KEY)
        return True

    def _handover(self) -> dict[str, Any] | None:
        found = None if self._state is None else self._state.get(HANDOVER_KEY)
        return None if found is None else found.value

    def renew(self, lease: Lease) -> Lease:
        return self._election.renew(lease)

    def release(self, lease: Lease) -> None:
        try:
            self._election.release(lease)
        finally:
            if self._handing_over:
                self._let_others_go_first()

    def leader(self) -> str | None:
        return self._election.leader()

    def close(self) -> None:
        self._election.close()

    def _is_our_turn(self) -> bool:
        """Has nobody led for as long as captures in preferred zones go before us, or is the lease
        left to us by name?
        """
        now = time.monotonic()
        if now < self._look_at:
            return False
        self._look_at = now + self._look_every_s
        if self._election.leader() is not None:
            self._free_since = None
            return True  # the lease decides: by hosts' clocks it may seem to last
        self._free_since = self._free_since or now
        if now - self._free_since >= self._handicap_s:
            return True
        given = self._handover()
        return given is not None and given["to"] == self._holder

    def _open(self, first_epoch: int) -> Election:
        return open_election(
            self._config.state.place,
            LEASE_NAME,
            self._holder,
            self._config.renewal_s[0],
            first_epoch=first_epoch,
        )


def acquired(election: Election, untold_s: float = 0.0, where: str = "") -> Lease:
    """The lease, for a command that no capture may disturb. One that nobody renews is waited for:
    that its holder was killed on another host shows in nothing else.

    Args:
        election: may have a ``patience_s``, for how long the lease that it found may still run.
        untold_s: that of one which does not say.
        where: for people.

    Raises:
        UsageError: a capture leads.
    """
    begun = time.monotonic()
    while (lease := election.acquire()) is None:
        if time.monotonic() >= begun + _patience_s(election, untold_s):
            raise UsageError(
                f"a capture leads{where} ({election.leader() or 'unknown'}): stop it, and those "
                "that stand by, first"
            )
        time.sleep(ASK_EVERY_S)
    return lease


def _patience_s(election: Election, untold_s: float) -> float:
    return float(getattr(election, "patience_s", untold_s))


def _newest_epoch(config: Config) -> int:
    path = log_place(config)
    tail = EventLog.open(path).tail if EventLog.exists(path) else None
    return 0 if tail is None else tail.epoch
