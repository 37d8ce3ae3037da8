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
from tidelog.cli.log_format import OneLine

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


def test_live_view_is_redrawn_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = FakeTerminal()
    monkeypatch.setattr(sys, "stdout", screen)
    with terminal.TerminalProgress("capture", as_json=False) as progress:
        progress.update({"records": 1})
        progress.update({"records": 2000})
    assert "2,000" in screen.getvalue()


def test_plain_progress_is_limited_but_ends_with_the_last_state(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with terminal.TerminalProgress("dump", as_json=False) as progress:
        for number in range(100):
            progress.update({"rows": number})
    assert capsys.readouterr().out == "dump: rows=0\ndump: rows=99\n"


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
