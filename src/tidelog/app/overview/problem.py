"""Creates a `Problem` of the overview."""

from __future__ import annotations

from tidelog.results import Problem, Severity


def problem(
    kind: str, severity: Severity, about: str, sentence: str, remedy: str, entry: str
) -> Problem:
    """Return a problem. ``entry``: the anchor in docs/failure-modes.md."""
    sentence = " ".join(sentence.split())  # a driver's message may have several lines
    return Problem(kind, severity, about, sentence, remedy, f"docs/failure-modes.md#{entry}")
