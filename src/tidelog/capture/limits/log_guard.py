"""What capture does by itself when the source's log is in danger: ``source.when_log_in_danger``."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from tidelog.capture.limits.dump_gate import DumpBlocks, DumpGate
from tidelog.errors import GapError, LogInDangerError
from tidelog.model.units import brief_span, format_bytes
from tidelog.ports import StateStore

SOON_S = 3600.0
"""What is lost within this time is about to be lost."""
NEARLY_FULL = 0.8
"""Share of the log that the server may keep."""
MUCH_KEPT_BYTES = 10 << 30
"""What counts as much where the server has no limit and the configuration says nothing."""
EASED = 0.75
"""A danger that has begun is over when these limits, each less a quarter, are kept to as well: else
dumps would stop and go with every file that the server lets go of."""


class DangerKind(StrEnum):
    """The values are kinds of problems in an overview."""

    NEARLY_LOST = "log-nearly-lost"
    ROOM_SMALL = "log-room-small"
    FILLS_DISK = "log-fills-disk"


@dataclass(frozen=True, slots=True)
class RetainedLog:
    """What the source keeps of its log for capture. None: not known, or no such limit.

    Attributes:
        retained_bytes, spare_bytes, kept_s: see `tidelog.ports.Retention`.
        lag_s: how old what is not captured yet may be.
        lost_in_s: until something is removed that capture needs.
        much_bytes: so much, somebody said, is too much.
    """

    retained_bytes: int | None = None
    spare_bytes: int | None = None
    kept_s: float | None = None
    lag_s: float | None = None
    lost_in_s: float | None = None
    much_bytes: int | None = None

    @classmethod
    def told(cls, source: Mapping[str, Any], much_bytes: int | None = None) -> RetainedLog:
        """From a status document's ``source``, whichever version of capture wrote it."""
        lost_in_s, lag_s, kept_s = (source.get(name) for name in ("lost_in_s", "lag_s", "kept_s"))
        if lost_in_s is None and kept_s is not None and lag_s:
            lost_in_s = max(0.0, kept_s - lag_s)
        retained, spare = source.get("retained_bytes"), source.get("spare_bytes")
        return cls(retained, spare, kept_s, lag_s, lost_in_s, much_bytes)

    @property
    def share(self) -> float:
        """How much of what may be kept is kept; 1.0 and more: something is lost, or too much is
        kept. 0.0 if it is not known.
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
    """What is about to happen. ``sentence``: for people, without cell values."""

    kind: DangerKind
    sentence: str


def danger_of(kept: RetainedLog, *, eased: float = 1.0) -> Danger | None:
    """The worst; None: there is none. ``eased``: `EASED` to tell whether one is over."""
    retained, spare, lost_in_s = kept.retained_bytes, kept.spare_bytes, kept.lost_in_s
    soon_s = SOON_S
    if kept.kept_s is not None:  # a server that keeps its log for an hour is no danger of itself
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
            DangerKind.FILLS_DISK, f"{keeps}, of which {much} is much (source.log_danger_bytes)."
        )
    if kept.much_bytes is None and spare is None and retained >= MUCH_KEPT_BYTES * eased:
        return Danger(DangerKind.FILLS_DISK, f"{keeps}, and there is no limit: its disk fills.")
    return None


logger = logging.getLogger(__name__)

STOP_AFTER_S = 300.0
"""How long a danger must last without getting less before capture stops. A capture that was away
and is catching up must not be stopped.
"""
LESS = 0.999
"""Of the least that was kept: that is getting less. A large backlog takes hours at any speed, so a
part of it tells nothing; what a transaction holds, or a capture that reads too slowly, never falls
below what it was."""


GIVEN_UP_KEY = "log-given-up"
"""Set when capture itself had the source forget its log: why there is a gap."""


class WhenLogInDanger(StrEnum):
    """Each does what those before it do, too."""

    WARN = "warn"
    PAUSE_DUMPS = "pause_dumps"
    STOP = "stop"
    DROP_SLOT = "drop_slot"


class LogGuard:
    """Looks at what the source keeps, about once a second. Used by one thread, but for `summary`.

    Args:
        wanted: what to do.
        much_bytes: so much of the log kept for capture is a danger; None: by the server's limit.
        gate: of the dumps.
        now: seconds of a clock that only runs forward.
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
        self._worse_at = 0.0  # when it was last seen not to have become less …
        self._share = 0.0  # … and how much was kept then

    @property
    def drops_slot(self) -> bool:
        return self._wanted is WhenLogInDanger.DROP_SLOT

    def look(self, source: dict[str, Any]) -> None:
        """``source``: as `SourceWatch.summary` tells it.

        Raises:
            LogInDangerError: capture is to stop.
        """
        kept = RetainedLog.told(source, self._much_bytes)
        danger = danger_of(kept, eased=1.0 if self._danger is None else EASED)
        before, self._danger = self._danger, danger
        if danger is None:
            self._over(before)
            return
        if before is None:
            self._since_ms = int(time.time() * 1000)
            logger.warning("the source's log is in danger: %s", danger.sentence)
        if before is None or kept.share <= self._share * LESS:
            self._worse_at, self._share = self._now(), kept.share
        if self._wanted is WhenLogInDanger.WARN:
            return
        self._gate.hold(DumpBlocks.LOG_IN_DANGER, danger.sentence)
        if self._wanted is WhenLogInDanger.PAUSE_DUMPS:
            return
        if self._now() - self._worse_at >= STOP_AFTER_S:
            raise LogInDangerError(self._farewell(danger))

    def _over(self, before: Danger | None) -> None:
        self._since_ms = None
        self._gate.release(DumpBlocks.LOG_IN_DANGER)
        if before is not None:
            logger.warning("the source's log is not in danger any more")

    def _farewell(self, danger: Danger) -> str:
        minutes = round(STOP_AFTER_S / 60)
        text = (
            f"capture has stopped, as source.when_log_in_danger: {self._wanted} says. "
            f"{danger.sentence} That did not get less in {minutes} minutes"
        )
        if self.drops_slot:
            return (
                f"{text}. Its slot is dropped now, unless a line before says why not, so that the "
                "server's disk gets free: `tidelog reset` goes on behind the gap and dumps all "
                "tables again"
            )
        return (
            f"{text}. The slot is there, and the server goes on keeping its log: mend what holds "
            "capture up, or make room, and start it again"
        )

    def summary(self) -> dict[str, Any]:
        """For status: what is done, and against what; ``danger``: a sentence, None: there is
        none.
        """
        danger = self._danger
        return {
            "wanted": str(self._wanted),
            "much_bytes": self._much_bytes,
            "danger": None if danger is None else danger.sentence,
            "since_ms": self._since_ms,
        }


def note_given_up(state: StateStore) -> None:
    """The source is about to be told to forget its log."""
    state.put(GIVEN_UP_KEY, {"at_ms": int(time.time() * 1000)}, None)


def with_its_cause(gap: GapError, state: StateStore) -> GapError:
    """The gap, and that it is capture's own doing, if it is."""
    if state.get(GIVEN_UP_KEY) is None:
        return gap
    return GapError(
        f"{gap}. Capture dropped it itself, as source.when_log_in_danger: drop_slot says; `tidelog "
        "reset` goes on behind the gap and dumps all tables again"
    )
