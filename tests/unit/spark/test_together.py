"""Outputs beside each other: what becomes of one that can't go on."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest

from tidelog.errors import OutputRefusedError, TidelogError
from tidelog.spark.pipeline import OutputGroup
from tidelog.spark.sessions.errors import SparkGoneError
from tidelog.system.backoff import Backoff


class Stream:
    """Fails as long as ``failing``; then, or without that, runs until it is to stop."""

    def __init__(
        self, name: str, *, failing: bool = False, error: type[TidelogError] = OutputRefusedError
    ) -> None:
        self.name = name
        self.failing = failing
        self.error = error
        self.tries = 0
        self.runs: Callable[[str], None] = lambda name: None

    def run(self, stop: threading.Event) -> None:
        self.tries += 1
        if self.failing:
            raise self.error(f"{self.name} may not write")
        self.runs(self.name)
        stop.wait(60)


class Running:
    """`OutputGroup.run` in a thread."""

    def __init__(self, *streams: Stream, once: bool = False, ends: bool = True) -> None:
        self.told: list[tuple[str, str | None]] = []
        self.stop = threading.Event()
        self.raised: BaseException | None = None
        retry_s = Backoff(0.2, 0.4)
        together = OutputGroup(self._tell, once=once, ends_when_all_stop=ends, retry_s=retry_s)
        for stream in streams:
            stream.runs = together.runs
        self._call = lambda: together.run(streams, self.stop)
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _tell(self, name: str, error: BaseException | None) -> None:
        self.told.append((name, None if error is None else str(error)))

    def _run(self) -> None:
        try:
            self._call()
        except TidelogError as error:
            self.raised = error

    def end(self, *, stop: bool = True) -> None:
        if stop:
            self.stop.set()
        self._thread.join(60)
        assert not self._thread.is_alive()


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_one_that_stopped_is_tried_again_and_continues_once_it_is_fixed() -> None:
    bad, well = Stream("bad", failing=True), Stream("well")
    running = Running(bad, well)
    until(lambda: bad.tries > 2)
    bad.failing = False
    until(lambda: running.told[-1] == ("bad", None))
    running.end()
    assert running.raised is None
    assert well.tries == 1
    assert set(running.told[:-1]) == {("bad", "bad may not write")}


def test_one_that_is_stopped_in_the_end_is_raised() -> None:
    running = Running(Stream("bad", failing=True), Stream("well"))
    until(lambda: bool(running.told))
    running.end()
    assert "bad may not write" in str(running.raised)


@pytest.mark.parametrize("count", [1, 2])
def test_where_none_continues_all_is_over(count: int) -> None:
    running = Running(*(Stream(f"bad {number}", failing=True) for number in range(count)))
    running.end(stop=False)
    assert "may not write" in str(running.raised)
    assert len(running.told) >= count


def test_one_that_stops_while_the_other_is_retried_is_retried_too() -> None:
    """A retry may take long, before its first batch: so not all have stopped."""

    class Retried(Stream):
        def run(self, stop: threading.Event) -> None:
            self.tries += 1
            if self.tries == 1:
                raise self.error("it may not write")
            stop.wait(60)

    class Later(Stream):
        def run(self, stop: threading.Event) -> None:
            until(lambda: retried.tries > 1)
            super().run(stop)

    retried, later = Retried("retried"), Later("later", failing=True)
    running = Running(retried, later)
    until(lambda: later.tries > 1)
    running.end()
    assert retried.tries == 2


@pytest.mark.parametrize("count", [1, 2])
def test_beside_capture_each_is_retried_until_it_is_fixed(count: int) -> None:
    streams = [Stream(f"bad {number}", failing=True) for number in range(count)]
    running = Running(*streams, ends=False)
    until(lambda: all(each.tries > 2 for each in streams))
    streams[0].failing = False
    until(lambda: ("bad 0", None) in running.told)
    running.end()
    assert running.raised is None, "what is stopped was told, and ends nothing"


@pytest.mark.parametrize("ends", [True, False])
def test_the_end_of_spark_ends_all(ends: bool) -> None:
    gone, well = Stream("gone", failing=True, error=SparkGoneError), Stream("well")
    running = Running(gone, well, ends=ends)
    running.end(stop=False)
    assert isinstance(running.raised, SparkGoneError)


def test_once_tries_nothing_again_and_lets_the_others_end() -> None:
    bad, well = Stream("bad", failing=True), Stream("well")
    running = Running(bad, well, once=True)
    until(lambda: bool(running.told) and well.tries == 1)
    running.end()
    assert (bad.tries, well.tries) == (1, 1)
    assert running.raised is not None
