"""Detects sudden drops in a table's operations. Pure.

A drop begins with a bucket if

1. the table was busy and steady: in the hour that ended one bucket before, the median bucket had at
   least `BUSY` operations of the kind, and none had less than `STEADY` of that. The bucket between
   is ignored: the drop may have begun within it;
2. then it is nearly idle: this bucket and the next have at most `LOW` of the median;
3. this is not the table's daily pattern: one day before, at about this time, it was not as idle.

A rate that falls slowly, as in an evening, breaks the first condition before it meets the second;
so do tables that are idle, or busy only at times. A bucket that is not known, because capture did
not run or lagged, is never part of a drop. The drop ends with a bucket that has `BACK` of the
median.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from tidelog.capture.activity.day import BUCKET_S

BEFORE: Final = 12
BUSY: Final = 100
STEADY: Final = 0.4
LOW: Final = 0.1
LASTING: Final = 2
BACK: Final = 0.5
A_DAY: Final = 86_400 // BUCKET_S
ABOUT: Final = 3
"""Buckets before and after the same time of the previous day."""

Series = Sequence[int | None]


@dataclass(frozen=True, slots=True)
class DropSpan:
    """A drop in a series: its first bucket and the one that ends it (None: not ended); the median
    bucket's count before it, and the largest count within it.
    """

    start: int
    end: int | None
    before: int
    then: int


def find_drops(series: Series) -> Iterator[DropSpan]:
    """The drops in the operations of one table and kind, by bucket; None: not known."""
    at = 0
    while at <= len(series) - LASTING:
        level = _level(series, at)
        if level is None or not _still(series[at : at + LASTING], level):
            at += 1
            continue
        if _usual(series, at, level):
            at += 1
            continue
        end = next(
            (later for later in range(at, len(series)) if (series[later] or 0) >= BACK * level),
            None,
        )
        inside = [count for count in series[at:end] if count is not None]
        yield DropSpan(at, end, level, max(inside))
        if end is None:
            return
        at = end


def _level(series: Series, at: int) -> int | None:
    """The median bucket of the hour before; None if the table was not busy and steady."""
    hour = series[max(0, at - 1 - BEFORE) : max(0, at - 1)]
    known = [count for count in hour if count is not None]
    if len(known) < BEFORE:
        return None
    level = int(statistics.median(known))
    return level if level >= BUSY and min(known) >= STEADY * level else None


def _still(counts: Series, level: int) -> bool:
    return all(count is not None and count <= LOW * level for count in counts)


def _usual(series: Series, at: int, level: int) -> bool:
    """Was the table as idle at about this time on the previous day?"""
    then = range(at - A_DAY - ABOUT, at - A_DAY + LASTING + ABOUT)
    return any(
        _still(series[each : each + LASTING], level)
        for each in then
        if each >= 0 and each + LASTING <= at
    )
