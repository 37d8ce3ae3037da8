"""Commands: their JSON, and what they refuse."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tidelog.control.commands import (
    COMMANDS,
    CancelDump,
    Command,
    PauseDump,
    ResumeDump,
    SetDumpOptions,
    StartDump,
    build_command,
    command_from_json,
)
from tidelog.control.handler import CommandHandler
from tidelog.errors import UsageError


@pytest.mark.parametrize(
    "command",
    [
        StartDump(dump_id="d1"),
        StartDump(dump_id="d1", tables=("public.*", "a.b"), mode="blocking"),
        StartDump(dump_id="d1", tables=("a.b",), where="id > 5"),
        StartDump(dump_id="d", tables=("a.b",), keys=(("1", "x"),), key_columns=("n", "t")),
        CancelDump(),
        CancelDump(dump_id="d1", tables=("a.b",)),
        PauseDump(dump_id="d1"),
        ResumeDump(),
        SetDumpOptions(chunk_rows=5, parallelism=2),
    ],
)
def test_command_survives_json(command: Command) -> None:
    assert command_from_json(json.loads(json.dumps(command.to_json()))) == command


@pytest.mark.parametrize(
    ("document", "expected"),
    [
        (None, "a command is"),
        ({"type": "drop-database"}, "known are execute-snapshot"),
        ({"type": "execute-snapshot"}, "dump_id: Field required"),
        ({"type": "execute-snapshot", "data": {"dump_id": "a b"}}, "dump_id"),
        (
            {"type": "execute-snapshot", "data": {"dump_id": "d", "tables": ["orders"]}},
            "execute-snapshot: tables: expected namespace.table",
        ),
        (
            {"type": "execute-snapshot", "data": {"dump_id": "d", "where": "x=1"}},
            "exactly one table",
        ),
        (
            {
                "type": "execute-snapshot",
                "data": {"dump_id": "d", "tables": ["a.b"], "where": "1=1; DROP TABLE x"},
            },
            "one SQL condition",
        ),
        (
            {"type": "execute-snapshot", "data": {"dump_id": "d", "tables": ["a.b"], "keys": []}},
            "no keys",
        ),
        (
            {
                "type": "execute-snapshot",
                "data": {"dump_id": "d", "tables": ["a.b"], "keys": [["1"], ["1", "2"]]},
            },
            "differ in their number of columns",
        ),
        (
            {
                "type": "execute-snapshot",
                "data": {"dump_id": "d", "tables": ["a.b"], "keys": [["1"]], "mode": "blocking"},
            },
            "blocking dump reads whole tables",
        ),
        ({"type": "set-dump-options"}, "at least one of"),
        ({"type": "set-dump-options", "data": {"chunk_rows": 0}}, "chunk_rows"),
        ({"type": "pause-snapshot", "data": {"dump": "d"}}, "dump"),
        (
            {"type": "execute-snapshot", "data": {"dump_id": "d", "tables": ["a.b", ""]}},
            "^execute-snapshot: tables, entry 2: ",
        ),
    ],
)
def test_bad_command_is_refused(document: Any, expected: str) -> None:
    with pytest.raises(UsageError, match=expected):
        command_from_json(document)


def test_refusal_does_not_show_values() -> None:
    with pytest.raises(UsageError) as caught:
        command_from_json(
            {
                "type": "execute-snapshot",
                "data": {"dump_id": "d", "tables": ["a.b"], "keys": ["s3cret"], "where": 7},
            }
        )
    assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize("name", ["initial", "reread", "auto-1", "gap-1", "start-2", "missing-x"])
def test_capture_alone_names_dumps_so(name: str) -> None:
    with pytest.raises(UsageError, match="used by capture itself"):
        build_command(StartDump, {"dump_id": name})
    assert CancelDump(dump_id=name).dump_id == name


def test_every_command_can_be_executed() -> None:
    none: Any = None
    handler = CommandHandler(
        none, none, none, (), database=None, notify=none, hand_over=none, reading_pause=none
    )
    assert set(handler._methods) == set(COMMANDS.values())
