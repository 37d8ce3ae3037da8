"""What capture does by itself when the source's log is in danger: ``source.when_log_in_danger``."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from enum import StrEnum
from typing import Any

from tidelog.capture.limits.dump_gate import DumpBlocks, DumpGate
from tidelog.capture.limits.log_retention import EASED, Danger, RetainedLog, danger_of
from tidelog.errors import GapError, LogInDangerError
from tidelog.ports import StateStore

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
