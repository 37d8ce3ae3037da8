"""The rows of the benchmark table, as Markdown."""

from __future__ import annotations

import sys
from dataclasses import dataclass

HEADER = "| what | measured | floor, same run | ratio | to reach |\n|---|---|---|---|---|\n"


@dataclass(frozen=True, slots=True)
class Row:
    """One line: what was measured, the floor it is held against, and the goal."""

    what: str
    measured: str
    floor: str
    ratio: str
    goal: str

    def __str__(self) -> str:
        return f"| {self.what} | {self.measured} | {self.floor} | {self.ratio} | {self.goal} |"


def show(rows: list[Row]) -> None:
    for row in rows:
        sys.stdout.write(f"{row}\n")
    sys.stdout.flush()
