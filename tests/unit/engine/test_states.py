"""An engine's states: every way through them, and every call that they do not allow."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tests.support.engines import Running, engine, no_threads_left, until

from tidelog.engine.core import NEXT_STATES, EngineState, StateCell
from tidelog.engine.events import Events
from tidelog.engine.ports import SourceTask
from tidelog.errors import EngineStateError, TidelogError

S = EngineState


class Door:
    """Where a call waits until the test lets it through, or makes it fail."""

    def __init__(self) -> None:
        self.reached = threading.Event()
        self._open = threading.Event()
        self._error: Exception | None = None

    def let(self, error: Exception | None = None) -> None:
        self._error = error
        self._open.set()

    def wait(self) -> None:
        self.reached.set()
        assert self._open.wait(30)
        if self._error is not None:
            raise self._error


class DoorTask:
    def __init__(self, name: str) -> None:
        self.name, self.trouble = name, ""
        self.starting, self.polling = Door(), Door()
        self.stops = self.polls = 0

    def start(self, _cancelled: threading.Event) -> None:
        self.starting.wait()

    def poll(self, _timeout_s: float) -> Events | None:
        self.polls += 1
        self.polling.wait()
        return None

    def commit(self, _offset: int) -> None: ...

    def stop(self) -> None:
        self.stops += 1


class DoorConnector:
    def __init__(self) -> None:
        self.starting, self.making = Door(), Door()
        self.made = [DoorTask("a"), DoorTask("b")]
        self.stops = 0

    def start(self) -> None:
        self.starting.wait()

    def tasks(self) -> Sequence[SourceTask]:
        self.making.wait()
        return self.made

    def stop(self) -> None:
        self.stops += 1


class BrokenError(TidelogError):
    """On purpose."""


class Life(RuleBasedStateMachine):
    """A model of the states beside an engine; each rule waits until the engine has come to rest."""

    @initialize()
    def begin(self) -> None:
        self.connector = DoorConnector()
        self.told: list[Any] = []
        self.core = engine(
            self.connector,
            consumer=print,
            on_connector=lambda happened: self.told.append((happened.what, happened.task)),
            on_completion=lambda *completion: self.told.append(completion),
        )
        self.state = S.CREATING
        self.runs: Running | None = None
        self.closers: list[threading.Thread] = []
        self.failed = False
        self.started: set[str] = set()
        self.may_poll = False

    # -------------------------------------------- what the engine waits for

    @precondition(lambda self: self.state is S.CREATING)
    @rule()
    def run(self) -> None:
        self.runs = Running(self.core)
        self.runs.thread.start()
        self.state = S.INITIALIZING
        assert self.connector.starting.reached.wait(30)

    @precondition(lambda self: self.state is not S.CREATING)
    @rule()
    def run_again(self) -> None:
        with pytest.raises(EngineStateError, match="make a new one"):
            self.core.run()

    @precondition(lambda self: self.state is S.INITIALIZING)
    @rule(fails=st.booleans())
    def connector_started(self, fails: bool) -> None:
        self.connector.starting.let(BrokenError("start") if fails else None)
        if fails:
            self._expect_failure()
        else:
            self.state = S.CREATING_TASKS
            assert self.connector.making.reached.wait(30)

    @precondition(lambda self: self.state is S.CREATING_TASKS)
    @rule(fails=st.booleans())
    def tasks_made(self, fails: bool) -> None:
        self.connector.making.let(BrokenError("tasks") if fails else None)
        if fails:
            self._expect_failure()
        else:
            self.state = S.STARTING_TASKS
            for task in self.connector.made:
                assert task.starting.reached.wait(30)

    @precondition(lambda self: self.state is S.STARTING_TASKS)
    @rule(which=st.integers(0, 1), fails=st.booleans())
    def task_started(self, which: int, fails: bool) -> None:
        task = self.connector.made[which]
        if task.name in self.started:
            return
        self.started.add(task.name)
        task.starting.let(BrokenError("task") if fails else None)
        self.failed = self.failed or fails
        if len(self.started) < 2:
            return
        if self.failed:
            self._expect_failure()
        else:
            self.state = S.POLLING_TASKS
            self.may_poll = True
            for each in self.connector.made:
                assert each.polling.reached.wait(30)

    @precondition(lambda self: self.state is S.POLLING_TASKS)
    @rule(which=st.integers(0, 1))
    def task_fails(self, which: int) -> None:
        self.connector.made[which].polling.let(BrokenError("poll"))
        until(lambda: self.core.state is not S.POLLING_TASKS)
        self._let_all()
        self._expect_failure()

    # -------------------------------------------- close

    @precondition(lambda self: self.state is not S.STOPPED)
    @rule()
    def close(self) -> None:
        before = self.state
        closer = threading.Thread(target=self.core.close, daemon=True)
        self.closers.append(closer)
        closer.start()
        if before is S.CREATING:
            closer.join(30)
        else:
            until(lambda: self.core.state in (S.STOPPING, S.STOPPED))
            assert closer.is_alive() or self.core.state is S.STOPPED
            second = threading.Thread(target=self.core.close, daemon=True)
            second.start()
            self.closers.append(second)
            until(lambda: second.is_alive())
            self._let_all()
            assert self.runs is not None
            error = self.runs.join()
            assert error is None or self.failed
        self._ended()

    @precondition(lambda self: self.state is S.STOPPED)
    @rule()
    def close_again(self) -> None:
        self.core.close()
        assert len([each for each in self.told if len(each) == 3]) == 1

    # -------------------------------------------- what always holds

    @invariant()
    def the_state_is_the_models(self) -> None:
        if hasattr(self, "core"):
            # One failed start, and the other still under way: it waits for that.
            assert self.core.state is self.state

    @invariant()
    def none_polls_before_all_have_started(self) -> None:
        if hasattr(self, "core") and not self.may_poll:
            assert not any(task.polls for task in self.connector.made)

    def teardown(self) -> None:
        if not hasattr(self, "core"):
            return
        self._let_all()
        if self.state is not S.STOPPED:
            self.core.close()
        if self.runs is not None:
            self.runs.join()
        assert no_threads_left()

    def _let_all(self) -> None:
        doors = [self.connector.starting, self.connector.making]
        doors += [door for t in self.connector.made for door in (t.starting, t.polling)]
        for door in doors:
            if not door._open.is_set():
                door.let()

    def _expect_failure(self) -> None:
        assert self.runs is not None
        assert isinstance(self.runs.join(), BrokenError)
        self.failed = True
        self._ended()

    def _ended(self) -> None:
        self.state = S.STOPPED
        for closer in self.closers:
            closer.join(30)
            assert not closer.is_alive()
        assert self.core.state is S.STOPPED
        [completion] = [each for each in self.told if len(each) == 3]
        assert completion[0] is not self.failed
        changes = [each for each in self.told if len(each) == 2]
        for name in {task for _, task in changes}:
            assert [what for what, task in changes if task == name] == ["started", "stopped"]
        started = [task for task in self.connector.made if task.starting.reached.is_set()]
        assert [task.stops for task in started] == [1] * len(started)
        assert self.connector.stops == (1 if self.runs is not None else 0)
        assert no_threads_left()


Life.TestCase.settings = settings(
    max_examples=40,
    stateful_step_count=8,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
TestLife = Life.TestCase


@pytest.mark.parametrize("now", list(S))
@pytest.mark.parametrize("to", list(S))
def test_every_step_that_is_not_in_the_table_is_refused(now: S, to: S) -> None:
    cell = StateCell()
    if to in NEXT_STATES[now]:
        assert cell.advance(now, to) is (now is S.CREATING)
    else:
        with pytest.raises(EngineStateError, match="does not go"):
            cell.advance(now, to)
    assert cell.now is (to if now is S.CREATING and to in NEXT_STATES[now] else S.CREATING)


def test_of_many_that_advance_at_once_one_does() -> None:
    for _ in range(50):
        cell = StateCell()
        won: list[bool] = []
        start = threading.Barrier(4)

        def race(cell: StateCell = cell, won: list[bool] = won, start: Any = start) -> None:
            start.wait()
            won.append(cell.advance(S.CREATING, S.INITIALIZING))

        threads = [threading.Thread(target=race) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(won) == [False, False, False, True]
