"""What tasks run with, and the clock that they go by."""

from __future__ import annotations

import threading
from pathlib import Path

from tests.support.engines import Gates, Tasks, engine, orders_log, running, until

from tidelog.engine.core import EngineState
from tidelog.engine.events import Events
from tidelog.engine.options import EngineOptions
from tidelog.engine.running_task import TaskCommitter


def test_contexts_are_of_the_tasks_that_run(tmp_path: Path) -> None:
    built = orders_log(tmp_path, range(3))
    tasks = [Gates(tmp_path, "one"), Gates(tmp_path, "two")]
    now = [100.0]
    core = engine(Tasks(*tasks), consumer=lambda _: None, transforms=[], clock=lambda: now[0])
    assert core.context.tasks == []
    with running(core):
        until(lambda: core.state is EngineState.POLLING_TASKS)
        context = core.context
        assert [each.name for each in context.tasks] == ["one", "two"]
        assert [each.task for each in context.tasks] == tasks
        assert {each.offset_commit_policy for each in context.tasks} == {"always"}
        assert context.clock() == 100.0
        until(lambda: all(t.committed() == built.writer.next_offset for t in tasks))


def test_a_periodic_commit_is_due_when_the_clock_says_so(tmp_path: Path) -> None:
    orders_log(tmp_path, range(3))
    task = Gates(tmp_path)
    task.start(threading.Event())
    assert task.committed() == 0
    events = task.poll(1.0)
    assert isinstance(events, Events)
    now = [0.0]
    options = EngineOptions(offset_commit_policy="periodic", offset_commit_interval_ms=5_000)
    committer = TaskCommitter(options, lambda: now[0])
    committer.begin(events)
    committer.mark_processed(events)
    committer.mark_batch_finished()
    now[0] = 4.9
    assert committer.due() is None
    now[0] = 5.0
    assert committer.due() == events.end
