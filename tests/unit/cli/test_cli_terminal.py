"""What documents look like on a terminal, in a pipe and as JSON."""

from __future__ import annotations

import io
import json
import logging
import re
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tidelog.cli import terminal
from tidelog.cli.dump import DumpBars
from tidelog.cli.inspect import verify_rows
from tidelog.cli.live import ProgressView, fit_rows
from tidelog.cli.terminal import JsonFormatter, OneLineFormatter
from tidelog.system.download_progress import Download

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


def test_a_plain_line_can_be_taken_apart_at_its_blanks() -> None:
    names = {"table": 'public.Odd "N"', "key": "a=b", "rows": 5, "none": None, "plain": "public.t"}
    line = terminal.plain_line(names)
    assert line == 'table="public.Odd \\"N\\"" key="a=b" rows=5 none=- plain=public.t'


def test_a_dump_that_is_waited_for_is_a_line_for_each_change_of_state(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def dump(table: str, rows: int, **more: object) -> dict[str, object]:
        tables = [{"table": "a.b", "status": table, "rows_read": rows}]
        return {"dump_id": "d", "status": "running", "tables": tables, "held": [], **more}

    bars = DumpBars(ProgressView(None, as_json=True))
    blocked = [{"why": "log_paused", "reason": "The log is paused.", "since_ms": 1}]
    for each in (
        dump("pending", 0), dump("pending", 0), dump("running", 5), dump("running", 9),
        dump("running", 9, held=blocked), dump("running", 9), dump("done", 10, status="completed"),
    ):  # fmt: skip
        bars.update(each)
    rows = [json.loads(line)["tables"][0] for line in capsys.readouterr().out.splitlines()]
    assert [(each["status"], each["rows_read"]) for each in rows] == [
        ("pending", 0), ("running", 5), ("running", 9), ("running", 9), ("done", 10),
    ]  # fmt: skip


def test_a_grant_is_printed_once(capsys: pytest.CaptureFixture[str]) -> None:
    grant = "GRANT SELECT ON `a`.* TO 'u'@'%';"
    fixes = [grant, f"CREATE TABLE t (id int);\n{grant}"]
    findings = [{"check": "c", "level": "error", "message": "m", "fix": fix} for fix in fixes]
    terminal.show_findings(findings, as_json=False)
    printed = capsys.readouterr().out
    assert printed.count(grant) == 1
    assert "CREATE TABLE t" in printed


def test_findings_on_a_terminal_tear_no_word_apart_and_leave_sql_whole(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    screen = FakeTerminal()
    monkeypatch.setattr(sys, "stdout", screen)
    monkeypatch.setenv("COLUMNS", "30")
    sql = "ALTER SYSTEM SET logical_decoding_work_mem = '256MB';"
    finding = {"check": "memory", "level": "warning", "message": "it is 64 MiB, which spills much"}
    terminal.show_findings([{**finding, "fix": sql}], as_json=False)
    lines = re.sub(r"\x1b\[[\d;]*m", "", screen.getvalue()).splitlines()
    assert [line.strip() for line in lines[:3]] == [
        "! memory: it is 64 MiB, which",
        "spills much",
        sql,
    ]


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


def test_a_screen_shows_the_first_of_many_differing_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = FakeTerminal()
    monkeypatch.setattr(sys, "stdout", screen)
    monkeypatch.setenv("COLUMNS", "200")
    keys = [[f"k{n:03}"] for n in range(300)]
    terminal.show({"tables": [{"table": "public.t", "keys": keys}]}, as_json=False)
    shown = " ".join(screen.getvalue().split())
    assert "['k009'] and 290 more (--json)" in shown
    assert "k010" not in shown


PLANNED = {
    "tables": [
        {
            "table": "public.order_lines_of_the_quarter", "rows": 1_234_567,
            "rows_from": "statistics", "bytes": 256 << 20, "chunks": 124, "seconds": 33.2,
            "speed_from": "two sample chunks",
        }
    ]
}  # fmt: skip


def test_a_name_is_broken_behind_its_underscores_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def shown(columns: int) -> str:
        screen = FakeTerminal()
        monkeypatch.setattr(sys, "stdout", screen)
        monkeypatch.setenv("COLUMNS", str(columns))
        terminal.show(PLANNED, as_json=False)
        return re.sub(r"\x1b\[[\d;]*m", "", screen.getvalue())

    assert "public.order_lines_of_the_quarter   1,234,567" in shown(120)
    lines = shown(80).splitlines()
    first = [line.split("  ")[0].strip() for line in lines]
    parts = ["public.", "order_", "lines_of_", "the_quarter"]
    assert first[first.index("public.") :][:4] == parts
    assert max(map(len, lines)) <= 80
    assert all(each in "\n".join(lines) for each in ("1,234,567", "256MiB", "124", "33.2"))
    # Too narrow for a table: each fact by its name.
    assert "rows=1234567 rows_from=statistics" in shown(50)


HOSTILE = "a.b\x1b[31m\r\n\u202e\x9b2J\u2028é🐍"
SHOWN = r"a.b\x1b[31m\r\n\u202e\x9b2J\u2028é🐍"


def test_names_do_nothing_to_a_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    terminal.show({"table": HOSTILE, "tables": [{"table": HOSTILE}]}, as_json=False)
    findings = [{"check": "a", "level": "warning", "message": HOSTILE, "fix": f"one {HOSTILE}"}]
    terminal.show_findings(findings, as_json=False)
    terminal.print_error(HOSTILE)
    shown = capsys.readouterr()
    assert shown.out.count(SHOWN.partition(r"\n")[0]) == 4
    assert "\x1b" not in shown.out + shown.err
    screen = FakeTerminal()
    monkeypatch.setattr(sys, "stdout", screen)
    monkeypatch.setenv("COLUMNS", "100")
    terminal.show({"table": HOSTILE}, as_json=False)
    assert SHOWN in screen.getvalue()


def test_names_on_a_terminal_are_neither_markup_nor_emoji(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = FakeTerminal()
    monkeypatch.setattr(sys, "stdout", screen)
    monkeypatch.setenv("COLUMNS", "100")
    keys = [{"a column that is wide enough for the title": 1}]
    terminal.show({"tables": [{"table": "a.b[/b]\x1b[5m", "keys": keys}]}, as_json=False)
    terminal.print_sentence("app:id:42")
    shown = re.sub(r"\x1b\[[\d;]*m", "", screen.getvalue())
    assert r"a.b[/b]\x1b[5m keys" in shown
    assert "app:id:42" in shown


def test_names_in_the_progress_of_a_command_do_nothing_to_a_terminal(
    capsys: pytest.CaptureFixture[str],
) -> None:
    ProgressView(None, error=True).show({}, f"verify: {HOSTILE}", lambda *_size: [])
    assert capsys.readouterr().err == f"verify: {SHOWN}\n"


def test_an_error_on_a_terminal_tears_no_word_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = FakeTerminal()
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setenv("COLUMNS", "40")
    terminal.print_error("the event log is not there; `tidelog capture` creates one\nsecond line")
    shown = re.sub(r"\x1b\[[\d;]*m", "", screen.getvalue())
    assert shown == (
        "error: the event log is not there; \n`tidelog capture` creates one\nsecond line\n"
    )


def test_a_log_record_is_one_line() -> None:
    try:
        raise ValueError("two\nlines")
    except ValueError:
        error = sys.exc_info()
    record = logging.LogRecord("n", logging.INFO, "p", 1, "table %s", (HOSTILE,), error)
    first, *others = OneLineFormatter("%(levelname)s %(message)s").format(record).split("\n")
    assert first == f"INFO table {SHOWN}"
    assert others[0].startswith("Traceback")


def test_a_log_record_is_a_json_object_without_values() -> None:
    try:
        raise ValueError("-".join(["a", "value"]))
    except ValueError:
        error = sys.exc_info()
    record = logging.LogRecord("n", logging.WARNING, "p", 1, "table %s", (HOSTILE,), error)
    text = JsonFormatter().format(record)
    found = json.loads(text)
    assert "\n" not in text
    assert "a-value" not in text
    assert (found["level"], found["logger"], found["kind"]) == ("warning", "n", "ValueError")
    assert found["message"] == f"table {HOSTILE}"
    assert "test_cli_terminal" in found["where"]
    assert datetime.fromisoformat(found["at"]).timestamp() == pytest.approx(
        record.created, abs=0.001
    )


def test_a_first_fact_that_changes_is_reported_at_once_where_there_is_no_terminal(
    capsys: pytest.CaptureFixture[str],
) -> None:
    steps = [{"stage": "Spark starts"}, {"table": "a.b", "output": "lake", "done": 0, "of": 2}]
    steps += [{**steps[1], "table": "a.c"}, {**steps[1], "stage": "10 rows summed up"}]
    steps += [{**steps[2], "done": 1, "stage": "10 rows summed up"}]
    view = ProgressView(None)

    def show(step: dict[str, object]) -> None:
        rows = verify_rows(step)
        view.show(step, f"verify: {rows[0].text}", lambda *_size: rows, at_once=rows[0].text)

    for step in (steps[0], steps[0], *steps):
        show(step)
    lines = capsys.readouterr().out.splitlines()
    counts = [f"verify: {n} of 2 copies compared" for n in (0, 1)]
    assert lines == ["verify: Spark starts", *counts], "several at a time: the count only grows"


def facts_of(document: dict[str, object]) -> list[tuple[str, object, float | None]]:
    return [(row.name, row.text, row.share) for row in verify_rows(document)]


def test_verify_shows_what_it_fetches() -> None:
    document = {"fetching": Download("Delta's jars", 4 << 20, 16 << 20, False)}
    assert facts_of(document) == [
        ("verify", "fetches Delta's jars", None),
        ("", "4MiB of 16MiB", 0.25),
    ]
    lines = [line.plain.rstrip() for line in fit_rows(verify_rows(document), 60, 9)]
    assert lines[1] == "         4MiB of 16MiB  █████░░░░░░░░░░░░░░░"
    unsized = {"fetching": Download("Delta's jars", 4 << 20, None, False)}
    assert facts_of(unsized)[1] == ("", "4MiB", None)


def test_verify_shows_how_many_copies_it_has_compared() -> None:
    told = {"table": "public.orders", "output": "lake", "done": 1, "of": 4}
    count = ("verify", "1 of 4 copies compared", 0.25)
    assert facts_of(told) == [count, ("", "public.orders with lake", None)]
    assert facts_of({**told, "stage": "waits for capture"}) == [
        count,
        ("", "public.orders with lake: waits for capture", None),
    ]


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


def test_commands_that_are_printed_or_logged_name_the_configuration(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    said = "`tidelog resume CONFIG --log` resumes it"
    monkeypatch.setattr(terminal, "CONFIG_FILES", {"my shop.yaml": ""})
    terminal.print_sentence(said)
    terminal.print_error(said)
    record = logging.LogRecord("tidelog", logging.WARNING, "", 1, said, None, None)
    formats = [each.format(record) for each in terminal.LOG_FORMATS.values()]
    shown = [*capsys.readouterr(), *formats]
    assert all("`tidelog resume 'my shop.yaml' --log`" in each for each in shown)
    terminal.emit(said)  # for programs
    terminal.CONFIG_FILES["my shop.yaml"] = "a b"
    terminal.print_line(said)
    named = "`tidelog --database 'a b' resume 'my shop.yaml' --log`"
    assert named in capsys.readouterr().out
    terminal.emit(said)
    terminal.CONFIG_FILES["other.yaml"] = ""
    terminal.print_line(said)
    assert capsys.readouterr().out.count(said) == 2
