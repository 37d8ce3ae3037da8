"""Queries that start at the same time."""

from __future__ import annotations

import threading
import time
from types import SimpleNamespace

import pytest

from tidelog.spark.queries import starts
from tidelog.spark.queries.starts import StartTurn, spread

STARTING = SimpleNamespace(isActive=True, status={"message": "Initializing sources"})
PLANNED = SimpleNamespace(isActive=True, status={"message": "Processing new data"})
WAITING = SimpleNamespace(isActive=True, status={"message": "Waiting for data to arrive"})
ENDED = SimpleNamespace(isActive=False, status={"message": "Stopped"})


def other(stop: threading.Event, began: threading.Event) -> threading.Thread:
    def run() -> None:
        with StartTurn(stop):
            began.set()

    thread = threading.Thread(target=run)
    thread.start()
    return thread


@pytest.mark.parametrize("query", [PLANNED, WAITING, ENDED])
def test_a_query_starts_once_the_one_before_has_planned_or_ended(query: SimpleNamespace) -> None:
    stop, began = threading.Event(), threading.Event()
    with StartTurn(stop) as turn:
        thread = other(stop, began)
        turn.release_if_started(STARTING)
        assert not began.wait(0.3)
        turn.release_if_started(query)
        assert began.wait(10)
        turn.release_if_started(query)  # the turn is another's by now
    thread.join()


def test_a_query_that_fails_while_it_starts_lets_the_next_one_start() -> None:
    stop, began = threading.Event(), threading.Event()

    def fail() -> None:
        with StartTurn(stop):
            threads.append(other(stop, began))
            raise RuntimeError

    threads: list[threading.Thread] = []
    with pytest.raises(RuntimeError):
        fail()
    assert began.wait(10)
    threads[0].join()


def test_a_query_that_hangs_keeps_the_others_for_a_time_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(starts, "_LONGEST_S", 0.2)
    stop, began = threading.Event(), threading.Event()
    with StartTurn(stop) as turn:
        time.sleep(0.3)
        turn.release_if_started(STARTING)
        thread = other(stop, began)
        assert began.wait(10)
    thread.join()


def test_whoever_ends_waits_for_no_turn() -> None:
    stop, began = threading.Event(), threading.Event()
    with StartTurn(stop):
        thread = other(stop, began)
        stop.set()
        assert began.wait(10)
    thread.join()


def test_pauses_before_another_try_differ() -> None:
    pauses = {spread(10.0) for _ in range(20)}
    assert len(pauses) > 10
    assert 7.5 <= min(pauses) <= max(pauses) <= 12.5
