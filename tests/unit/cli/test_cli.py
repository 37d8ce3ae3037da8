"""The command line: what each command asks of the runtime, what it writes, how it exits."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from tests.support.demo_documents import REPORT
from tests.support.results import result_of
from tests.support.screens import Feed

import tidelog
import tidelog.app.overview as overview
from tidelog import cli
from tidelog.cli.terminal import stop_on_signals
from tidelog.control.commands import CancelDump, PauseDump, SetDumpOptions, StartDump
from tidelog.errors import ConnectionLostError, GapError, LeaseLostError, PreflightError
from tidelog.results import TableComparison, Verification

CONFIG = """\
source: {kind: postgres, url: "postgresql://u:s3cret@localhost/shop"}
log: {path: log}
outputs: [{kind: delta, path: lake}]
"""


TOLD: dict[str, dict[str, Any]] = {
    "verify": {"stage": "Spark starts"},
    "dump_wait": {"dump_id": "x", "status": "running", "tables": []},
    "wait_delivered": {"dump_id": "x", "status": "running", "tables": []},
}
"""What commands are told while they wait; others: as below."""


DETAILS: dict[str, dict[str, Any]] = {
    "execute-snapshot": {"dump_id": "x", "tables": ["public.a"]},
    "pause-snapshot": {"dumps": ["x"]},
    "resume-snapshot": {"dumps": ["x"]},
    "stop-snapshot": {"dumps": ["x"]},
    "set-dump-options": {"chunk_rows": 5},
    "log": {"logged": True},
}
"""What capture answers to commands."""


class Runtime(ModuleType):
    """Records what the command line asks for; stands where `tidelog.app` is imported."""

    def __init__(self) -> None:
        super().__init__("tidelog.app")
        self.calls: list[tuple[str, dict[str, Any]]] = []
        self.answers: dict[str, Any] = {}
        self.failure: BaseException | None = None
        self.failures: dict[str, BaseException] = {}
        self.StatusFeed = Feed

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)

        def call(*arguments: Any, **options: Any) -> Any:
            self.calls.append((name, {"arguments": arguments, **options}))
            failure = self.failures.get(name, self.failure)
            if failure is not None:
                raise failure
            for option in ("on_status", "on_progress"):
                if option in options:
                    told: Any = TOLD.get(name, {"position": "0/1", "rows": 7})
                    options[option](result_of(name, told) if name == "wait_delivered" else told)
            if name == "send_command" and name not in self.answers:
                details = DETAILS[arguments[1].type]
                done = {"id": "1", "state": "done", "details": details, "error": None}
                return result_of(name, done)
            return result_of(name, self.answers.get(name))

        return call


@pytest.fixture
def runtime(monkeypatch: pytest.MonkeyPatch) -> Runtime:
    module = Runtime()
    monkeypatch.setitem(sys.modules, "tidelog.app", module)
    monkeypatch.setitem(sys.modules, "tidelog.app.overview", overview)
    monkeypatch.setattr(tidelog, "app", module, raising=False)
    return module


@pytest.fixture
def config(tmp_path: Path) -> str:
    file = tmp_path / "tidelog.yaml"
    file.write_text(CONFIG, encoding="utf-8")
    return str(file)


def invoke(*arguments: str) -> int:
    with pytest.raises(SystemExit) as caught:
        cli.main(arguments)
    return int(caught.value.code or 0)


def test_every_command_of_the_public_surface_exists() -> None:
    commands = cli.app.registered_commands
    names = {command.name or command.callback.__name__ for command in commands}  # type: ignore[union-attr]
    runs = {"demo", "init", "run", "capture", "pipeline", "serve"}
    runs |= {"handover", "reset", "forget-engine", "jars"}
    dumps = {"dump", "wait", "pause", "resume", "cancel", "set", "signal"}
    assert names == runs | dumps | {"check", "plan", "status", "watch", "log", "verify", "schema"}
    groups = {group.name: group.typer_instance for group in cli.app.registered_groups}
    assert [c.name for c in groups["state"].registered_commands] == ["copy"]  # type: ignore[union-attr]


def test_help_has_no_line_breaks_of_a_docstring(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    assert invoke("init", "--help") == 0
    shown = capsys.readouterr().out
    assert "tidelog init [OPTIONS] [CONFIG]" in shown
    assert "elsewhere all tables go to a Delta lake. Changes nothing in the database." in shown


def test_the_file_in_the_current_directory_is_used_if_none_is_named(
    runtime: Runtime,
    config: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    assert invoke("wait", "--help") == 0
    assert "tidelog wait [OPTIONS] [CONFIG] " in capsys.readouterr().out
    assert invoke("status", "--json") == 0
    assert invoke("pause", "d1") == 0
    assert invoke("set", "max_lag=2.5KiB") == 0
    assert invoke("pause", "tidelog.yaml", "d1") == 0
    assert invoke("pause", "other.yaml", "d1") == 2
    assert "`tidelog init other.yaml` writes one" in capsys.readouterr().err
    commands = [call["arguments"][1] for name, call in runtime.calls if name == "send_command"]
    assert [getattr(each, "dump_id", None) for each in commands] == ["d1", None, "d1"]


def test_exclude_is_a_table_with_an_exclamation_mark(runtime: Runtime, config: str) -> None:
    assert invoke("dump", config, "-t", "public.*", "--exclude", "public.a") == 0
    assert invoke("dump", config, "--exclude", "public.a", "--exclude=!public.b") == 0
    assert invoke("plan", config, "--exclude", "public.a") == 0
    assert invoke("dump", config, "--exclude", "public.a,public.b") == 2
    dumps = [call["arguments"][1] for name, call in runtime.calls if name == "send_command"]
    assert dumps[0].tables == ("public.*", "!public.a")
    assert dumps[1].tables == ("!public.a", "!public.b")
    assert next(call for name, call in runtime.calls if name == "plan")["tables"] == ["!public.a"]


@pytest.mark.parametrize("command", [("run",), ("serve",), ("status", "--json")])
def test_without_any_file_a_command_says_what_to_do(
    command: tuple[str, ...],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert invoke(*command) == 2
    printed = "".join(capsys.readouterr())
    assert "this directory has no tidelog.yaml" in printed
    assert f"`tidelog {command[0]} FILE`" in printed
    assert "tidelog init" in printed


def test_help_is_quick_and_imports_nothing_heavy() -> None:
    script = (
        "import sys, tidelog.cli as c\n"
        "try: c.main(['--help'])\n"
        "except SystemExit as e: assert e.code == 0\n"
        "heavy = {'numba', 'pyarrow', 'pyspark', 'psycopg', 'pydantic'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, timeout=60)


def test_version_and_usage_errors_have_their_exit_codes(capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke("--version") == 0
    assert capsys.readouterr().out == f"tidelog {tidelog.__version__}\n"
    assert invoke("nonsense") == 2
    assert invoke("status") == 2
    assert invoke("--log-level", "loud", "status", "x") == 2


def test_bad_configuration_is_reported_with_line_and_exit_code_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "t.yaml"
    file.write_text(CONFIG + "dmp: {}\n")
    assert invoke("status", str(file), "--json") == 2
    captured = capsys.readouterr()
    assert "t.yaml:4: dmp: unknown key; did you mean 'dump'?" in captured.err
    assert json.loads(captured.out)["error"]["kind"] == "ConfigError"
    assert invoke("status", str(tmp_path / "nowhere.yaml")) == 2


@pytest.mark.parametrize(
    ("failure", "code", "text"),
    [
        (GapError("the slot is ahead"), 1, "error: the slot is ahead\n"),
        (PreflightError("wal_level is replica"), 2, "error: wal_level is replica\n"),
        (ConnectionLostError("gone"), 1, "error: gone (this may pass: try again)\n"),
        (LeaseLostError("lost"), 1, "(start it again; it resumes after the last durable change)"),
    ],
)
def test_error_has_its_exit_code_and_advice(
    runtime: Runtime,
    config: str,
    capsys: pytest.CaptureFixture[str],
    failure: Exception,
    code: int,
    text: str,
) -> None:
    runtime.failure = failure
    assert invoke("capture", config) == code
    assert text in capsys.readouterr().err


def test_unexpected_error_shows_where_but_not_its_text(
    runtime: Runtime,
    config: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    runtime.failure = ValueError("row ('s3cret')")
    assert invoke("status", config, "--json") == 1
    captured = capsys.readouterr()
    assert "internal error (ValueError)" in captured.err
    assert "inspect.py" in captured.err
    assert "s3cret" not in captured.err + captured.out
    monkeypatch.setenv("TIDELOG_DEBUG", "1")
    assert invoke("status", config) == 1
    assert "s3cret" in capsys.readouterr().err


def test_status_as_json_and_as_lines(
    runtime: Runtime, config: str, capsys: pytest.CaptureFixture[str]
) -> None:
    runtime.answers["status"] = {
        "leader": None,
        "updated_ms": 0,
        "dumps": [{"dump_id": "d1", "status": "running", "tables": [{"table": "a.b"}]}],
        "failed_ranges": [{"dump_id": "d1", "low": [1], "high": [2]}],
    }
    assert invoke("status", config, "--json") == 0
    assert json.loads(capsys.readouterr().out) == runtime.answers["status"]
    assert invoke("status", config) == 0
    out = capsys.readouterr().out
    assert out.startswith("✗ No capture leads; the last one was seen ")
    assert "  dump     d1 is running: 0 of 1 tables, 0 rows\n" in out
    assert out.endswith("unread: dump_id=d1 low=1 high=2\n")


@pytest.mark.parametrize(
    ("severity", "on_warning", "on_critical"),
    [("ok", 0, 0), ("info", 0, 0), ("warning", 1, 0), ("critical", 1, 1)],
)
def test_status_fails_on_problems_if_asked_to(
    runtime: Runtime, config: str, severity: str, on_warning: int, on_critical: int
) -> None:
    runtime.answers["status"] = {"leader": None, "overview": {"severity": severity}}
    assert invoke("status", config) == 0
    assert invoke("status", config, "--json", "--fail-on", "warning") == on_warning
    assert invoke("status", config, "--fail-on", "critical") == on_critical


def test_check_says_how_to_fix_and_exits_2_only_for_errors(
    runtime: Runtime, config: str, capsys: pytest.CaptureFixture[str]
) -> None:
    ok = {"check": "wal_level", "level": "ok", "message": "logical", "fix": ""}
    bad = {"check": "slots", "level": "error", "message": "none free", "fix": "ALTER SYSTEM …;"}
    runtime.answers["check"] = [ok, bad]
    assert invoke("check", config) == 2
    assert capsys.readouterr().out == (
        "✓ wal_level: logical\n✗ slots: none free\n      ALTER SYSTEM …;\n"
        "2 checks: 1 in order, 1 to fix; `tidelog check --sql` writes the SQL as one "
        "script\n"
    )
    assert invoke("check", config, "--json") == 2
    assert json.loads(capsys.readouterr().out) == {"ok": False, "findings": [ok, bad]}
    runtime.answers["check"] = [ok, {**bad, "level": "warning"}]
    assert invoke("check", config) == 0


def sent(runtime: Runtime) -> Any:
    [(_, call)] = [call for call in runtime.calls if call[0] == "send_command"]
    return call["arguments"][1]


def test_dump_becomes_a_command(runtime: Runtime, config: str) -> None:
    assert invoke("dump", config, "-t", "public.a", "--table", "public.b*", "--id", "x") == 0
    assert sent(runtime) == StartDump(dump_id="x", tables=("public.a", "public.b*"))


def test_dump_of_keys_from_option_and_file(runtime: Runtime, config: str, tmp_path: Path) -> None:
    assert invoke("dump", config, "-t", "p.a", "--keys", '[{"id": 1}]') == 0
    assert sent(runtime).keys == (("1",),)
    assert sent(runtime).key_columns == ("id",)
    runtime.calls.clear()
    file = tmp_path / "keys.csv"
    file.write_text("id\n1\n")
    stored = {"tables": ("p.a",), "key_set": "given-1", "key_columns": ("id",)}
    runtime.answers["store_key_file"] = stored
    assert invoke("dump", config, "-t", "p.a", "--keys-file", str(file), "--missing", "list") == 0
    assert (sent(runtime).key_set, sent(runtime).missing) == ("given-1", "list")
    assert sent(runtime).keys is None
    [(_, call)] = [call for call in runtime.calls if call[0] == "store_key_file"]
    assert call["arguments"][1:] == (file, ["p.a"])


def test_keys_that_a_dump_did_not_find_are_shown(
    runtime: Runtime, config: str, capsys: pytest.CaptureFixture[str]
) -> None:
    runtime.answers["dump_wait"] = {"dump_id": "x", "status": "completed"}
    arguments = ["dump", config, "-t", "p.a", "--keys", "[7]", "--wait", "--missing", "list"]
    runtime.answers["missing_keys"] = iter([("7",)])
    assert invoke(*arguments) == 0
    assert 'missing: ["7"]' in capsys.readouterr().out.splitlines()
    runtime.answers["missing_keys"] = iter([("7",)])
    assert invoke(*arguments, "--json") == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["missing_keys"] == [["7"]]


def test_waiting_for_outputs_exits_by_what_they_hold(runtime: Runtime, config: str) -> None:
    runtime.answers["dump_wait"] = {"dump_id": "x", "status": "completed"}
    for held, code in ((True, 0), (False, 1)):
        runtime.answers["wait_delivered"] = {
            "dump_id": "x", "status": "completed", "delivered": held, "tables": [],
        }  # fmt: skip
        assert invoke("dump", config, "--wait", "--delivered", "--id", "x") == code
        assert invoke("wait", config, "x", "--output", "delta", "--timeout", "3") == code
    call = [call for name, call in runtime.calls if name == "wait_delivered"][-1]
    assert (call["arguments"][1:], call["timeout_s"]) == (("x", "delta"), 3.0)


@pytest.mark.parametrize(
    "arguments",
    [
        ["--where", "x = 1"],
        ["-t", "orders"],
        ["-t", "p.a", "--keys", "[1]", "--keys-file", "f"],
        ["-t", "p.a", "--keys", "{"],
        ["-t", "p.a", "--keys-file", "/nonexistent"],
        ["-t", "p.a", "--missing", "list"],
        ["-t", "p.a", "--keys", "[1]", "--missing", "ignore"],
        ["--delivered"],
        ["--mode", "sideways"],
        ["--id", "not an id"],
    ],
)
def test_bad_dump_is_refused_before_anything_is_sent(
    runtime: Runtime, config: str, arguments: list[str]
) -> None:
    assert invoke("dump", config, *arguments) == 2
    assert runtime.calls == []


def test_dump_wait_exits_by_how_the_dump_ended(
    runtime: Runtime, config: str, capsys: pytest.CaptureFixture[str]
) -> None:
    runtime.answers["dump_wait"] = {"dump_id": "x", "status": "completed"}
    assert invoke("dump", config, "--wait", "--json", "--id", "x") == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert lines[-1] == {"dump_id": "x", "status": "completed"}
    runtime.answers["dump_wait"] = {"dump_id": "x", "status": "aborted"}
    assert invoke("dump", config, "--wait", "--id", "x") == 1


def test_pause_cancel_and_set_become_commands(runtime: Runtime, config: str) -> None:
    assert invoke("pause", config) == 0
    paused = sent(runtime)
    assert isinstance(paused, PauseDump)
    assert paused.dump_id is None
    assert "@" in paused.by  # who asked for it
    runtime.calls.clear()
    assert invoke("cancel", config, "d1", "-t", "a.b") == 0
    assert sent(runtime) == CancelDump(dump_id="d1", tables=("a.b",))
    runtime.calls.clear()
    assert invoke("set", config, "chunk_rows=500", "delay=1.5s", "parallelism=2") == 0
    assert sent(runtime) == SetDumpOptions(chunk_rows=500, delay_ms=1500, parallelism=2)
    assert invoke("set", config, "chunk_rows") == 2
    assert invoke("set", config, "speed=9") == 2
    assert invoke("set", config, "delay=soon") == 2
    assert invoke("set", config) == 2


def test_command_that_failed_or_waits_is_distinguished(
    runtime: Runtime, config: str, capsys: pytest.CaptureFixture[str]
) -> None:
    answer = {"id": "1", "state": "failed", "details": {}, "error": "no dump is running"}
    runtime.answers["send_command"] = answer
    assert invoke("resume", config) == 1
    assert "error: no dump is running" in capsys.readouterr().err
    runtime.answers["send_command"] = {**answer, "state": "waiting", "error": None}
    assert invoke("resume", config) == 0
    assert (
        capsys.readouterr().out == "no capture has handled it within 10 s; the next leader will\n"
    )


@pytest.mark.parametrize(("place", "timeout_s"), [("log", 10), ("s3://bucket/log", 30)])
def test_a_command_is_waited_for_until_the_leader_has_looked(
    runtime: Runtime, config: str, place: str, timeout_s: float
) -> None:
    Path(config).write_text(CONFIG.replace("path: log", f"path: '{place}'"))
    assert invoke("pause", config) == 0
    assert invoke("pause", config, "--timeout", "5") == 0
    assert [call["timeout_s"] for _, call in runtime.calls] == [timeout_s, 5]


def test_log_writes_json_lines(
    runtime: Runtime, config: str, capsys: pytest.CaptureFixture[str]
) -> None:
    runtime.answers["log_lines"] = iter(['{"op":"c","after":{"name":"ä"}}', '{"op":"d"}'])
    assert invoke("log", config, "--table", "a.b", "--from", "17", "--follow") == 0
    assert capsys.readouterr().out == '{"op":"c","after":{"name":"ä"}}\n{"op":"d"}\n'
    [(_, call)] = runtime.calls
    assert (call["table"], call["start"], call["follow"]) == ("a.b", 17, True)


@pytest.mark.parametrize(
    ("arguments", "start", "tail"),
    [
        ([], None, None),
        (["--follow"], None, 0),
        (["--follow", "--from", "oldest"], None, None),
        (["--follow", "--tail", "3"], None, 3),
        (["--from", "0"], 0, None),
    ],
)
def test_log_begins_at_the_given_offset(
    runtime: Runtime, config: str, arguments: list[str], start: int | None, tail: int | None
) -> None:
    runtime.answers["log_lines"] = iter([])
    assert invoke("log", config, *arguments) == 0
    [(_, call)] = runtime.calls
    assert (call["start"], call["tail"]) == (start, tail)


@pytest.mark.parametrize("arguments", [["--from", "-1"], ["--from", "x"], ["--tail", "-1"]])
def test_log_refuses_what_is_no_place(runtime: Runtime, config: str, arguments: list[str]) -> None:
    assert invoke("log", config, *arguments) == 2
    assert invoke("log", config, "--from", "1", "--tail", "1") == 2
    assert runtime.calls == []


RUNNING = [
    {"dump_id": "d1", "status": "running", "tables": [{"table": "a.b"}]},
    {"dump_id": "d0", "status": "completed", "tables": []},
    {"dump_id": "d2", "status": "paused", "tables": []},
]


def test_cancel_without_an_id_lists_the_dumps_where_nobody_can_answer(
    runtime: Runtime, config: str, capsys: pytest.CaptureFixture[str]
) -> None:
    runtime.answers["status"] = {"dumps": RUNNING}
    assert invoke("cancel", config) == 2
    written = capsys.readouterr().err
    assert "d1 is running: 0 of 1 tables" in written
    assert "d2 is paused" in written
    assert "d0" not in written
    runtime.answers["status"] = {"dumps": []}
    assert invoke("cancel", config) == 0
    assert "no dump runs" in capsys.readouterr().out
    assert invoke("cancel", config, "--json") == 0
    assert json.loads(capsys.readouterr().out)["details"] == {"dumps": []}
    assert [name for name, _ in runtime.calls] == ["status"] * 3
    assert invoke("cancel", config, "--all") == 0
    assert runtime.calls[-1][1]["arguments"][1] == CancelDump()
    assert invoke("cancel", config, "d1", "--all") == 2
    assert "give one of a dump's id and --all" in capsys.readouterr().err


def test_cancel_asks_nobody_for_json(
    runtime: Runtime,
    config: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On a terminal, too."""
    for stream in (sys.stdin, sys.stdout):
        monkeypatch.setattr(stream, "isatty", lambda: True, raising=False)
    runtime.answers["status"] = {"dumps": RUNNING}
    assert invoke("cancel", config, "--json") == 2
    written = capsys.readouterr()
    assert "d2 is paused" in json.loads(written.out)["error"]["message"]


