"""Finds dangers to the source's log, and reacts as ``source.when_log_in_danger`` says."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from tidelog.capture.dump_gate import DumpBlockCause, DumpGate
from tidelog.errors import GapError, LogInDangerError
from tidelog.model.units import brief_span, format_bytes
from tidelog.ports import StateStore
from tidelog.system.processes import unix_ms

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
            self._since_ms = unix_ms()
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
                "line says so if that failed): `tidelog reset CONFIG` resumes after the gap and "
                "dumps all tables again"
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
    state.put(GIVEN_UP_KEY, {"at_ms": unix_ms()}, None)


def with_its_cause(gap: GapError, state: StateStore) -> GapError:
    """The gap's error, with the remark that capture itself caused it, if it did."""
    if state.get(GIVEN_UP_KEY) is None:
        return gap
    return GapError(
        f"{gap}. Capture dropped it itself, as source.when_log_in_danger: drop_slot says; `tidelog "
        "reset` resumes after the gap and dumps all tables again"
    )
