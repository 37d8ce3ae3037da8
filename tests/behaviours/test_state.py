"""What every `tidelog.ports.StateStore` does. A new one is listed in
tests/support/state_stores.py.
"""

from __future__ import annotations

import sqlite3
import subprocess
import sys
import threading
from contextlib import closing

import pytest
from tests.support.state_stores import ANY_STORE, STORES, any_store

from tidelog.errors import (
    ConfigError,
    LeaseLostError,
    NewerFormatError,
    Policy,
    StateConflictError,
    StateError,
)
from tidelog.state.opening import fenced
from tidelog.state.sqlite import SqliteState, database_path
from tidelog.system.version import FORMAT


@pytest.fixture(params=ANY_STORE)
def open_store(request, tmp_path):
    """Opens one more handle on the same store, as another process would."""
    opened = []
    backend, url = any_store(request.param, request, tmp_path)

    def open_one():
        opened.append(backend.store(url))
        return opened[-1]

    yield open_one
    for store in opened:
        store.close()


@pytest.fixture
def store(open_store):
    return open_store()


@pytest.mark.parametrize("open_store", sorted(STORES.keys() - {"folder"}), indirect=True)
def test_what_a_newer_version_stored_is_refused(open_store):
    store = open_store()
    store.put("a", {"x": 1}, 0)
    if isinstance(store, SqliteState):
        with closing(sqlite3.connect(store.path)) as database:
            database.execute(f"PRAGMA user_version = {FORMAT + 1}")
    else:
        register = store._register
        text, tag = register.read("a")
        assert register.swap("a", text.replace(b"{", b'{"format":%d,' % (FORMAT + 1), 1), tag)
    with pytest.raises(NewerFormatError, match=f"has format {FORMAT + 1}, which a newer version"):
        open_store().get("a")


def test_an_absent_document_is_none(store):
    assert store.get("dump/1") is None


def test_versions_grow_by_one_from_one(store):
    assert store.put("a", {"x": 1}, 0) == 1
    assert store.put("a", [1, None, "ü"], 1) == 2
    assert store.put("a", "last", None) == 3
    document = store.get("a")
    assert (document.value, document.version) == ("last", 3)


@pytest.mark.parametrize("expected", [0, 1, 3])
def test_a_put_on_another_version_conflicts_and_changes_nothing(store, expected):
    store.put("a", 1, 0)
    store.put("a", 2, 1)
    with pytest.raises(StateConflictError, match="'a' has version 2") as caught:
        store.put("a", 3, expected)
    assert caught.value.policy is Policy.RETRY
    assert store.get("a").value == 2


def test_a_put_of_an_expected_version_on_an_absent_document_conflicts(store):
    with pytest.raises(StateConflictError):
        store.put("a", 1, 1)


def test_delete_is_idempotent(store):
    store.put("a", 1, 0)
    store.delete("a")
    store.delete("a")
    assert store.get("a") is None
    assert store.put("a", 1, 0) == 1


def test_keys_are_sorted_and_match_the_prefix_literally(store):
    for key in ["dump/b", "dump/a", "dump%", "dumpx", "Dump/c", "other"]:
        store.put(key, 0, None)
    assert store.keys("dump/") == ["dump/a", "dump/b"]
    assert store.keys("dump%") == ["dump%"]
    assert store.keys("") == ["Dump/c", "dump%", "dump/a", "dump/b", "dumpx", "other"]


def test_keys_and_values_of_any_text_come_back(store):
    key, value = "Ä/ö =%\\?#..\u20ac" + "k" * 40, {"t": '\u0000\n"\U0001f30a', "n": 2**60, "f": 0.1}
    store.put(key, value, 0)
    store.put(f"{key}/below", 1, 0)
    assert store.keys("") == sorted([key, f"{key}/below"])
    assert store.get(key).value == value
    store.delete(key)
    assert store.keys("") == [f"{key}/below"]


def test_a_document_of_some_megabytes_comes_back(open_store):
    first, second = open_store(), open_store()
    for text in ("x" * 3_500_000, "y" * 2_000_000, "z"):
        version = first.put("large", [text, "\u20ac"], None)
        assert second.get("large").value == [text, "\u20ac"]
        assert second.get("large").version == version
    assert second.keys("") == ["large"]
    second.delete("large")
    assert first.get("large") is None
    assert first.put("large", "again", 0) == 1


def test_what_a_handle_knows_of_a_document_never_wins_over_what_is_there(open_store):
    first, second = open_store(), open_store()
    first.put("a", 1, 0)
    second.delete("a")
    second.put("a", 2, 0)
    second.put("a", 3, 1)
    with pytest.raises(StateConflictError, match="version 2"):
        first.put("a", 4, 1)
    second.delete("a")
    with pytest.raises(StateConflictError, match="version 0"):
        first.put("a", 4, 1)
    assert first.put("a", 5, None) == 1
    assert second.get("a").value == 5


