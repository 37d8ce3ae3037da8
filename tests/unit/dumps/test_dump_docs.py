"""What the page about dumps says is what the code has: commands, defaults, modes, messages."""

from __future__ import annotations

import re
import shlex
import sys
import types
from pathlib import Path
from typing import Any, get_args

import pytest
from tests.support.results import result_of
from tools import failure_index
from typer.testing import CliRunner

import tidelog
import tidelog.app.overview as overview
from tidelog import cli
from tidelog.capture.dumps.throttle import Limit
from tidelog.capture.windows import VoidReason
from tidelog.cli import arguments, dump
from tidelog.config import DumpSection
from tidelog.config.source import PostgresSourceSection
from tidelog.control.commands import parse_options
from tidelog.model.units import format_bytes, format_milliseconds

ROOT = Path(__file__).parents[3]
HOW_TO = ROOT / "docs" / "how-to"
PAGE = HOW_TO / "dump-a-table.md"
OPERATE = PAGE.read_text(encoding="utf-8")
FAILURES = (ROOT / "docs" / "failure-modes.md").read_text(encoding="utf-8")
COMMANDS = sorted(
    {
        line.split("#")[0].strip()
        for line in re.findall(r"^ *\$ tidelog (.*)$", OPERATE, re.MULTILINE)
        if not line.startswith("watch")  # goes on until it is interrupted
    }
)


@pytest.mark.parametrize("command", COMMANDS)
def test_command_is_understood(
    command: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Up to where capture, or the source, would be asked."""

    class Runtime(types.ModuleType):
        def __getattr__(self, name: str) -> Any:
            return lambda *_a, **_k: result_of(name)

    class Loaded(str):
        pipeline = types.SimpleNamespace(name="pipeline")

    monkeypatch.setattr(arguments, "load", lambda path, **_: Loaded(path))
    monkeypatch.setattr(dump, "send", lambda *_a, **_k: None)
    monkeypatch.setitem(sys.modules, "tidelog.app", Runtime("tidelog.app"))
    monkeypatch.setitem(sys.modules, "tidelog.app.overview", overview)
    monkeypatch.setattr(tidelog, "app", sys.modules["tidelog.app"], raising=False)
    monkeypatch.chdir(tmp_path)
    Path("keys.csv").write_text("id\n1\n")
    if command.startswith("check"):
        monkeypatch.setattr(sys.modules["tidelog.app"], "check", lambda _c: [], raising=False)
    done = CliRunner().invoke(cli.app, shlex.split(command))
    assert done.exit_code == 0, (command, done.output, done.exception)


def table_under(heading: str, page: str = OPERATE) -> list[list[str]]:
    """The cells of the first table behind a text."""
    lines = page[page.index(heading) :].splitlines()
    first = next(i for i, line in enumerate(lines) if line.startswith("|"))
    rows = []
    for line in lines[first:]:
        if not line.startswith("|"):
            break
        rows.append([cell.strip() for cell in line.strip("|").split("|")])
    return [row for row in rows if not row[0].startswith("---")]


def test_every_mode_at_start_is_in_the_table() -> None:
    said = {row[0].split("`")[1] for row in table_under("## At start")[1:]}
    assert said == set(get_args(PostgresSourceSection.model_fields["snapshot"].annotation))


def test_every_strategy_is_in_the_table() -> None:
    heads = table_under("`source.watermarks` chooses")[0][1:]
    said = {head.split("`")[1] for head in heads}
    assert said == set(get_args(PostgresSourceSection.model_fields["watermarks"].annotation))


def test_options_of_set_have_the_defaults_that_the_page_says() -> None:
    for name, _effect, default in table_under("| `tidelog set` |")[1:]:
        name = name.strip("`")
        [(field, _)] = parse_options([f"{name}=1"]).changes.items()
        value = DumpSection.model_fields[field].default
        said = {
            "off": 0,
            format_bytes(value): value,
            (format_milliseconds(value) if value else "0"): value,
            str(value): value,
        }
        assert said.get(default) == value, (name, default, value)


def test_what_the_throttle_may_decide_is_on_the_page() -> None:
    row = next(row for row in table_under("## What the throttle decided") if "limited_by" in row[0])
    assert set(get_args(Limit)) <= set(re.findall(r"`(\w+)`", row[1]))


def test_every_reason_of_void_chunks_is_on_the_page_of_failures() -> None:
    section = FAILURES[FAILURES.index("### Chunks are void") :].split("\n### ")[0]
    assert {reason.name.lower() for reason in VoidReason} <= set(re.findall(r"`(\w+)`", section))


SOURCE = re.sub(
    r'"\s*\n\s*f?"',  # texts that go on in the next line
    "",
    "".join(
        p.read_text(encoding="utf-8")
        for p in (ROOT / "src").rglob("*")
        if p.suffix in (".py", ".js")  # the web page's
    ),
)


def test_every_indexed_message_is_the_codes() -> None:
    """A part of a message each; `…` stands for what differs."""
    messages = [message for message, _ in failure_index.messages(FAILURES)]
    assert len(messages) > 40
    parts = [(message, part.strip(" ,")) for message in messages for part in message.split("…")]
    assert [message for message, part in parts if part not in SOURCE] == []


def test_an_entry_is_found_by_the_messages_that_one_sees() -> None:
    page = """# Page

## Entries

### First error

*You see* `the table … is away` in `status`. *Do* run `VACUUM FULL the table`.

- `the lock is held`: end the session.
"""
    written = failure_index.with_index(page)
    index = written[: written.index("## Entries")]
    assert "- `the lock is held`: [First error](#first-error)\n" in index
    assert "- `the table … is away`: [First error](#first-error)\n" in index
    assert "VACUUM" not in index
    assert written.endswith(page[page.index("## Entries") :])
