"""Watches the source's log: capture's lag, the log that the source retains, and dangers to it.

The reaction to a danger is configured in ``source.when_log_in_danger``. All is derived from one
query a second, so it relies neither on the server's clock nor on transactions' times: a table that
nobody writes to for an hour is not an hour late.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from tidelog.errors import GapError, LogInDangerError, SourceError
from tidelog.model.units import brief_span, format_bytes
from tidelog.ports import Catalogue, Retention, SourceLoad, StateStore

# The source's answers: lag, retained log, and requests without an answer.


@dataclass
class UnansweredRequests:
    """Counts failed requests in a row. ``error``: of the last one; ``since_ms``: of the first one;
    None: the last request succeeded. No cell values.
    """

    error: str = ""
    since_ms: int | None = None

    def failed(self, error: object) -> None:
        self.error = str(error)
        if self.since_ms is None:
            self.since_ms = time.time_ns() // 1_000_000

    def answered(self) -> None:
        self.since_ms = None

    def summary(self) -> dict[str, Any] | None:
        """For status."""
        return None if self.since_ms is None else asdict(self)


KEPT_SAMPLES = 3600
"""Number of log ends that are remembered; of more, every second one is forgotten."""
RATE_OVER_S, RATE_FROM_S = 600.0, 240.0
"""The decrease of room in the log is averaged over this many seconds, and reported after as many.
The room is a sawtooth: the server removes whole files, at checkpoints and ends of transactions.
"""


class SourceMonitor:
    """Summarizes the source's last answers. Thread-safe. Times are of a monotonic clock."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._ends: deque[tuple[float, int]] = deque()  # (time, the log's end), ascending
        self._spare: deque[tuple[float, int]] = deque()
        self._written: deque[tuple[float, int]] = deque()  # the log's ends at the same times
        self._load: SourceLoad | None = None
        self._first_end: int | None = None  # what is before it was written before the start
        self._failed: tuple[str, int] | None = None

    def refresh(self, catalogue: Catalogue, reached: int) -> SourceLoad:
        """Query the source's load, and note it. Notes and raises what `Catalogue.load` raises."""
        try:
            load = catalogue.load(reached)
        except SourceError as error:
            self.failed(str(error), time.time_ns() // 1_000_000)
            raise
        self.observe(time.monotonic(), reached, load)
        return load

    @property
    def lag_bytes(self) -> int:
        """The bytes that capture had not read at the last query."""
        load = self._load
        return 0 if load is None else load.lag_bytes

    def observe(self, now_s: float, reached: int, load: SourceLoad) -> None:
        """Note an answer of the source; capture had reached a position."""
        with self._lock:
            self._load, self._failed = load, None
            if self._first_end is None:
                self._first_end = load.end
            while self._ends and self._ends[0][1] <= reached:
                self._ends.popleft()
            if load.end > (self._ends[-1][1] if self._ends else reached):
                self._ends.append((now_s, load.end))
            if len(self._ends) > KEPT_SAMPLES:
                self._ends = deque(list(self._ends)[::2])
            spare = load.retention.spare_bytes
            if spare is None:
                self._spare.clear()
                self._written.clear()
                return
            self._spare.append((now_s, spare))
            self._written.append((now_s, load.end))
            while self._spare[0][0] < now_s - RATE_OVER_S:
                self._spare.popleft()
                self._written.popleft()

    def failed(self, message: str, now_ms: int) -> None:
        """Note that the source did not answer; ``message`` contains no cell values."""
        with self._lock:
            self._failed = message, now_ms if self._failed is None else self._failed[1]

    def summary(self, now_s: float, reached: int, last_commit_us: int = 0) -> dict[str, Any]:
        """For status. ``last_commit_us``: commit time of the newest captured transaction, by the
        source's clock; 0: there is none yet.

        ``position``: as the server writes it. ``lag_s``: how long the log's end has been after
        ``reached``, as exact as the queries are frequent. ``retained_bytes``, ``spare_bytes``,
        ``kept_s``: see `tidelog.ports.Retention`. ``lost_in_s``: seconds until it removes what
        capture needs, at the rate of the last minutes. ``lasts_s``: the same if capture stopped
        now. ``error``, ``error_since_ms``: it does not answer.
        """
        with self._lock:
            load = self._load
            retention = Retention() if load is None else load.retention
            message, since_ms = self._failed or (None, None)
            return {
                "position": None if load is None else load.reached,
                "lag_s": None if load is None else self._lag_s(now_s, reached, last_commit_us),
                "retained_bytes": retention.retained_bytes,
                "spare_bytes": retention.spare_bytes,
                "kept_s": retention.kept_s,
                "lost_in_s": self._lost_in_s(),
                "lasts_s": self._lasts_s(),
                "error": message,
                "error_since_ms": since_ms,
            }

    def _lag_s(self, now_s: float, reached: int, last_commit_us: int) -> float | None:
        first = next((at for at, end in self._ends if end > reached), now_s)
        lag_s = max(0.0, now_s - first)
        if self._first_end is not None and reached < self._first_end:
            # Capture was down when the log had its end there, so it is not known since when.
            if not last_commit_us:
                return None
            lag_s = max(lag_s, time.time() - last_commit_us / 1e6)
        return round(lag_s, 1)

    def _lost_in_s(self) -> float | None:
        """Extrapolated from the least room in each half of the time."""
        samples = tuple(self._spare)
        if not samples or samples[-1][0] - samples[0][0] < RATE_FROM_S:
            return None
        half = (samples[0][0] + samples[-1][0]) / 2
        least = [
            min((room, at) for at, room in samples if (at > half) == later)
            for later in (False, True)
        ]
        (before, began), (now, last) = least
        if before <= now:
            return None
        return round(now * (last - began) / (before - now), 1)

    def _lasts_s(self) -> float | None:
        """Room and positions are both in bytes here."""
        if not self._written or self._written[-1][0] - self._written[0][0] < RATE_FROM_S:
            return None
        (began, first), (last, end) = self._written[0], self._written[-1]
        spare = self._spare[-1][1]
        return round(spare * (last - began) / (end - first), 1) if end > first else None


# What makes dumps wait.


class DumpBlockCause(StrEnum):
    """A cause that blocks dumps."""

    LOG_PAUSED = "log_paused"
    """The log is paused, so nobody would read the watermarks."""
    LOG_IN_DANGER = "log_in_danger"
    """Missing rows are read again all the same: there are few of them, and without them outputs
    lack columns."""


@dataclass(frozen=True, slots=True)
class DumpBlock:
    """One cause. ``reason``: a sentence without cell values."""

    why: DumpBlockCause
    reason: str
    since_ms: int


class DumpGate:
    """Open unless something blocks it. Thread-safe. It lasts for one leadership: in the next one a
    cause blocks it again.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._blocks: dict[DumpBlockCause, DumpBlock] = {}

    def block(self, why: DumpBlockCause, reason: str) -> None:
        """Start no chunk of a dump; current reads end. A later call may change ``reason``."""
        with self._lock:
            before = self._blocks.get(why)
            since_ms = int(time.time() * 1000) if before is None else before.since_ms
            self._blocks[why] = DumpBlock(why, reason, since_ms)

    def release(self, why: DumpBlockCause) -> None:
        with self._lock:
            self._blocks.pop(why, None)

    @property
    def blocks_dumps(self) -> bool:
        return bool(self._blocks)

    @property
    def blocks_all(self) -> bool:
        """Must reading missing rows wait too?"""
        return DumpBlockCause.LOG_PAUSED in self._blocks

    def summary(self) -> list[dict[str, Any]]:
        """For status."""
        with self._lock:
            return [asdict(block) for block in self._blocks.values()]


# Dangers, and the reaction to them.

SOON_S = 3600.0
"""Log that will be lost within this time is about to be lost."""
NEARLY_FULL = 0.8
"""A share of the log that the server may keep."""
MUCH_KEPT_BYTES = 10 << 30
"""The limit for retained log if neither server nor configuration has one."""
EASED = 0.75
"""A danger is over only if these limits, each reduced by a quarter, are met as well: otherwise
dumps would stop and start with every file that the server removes."""


class DangerKind(StrEnum):
    """The values are kinds of problems in an overview."""

    NEARLY_LOST = "log-nearly-lost"
    ROOM_SMALL = "log-room-small"
    FILLS_DISK = "log-fills-disk"


@dataclass(frozen=True, slots=True)
class RetainedLog:
    """The log that the source retains for capture. None: not known, or no such limit.

    Attributes:
        retained_bytes, spare_bytes, kept_s: see `tidelog.ports.Retention`.
        lag_s: possible age of changes that are not captured yet.
        lost_in_s: seconds until log that capture needs is removed.
        much_bytes: configured limit for retained log.
    """

    retained_bytes: int | None = None
    spare_bytes: int | None = None
    kept_s: float | None = None
    lag_s: float | None = None
    lost_in_s: float | None = None
    much_bytes: int | None = None

    @classmethod
    def from_status(cls, source: Mapping[str, Any], much_bytes: int | None = None) -> RetainedLog:
        """From a status document's ``source``, of any version of capture."""
        lost_in_s, lag_s, kept_s = (source.get(name) for name in ("lost_in_s", "lag_s", "kept_s"))
        if lost_in_s is None and kept_s is not None and lag_s:
            lost_in_s = max(0.0, kept_s - lag_s)
        retained, spare = source.get("retained_bytes"), source.get("spare_bytes")
        return cls(retained, spare, kept_s, lag_s, lost_in_s, much_bytes)

    @property
    def share(self) -> float:
        """The used share of what may be retained; 1.0 and more: log is lost, or too much is
        retained. 0.0 if it is not known.
        """
        shares = [0.0]
        if self.retained_bytes is not None:
            if self.spare_bytes is not None:
                most = self.retained_bytes + max(0, self.spare_bytes)
                shares.append(self.retained_bytes / most if most else 0.0)
            if self.spare_bytes is None or self.much_bytes is not None:
                shares.append(self.retained_bytes / (self.much_bytes or MUCH_KEPT_BYTES))
        if self.kept_s and self.lag_s:
            shares.append(self.lag_s / self.kept_s)
        return max(shares)


@dataclass(frozen=True, slots=True)
class Danger:
    """A danger. ``sentence``: for people, without cell values."""

    kind: DangerKind
    sentence: str


def danger_of(kept: RetainedLog, *, eased: float = 1.0) -> Danger | None:
    """The worst danger; None: there is none. ``eased``: `EASED` to check whether one is over."""
    retained, spare, lost_in_s = kept.retained_bytes, kept.spare_bytes, kept.lost_in_s
    soon_s = SOON_S
    if kept.kept_s is not None:  # a server that keeps its log for only an hour is not in danger
        soon_s = min(SOON_S, kept.kept_s / 2)
    if (spare is not None and spare <= 0) or (lost_in_s is not None and lost_in_s < soon_s / eased):
        when = "now" if lost_in_s is None or lost_in_s < 1 else f"in {brief_span(lost_in_s * 1000)}"
        return Danger(
            DangerKind.NEARLY_LOST, f"The server removes log that capture still needs {when}."
        )
    if not retained:
        return None
    keeps = f"The server keeps {format_bytes(retained)} of log for capture"
    if spare is not None and retained / (retained + spare) >= NEARLY_FULL * eased:
        return Danger(
            DangerKind.ROOM_SMALL, f"{keeps}, and removes it after {format_bytes(spare)} more."
        )
    if kept.much_bytes is not None and retained >= kept.much_bytes * eased:
        much = format_bytes(kept.much_bytes)
        return Danger(
            DangerKind.FILLS_DISK, f"{keeps}, more than source.log_danger_bytes ({much})."
        )
    if kept.much_bytes is None and spare is None and retained >= MUCH_KEPT_BYTES * eased:
        return Danger(DangerKind.FILLS_DISK, f"{keeps}, and there is no limit: its disk fills.")
    return None


logger = logging.getLogger(__name__)

STOP_AFTER_S = 300.0
"""How long a danger must last without getting less before capture stops. A capture that was down
and is catching up must not be stopped.
"""
LESS = 0.999
"""Below this share of the least that was retained, the danger is getting less. Any decrease counts:
a large backlog takes hours at any speed, but log that a transaction retains, or a capture that
reads too slowly, never falls below an earlier value."""


GIVEN_UP_KEY = "log-given-up"
"""Set if capture itself dropped the source's log: the reason for a gap."""


class WhenLogInDanger(StrEnum):
    """The reaction to a danger; each includes those before it."""

    WARN = "warn"
    PAUSE_DUMPS = "pause_dumps"
    STOP = "stop"
    DROP_SLOT = "drop_slot"


class LogGuard:
    """Checks the source's retained log, about once a second. Used by one thread, except `summary`.

    Args:
        wanted: the configured reaction.
        much_bytes: limit for retained log; None: the server's limit.
        gate: the gate of the dumps.
        now: seconds of a monotonic clock.
    """

    def __init__(
        self,
        wanted: WhenLogInDanger,
        much_bytes: int | None,
        gate: DumpGate,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._wanted = wanted
        self._much_bytes = much_bytes
        self._gate = gate
        self._now = now
        self._danger: Danger | None = None
        self._since_ms: int | None = None
        self._less_at = 0.0  # when it began, or the share last decreased …
        self._share = 0.0  # … and the share that was retained then

    @property
    def drops_slot(self) -> bool:
        return self._wanted is WhenLogInDanger.DROP_SLOT

    def check(self, source: dict[str, Any]) -> None:
        """React to the state of the source. ``source``: from `SourceMonitor.summary`.

        Raises:
            LogInDangerError: if capture must stop.
        """
        log = RetainedLog.from_status(source, self._much_bytes)
        danger = danger_of(log, eased=1.0 if self._danger is None else EASED)
        before, self._danger = self._danger, danger
        if danger is None:
            self._over(before)
            return
        if before is None:
            self._since_ms = int(time.time() * 1000)
            logger.warning("the source's log is in danger: %s", danger.sentence)
        if before is None or log.share <= self._share * LESS:
            self._less_at, self._share = self._now(), log.share
        if self._wanted is WhenLogInDanger.WARN:
            return
        self._gate.block(DumpBlockCause.LOG_IN_DANGER, danger.sentence)
        if self._wanted is WhenLogInDanger.PAUSE_DUMPS:
            return
        if self._now() - self._less_at >= STOP_AFTER_S:
            raise LogInDangerError(self._stop_message(danger))

    def _over(self, before: Danger | None) -> None:
        self._since_ms = None
        self._gate.release(DumpBlockCause.LOG_IN_DANGER)
        if before is not None:
            logger.warning("the source's log is not in danger any more")

    def _stop_message(self, danger: Danger) -> str:
        minutes = round(STOP_AFTER_S / 60)
        text = (
            f"capture has stopped, as source.when_log_in_danger: {self._wanted} says. "
            f"{danger.sentence} That did not get less in {minutes} minutes"
        )
        if self.drops_slot:
            return (
                f"{text}. Its slot is dropped now, so that the server's disk gets free (an earlier "
                "line says so if that failed): `tidelog reset` resumes after the gap and dumps all "
                "tables again"
            )
        return (
            f"{text}. The slot is kept, and the server keeps its log. Fix what stops capture, or "
            "make room on the disk; then start capture again"
        )

    def summary(self) -> dict[str, Any]:
        """For status: the reaction, and ``danger``: a sentence, None: there is none."""
        danger = self._danger
        return {
            "wanted": str(self._wanted),
            "much_bytes": self._much_bytes,
            "danger": None if danger is None else danger.sentence,
            "since_ms": self._since_ms,
        }


def note_given_up(state: StateStore) -> None:
    """Note that the source is about to get the order to remove its log."""
    state.put(GIVEN_UP_KEY, {"at_ms": int(time.time() * 1000)}, None)


def with_its_cause(gap: GapError, state: StateStore) -> GapError:
    """The gap's error, with the remark that capture itself caused it, if it did."""
    if state.get(GIVEN_UP_KEY) is None:
        return gap
    return GapError(
        f"{gap}. Capture dropped it itself, as source.when_log_in_danger: drop_slot says; `tidelog "
        "reset` resumes after the gap and dumps all tables again"
    )
