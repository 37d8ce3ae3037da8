"""The result of a command is a sentence, wherever it is read."""

from __future__ import annotations

from typing import Any

import pytest

from tidelog.cli.dump import result_sentences
from tidelog.control.commands import COMMANDS

ANSWERS: list[tuple[str, dict[str, Any], list[str]]] = [
    (
        "execute-snapshot",
        {"dump_id": "d", "tables": ["s.a"]},
        ["dump d is requested: table s.a"],
    ),
    (
        "execute-snapshot",
        {
            "dump_id": "d",
            "tables": ["s.a", "s.b"],
            "rejected": [{"table": "s.c", "reason": "the table is gone"}],
        },
        ["dump d is requested: 2 tables: s.a, s.b", "not dumped: s.c: the table is gone"],
    ),
    ("pause-snapshot", {"dumps": []}, ["no dump was under way"]),
    ("pause-snapshot", {"dumps": ["d"]}, ["dump d is paused; `tidelog resume` resumes it"]),
    ("resume-snapshot", {"dumps": ["d", "e"]}, ["dumps d, e are resumed"]),
    (
        "stop-snapshot",
        {"dumps": ["d"], "rejected": [{"table": "s.c", "reason": "no dump reads it"}]},
        [
            "dump d is cancelled; rows that were read stay",
            "left as it is: s.c: no dump reads it",
        ],
    ),
    (
        "pause-log",
        {"log": "paused", "paused": {"by": "u", "since_ms": 1}},
        ["the log is paused, and the server keeps it; `tidelog resume CONFIG --log` resumes it"],
    ),
    ("resume-log", {"log": "read", "resumed": True}, ["the log is read again"]),
    ("resume-log", {"log": "read", "resumed": False}, ["the log was not paused"]),
    (
        "pause-pipeline",
        {"pipeline": "p", "paused": {"by": "u", "since_ms": 1}},
        ["pipeline p is paused; `tidelog resume CONFIG --pipeline` resumes it"],
    ),
    ("resume-pipeline", {"pipeline": "p", "resumed": True}, ["pipeline p delivers again"]),
    ("resume-pipeline", {"pipeline": "p", "resumed": False}, ["pipeline p was not paused"]),
    ("set-dump-options", {"chunk_rows": 5}, ["chunk_rows is 5 now"]),
    ("log", {"logged": True}, ["logged"]),
    ("hand-over", {"to": "h"}, ["to: h"]),
]


@pytest.mark.parametrize(("kind", "details", "told"), ANSWERS)
def test_outcome_of_a_command_is_a_sentence(
    kind: str, details: dict[str, Any], told: list[str]
) -> None:
    assert result_sentences(kind, details) == told


def test_every_command_has_its_sentence() -> None:
    assert {kind for kind, _, _ in ANSWERS} == COMMANDS.keys()


def test_many_tables_are_counted() -> None:
    [told] = result_sentences(
        "execute-snapshot", {"dump_id": "d", "tables": [f"s.t{i}" for i in range(25)]}
    )
    assert told.startswith("dump d is requested: 25 tables: s.t0, ")
    assert told.endswith("s.t19, and 5 more")


def test_names_of_tables_move_no_cursor() -> None:
    [told] = result_sentences("execute-snapshot", {"dump_id": "d", "tables": ["s.\x1b[2J"]})
    assert "\x1b" not in told
