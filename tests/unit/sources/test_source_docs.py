"""The pages of the sources are alike, and say what the code says."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
import types
from pathlib import Path
from typing import Any, get_args

import pytest
from tests.support.results import result_of
from tests.support.screens import Feed
from typer.testing import CliRunner

import tidelog
import tidelog.app.overview as overview
from tidelog import cli
from tidelog.cli import arguments, dump
from tidelog.config.source import SOURCES

ROOT = Path(__file__).parents[3]
PAGES = {"postgres": "postgresql", "mysql": "mysql", "mariadb": "mariadb"}
SHARED = (ROOT / "docs" / "sources" / "mysql.md").read_text(encoding="utf-8")
ONE_DATABASE = types.SimpleNamespace(database_names=[])
HOW_TO = ["first-capture", "capture-from-a-replica", "schema-unknown"]
SOURCE = re.sub(
    r'"\s*\n\s*f?"',  # texts that go on in the next line
    "",
    "".join(p.read_text(encoding="utf-8") for p in (ROOT / "src").rglob("*.py")),
)


def page(kind: str) -> str:
    return (ROOT / "docs" / "sources" / f"{PAGES[kind]}.md").read_text(encoding="utf-8")


def section(text: str, heading: str) -> str:
    return re.split(r"\n## ", text[text.index(f"\n## {heading}\n") + 4 :])[0]


def test_every_kind_has_a_page_and_all_are_alike() -> None:
    assert set(PAGES) == set(SOURCES)
    headings = {kind: re.findall(r"^## (.*)$", page(kind), re.MULTILINE) for kind in PAGES}
    headings["postgres"].remove("Generated columns")  # the others log them all
    assert len({tuple(found) for found in headings.values()}) == 1
    assert {"Types", "What holds", "When something fails"} <= set(headings["mysql"])


@pytest.mark.parametrize("kind", PAGES)
def test_every_strategy_of_the_kind_is_on_its_page(kind: str) -> None:
    held = section(page(kind), "What holds")
    table = held[held.index("### Under each strategy") :]
    said = set(re.findall(r"^\| `(\w+)`", table, re.MULTILINE))
    assert said == set(get_args(SOURCES[kind].model_fields["watermarks"].annotation))


def test_messages_of_failures_are_the_codes() -> None:
    failures = section(SHARED, "When something fails")
    named = 0
    for row in re.findall(r"^\|[^|]*\|([^|]*)\|", failures, re.MULTILINE):
        for message in re.findall(r"`([^`]*)`", row):
            if " " not in message:
                continue
            for part in message.split("…"):
                if message != "Connection refused":  # the system's
                    assert part.strip() in SOURCE, part
            named += 1
    assert named >= 7


@pytest.mark.parametrize(("kind", "other"), [("mysql", "mariadb"), ("mariadb", "mysql")])
def test_another_kind_of_server_is_on_the_page(kind: str, other: str) -> None:
    failures = section(page(kind), "When something fails")
    assert f"`source.kind is {kind}, but the server is {other}`" in failures
    assert "source.kind is {self._kind.value}, but the server is" in SOURCE


def test_long_entries_quote_the_code() -> None:
    text = " ".join(section(SHARED, "When something fails").split())
    for quoted in (
        "as a statement, not as rows",
        "of the binlog, which holds rows of it as it was before, and the binlog does not contain "
        "its column names",
    ):
        assert quoted in text
        assert quoted in SOURCE


COMMANDS = sorted(
    {
        line.split("#")[0].strip()
        for path in [
            *(ROOT / "docs" / "sources").glob("*.md"),
            *(ROOT / "docs" / "how-to" / f"{name}.md" for name in HOW_TO),
        ]
        for line in re.findall(r"^ *\$ tidelog (.*)$", path.read_text("utf-8"), re.MULTILINE)
        if not line.startswith("init ")  # tests/integration/test_init.py gives it a server
    }
)


@pytest.mark.parametrize("command", COMMANDS)
def test_command_is_understood(
    command: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Up to where capture, or the source, would be asked."""

    class Runtime(types.ModuleType):
        def __getattr__(self, name: str) -> Any:
            return [] if name == "check" else (lambda *_a, **_k: result_of(name))

    monkeypatch.chdir(tmp_path)
    Path("columns.json").write_text('{"columns": [{"name": "id", "type": "int"}], "key": ["id"]}')
    monkeypatch.setattr(
        arguments,
        "load",
        lambda _path, **_: types.SimpleNamespace(outputs=["one"], source=ONE_DATABASE),
    )
    monkeypatch.setattr(dump, "send", lambda *_a, **_k: None)
    runtime = Runtime("tidelog.app")
    monkeypatch.setattr(runtime, "StatusFeed", Feed, raising=False)
    monkeypatch.setattr(runtime, "check", lambda _config: [], raising=False)
    monkeypatch.setitem(sys.modules, "tidelog.app", runtime)
    monkeypatch.setitem(sys.modules, "tidelog.app.overview", overview)
    monkeypatch.setattr(tidelog, "app", runtime, raising=False)
    done = CliRunner().invoke(cli.app, shlex.split(command.removesuffix("&").strip()))
    assert done.exit_code == 0, (command, done.output, done.exception)


def test_tables_of_types_are_current() -> None:
    command = [sys.executable, str(ROOT / "tools" / "type_tables.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
