"""What every `tidelog.ports.SchemaRegistry` does, and the store beside the segments."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
from itertools import count
from pathlib import Path

import pytest
from tests.support.object_stores import EMULATED
from tests.unit.eventlog.records import table_schema

from tidelog.errors import EventLogError, SegmentCorruptError
from tidelog.eventlog.schemas import SchemaStore
from tidelog.eventlog.storage import LocalStorage
from tidelog.model.schema import TableName

_numbers = count(1)


@pytest.fixture(params=["local", pytest.param("s3", marks=pytest.mark.integration), *EMULATED])
def open_registry(request, tmp_path):
    place = tmp_path
    if request.param != "local":
        place = request.getfixturevalue(request.param).url(f"schemas-{next(_numbers)}")
    return lambda: SchemaStore(place)


def test_shapes_are_numbered_once_from_one(open_registry):
    registry = open_registry()
    first = registry.register(table_schema("orders"))
    second = registry.register(table_schema("orders", columns=2))
    assert (first.schema_id, second.schema_id) == (1, 2)
    for again in (registry, open_registry()):
        assert again.register(table_schema("orders")) == first
        assert again.get(1) == first
        assert again.latest(TableName("public", "orders")) == second
        assert again.latest(TableName("public", "none")) is None


def test_equal_shapes_of_two_tables_are_two_schemas(open_registry):
    registry = open_registry()
    ids = {registry.register(table_schema(name)).schema_id for name in ("a", "b")}
    assert ids == {1, 2}


def test_a_version_numbered_by_another_process_is_found(open_registry):
    mine, theirs = open_registry(), open_registry()
    mine.register(table_schema("a"))
    other = theirs.register(table_schema("b"))
    assert mine.get(other.schema_id) == other
    assert mine.register(table_schema("b")) == other


def test_threads_and_handles_never_give_one_number_twice(open_registry):
    registries = [open_registry() for _ in range(4)]
    numbered = []

    def run(registry, index):
        for n in range(12):
            numbered.append(registry.register(table_schema(f"t{(n + index) % 12}")))

    threads = [threading.Thread(target=run, args=(r, i)) for i, r in enumerate(registries * 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {s.schema_id for s in numbered} == set(range(1, 13))
    assert len(set(numbered)) == 12


def test_a_listing_that_passes_a_file_by_numbers_no_shape_twice(tmp_path):
    """A listing takes time: it may hold a file and not the one before, created meanwhile."""

    class Listing(LocalStorage):
        def names(self, folder=""):
            if folder != "schemas":
                return super().names(folder)
            begun = super().names(folder)
            for name in ("a", "b"):
                theirs.register(table_schema(name))
            return [*begun, *super().names(folder)[len(begun) + 1 :]]

    theirs = SchemaStore(tmp_path)
    mine = SchemaStore(Listing(tmp_path))
    numbered = mine.register(table_schema("a"))
    assert (numbered.schema_id, mine.register(table_schema("b")).schema_id) == (1, 2)
    assert [len(each) for each in SchemaStore(tmp_path).by_table().values()] == [1, 1]


# ---------------------------------------------------------------- the store alone


def test_an_unknown_version_is_named(tmp_path):
    with pytest.raises(EventLogError, match=r"schemas/00000007\.json is missing"):
        SchemaStore(tmp_path).get(7)


def test_versions_and_the_newest_of_some(tmp_path):
    store = SchemaStore(tmp_path)
    name = TableName("public", "t")
    ids = [store.register(table_schema("t", columns=n)).schema_id for n in (1, 2, 3)]
    store.register(table_schema("u"))
    assert [s.schema_id for s in store.versions(name)] == ids
    assert store.latest(name).schema_id == ids[-1]
    assert [str(table) for table in store.tables()] == ["public.t", "public.u"]


def test_a_damaged_file_is_named(tmp_path):
    SchemaStore(tmp_path).register(table_schema())
    (tmp_path / "schemas" / "00000001.json").write_text('{"table": 1}')
    with pytest.raises(SegmentCorruptError, match=r"00000001\.json"):
        SchemaStore(tmp_path).get(1)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs another user")
def test_executors_read_without_write_access():
    with tempfile.TemporaryDirectory() as path:
        _read_as_nobody(Path(path))


def _read_as_nobody(path):
    """Of the group that the directory was made for (docs/how-to/spark.md)."""
    os.chown(path, 0, 65534)
    path.chmod(0o2750)
    SchemaStore(path).register(table_schema())
    program = (
        "import os, sys\nfrom tidelog.eventlog.schemas import SchemaStore\n"
        "os.setgroups([])\nos.setgid(65534)\nos.setuid(65534)\n"
        "assert not os.access(sys.argv[1], os.W_OK)\n"
        "print(SchemaStore(sys.argv[1]).get(1).table)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(path)], capture_output=True, text=True, check=False
    )
    assert done.stdout.strip() == "public.orders", done.stderr
