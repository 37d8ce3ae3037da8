"""Takes parts away from two hosts, and gives them back; at most two at a time."""

from __future__ import annotations

import contextlib
import random
import signal
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from tests.campaign import switches
from tests.campaign.hosts import Host
from tests.campaign.paths import PathProxy
from tests.campaign.places import Place
from tests.campaign.witness import APPEND, STATE_WRITE, Note, stop_before
from tests.support.oracle.history import HistoryError
from tests.support.oracle.source import OracleSource

from tidelog import app
from tidelog.config import Config
from tidelog.errors import TidelogError

AT_ONCE = 2
STOP_S = 60.0
HANDOVER_S = 15.0
AMID_S = 5.0
"""A leader comes to an append, or to a change of the state, within this time,"""
SEEN_S = 40.0
"""and another has taken over within this one."""
DELAYS_S = (0.02, 0.2)
FSYNC_S = (0.1, 1.5)
CLOCK_STEPS_S = (2.0, 60.0, 3600.0)
DATABASE, COPY = "database", "copy"
PROMOTE = "promote"
_Found = TypeVar("_Found")

KINDS = {
    "kill": "kill -9, started again up to two seconds later",
    "freeze": "SIGSTOP for longer than the lease",
    "freeze shortly": "SIGSTOP for less than the lease",
    "freeze amid an append": "SIGSTOP between the look at the lease and the append, until another "
    "leads",
    "freeze amid a state write": "the same with a document of the state, until another used it",
    "step the clock": "the wall clock of a host is set up to an hour ahead or back, and back again",
    "fill the disk": "appends of the leader meet a full disk; not with the log on S3",
    "fail on fsync": "the same with EIO on fsync",
    "slow the disk": "each append of the leader waits up to half of the lease before fsync; not "
    "with the log on S3",
    "cut": "a path refuses connections",
    "silence": "a path brings nothing to its end, connections stay",
    "slow": "a path brings all of it late",
    "drop": "all packets of a path vanish, SYNs too; neither end is told",
    "vanish": "the link of a host goes down",
    "cut from both": "no host reaches the state",
    "silence to both": "the state answers no host, connections stay",
    "restart the state": "the state store is killed and started",
    "restart the database": "the source is killed and started",
    "terminate": "the database ends Tidelog's connections",
    PROMOTE: "the source is lost, and its standby or replica is promoted, once a run",
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

    def _freeze_amid_an_append(self) -> bool:
        return self._stop_amid(APPEND, lambda _stopped, note: note.what == "leads")

    def _freeze_amid_a_state_write(self) -> bool:
        def seen_to(stopped: Note, note: Note) -> bool:
            return note.what in ("get", "put") and note.key == stopped.key and note.done

        return self._stop_amid(STATE_WRITE, seen_to)

    def _stop_amid(self, what: str, over: Callable[[Note, Note], bool]) -> bool:
        """The leader looks at its lease, stops, and goes on at once when it is ``over``."""
        host = self._leading()
        if self._away or host is None or host.capture is None:
            return False
        capture, known = host.capture, len(host.notes.so_far())
        other = next(one for one in self._hosts if one is not host)
        asked = stop_before(host.directory, what)
        asked.touch()

        def stopped() -> Note | None:
            return next((n for n in host.notes.so_far()[known:] if n.what == "stopped"), None)

        until(stopped, AMID_S)
        asked.unlink(missing_ok=True)
        stop = until(stopped, 0.1)  # it may have been about to
        if stop is None:
            return False
        self._note(f"process {host.name} is stopped amid its {what} ({stop.key})")
        seen = len(other.notes.so_far())
        found = until(
            lambda: next((n for n in other.notes.so_far()[seen:] if over(stop, n)), None), SEEN_S
        )
        capture.send(signal.SIGCONT)
        after = f"{time.monotonic() - stop.ended:.1f} s"
        self._note(f"process {host.name} goes on after {after}{'' if found else ', unseen'}")
        return found is not None

    def _leading(self) -> Host | None:
        """The host whose process was the last one to take the event log over."""
        begun = [
            (note.offset, note.pid, host)
            for host in self._hosts
            for note in host.notes.so_far()
            if note.what == "leads"
        ]
        _, pid, host = max(begun, key=lambda one: one[0], default=(0, 0, None))
        return host if host is not None and host.capture and host.capture.pid == pid else None

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
            found = app.hand_over(self._config, None, timeout_s=HANDOVER_S).to_dict()
            self._note(f"handover {found}")
            return True
        return False

    # ------------------------------------------------------------ what a host has

    def _whole_host(self, what: str) -> Host | None:
        away = {fault.what for fault in self._away}
        whole = [host for host in self._hosts if f"{what} {host.name}" not in away]
        return self._rng.choice(whole) if whole else None

    def _step_the_clock(self) -> bool:
        host = self._whole_host("clock")
        if host is None:
            return False
        offset_s = self._rng.choice((-1, 1)) * self._rng.choice(CLOCK_STEPS_S)
        switches.set_clock(host.directory, offset_s)
        self._note(f"the clock of {host.name} is set by {offset_s:.0f} s")
        seconds = self._lease_s * self._rng.uniform(0.5, 2.5)
        return self._begin(
            f"clock {host.name}", seconds, lambda: switches.set_clock(host.directory, 0.0)
        )

    def _fill_the_disk(self) -> bool:
        return self._lose_the_disk(switches.DISK_FULL)

    def _fail_on_fsync(self) -> bool:
        return self._lose_the_disk(switches.FSYNC_FAILS)

    def _slow_the_disk(self) -> bool:
        return self._lose_the_disk(switches.DISK_SLOW, self._rng.uniform(*FSYNC_S))

    def _lose_the_disk(self, fault: str, delay_s: float = 0.0) -> bool:
        """Struck is only what an append has met."""
        host = self._leading() if self._place.on_disk else None
        if host is None or f"disk {host.name}" in {away.what for away in self._away}:
            return False
        directory, before = host.directory, switches.disk_met(host.directory)
        switches.set_disk(directory, fault, delay_s)
        if not until(lambda: switches.disk_met(directory) > before or None, AMID_S):
            switches.set_disk(directory, "")
            return False
        self._note(f"{fault}, {delay_s:.1f} s each" if delay_s else fault)
        seconds = self._lease_s * self._rng.uniform(0.3, 2.5)
        return self._begin(f"disk {host.name}", seconds, lambda: switches.set_disk(directory, ""))

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

    def _drop(self) -> bool:
        """Where hosts have namespaces."""
        found = self._path()
        if found is None or found[0].namespace is None:
            return False
        host, name = found
        port, namespace = host.paths[name].port, found[0].namespace
        namespace.drop(port)
        self._note("drop")
        seconds = self._lease_s * self._rng.uniform(0.3, 2.5)
        return self._begin(f"path {host.name} to {name}", seconds, lambda: namespace.let_pass(port))

    def _vanish(self) -> bool:
        """Where hosts have namespaces."""
        host = self._whole_host("link")
        if host is None or host.namespace is None:
            return False
        host.namespace.cut_off()
        seconds = self._lease_s * self._rng.uniform(0.5, 2.5)
        return self._begin(f"link {host.name}", seconds, host.namespace.bring_back)

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
        return self._lose_both(PathProxy.refuse)

    def _silence_to_both(self) -> bool:
        return self._lose_both(PathProxy.silence)

    def _lose_both(self, lose: Callable[[PathProxy], None]) -> bool:
        if self._away:
            return False
        paths = [
            path
            for host in self._hosts
            for name, path in host.paths.items()
            if name not in (DATABASE, COPY)
        ]
        for path in paths:
            lose(path)

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

    def _promote(self) -> bool:
        """Once: what was promoted has no standby."""
        done = self._source.promote(self._rng)
        if not done:
            return False
        self._note(f"promote: {done}")
        self._kinds = tuple(kind for kind in self._kinds if kind != PROMOTE)
        return True


def until(look: Callable[[], _Found | None], most_s: float) -> _Found | None:
    """What is seen once it is there; None: it was not for so long."""
    deadline = time.monotonic() + most_s
    while (found := look()) is None and time.monotonic() < deadline:
        time.sleep(0.002)
    return found