@pytest.mark.parametrize("name", sorted(STORES))
def test_a_store_exists_once_something_is_in_it(request, tmp_path, name):
    backend, url = any_store(name, request, tmp_path)
    assert not backend.exists(url)
    store = backend.store(url)
    store.put("a", 1, 0)
    store.close()
    assert backend.exists(url)


@pytest.mark.parametrize("name", sorted(STORES.keys() - {"folder"}))
def test_an_earlier_leader_changes_nothing_that_a_later_one_has_read(request, tmp_path, name):
    """Its lease was checked in time, and its change is on the way while another takes over."""
    backend, url = any_store(name, request, tmp_path)
    state, election = backend.store(url), backend.election(url, "capture", "a", 30)
    handles = []
    for epoch in (1, 2):
        lease = election.acquire()
        assert lease.epoch == epoch
        handles.append(fenced(state, "capture", epoch))
        election.release(lease)
        if epoch == 1:
            for key in ("read", "written", "command"):
                assert handles[0].put(key, 1, None) == 1
    late, new = handles
    assert new.get("read").version == 1
    assert new.put("written", 2, 1) == 2
    for act in (
        lambda: late.put("read", "late", 1),
        lambda: late.put("read", "late", None),
        lambda: late.put("written", "late", 1),
        lambda: late.delete("read"),
    ):
        with pytest.raises(LeaseLostError, match="can't change it any more"):
            act()
    assert [state.get(key).value for key in ("read", "written")] == [1, 2]
    # Others are no leaders, and what they change stays the later leader's.
    assert state.put("read", "a client's", 1) == 2
    with pytest.raises(LeaseLostError):
        late.put("read", "late", None)
    assert new.put("read", 3, 2) == 3
    election.close()
    state.close()


@pytest.mark.parametrize("name", ["postgresql", "zookeeper"])
def test_a_deletion_that_arrives_late_deletes_nothing(request, tmp_path, monkeypatch, name):
    """Its leader is frozen after it has checked that no later one has read the document."""
    backend, url = any_store(name, request, tmp_path)
    state = backend.store(url)
    late, new = fenced(state, "capture", 1), fenced(state, "capture", 2)
    late.put("pause", 1, 0)
    check = late._check_epoch

    def check_and_freeze(*arguments):
        check(*arguments)
        new.put("pause", 2, None)

    monkeypatch.setattr(late, "_check_epoch", check_and_freeze)
    with pytest.raises(LeaseLostError):
        late.delete("pause")
    assert state.get("pause").value == 2
    state.close()


def test_what_one_handle_puts_another_sees_and_it_survives_closing(open_store):
    first, second = open_store(), open_store()
    first.put("a", 1, 0)
    assert second.get("a").value == 1
    first.close()
    second.close()
    assert open_store().get("a").value == 1


def test_of_concurrent_compare_and_sets_each_version_is_won_once(open_store):
    stores = [open_store(), open_store()]
    conflicts = []

    def count(store):
        for _ in range(25):
            while True:
                document = store.get("n")
                value, version = (document.value, document.version) if document else (0, 0)
                try:
                    store.put("n", value + 1, version)
                    break
                except StateConflictError:
                    conflicts.append(1)

    threads = [threading.Thread(target=count, args=(stores[i % 2],)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert stores[0].get("n").value == 100
    assert stores[0].get("n").version == 100


# ---------------------------------------------------------------- SQLite alone


def test_two_processes_share_one_sqlite_file(tmp_path):
    program = (
        "import sys\n"
        "from tidelog.state.sqlite import SqliteState\n"
        "from tidelog.errors import StateConflictError\n"
        "store = SqliteState(sys.argv[1])\n"
        "for _ in range(30):\n"
        "    while True:\n"
        "        d = store.get('n')\n"
        "        try:\n"
        "            store.put('n', (d.value if d else 0) + 1, d.version if d else 0); break\n"
        "        except StateConflictError: pass\n"
    )
    path = tmp_path / "state.db"
    both = [subprocess.Popen([sys.executable, "-c", program, str(path)]) for _ in range(2)]
    assert [process.wait(60) for process in both] == [0, 0]
    store = SqliteState(path)
    assert store.get("n").value == 60
    store.close()


def test_urls_name_relative_and_absolute_files():
    assert str(database_path("sqlite:///data/state.db")) == "data/state.db"
    assert str(database_path("sqlite:////data/state.db")) == "/data/state.db"
    assert str(database_path("plain.db")) == "plain.db"
    for wrong in ["postgresql://user:secret@host/db", "sqlite:///"]:
        with pytest.raises(ConfigError) as caught:
            database_path(wrong)
        assert "secret" not in str(caught.value)


def test_a_file_that_is_no_database_is_named(tmp_path):
    path = tmp_path / "state.db"
    path.write_bytes(b"not a database" * 100)
    with pytest.raises(StateError, match=r"state\.db"):
        SqliteState(path)
