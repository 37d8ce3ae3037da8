"""A state store that does not answer: which threads wait, and until when."""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from tidelog.capture.capture_scope import RelationNames
from tidelog.capture.state_writes import RetryingStateStore
from tidelog.errors import LeaseLostError, StateConflictError, StateError
from tidelog.model.schema import TableName
from tidelog.ports import RelationNamed
from tidelog.state import sqlite
from tidelog.state.sqlite import SqliteState


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SqliteState]:
    monkeypatch.setattr(sqlite, "BUSY_TIMEOUT_S", 1.0)
    with closing(SqliteState(tmp_path / "state.db")) as made:
        made.put("a", 1, None)
        yield made


@contextmanager
def locked(tmp_path: Path) -> Iterator[None]:
    """Nobody can write."""
    with closing(sqlite3.connect(tmp_path / "state.db", isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        yield
        other.execute("ROLLBACK")


def held() -> None:
    """The lease lasts on."""


def test_reads_wait_no_longer_than_the_lease(tmp_path: Path) -> None:
    """A lock may be held meanwhile, and whoever would end the session may wait for it."""

    class Away(SqliteState):
        def get(self, key: str) -> Any:
            raise StateError("away")

    ends = time.monotonic() + 0.2

    def check() -> None:
        if time.monotonic() >= ends:
            raise LeaseLostError("it ended")

    session_ended = threading.Event()
    no_longer = threading.Timer(5.0, session_ended.set)  # then StateError is raised
    no_longer.start()
    with closing(Away(tmp_path / "state.db")) as away:
        patient = RetryingStateStore(away, check)
        patient.retry_until(session_ended)
        with pytest.raises(LeaseLostError):
            patient.get("a")
    no_longer.cancel()


def test_a_put_waits_for_a_store_that_is_away_and_is_made_once_it_is_back(
    state: SqliteState, tmp_path: Path
) -> None:
    patient = RetryingStateStore(state, held)
    patient.retry_until(threading.Event())
    thread = threading.Thread(target=lambda: patient.put("a", 2, None))
    with locked(tmp_path):
        thread.start()
        thread.join(2.0)  # longer than one attempt
        assert thread.is_alive()
    thread.join(30)
    found = state.get("a")
    assert found is not None
    assert (found.value, found.version) == (2, 2)


def test_a_put_waits_no_longer_than_the_session(state: SqliteState, tmp_path: Path) -> None:
    patient, ended = RetryingStateStore(state, held), threading.Event()
    with locked(tmp_path):
        with pytest.raises(StateError):  # nothing was begun
            patient.put("a", 2, None)
        patient.retry_until(ended)
        threading.Timer(1.5, ended.set).start()
        with pytest.raises(StateError):
            patient.put("a", 2, None)
        assert ended.is_set()


def test_a_put_of_a_version_is_asked_for_once(state: SqliteState, tmp_path: Path) -> None:
    patient = RetryingStateStore(state, held)
    patient.retry_until(threading.Event())
    with pytest.raises(StateConflictError):
        patient.put("a", 2, 7)
    with locked(tmp_path), pytest.raises(StateError):
        patient.put("a", 2, 1)


def test_the_log_asks_about_a_relation_while_another_is_being_stored(
    state: SqliteState, tmp_path: Path
) -> None:
    names = RelationNames(state)
    names.add_new({"public.a": 1})
    with locked(tmp_path):
        thread = threading.Thread(target=_learn, args=(names,))
        thread.start()
        while not names._storing.locked():
            time.sleep(0.01)
        begun = time.monotonic()
        table = TableName("public", "a")
        for named in (
            RelationNamed(1, table, captured=True, xid=5),
            RelationNamed(1, TableName("public", "aside"), captured=False, xid=5),
        ):
            found = [str(each.table) for each in names.find_wrong_rows(named)]
            names.store_name(named)
        assert found == ["public.a"]
        assert thread.is_alive()
        assert time.monotonic() - begun < 0.5
    thread.join(30)


def _learn(names: RelationNames) -> None:
    try:
        names.add_new({"public.b": 2})
    except StateError:
        return
