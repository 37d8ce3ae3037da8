"""Watching a real capture: what it publishes is drawn, and its limits hold."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.integration.one_table import ROWS, capturing

from tidelog import app
from tidelog.cli.live import View
from tidelog.cli.screen import screen
from tidelog.config import Config
from tidelog.control.commands import SetDumpOptions, StartDump

pytestmark = pytest.mark.integration


@pytest.fixture
def config(database: str, tmp_path: Path) -> Iterator[Config]:
    with capturing(database, tmp_path, "chunk_rows: 1000, parallelism: 4") as config:
        yield config


def dump(config: Config, dump_id: str) -> Iterator[dict[str, Any]]:
    """Statuses while a dump of the table runs, and the one after it."""
    app.send_command(config, StartDump(dump_id=dump_id), timeout_s=30)
    with app.StatusFeed(config) as feed:
        seen = 0
        while True:
            status = feed.latest()
            if status.get("updated_ms", seen) != seen:
                seen = status["updated_ms"]
                yield status
                ids = {d["dump_id"]: d["status"] for d in status["dumps"]}
                if ids.get(dump_id) == "completed":
                    return
            time.sleep(0.05)


def text_of(history: list[dict[str, Any]], view: View) -> str:
    lines = screen(history, view, history[-1]["updated_ms"], 120, 60)
    return "\n".join(line.plain for line in lines)


def test_a_dump_keeps_to_its_rows_a_second_and_shows_it(config: Config) -> None:
    limit = 12_000
    app.send_command(config, SetDumpOptions(rows_per_second=limit), timeout_s=30)
    begun = time.monotonic()
    history: list[dict[str, Any]] = []
    pictures = []
    for status in dump(config, "limited"):
        history.append(status)
        pictures.append(text_of(history, View(windows=True)))
    seconds = time.monotonic() - begun
    # the last status may be a second old; chunks that began at once are a burst
    assert ROWS / limit * 0.9 <= seconds <= ROWS / limit * 1.3 + 3
    during = [p for p in pictures if "1 running" in p]
    assert any("as many rows a second are read as rows_per_second allows" in p for p in during)
    assert any("at most 12,000 rows a second" in p and "public.t" in p for p in during)
    assert any(" rows" in p and "]" in p for p in during)
    finished = text_of(history, View())
    assert f"limited, is completed: 1 of 1 tables, {ROWS:,} rows" in finished


def test_a_dump_continues_under_a_limit_that_is_always_exceeded(config: Config) -> None:
    app.send_command(config, SetDumpOptions(max_select_ms=1), timeout_s=30)
    statuses = list(dump(config, "slow"))
    assert statuses[-1]["dumps"][-1]["tables"][0]["rows_read"] == ROWS


def test_plan_tells_the_speed_of_the_last_dump(config: Config) -> None:
    for _ in dump(config, "measured"):
        pass
    [table] = app.plan(config).to_dict()["tables"]
    assert table["speed_from"] == "its last dump"
    assert table["chunks"] == ROWS // 1000 + 1
    assert 0 < table["seconds"] < 60
