"""What every `tidelog.ports.StateStore` does. A new store is done when it is listed and passes."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tidelog.errors import ConfigError, Policy, StateConflictError, StateError
from tidelog.state.sqlite import SqliteState, database_path

EXAMPLE = Path(__file__).parent.parent.parent / "examples" / "extension"
STORES = {
    "sqlite": lambda tmp: lambda: SqliteState(f"sqlite:///{tmp}/state/state.db"),
    "folder": lambda tmp: lambda: folder().store(f"folder:{tmp}/state"),
}


def folder():
    """That of docs/how-to/extend.md."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(EXAMPLE))
        from tidelog_extension.folder import BACKEND

        return BACKEND


@pytest.fixture(params=sorted(STORES))
def open_store(request, tmp_path):
    """Opens one more handle on the same store, as another process would."""
    opened = []
    factory = STORES[request.param](tmp_path)

    def open_one():
        opened.append(factory())
        return opened[-1]

    yield open_one
    for store in opened:
        store.close()


@pytest.fixture
def store(open_store):
    return open_store()


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
