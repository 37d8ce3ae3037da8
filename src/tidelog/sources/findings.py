"""What `tidelog check` finds, whatever the source."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Level = Literal["ok", "warn", "fail"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was checked. ``fix`` is SQL (or a setting) where something must be done."""

    name: str
    level: Level
    message: str
    fix: str = ""
