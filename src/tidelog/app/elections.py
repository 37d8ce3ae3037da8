"""Who captures: the election in the state store, held against the event log."""

from __future__ import annotations

from tidelog.app.log_location import log_place
from tidelog.config import Config
from tidelog.errors import TidelogError
from tidelog.eventlog.reader import EventLog
from tidelog.ports import Election, Lease
from tidelog.state.opening import open_election

LEASE_NAME = "capture"


class CaptureElection:
    """`tidelog.ports.Election` whose epochs are above all that stand in the event log.

    A state store that was wiped, or restored from a backup, counts from anew. The log knows better:
    its chain has the fence of every leader. It is asked each time a lease is won.
    """

    def __init__(self, config: Config, holder: str) -> None:
        self._config = config
        self._holder = holder
        self._election = self._open(1)

    def acquire(self) -> Lease | None:
        lease = self._election.acquire()
        if lease is None:
            return None
        try:
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

    def renew(self, lease: Lease) -> Lease:
        return self._election.renew(lease)

    def release(self, lease: Lease) -> None:
        self._election.release(lease)

    def leader(self) -> str | None:
        return self._election.leader()

    def close(self) -> None:
        self._election.close()

    def _open(self, first_epoch: int) -> Election:
        return open_election(
            self._config.state.place,
            LEASE_NAME,
            self._holder,
            self._config.renewal_s[0],
            first_epoch=first_epoch,
        )


def _newest_epoch(config: Config) -> int:
    path = log_place(config)
    tail = EventLog.open(path).tail if EventLog.exists(path) else None
    return 0 if tail is None else tail.epoch
