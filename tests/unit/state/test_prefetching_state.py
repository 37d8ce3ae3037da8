from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tidelog.errors import StateError
from tidelog.ports import Document
from tidelog.state import opening as wrappers
from tidelog.state.opening import PrefetchingStateStore
from tidelog.state.sqlite import SqliteState


class Slow(SqliteState):
    """Each look takes its time."""

    takes_s = 0.2
    fails = False
    listed = 0
    asked: list[str]

    def keys(self, prefix: str) -> list[str]:
        self.listed += 1
        return super().keys(prefix)

    def get(self, key: str) -> Document | None:
        self.asked.append(key)
        time.sleep(self.takes_s)
        if self.fails:
            raise StateError("it is away")
        return super().get(key)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Slow]:
    store = Slow(tmp_path / "state.db")
    store.asked = []
    for number in range(8):
        store.put(f"doc/{number}", number, 0)
    yield store
    store.close()


KEYS = [f"doc/{number}" for number in range(8)]


def test_documents_are_asked_for_at_once_and_each_once(store: Slow) -> None:
    begun = time.monotonic()
    ahead = PrefetchingStateStore(store, [*KEYS, "absent"])
    found = [ahead.get(key) for key in KEYS]
    assert [one.value for one in found if one] == list(range(8))
    assert ahead.get("absent") is None
    assert time.monotonic() - begun < 4 * store.takes_s
    assert sorted(store.asked) == sorted([*KEYS, "absent"])


def test_what_came_is_given_again_without_a_request(store: Slow) -> None:
    ahead = PrefetchingStateStore(store, KEYS, ["doc/"])
    for _ in range(2):
        assert ahead.keys("doc/") == KEYS
        assert [one.value for one in map(ahead.get, KEYS) if one] == list(range(8))
    assert sorted(store.asked) == KEYS
    assert store.listed == 1


def test_what_is_listed_has_what_was_changed_through_it(store: Slow) -> None:
    ahead = PrefetchingStateStore(store, (), ["doc/"])
    assert ahead.keys("doc/") == KEYS
    ahead.put("doc/8", "ours", 0)
    ahead.delete("doc/1")
    assert ahead.keys("doc/") == [KEYS[0], *KEYS[2:], "doc/8"]
    found = ahead.get("doc/8")
    assert found is not None
    assert found.value == "ours"
    assert ahead.get("doc/1") is None


def test_what_was_changed_through_it_is_not_what_came_before(store: Slow) -> None:
    ahead = PrefetchingStateStore(store, KEYS)
    ahead.put("doc/1", "ours", None)
    ahead.delete("doc/2")
    found = ahead.get("doc/1")
    assert found is not None
    assert found.value == "ours"
    assert ahead.get("doc/2") is None


def test_a_change_waits_for_the_look_that_is_under_way(store: Slow) -> None:
    """A leader's first look marks the document as its own, and must not undo its first change."""
    ahead = PrefetchingStateStore(store, KEYS)
    begun = time.monotonic()
    ahead.put("doc/1", "ours", None)
    assert time.monotonic() - begun > store.takes_s / 2


def test_what_came_long_ago_counts_no_more(store: Slow, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wrappers, "FRESH_S", 0.0)
    ahead = PrefetchingStateStore(store, KEYS)
    time.sleep(2 * store.takes_s)
    store.put("doc/1", "another's", None)
    found = ahead.get("doc/1")
    assert found is not None
    assert found.value == "another's"


def test_what_is_listed_is_asked_for_below_its_folders_alone(store: Slow) -> None:
    ahead = PrefetchingStateStore(store, (), ["doc/"])
    assert ahead.keys("do") == KEYS
    assert not store.asked
    assert ahead.keys("doc/") == KEYS
    begun = time.monotonic()
    assert [one.value for one in map(ahead.get, KEYS) if one] == list(range(8))
    assert time.monotonic() - begun < 4 * store.takes_s


def test_a_store_that_is_away_is_reported_once_and_asked_again(store: Slow) -> None:
    store.fails = True
    ahead = PrefetchingStateStore(store, KEYS)
    with pytest.raises(StateError, match="away"):
        ahead.get("doc/1")
    for _ in range(50):
        if len(store.asked) == len(KEYS):
            break
        time.sleep(0.1)
    time.sleep(2 * store.takes_s)
    store.fails = False
    found = ahead.get("doc/1")
    assert found is not None
    assert found.value == 1
    ahead.put("doc/2", "ours", None)


def test_its_threads_end(store: Slow) -> None:
    ahead = PrefetchingStateStore(store, KEYS)
    for key in KEYS:
        ahead.get(key)
    time.sleep(0.2)
    assert not [t for t in threading.enumerate() if t.name.startswith("tidelog-prefetch")]


def test_what_is_known_to_be_absent_needs_no_request_to_be_deleted(store: Slow) -> None:
    ahead = PrefetchingStateStore(store, ["absent"])
    assert ahead.get("absent") is None
    store.put("absent", "another's, since then", None)
    ahead.delete("absent")
    assert store.get("absent") is not None