def test_reset_changes_nothing_unless_somebody_consents(
    runtime: Runtime, config: str, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = {"log": "/l", "captured_until_ms": None, "tables": ["a.b"], "not_dumped": []}
    runtime.answers["reset_plan"] = plan
    assert invoke("reset", config) == 2
    written = capsys.readouterr()
    assert "Dumped again, so that copies are right: 1 table: a.b." in written.out
    assert "Not dumped" not in written.out
    assert "nothing was changed" in written.err
    assert [name for name, _ in runtime.calls] == ["reset_plan"]
    assert invoke("reset", config, "--yes") == 0
    assert [name for name, _ in runtime.calls][1:] == ["reset_plan", "reset"]


def test_reset_says_which_tables_stay_without_what_is_lost(
    runtime: Runtime, config: str, capsys: pytest.CaptureFixture[str]
) -> None:
    runtime.answers["reset_plan"] = {
        "log": "/l", "captured_until_ms": None, "tables": ["a.b"],
        "not_dumped": [{"table": "a.k", "reason": "it has no primary key"}],
    }  # fmt: skip
    assert invoke("reset", config) == 2
    written = capsys.readouterr().out
    assert "are right: 1 table: a.b." in written
    assert "no dump can read them: 1 table: a.k (it has no primary key). Their lost" in written


def test_check_writes_its_sql_alone(
    runtime: Runtime, config: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for can_start, code in ((True, 0), (False, 2)):
        runtime.answers["check_script"] = (["-- as app:", "GRANT x;"], can_start)
        assert invoke("check", config, "--sql") == code
        assert capsys.readouterr().out == "-- as app:\nGRANT x;\n"
    runtime.answers["check_script"] = ([], True)
    assert invoke("check", config, "--sql") == 0
    assert capsys.readouterr().out == "-- nothing to fix\n"
    assert invoke("check", config, "--sql", "--json") == 2


def test_who_ends_the_waiting_hears_that_the_dump_continues(
    runtime: Runtime, config: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for arguments in (["dump", config, "--id", "d1", "--wait"], ["wait", config, "d1"]):
        runtime.failures = {"dump_wait": KeyboardInterrupt(), "wait_delivered": KeyboardInterrupt()}
        assert invoke(*arguments) == 130
        assert (
            f"dump d1 continues; to wait again: tidelog wait {config} d1; to end it: tidelog "
            in (capsys.readouterr().err)
        )


def test_verify_exits_1_when_a_key_differs(
    runtime: Runtime, config: str, capsys: pytest.CaptureFixture[str]
) -> None:
    runtime.answers["verify"] = {"equal": True, "tables": []}
    assert invoke("verify", config) == 0
    printed = capsys.readouterr()  # a pipe gets the report alone, and a person the progress
    assert (printed.out, printed.err) == ("equal: yes\ntables: -\n", "verify: Spark starts\n")
    runtime.answers["verify"] = {"equal": False, "tables": [{"table": "a.b", "equal": False}]}
    assert invoke("verify", config, "-t", "a.b", "--repair") == 1
    assert runtime.calls[-1][1]["repair"] is True


def test_an_interrupted_verify_shows_what_it_has(
    runtime: Runtime, config: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def verify(*_: Any, on_partial: Any, **__: Any) -> None:
        found = TableComparison("lake", "a.b", True, rows=2)
        on_partial(Verification(False, (found,), ("a.c in lake",)))
        raise KeyboardInterrupt

    runtime.verify = verify  # type: ignore[attr-defined]
    assert invoke("verify", config) == 130
    assert capsys.readouterr().out == (
        "equal: no\ntables: output=lake table=a.b equal=yes rows=2 "
        'missing=0 surplus=0 different=0 unsettled=0 keys=- method="" because="" ranges=0 '
        'ranges_read=0 note=""\nnot_compared: copy="a.c in lake" reason="verify ended first"\n'
    )


def test_a_copy_that_was_not_compared_is_not_shown_as_unequal_with_zeros(
    runtime: Runtime, config: str, capsys: pytest.CaptureFixture[str]
) -> None:
    tables = [
        {"table": "a.b", "equal": False, "note": "not compared: it is lost"},
        {"table": "a.c", "equal": False, "note": "the output leaves it out: no", "left_out": True},
        {"table": "a.d", "equal": False, "rows": 7, "different": 1},
    ]
    runtime.answers["verify"] = {"equal": False, "tables": tables}
    assert invoke("verify", config) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].startswith(
        "tables: output=lake table=a.d equal=no rows=7 missing=0 surplus=0 d"
    )
    assert lines[2:] == [
        'not_compared: copy="a.b in lake" reason="it is lost"',
        'not_compared: copy="a.c in lake" reason="the output leaves it out: no"',
    ]
    assert invoke("verify", config, "--json") == 1
    assert [table["equal"] for table in json.loads(capsys.readouterr().out)["tables"]] == [
        False
    ] * 3


@pytest.mark.parametrize(
    "command", ["status", "log", "plan", "verify", "schema", "pause", "resume", "dump", "pipeline"]
)
def test_a_token_is_needed_where_the_page_is_served_alone(
    runtime: Runtime, config: str, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    file = Path(config)
    file.write_text(file.read_text() + "control: {rest: {token: '${NO_TOKEN}'}}\n")
    runtime.answers["log_lines"] = iter(())
    invoke(command, config)
    assert "NO_TOKEN" not in capsys.readouterr().err
    assert runtime.calls
    assert invoke("capture", config) == 2
    assert "environment variable NO_TOKEN is not set" in capsys.readouterr().err


@pytest.mark.parametrize(("equal", "code"), [(False, 1), (True, 0)])
def test_demo_exits_1_unless_everything_is_equal(
    monkeypatch: pytest.MonkeyPatch, equal: bool, code: int
) -> None:
    monkeypatch.setattr("tidelog.demo.run.demo", lambda **_options: REPORT | {"equal": equal})
    assert invoke("demo", "--rows", "1000", "--seconds", "1") == code


def test_progress_is_json_lines_with_json_and_plain_lines_without_a_terminal(
    runtime: Runtime, config: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert invoke("capture", config, "--json") == 0
    assert json.loads(capsys.readouterr().out) == {"position": "0/1", "rows": 7}
    assert invoke("pipeline", config, "--once") == 0
    assert not capsys.readouterr().err


def test_pipeline_without_outputs_is_refused(runtime: Runtime, tmp_path: Path) -> None:
    file = tmp_path / "t.yaml"
    file.write_text(CONFIG.rsplit("outputs", 1)[0])
    assert invoke("pipeline", str(file)) == 2
    assert runtime.calls == []


@pytest.fixture
def process() -> Iterator[list[subprocess.Popen[str]]]:
    started: list[subprocess.Popen[str]] = []
    yield started
    for child in started:
        child.kill()
        child.communicate()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal_ends_capture_in_order(
    process: list[subprocess.Popen[str]], config: str, number: signal.Signals
) -> None:
    script = (
        "import sys, types\n"
        "import tidelog\n"
        "import tidelog.app.overview\n"
        "runtime = types.ModuleType('tidelog.app')\n"
        "def capture(config, on_status, stop_event):\n"
        "    print('ready', flush=True)\n"
        "    assert stop_event.wait(60)\n"
        "    print('stopped in order', flush=True)\n"
        "runtime.run_capture = capture\n"
        "class Feed:\n"
        "    poll_interval_s, pays_per_request = 0.5, False\n"
        "    __init__ = __exit__ = lambda self, *a: None\n"
        "    __enter__ = lambda self: self\n"
        "    latest = lambda self, last=False: {'leader': None, 'capture': None}\n"
        "runtime.StatusFeed = Feed\n"
        "sys.modules['tidelog.app'] = tidelog.app = runtime\n"
        "from tidelog.cli import main\n"
        f"main(['capture', {config!r}])\n"
    )
    child = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    process.append(child)
    assert child.stdout is not None
    assert "ready\n" in child.stdout, "it ended before"
    child.send_signal(number)
    out, _ = child.communicate(timeout=30)
    assert "stopped in order\n" in out
    assert child.returncode == 0


def test_reader_that_has_enough_ends_log_without_a_word(
    process: list[subprocess.Popen[str]], config: str
) -> None:
    script = (
        "import sys, types, itertools\n"
        "import tidelog\n"
        "runtime = types.ModuleType('tidelog.app')\n"
        "runtime.log_lines = lambda *a, **k: map(str, itertools.count())\n"
        "sys.modules['tidelog.app'] = tidelog.app = runtime\n"
        "from tidelog.cli import main\n"
        f"main(['log', {config!r}])\n"
    )
    read_end, write_end = os.pipe()
    child = subprocess.Popen(
        [sys.executable, "-c", script], stdout=write_end, stderr=subprocess.PIPE, text=True
    )
    process.append(child)
    os.close(write_end)
    assert os.read(read_end, 100).startswith(b"0\n")
    os.close(read_end)
    _, err = child.communicate(timeout=30)
    assert (child.returncode, err) == (0, "")


def test_second_interrupt_ends_at_once() -> None:
    with stop_on_signals() as stop:
        signal.raise_signal(signal.SIGINT)
        deadline = time.monotonic() + 5
        while not stop.is_set() and time.monotonic() < deadline:
            time.sleep(0.001)
        assert stop.is_set()
        pid = os.fork()
        if pid == 0:
            signal.raise_signal(signal.SIGINT)
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 128 + signal.SIGINT
