"""Tables of several batches, committed, are what other readers read; so are their change feeds."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import deltalake
import duckdb
import duckdb_extension_delta
import pyarrow as pa
import pytest
from pyspark.sql.types import LongType, StringType, StructField
from tests.support.merge_model import Change, Row
from tests.unit.lake.settling.tables import Case, by_text, folded

from tidelog.outputs.base.stores import FileStore, open_file_store
from tidelog.outputs.lake.data_files.layout import delta_layout
from tidelog.outputs.lake.data_files.look_up import KeyIndexCache
from tidelog.outputs.lake.delta_log.actions import add, cdc, remove
from tidelog.outputs.lake.delta_log.commits import CommitWriter
from tidelog.outputs.lake.delta_log.definition import new_table
from tidelog.outputs.lake.delta_log.table_state import TableState
from tidelog.outputs.lake.settling.changes import FoldedChanges
from tidelog.outputs.lake.settling.settle import FileChanges, SettleOptions, replace_files, settle

FIELDS = [
    StructField("k", LongType()),
    StructField("a", LongType()),
    StructField("b", StringType()),
    StructField("_version", LongType()),
]


class DeltaCopy:
    """A Delta table with a change feed, brought up batch by batch; partitioned by ``b``, but not
    with mapped columns: DuckDB reads null then where Spark reads the partition's value.
    """

    def __init__(self, root: Path, *, vectors: bool, mapped: bool = False) -> None:
        self.store: FileStore = open_file_store(str(root / "table"))
        self.options = SettleOptions(vectors, rewrite_share=0.9)
        self.state = TableState(self.store)
        self.cache = KeyIndexCache(str(root / "keys"))
        table = new_table(
            FIELDS,
            partitions=[] if mapped else ["b"],
            properties={"delta.enableChangeDataFeed": "true"},
            column_mapping=mapped,
            deletion_vectors=vectors,
        )
        self.commit(table.changes(None))
        assert self.state.metadata is not None
        self.layout = delta_layout(
            self.state.metadata, key=["k"], version="_version", deleted="", null_key=False
        )

    def commit(self, actions: Sequence[dict[str, Any]]) -> int:
        writer = CommitWriter(self.store)
        return writer.commit(self.state, actions, operation="WRITE", parameters={}, note=None)

    def settle(self, changes: FoldedChanges) -> FileChanges:
        files = self.state.files
        settled = settle(
            changes,
            list(files.values()),
            self.store,
            self.layout,
            ("k", "A", "b"),
            self.cache,
        )
        replaced = replace_files(settled.dead, files, self.store, self.layout, self.options)
        gone = [*replaced.removed, *(old for old, _ in replaced.marked)]
        come = [*settled.added, *replaced.added, *(new for _, new in replaced.marked)]
        self.commit(
            [
                *(remove(file, at_ms=1, data_change=True) for file in gone),
                *(add(file, data_change=True) for file in come),
                *(
                    cdc(file.path, partition_values=file.partition_values, size=file.size)
                    for file in settled.change_files
                ),
            ]
        )
        return replaced


def batches(count: int, seed: int) -> list[tuple[list[Change], int]]:
    """Changes of 60 keys, by batch, partial ones and deletes among them, and a limit below."""
    rng, found = random.Random(seed), []
    for number in range(count):
        changes = []
        for at, key in enumerate(rng.sample(range(60), 25)):
            op = rng.choice("uuuud")
            values: Row = {"k": key, "a": None, "b": None}
            missing = ["a"] if op == "u" and rng.random() < 0.2 else None
            if op == "u":
                values |= {"a": None if missing else rng.randrange(100), "b": rng.choice("xyz")}
            changes.append(Change(op, 100 * (number + 1) + at, values, missing))
        found.append((changes, 210 if number == count - 1 else 0))
    return found


@pytest.fixture(scope="module")
def reader() -> Iterator[duckdb.DuckDBPyConnection]:
    extension = f"extensions/v{duckdb.__version__}/delta.duckdb_extension"
    with duckdb.connect() as connection:
        connection.execute(f"LOAD '{Path(duckdb_extension_delta.__file__).parent / extension}'")
        yield connection


@pytest.mark.parametrize(("vectors", "mapped"), [(False, False), (True, False), (True, True)])
def test_others_read_what_merge_would_have_made(
    reader: duckdb.DuckDBPyConnection, tmp_path: Path, vectors: bool, mapped: bool
) -> None:
    copy = DeltaCopy(tmp_path, vectors=vectors, mapped=mapped)
    rows: list[Row] = []
    marked = 0
    for changes, below in batches(5, seed=7):
        rows = Case(copy.layout, rows, changes, below).expected()
        marked += len(copy.settle(folded(changes, below)).marked)
        if below:  # the last one
            found = reader.execute(f"SELECT * FROM delta_scan('{copy.store.path}')")
            names = copy.layout.schema.names
            read = [dict(zip(names, row, strict=True)) for row in found.fetchall()]
            assert by_text(read) == by_text(rows)
    assert bool(marked) is vectors
    assert rows


def test_others_read_each_change_from_the_feed(tmp_path: Path) -> None:
    """The feed of each version leads from the rows before to those after."""
    copy = DeltaCopy(tmp_path, vectors=False)
    rows: list[Row] = []
    kinds: Counter[str] = Counter()
    for changes, below in batches(5, seed=7):
        copy.settle(folded(changes, below))
        version = copy.state.version
        table = deltalake.DeltaTable(copy.store.path)
        feed = pa.table(table.load_cdf(version, version).read_all()).to_pylist()
        kinds.update(row["_change_type"] for row in feed)
        left = Counter(by_text(rows))
        for row in feed:
            sign = 1 if row["_change_type"] in ("insert", "update_postimage") else -1
            left[by_text([{name: row[name] for name in copy.layout.schema.names}])[0]] += sign
        rows = Case(copy.layout, rows, changes, below).expected()
        assert +left == Counter(by_text(rows))
        assert min(left.values()) >= 0
    assert set(kinds) == {"insert", "update_preimage", "update_postimage", "delete"}
