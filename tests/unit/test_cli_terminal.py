"""What documents look like on a terminal, in a pipe and as JSON."""

from __future__ import annotations

import io
import json
import logging
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tidelog.cli import terminal
from tidelog.cli.facts import demo_facts, verify_facts
from tidelog.cli.live.facts import drawn_facts, live_facts
from tidelog.cli.log_format import JsonLines, OneLine

DOCUMENT = {
    "leader": "host-1",
    "standby": False,
    "lag_ms": 12.3456,
    "log": {"bytes": 3 << 19, "path": Path("/x")},
    "nothing": [],
    "tables": ["a.b", "c.d"],
    "dumps": [
        {"dump": "d1", "rows": 1_234_567, "tables": [{"table": "a.[b]", "rows": 5}]},
        {"dump": "d2", "rows": None, "tables": []},
    ],
}


class FakeTerminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_plain_lines_hold_everything() -> None:
    assert list(terminal.plain_lines(DOCUMENT)) == [
        "leader: host-1",
        "standby: no",
        "lag_ms: 12.3",
        "log.bytes: 1.5MiB",
        "log.path: /x",
        "nothing: -",
        "tables: a.b, c.d",
        "dumps: dump=d1 rows=1234567",
        "dumps.tables: table=a.[b] rows=5",
        "dumps: dump=d2 rows=- tables=-",
    ]


def test_view_on_a_terminal_shows_tables_and_escapes_markup(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    screen = FakeTerminal()
    monkeypatch.setattr(sys, "stdout", screen)
    monkeypatch.setenv("COLUMNS", "100")
    terminal.show(DOCUMENT, as_json=False)
    text = screen.getvalue()
    for expected in ("host-1", "1.5MiB", "1,234,567", "a.[b]", "d1 tables"):
        assert expected in text


HOSTILE = "a.b\x1b[31m\r\n\u202e\x9b2J\u2028é🐍"
SHOWN = r"a.b\x1b[31m\r\n\u202e\x9b2J\u2028é🐍"


def test_names_do_nothing_to_a_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    terminal.show({"table": HOSTILE, "tables": [{"table": HOSTILE}]}, as_json=False)
    findings = [{"check": "a", "level": "warning", "message": HOSTILE, "fix": f"one {HOSTILE}"}]
    terminal.show_findings(findings, as_json=False)
    terminal.complain(HOSTILE)
    shown = capsys.readouterr()
    assert shown.out.count(SHOWN.partition(r"\n")[0]) == 4
    assert "\x1b" not in shown.out + shown.err
    screen = FakeTerminal()
    monkeypatch.setattr(sys, "stdout", screen)
    monkeypatch.setenv("COLUMNS", "100")
    terminal.show({"table": HOSTILE}, as_json=False)
    assert SHOWN in screen.getvalue()


def test_a_log_record_is_one_line() -> None:
    try:
        raise ValueError("two\nlines")
    except ValueError:
        error = sys.exc_info()
    record = logging.LogRecord("n", logging.INFO, "p", 1, "table %s", (HOSTILE,), error)
    first, *others = OneLine("%(levelname)s %(message)s").format(record).split("\n")
    assert first == f"INFO table {SHOWN}"
    assert others[0].startswith("Traceback")


def test_a_log_record_is_a_json_object_without_values() -> None:
    try:
        raise ValueError("-".join(["a", "value"]))
    except ValueError:
        error = sys.exc_info()
    record = logging.LogRecord("n", logging.WARNING, "p", 1, "table %s", (HOSTILE,), error)
    text = JsonLines().format(record)
    found = json.loads(text)
    assert "\n" not in text
    assert "a-value" not in text
    assert (found["level"], found["logger"], found["kind"]) == ("warning", "n", "ValueError")
    assert found["message"] == f"table {HOSTILE}"
    assert "test_cli_terminal" in found["where"]
    assert datetime.fromisoformat(found["at"]).timestamp() == pytest.approx(
        record.created, abs=0.001
    )


STEPS = [
    {"step": "starting MySQL and Spark"},
    {
        "step": "workload, capture, dump and pipeline run", "transactions": 1234, "records": 5000,
        "events_per_s": 700, "lag_s": 4.2, "superseded_rows": 17, "merged_rows": 9000,
        "dump": {
            "dump_id": "initial", "status": "running", "tables": 4, "tables_done": 1,
            "rows": 5000, "estimated_rows": 20_000,
        },
    },
]  # fmt: skip


def test_the_demo_shows_source_capture_dump_and_copy_under_each_other() -> None:
    assert [line.plain.rstrip() for line in drawn_facts(demo_facts(STEPS[1]), 80)] == [
        "demo     workload, capture, dump and pipeline run",
        "source   1,234 transactions were written",
        "capture  5,000 records, 700 a second, 4.2s behind",
        "dump     initial is running: 1 of 4 tables, 5,000 rows, 17 superseded",
        "copy     9,000 rows were merged into Delta Lake",
    ]
    wide = [line.plain for line in drawn_facts(demo_facts(STEPS[1]), 120)]
    assert wide[3].endswith("17 superseded  █████░░░░░░░░░░░░░░░")


def test_a_new_step_is_told_at_once_where_there_is_no_terminal(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with live_facts("demo", demo_facts, as_json=False) as told:
        for step in (STEPS[0], STEPS[0], STEPS[1], STEPS[1]):
            told(step)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "demo: starting MySQL and Spark"
    assert lines[1].startswith("demo: workload, capture, dump and pipeline run; 1,234 transactions")
    assert len(lines) == 2
    with live_facts("demo", demo_facts, as_json=True) as told:
        told(STEPS[1])
    assert json.loads(capsys.readouterr().out) == STEPS[1]


def test_verify_says_which_table_it_compares() -> None:
    told = {"table": "public.orders", "output": "lake", "number": 2, "of": 4}
    assert verify_facts(told) == [("verify", "table 2 of 4: public.orders with lake", 0.25)]


def test_json_has_a_form_for_everything() -> None:
    value = {
        "t": timedelta(seconds=90),
        "d": datetime(2026, 1, 2, tzinfo=UTC),
        "s": {2, 1},
        "p": Path("/x"),
    }
    assert json.loads(terminal.to_json(value)) == {
        "t": 90.0,
        "d": "2026-01-02T00:00:00+00:00",
        "s": [1, 2],
        "p": "/x",
    }
