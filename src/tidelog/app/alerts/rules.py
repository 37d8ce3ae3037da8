"""Decides which problems an alert reports, and when."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from tidelog.app.overview.document import Problem, Severity

BLINK_S = 30.0
"""A problem that is away no longer is taken for the same, e.g. while two processes take turns in
trying to connect.
"""
_RANK = {Severity.INFO: 0, Severity.WARNING: 1, Severity.CRITICAL: 2}


@dataclass(frozen=True, slots=True)
class AlertReport:
    """The problems that one alert reports now, as JSON objects with ``since_ms``."""

    begun: tuple[dict[str, Any], ...]
    ended: tuple[dict[str, Any], ...]

    def __bool__(self) -> bool:
        return bool(self.begun or self.ended)


class AlertHistory:
    """The problems that one alert has seen, and those that it has reported.

    Args:
        severity: what is less bad is not told.
        after_s: how long a problem must be there, and be gone, before that is told.
    """

    def __init__(self, severity: Severity, after_s: float) -> None:
        self._severity = severity
        self._after_s = after_s
        self._told: dict[tuple[str, str], dict[str, Any]] = {}
        self._seen: dict[tuple[str, str], tuple[float, int]] = {}
        self._last: dict[tuple[str, str], float] = {}
        self._gone: dict[tuple[str, str], float] = {}

    @property
    def told(self) -> list[dict[str, Any]]:
        """What it was told and has not been told the end of; JSON objects."""
        return list(self._told.values())

    def look(self, problems: Iterable[Problem], now: float, now_ms: int) -> AlertReport:
        """What to report now; the same again until `tell` is called. Call it also where nothing is
        reported, so that the age of a problem is known.

        ``now``: of a clock that nobody sets, in seconds; ``now_ms``: of the calendar's.
        """
        present = {}
        for problem in problems:
            if _RANK[problem.severity] >= _RANK[self._severity]:
                present[problem.kind, problem.about] = problem
        self._last |= dict.fromkeys(present, now)
        self._last = {key: at for key, at in self._last.items() if now - at <= BLINK_S}
        self._seen = {key: self._seen.get(key, (now, now_ms)) for key in self._last}
        begun = []
        for key, problem in present.items():
            since, since_ms = self._seen[key]
            if key not in self._told and now - since >= self._after_s:
                begun.append(_told_of(problem, since_ms))
        absent = [key for key in self._told if key not in present]
        self._gone = {key: self._gone.get(key, now) for key in absent}
        ended = [self._told[key] for key in absent if now - self._gone[key] >= self._after_s]
        return AlertReport(tuple(begun), tuple(ended))

    def told_before(self, told: Iterable[dict[str, Any]]) -> None:
        """What another process told meanwhile."""
        self._told = {_key(each): each for each in told}

    def tell(self, news: AlertReport) -> None:
        """Note that it was reported."""
        for each in news.ended:
            self._told.pop(_key(each), None)
        for each in news.begun:
            self._told[_key(each)] = each


def _key(told: dict[str, Any]) -> tuple[str, str]:
    return told["kind"], told["about"]


def _told_of(problem: Problem, since_ms: int) -> dict[str, Any]:
    return {
        "kind": problem.kind,
        "severity": str(problem.severity),
        "about": problem.about,
        "sentence": problem.sentence,
        "remedy": problem.remedy,
        "page": problem.page,
        "since_ms": since_ms,
    }
