"""Dead letters as files: none lost, none twice."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tidelog.outputs.base.writer import JsonDeadLetters
from tidelog.ports import Rejection, WriteTask


def versions(path: Path) -> list[int]:
    """Of all letters."""
    lines = [line for file in path.rglob("*.jsonl") for line in file.read_text().splitlines()]
    return sorted(json.loads(line)["version"] for line in lines)


def test_letters_of_two_jobs_of_a_batch_are_all_kept(tmp_path: Path) -> None:
    """Their tasks have the same number."""
    task = WriteTask("out", "generation", 0, 100, 0)
    letters = JsonDeadLetters(str(tmp_path))
    letters.put(task, [Rejection("public.t", 7, "too long"), Rejection("public.t", 9, "too long")])
    letters.put(task, [Rejection("public.u", 8, "too long")])
    assert versions(tmp_path) == [7, 8, 9]


def test_a_task_that_comes_again_writes_its_letters_once(tmp_path: Path) -> None:
    task = WriteTask("out", "generation", 0, 100, 0)
    letters = JsonDeadLetters(str(tmp_path))
    for _ in range(2):
        letters.put(task, [Rejection("public.t", 7, "too long")])
    assert versions(tmp_path) == [7]


def test_two_attempts_of_a_task_at_once_do_not_meet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other one writes all of its file while this one is about to move its own."""
    task = WriteTask("out", "generation", 0, 100, 0)
    letter = [Rejection("public.t", 7, "too long")]

    replace = Path.replace

    def replace_late(part: Path, target: Path) -> Path:
        monkeypatch.undo()
        JsonDeadLetters(str(tmp_path)).put(task, letter)
        return replace(part, target)

    monkeypatch.setattr(Path, "replace", replace_late)
    JsonDeadLetters(str(tmp_path)).put(task, letter)
    assert versions(tmp_path) == [7]
    assert not list(tmp_path.rglob("*.part"))
