"""Decides which problems an alert reports, and when."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from tidelog.app.overview.document import Problem, Severity

BLINK_S = 30.0
"""A problem that disappears for no longer than this is the same one.

For example, while two processes take turns in trying to connect.
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
        severity: the lowest severity to report.
        after_s: how long a problem must last, and be over, before that is reported.
    """

    def __init__(self, severity: Severity, after_s: float) -> None:
        self._severity = severity
        self._after_s = after_s
        self._reported: dict[tuple[str, str], dict[str, Any]] = {}
        self._first_seen: dict[tuple[str, str], tuple[float, int]] = {}
        self._last_present: dict[tuple[str, str], float] = {}
        self._absent_since: dict[tuple[str, str], float] = {}

    @property
    def reported(self) -> list[dict[str, Any]]:
        """The reported problems whose end is not reported yet; JSON objects."""
        return list(self._reported.values())

    def update(self, problems: Iterable[Problem], now: float, now_ms: int) -> AlertReport:
        """Return what to report now; the same again until `record` is called.

        Call it also where nothing is reported, so that the age of a problem is known. ``now``:
        seconds of a monotonic clock; ``now_ms``: the calendar time.
        """
        present = {}
        for problem in problems:
            if _RANK[problem.severity] >= _RANK[self._severity]:
                present[problem.kind, problem.about] = problem
        self._last_present |= dict.fromkeys(present, now)
        self._last_present = {
            key: at for key, at in self._last_present.items() if now - at <= BLINK_S
        }
        self._first_seen = {
            key: self._first_seen.get(key, (now, now_ms)) for key in self._last_present
        }
        begun = []
        for key, problem in present.items():
            since, since_ms = self._first_seen[key]
            if key not in self._reported and now - since >= self._after_s:
                begun.append(_as_json(problem, since_ms))
        absent = [key for key in self._reported if key not in present]
        self._absent_since = {key: self._absent_since.get(key, now) for key in absent}
        ended = [
            self._reported[key] for key in absent if now - self._absent_since[key] >= self._after_s
        ]
        return AlertReport(tuple(begun), tuple(ended))

    def load(self, reported: Iterable[dict[str, Any]]) -> None:
        """Load what another process has reported."""
        self._reported = {_key(each): each for each in reported}

    def record(self, news: AlertReport) -> None:
        """Record that it was reported."""
        for each in news.ended:
            self._reported.pop(_key(each), None)
        for each in news.begun:
            self._reported[_key(each)] = each


def _key(reported: dict[str, Any]) -> tuple[str, str]:
    return reported["kind"], reported["about"]


def _as_json(problem: Problem, since_ms: int) -> dict[str, Any]:
    return {
        "kind": problem.kind,
        "severity": str(problem.severity),
        "about": problem.about,
        "sentence": problem.sentence,
        "remedy": problem.remedy,
        "page": problem.page,
        "since_ms": since_ms,
    }
