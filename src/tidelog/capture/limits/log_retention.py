"""When the source is about to remove log that capture needs, or its disk fills. Pure.

Status, alerts and what capture itself does about it (`tidelog.capture.limits.log_guard`) all go by
this.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from tidelog.model.units import brief_span, format_bytes

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
