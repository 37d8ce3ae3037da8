"""What a run of the campaign showed, and how long nothing was captured between two leaders."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

from tests.campaign.witness import Note

from tidelog.eventlog.segments import SegmentMeta


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a run showed.

    Attributes:
        lively_s: from the last fault's end to the first record that came within `LAG_S`.
        leaderless_s: from each leader's last record to the next one's first.
        gaps: the same in parts, see `Gap`.
        piped: of the pipelines: until their outputs were whole, after capture was at rest; what was
            compared; how often one ended by itself, which a service manager would start again.
    """

    seed: int
    source: str
    state: str
    seconds: float
    transactions: int
    records: int
    faults: dict[str, int]
    lively_s: float
    leaderless_s: list[float]
    gaps: list[dict[str, float]]
    piped: dict[str, float]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Gap:
    """From the last record of a leader to the first one of the next.

    Attributes:
        begun: on the monotonic clock.
        seconds: all of it.
        taken_s: until the lease was taken by the one that came to lead.
        fenced_s: from there until it had the event log.
        opened_s: from there until it began to stream.
        first_s: from there until its first record.
        leaders: that came and went without a record.
    """

    begun: float
    seconds: float
    taken_s: float
    fenced_s: float
    opened_s: float
    first_s: float
    leaders: int

    def summary(self) -> str:
        return (
            f"{self.seconds:.2f} s, of which {self.taken_s:.2f} until the lease was taken, "
            f"{self.fenced_s:.2f} until the fence, {self.opened_s:.2f} until it streamed, "
            f"{self.first_s:.2f} until the first record; {self.leaders} led in vain"
        )


def find_gaps(
    segments: Sequence[SegmentMeta], times: Mapping[int, float], notes: Sequence[Note]
) -> list[Gap]:
    """
    Args:
        segments: of the event log.
        times: when each came, by its first offset.
        notes: of all processes.
    """
    told: dict[tuple[str, int], float] = {}
    for note in sorted(notes, key=lambda note: note.ended):
        told.setdefault((note.what, note.epoch), note.ended)
    found = []
    for before, after in pairwise(segment for segment in segments if segment.rows):
        if after.epoch <= before.epoch:
            continue
        begun, end = times[before.first], times[after.first]
        taken, leads, runs = (
            told.get((what, after.epoch), end) for what in ("lease", "leads", "runs")
        )
        vain = {note.epoch for note in notes if before.epoch < note.epoch < after.epoch}
        parts = (end - begun, taken - begun, leads - taken, runs - leads, end - runs)
        rounded = [round(part, 2) for part in parts]
        found.append(Gap(round(begun, 2), *rounded, leaders=len(vain)))
    return found
