"""The examples of docs/how-to/control.md do what the page says."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tidelog import cli
from tidelog.cli import arguments, dump
from tidelog.config import parse_config
from tidelog.control.channels.rest import ROUTES, DumpBody
from tidelog.control.commands import SetDumpOptions, StartDump, build_command
from tidelog.control.debezium import Signal, parse, parse_line

PAGE = (Path(__file__).parents[3] / "docs/how-to/control.md").read_text(encoding="utf-8")
BEFORE = "source: {kind: postgres, url: 'postgresql://u@h/d'}\nlog: {path: log}\n"


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


def test_inserts_are_signals() -> None:
    [sql] = blocks("sql")
    found = re.findall(r"VALUES \('([^']+)', '([^']+)',\s+(NULL|'(?:[^']|'')*')\);", sql)
    assert len(found) == 5
    for signal_id, kind, data in found:
        text = None if data == "NULL" else data[1:-1].replace("''", "'")
        parse(Signal(signal_id, kind, text))


def test_line_of_the_file_is_a_signal() -> None:
    assert isinstance(parse(parse_line(blocks("json")[0])), StartDump)


def test_message_of_the_topic_is_a_signal() -> None:
    [(key, value)] = re.findall(r"^\$ echo '(\w+)\|(.*)' \|$", PAGE, re.MULTILINE)
    assert isinstance(parse(parse_line(value)), StartDump)
    assert f"key: {key} " in PAGE


def test_configurations_can_be_read() -> None:
    for text in blocks("yaml"):
        known = {"TIDELOG_TOKEN": "t0ken-of-8", "PGPASSWORD": "p", "KAFKA_PASSWORD": "p"}
        whole = text if "source:" in text else f"{BEFORE}{text}"
        parse_config(whole, "page", Path("/x"), known)


def test_notification_is_json_without_keys() -> None:
    data = json.loads(blocks("json")[1])["additional_data"]
    assert not {"maximum_key", "last_processed_key"} & set(data)


def test_bodies_of_requests_are_commands() -> None:
    bodies = re.findall(r"localhost:8490/(\w+) -d '(.*)'", PAGE)
    assert {path for path, _body in bodies} == {"dumps", "options"}
    for path, body in bodies:
        if path == "dumps":
            build_command(StartDump, DumpBody.model_validate_json(body).command("x"))
        else:
            build_command(SetDumpOptions, json.loads(body))


def test_every_route_is_on_the_page() -> None:
    for method, path, *_ in ROUTES:
        assert path.split("/")[-1] in PAGE, (method, path)


def test_commands_are_understood(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[object] = []
    monkeypatch.setattr(arguments, "load", lambda path, **_: path)
    monkeypatch.setattr(dump, "send", lambda _config, command, *_a, **_k: sent.append(command))
    lines = re.findall(r"^\$ tidelog (.*)$", PAGE, re.MULTILINE)
    for line in lines:
        done = CliRunner().invoke(cli.app, shlex.split(line))
        assert done.exit_code == 0, (line, done.output)
    assert len(sent) == len(lines) == 2
