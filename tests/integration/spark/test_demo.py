"""``tidelog demo``: the kill in its midst is real, its verdict true; nothing is left running."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest
from tests.support.pseudo_terminal import PseudoTerminal

pytestmark = [pytest.mark.integration, pytest.mark.spark, pytest.mark.slow]
PHASES = [
    "PostgreSQL starts",
    "Spark starts",
    "An application writes",
    "is dead",
    "capture starts again",
    "once more",
    "comparing table",
]


def demo(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "tidelog", "demo", "--quick", *arguments]


@pytest.mark.first
def test_a_story_without_a_terminal(tmp_path: Path) -> None:
    killed: dict[str, Any] = {}
    seen: set[psutil.Process] = set()
    states: dict[int, set[str]] = {}
    with subprocess.Popen(
        demo("--json"), cwd=tmp_path, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        documents = []
        for line in process.stdout:
            documents.append(json.loads(line))
            capture = documents[-1].get("capture")
            if capture:
                states.setdefault(capture["process"], set()).add(capture["state"])
                if capture["state"] == "killed" and not killed:
                    killed = {**capture, "there": psutil.pid_exists(capture["process"])}
            seen |= children(process.pid)
    report = documents[-1]
    assert process.returncode == 0
    assert report["equal"], report
    assert killed["there"] is False
    first, second = states
    assert {"leads", "killed"} <= states[first]
    assert "leads" in states[second]
    assert 0 < report["rows_before_kill"] < 20_000
    assert report["chunks_read_twice"] == 0
    assert [table["table"] for table in report["tables"]] == [
        "public.customers", "public.order_items", "public.orders", "public.products",
    ]  # fmt: skip
    story = " ".join(moment["text"] for moment in report["story"])
    assert f"kill -9 of capture, process {first}" in story
    assert "none was read twice" in story
    assert ended(seen) == []
    assert not (tmp_path / "tidelog-demo").exists()


@pytest.mark.thorough
@pytest.mark.parametrize("phase", PHASES)
def test_ctrl_c_leaves_nothing_running(tmp_path: Path, phase: str) -> None:
    with PseudoTerminal(demo(), tmp_path, 80, 24) as terminal:
        terminal.wait(lambda text: phase in " ".join(text.split()), 240)
        seen = children(terminal.pid)
        terminal.interrupt()
        text = terminal.wait_ended(90)
    assert terminal.exit_code == 130
    assert "all that it had started has ended" in " ".join(text.split())
    assert ended(seen) == []
    assert not (tmp_path / "tidelog-demo").exists()


@pytest.mark.thorough
def test_kill_9_of_the_demo_leaves_nothing_running(tmp_path: Path) -> None:
    with PseudoTerminal(demo(), tmp_path, 80, 24) as terminal:
        terminal.wait(lambda text: "leads;" in text, 240)
        seen = children(terminal.pid)
        os.kill(terminal.pid, 9)
        terminal.wait_ended(30)
    assert ended(seen) == []


def children(pid: int) -> set[psutil.Process]:
    try:
        return set(psutil.Process(pid).children(recursive=True))
    except psutil.NoSuchProcess:  # it wrote its last line and has ended
        return set()


def ended(seen: set[psutil.Process]) -> list[str]:
    """Commands of those that go on, some time later."""
    _, left = psutil.wait_procs(list(seen), timeout=30)
    return [" ".join(process.cmdline())[:200] for process in left]
