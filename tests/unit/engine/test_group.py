"""Engines of one name that divide the keys: each key in order, nothing lost, whoever dies."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections import defaultdict
from functools import partial
from pathlib import Path

import pytest
from tests.support.build_log import BuiltLog
from tests.support.engines import COLUMNS, PATIENCE_S, committed, until

from tidelog.app.async_engine.capture_task import GroupMembers, GroupTask
from tidelog.errors import ConfigError, LeaseLostError
from tidelog.state.opening import open_state

KEYS = 40

MEMBER = """
import os, sys, time
from tests.support.engines import engine
from tidelog.app.async_engine.capture_task import GroupMembers
from tidelog.app.async_engine.capture_task import GroupTask
from tidelog.state.opening import open_state

path, state, out = sys.argv[1:]
done = os.open(out, os.O_WRONLY | os.O_APPEND)

def consume(event):
    os.write(done, f"{os.getpid()} {event.after['id']} {event.after['note']}\\n".encode())
    time.sleep(0.002)

members = GroupMembers(lambda: open_state(state), "group", 4.0)
engine(GroupTask(path, "group", members, partitions=8, batch_size=20), consumer=consume).run()
"""


def member(tmp_path: Path) -> subprocess.Popen[bytes]:
    given = [str(tmp_path / "log"), f"sqlite:///{tmp_path}/state.db", str(tmp_path / "done")]
    return subprocess.Popen([sys.executable, "-c", MEMBER, *given])


@pytest.mark.thorough
def test_members_that_join_and_die_lose_nothing_and_no_key_goes_back(tmp_path: Path) -> None:
    built = BuiltLog(tmp_path / "log")
    orders = built.table("public.orders", COLUMNS)
    out = tmp_path / "done"
    out.touch()
    written = 0

    def lines() -> list[tuple[int, int, int]]:
        text = out.read_text()
        found = [line.split() for line in text[: text.rfind("\n") + 1].splitlines()]
        return [(int(pid), int(key), int(turn)) for pid, key, turn in found]

    def write_until_done_by(*members: subprocess.Popen[bytes]) -> None:
        """Each of them has done some of what was written from here on."""
        nonlocal written
        begun, deadline = len(lines()), time.monotonic() + PATIENCE_S
        while not {each.pid for each in members} <= {pid for pid, _, _ in lines()[begun:]}:
            assert time.monotonic() < deadline
            for key in range(KEYS):
                built.insert(orders, str(key), str(written))
            built.flush()
            written += 1
            time.sleep(0.1)

    started = [member(tmp_path), member(tmp_path)]
    try:
        write_until_done_by(*started)
        os.kill(started[0].pid, signal.SIGKILL)  # while it has events in hand
        started[0].wait()
        started.append(member(tmp_path))
        write_until_done_by(*started[1:])
        until(lambda: committed(tmp_path / "log", "group") == built.writer.next_offset)
        assert [each.poll() for each in started[1:]] == [None, None]
    finally:
        for each in started:
            each.kill()
            each.wait()
    seen: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for pid, key, turn in lines():
        seen[key].append((pid, turn))
    for key in range(KEYS):
        turns = [turn for _, turn in seen[key]]
        assert sorted(set(turns)) == list(range(written)), key
        backs = [at for at in range(1, len(turns)) if turns[at] <= turns[at - 1]]
        # Only what the killed member had not committed comes again, to another one.
        assert len(backs) <= 1, (key, turns)
        for at in backs:
            assert seen[key][at][0] != started[0].pid == seen[key][at - 1][0]


def test_two_members_have_each_key_once_and_continue_where_they_were(tmp_path: Path) -> None:
    built = BuiltLog(tmp_path / "log")
    orders = built.table("public.orders", COLUMNS)
    for key in range(KEYS):
        built.insert(orders, str(key), "a")
    built.truncate(orders)
    built.flush()
    state = partial(open_state, f"sqlite:///{tmp_path}/state.db")
    for expected in (built.writer.next_offset, built.writer.next_offset):
        tasks = [
            GroupTask(str(tmp_path / "log"), "g", GroupMembers(state, "g", 60.0), partitions=4)
            for _ in range(2)
        ]
        seen: dict[int, list[int]] = {0: [], 1: []}
        for task in tasks:
            task.start(threading.Event())
        while [poll(task, seen[at]) for at, task in enumerate(tasks)] != [2, 2]:
            pass
        for _ in range(3):
            for at, task in enumerate(tasks):
                poll(task, seen[at])
        assert committed(tmp_path / "log", "g") == expected
        if not all(seen.values()):
            assert seen == {0: [], 1: []}  # the second time
        else:
            assert [rows.pop() for rows in seen.values()] == [-1, -1]  # a truncate comes to each
            assert sorted([*seen[0], *seen[1]]) == list(range(KEYS))
        for task in tasks:
            task.stop()


def test_a_truncate_comes_after_all_before_it_and_before_all_after_it_in_all_members(
    tmp_path: Path,
) -> None:
    built = BuiltLog(tmp_path / "log")
    orders = built.table("public.orders", COLUMNS)
    built.insert(orders, "0", "first")
    built.flush()
    state = partial(open_state, f"sqlite:///{tmp_path}/state.db")
    tasks = [
        GroupTask(str(tmp_path / "log"), "g", GroupMembers(state, "g", 60.0), partitions=4)
        for _ in range(2)
    ]
    for task in tasks:
        task.start(threading.Event())
    until(lambda: [poll(task, []) for task in tasks] == [2, 2])
    for key in range(KEYS):
        built.insert(orders, str(key), "before")
    for _ in range(2):
        built.truncate(orders)
    for key in range(KEYS):
        built.insert(orders, str(key), "after")
    built.flush()
    copy: set[int] = set()
    order: list[str] = []

    def consume(task: GroupTask) -> None:
        """Apply what comes to a copy that the members share."""
        if (events := task.poll(0.0)) is None:
            return
        for event in events:
            if event.op == "t":
                copy.clear()
            else:
                copy.add(event.after["id"])
            order.append("truncate" if event.op == "t" else event.after["note"])
        task.commit(events.end)

    fast, slow = tasks
    until(lambda: consume(fast) or order)
    for _ in range(3):
        consume(fast)
    assert set(order) == {"before"}  # the other has some of these
    deadline = time.monotonic() + PATIENCE_S
    while committed(tmp_path / "log", "g") != built.writer.next_offset:
        assert time.monotonic() < deadline
        for task in (slow, fast, fast):
            consume(task)
    assert [order.count(what) for what in ("before", "truncate", "after")] == [KEYS, 4, KEYS]
    assert order == sorted(order, key=["before", "truncate", "after"].index)
    assert copy == set(range(KEYS))
    for task in tasks:
        task.stop()


def poll(task: GroupTask, seen: list[int]) -> int:
    """Take and commit what comes; how many partitions the task has."""
    if (events := task.poll(0.0)) is not None:
        seen += [-1 if event.op == "t" else event.after["id"] for event in events]
        task.commit(events.end)
    return len(task._members.owned_partitions())


def test_one_that_was_taken_for_dead_changes_nothing_any_more(tmp_path: Path) -> None:
    state = partial(open_state, f"sqlite:///{tmp_path}/state.db")
    frozen, other = GroupMembers(state, "g", 3600.0), GroupMembers(state, "g", 0.2)
    frozen.join(4, "log", 0)
    frozen.rebalance()
    assert frozen.owned_partitions() == [0, 1, 2, 3]
    other.join(4, "log", 9)
    until(lambda: frozen.holder not in other.document["members"])
    other.rebalance()
    assert other.owned_partitions() == [0, 1, 2, 3]
    with pytest.raises(LeaseLostError):
        frozen.change(lambda found: found["offsets"].update({"0": 77}))
    assert other.document["offsets"] == {}
    assert other.document["start"] == 0
    with pytest.raises(ConfigError, match="4 partitions"):
        GroupMembers(state, "g", 1.0).join(5, "log", 0)
    other.leave()
    frozen.leave()


def test_partitions_are_given_back_to_one_that_joins(tmp_path: Path) -> None:
    state = partial(open_state, f"sqlite:///{tmp_path}/state.db")
    first, second = GroupMembers(state, "g", 3600.0), GroupMembers(state, "g", 3600.0)
    first.join(5, "log", 0)
    first.rebalance()
    second.join(5, "log", 0)
    second.rebalance()
    assert second.owned_partitions() == []  # they are the first one's until it has given them back
    first.rebalance()
    second.rebalance()
    assert sorted([len(first.owned_partitions()), len(second.owned_partitions())]) == [2, 3]
    assert sorted([*first.owned_partitions(), *second.owned_partitions()]) == [0, 1, 2, 3, 4]
    first.leave()
    second.leave()
