"""Takes parts away from two hosts, and gives them back; at most two at a time."""

from __future__ import annotations

import contextlib
import random
import signal
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from tests.campaign.hosts import Host
from tests.campaign.places import Place
from tests.support.oracle.history import HistoryError
from tests.support.oracle.source import OracleSource

from tidelog import app
from tidelog.config import Config
from tidelog.errors import TidelogError

AT_ONCE = 2
STOP_S = 60.0
HANDOVER_S = 15.0
DELAYS_S = (0.02, 0.2)
DATABASE = "database"

KINDS = {
    "kill": "kill -9, started again up to two seconds later",
    "freeze": "SIGSTOP for longer than the lease",
    "freeze shortly": "SIGSTOP for less than the lease",
    "cut": "a path refuses connections",
    "silence": "a path brings nothing to its end, connections stay",
    "slow": "a path brings all of it late",
    "cut from both": "no host reaches the state",
    "restart the state": "the state store is killed and started",
    "restart the database": "the source is killed and started",
    "terminate": "the database ends Tidelog's connections",
    "upgrade": "SIGTERM, and another process in its place",
    "handover": "`tidelog handover`",
}


@dataclass(frozen=True, slots=True)
class Fault:
    """What is away until it is healed. ``what``: no two of one name at once."""

    what: str
    until: float
    heal: Callable[[], None]


class Nemesis:
    """
    Args:
        rng: of all that is drawn.
        hosts: two.
        source: of the captures.
        place: of log and state.
        config: that goes by no path.
        lease_s: of the captures.
        every_s: between two faults, about.
        kinds: of `KINDS`, which are drawn.
        note: takes a line about what is done.
    """

    def __init__(
        self,
        rng: random.Random,
        hosts: list[Host],
        source: OracleSource,
        place: Place,
        config: Config,
        lease_s: float,
        every_s: float,
        kinds: tuple[str, ...],
        note: Callable[[str], None],
    ) -> None:
        self._rng = rng
        self._hosts = hosts
        self._source = source
        self._place = place
        self._config = config
        self._lease_s = lease_s
        self._every_s = every_s
        self._kinds = kinds
        self._note = note
        self._away: list[Fault] = []
        self._next_at = time.monotonic() + every_s
        self.counts: Counter[str] = Counter()

    def turn(self) -> None:
        """Heal what has lasted long enough, and draw the next fault when it is due."""
        now = time.monotonic()
        for fault in [fault for fault in self._away if fault.until <= now]:
            self._heal(fault)
        if now >= self._next_at and len(self._away) < AT_ONCE:
            self._next_at = now + self._rng.uniform(0.5, 1.5) * self._every_s
            self._strike(self._rng.choice(self._kinds))

    def heal(self) -> None:
        """Give everything back."""
        for fault in list(self._away):
            self._heal(fault)

    def _heal(self, fault: Fault) -> None:
        self._away.remove(fault)
        fault.heal()
        self._note(f"healed: {fault.what}")

    def _strike(self, kind: str) -> None:
        struck = getattr(self, "_" + kind.replace(" ", "_"))()
        if struck:
            self.counts[kind] += 1

    def _begin(self, what: str, seconds: float, heal: Callable[[], None]) -> bool:
        self._note(f"{what} for {seconds:.1f} s")
        self._away.append(Fault(what, time.monotonic() + seconds, heal))
        return True

    def _process(self) -> Host | None:
        """A host whose process is there and nothing is done to."""
        busy = {fault.what.rpartition(" ")[2] for fault in self._away if "process" in fault.what}
        free = [host for host in self._hosts if host.capture and host.name not in busy]
        return self._rng.choice(free) if free else None

    # ------------------------------------------------------------ processes

    def _kill(self) -> bool:
        host = self._process()
        if host is None:
            return False
        host.kill()
        return self._begin(f"kill process {host.name}", self._rng.random() * 2, host.start)

    def _freeze(self) -> bool:
        return self._stop_for(self._lease_s * self._rng.uniform(1.2, 3))

    def _freeze_shortly(self) -> bool:
        return self._stop_for(self._lease_s * self._rng.uniform(0.1, 0.7))

    def _stop_for(self, seconds: float) -> bool:
        host = self._process()
        if host is None or host.capture is None:
            return False
        capture = host.capture
        capture.send(signal.SIGSTOP)
        return self._begin(
            f"freeze process {host.name}", seconds, lambda: capture.send(signal.SIGCONT)
        )

    def _upgrade(self) -> bool:
        host = self._process()
        if host is None or host.capture is None:
            return False
        capture = host.capture
        host.ask_to_end()

        def replace() -> None:
            code = capture.wait(STOP_S)
            if code not in (0, -signal.SIGTERM):  # the latter before it heeded signals
                raise HistoryError(f"asked to end, capture ended with {code}\n{capture.tail}")
            host.start()

        return self._begin(f"upgrade process {host.name}", 0.5, replace)

    def _handover(self) -> bool:
        with contextlib.suppress(TidelogError):  # nobody leads, or nobody stands by
            found = app.hand_over(self._config, None, timeout_s=HANDOVER_S)
            self._note(f"handover {found}")
            return True
        return False

    # ------------------------------------------------------------ paths

    def _path(self) -> tuple[Host, str] | None:
        """One that is whole."""
        away = {fault.what for fault in self._away}
        whole = [
            (host, name)
            for host in self._hosts
            for name in host.paths
            if f"path {host.name} to {name}" not in away
        ]
        return self._rng.choice(whole) if whole else None

    def _cut(self) -> bool:
        return self._lose("cut")

    def _silence(self) -> bool:
        return self._lose("silence")

    def _slow(self) -> bool:
        return self._lose("slow")

    def _lose(self, how: str) -> bool:
        found = self._path()
        if found is None:
            return False
        host, name = found
        path = host.paths[name]
        if how == "cut":
            path.refuse()
        elif how == "silence":
            path.silence()
        else:
            path.slow_down(self._rng.uniform(*DELAYS_S))
        self._note(how)
        seconds = self._lease_s * self._rng.uniform(0.3, 2.5)
        return self._begin(f"path {host.name} to {name}", seconds, path.heal)

    def _cut_from_both(self) -> bool:
        if self._away:
            return False
        paths = [
            path for host in self._hosts for name, path in host.paths.items() if name != DATABASE
        ]
        for path in paths:
            path.refuse()

        def heal() -> None:
            for path in paths:
                path.heal()

        return self._begin("paths to the state", self._lease_s * self._rng.uniform(0.5, 2.5), heal)

    # ------------------------------------------------------------ servers

    def _restart_the_state(self) -> bool:
        self._note("restart the state")
        self._place.restart()
        return True

    def _restart_the_database(self) -> bool:
        fault = "crash" if "crash" in self._source.faults else "restart"
        self._note("restart the database")
        self._source.strike(fault, self._rng)
        return True

    def _terminate(self) -> bool:
        self._note("terminate")
        self._source.strike("terminate", self._rng)
        return True
