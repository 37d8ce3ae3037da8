"""Files of tables; and random tables and changes, small enough that all that matters meets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import strategies as st
from tests.support.merge_model import Change, MergeModel, Row

from tidelog.outputs.base.stores import FileStore
from tidelog.outputs.lake.data_files.data_file import DataFile
from tidelog.outputs.lake.data_files.deletion_vectors import DeletionVectorWriter
from tidelog.outputs.lake.data_files.file_reader import DataFileReader
from tidelog.outputs.lake.data_files.layout import FileColumn, FileLayout
from tidelog.outputs.lake.data_files.look_up import KeyIndexCache
from tidelog.outputs.lake.data_files.parquet_files import ParquetFileWriter
from tidelog.outputs.lake.settling.changes import FoldedChanges
from tidelog.outputs.lake.settling.settle import FileChanges
from tidelog.spark.formats.shapes import CHANGE_MISSING, CHANGE_OP, CHANGE_VERSION

KEPT = FileColumn("kept", "kept", pa.string())
DELETED = FileColumn("_deleted", "_deleted", pa.bool_())
LAYOUT = FileLayout(
    columns=(
        FileColumn("k", "k", pa.int64()),
        FileColumn("a", "a", pa.int64()),
        FileColumn("b", "b", pa.string()),
        FileColumn("_version", "_version", pa.int64()),
    ),
    partitions=(),
    key=("k",),
    version="_version",
    deleted="",
    statistics=("k", "_version"),
    null_key=False,
)
SOFT = replace(LAYOUT, columns=(*LAYOUT.columns, DELETED), deleted="_deleted")
DELIVERED = ("k", "A", "b")  # names may differ by case

_keys = st.one_of(st.integers(0, 5), st.none())
_versions = st.integers(1, 12)


@dataclass(frozen=True)
class Case:
    """A table's rows, and what changes."""

    layout: FileLayout
    table: list[Row]
    source: list[Change]
    below: int

    @property
    def model(self) -> MergeModel:
        own = {self.layout.version, self.layout.deleted}
        names = [each.name for each in self.layout.columns if each.name not in own]
        layout = self.layout
        return MergeModel(names, layout.key, layout.version, layout.deleted, layout.null_key)

    def expected(self) -> list[Row]:
        return self.model.merge(self.table, self.source, self.below)

    def changes(self) -> FoldedChanges:
        return folded(self.source, self.below)


def folded(source: Sequence[Change], below: int = 0) -> FoldedChanges:
    """As a batch delivers them: int32 where the table has int64, numbers of missing columns."""
    names = {name.lower(): name for name in DELIVERED}
    numbers = [
        None if each.missing is None else [DELIVERED.index(names[name]) for name in each.missing]
        for each in source
    ]
    arrays = {
        CHANGE_OP: pa.array([each.op for each in source], pa.string()),
        CHANGE_VERSION: pa.array([each.version for each in source], pa.int64()),
        "k": pa.array([each.values["k"] for each in source], pa.int64()),
        "A": pa.array([each.values["a"] for each in source], pa.int32()),
        "b": pa.array([each.values["b"] for each in source], pa.string()),
        CHANGE_MISSING: pa.array(numbers, pa.list_(pa.int16())),
    }
    rows = pa.table(arrays)
    chunks = [rows.slice(at, 2) for at in range(0, len(rows), 2)] or [rows]
    return FoldedChanges.from_changes(pa.concat_tables(chunks), DELIVERED, below)


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Doubled keys, null keys, rows without version, partial and late changes, and none at all."""
    soft, kept = draw(st.booleans()), draw(st.booleans())
    columns = LAYOUT.columns + ((KEPT,) if kept else ()) + ((DELETED,) if soft else ())
    layout = replace(
        LAYOUT,
        columns=columns,
        deleted="_deleted" if soft else "",
        null_key=draw(st.booleans()),
        change_feed=draw(st.booleans()),
    )
    row = {
        "k": _keys,
        "a": st.integers(0, 9),
        "b": st.sampled_from(["x", "y", None]),
        "_version": st.one_of(_versions, st.none()),
    }
    if kept:
        row["kept"] = st.sampled_from(["kept", None])
    if soft:
        row["_deleted"] = st.sampled_from([False, True, None])
    doubled = draw(st.booleans())
    unique = None if doubled else _key_of
    least = draw(st.sampled_from([0, 4]))
    rows = st.lists(st.fixed_dictionaries(row), min_size=least, max_size=8, unique_by=unique)
    table = draw(rows)
    keys = draw(st.lists(_keys, unique=True, min_size=least // 2, max_size=6))
    source = [draw(_change(key)) for key in keys]
    below = draw(st.sampled_from([0, 0, 2, 5, 8, 12]))
    return Case(layout, table, source, below)


def _key_of(row: Row) -> Any:
    return row["k"]


@st.composite
def _change(draw: st.DrawFn, key: int | None) -> Change:
    op = draw(st.sampled_from("uud"))
    values: dict[str, Any] = {"k": key, "a": None, "b": None}
    missing = None
    if op == "u":
        values |= {"a": draw(st.integers(10, 19)), "b": draw(st.sampled_from(["new", None]))}
        missing = draw(st.sampled_from([None, None, ["a"], ["b"], ["a", "b"]]))
        values |= dict.fromkeys(missing or ())
    version = draw(st.one_of(_versions, st.integers(13, 20)))
    return Change(op, version, values, missing)


def by_text(rows: Sequence[Row]) -> list[str]:
    """Rows to compare without their order."""
    return sorted(str(sorted(row.items())) for row in rows)


@dataclass(frozen=True)
class Files:
    """A table's files."""

    store: FileStore
    layout: FileLayout
    cache: KeyIndexCache

    def write(self, rows: Sequence[Row], dead: Sequence[int], *, stats: bool) -> list[DataFile]:
        """One file (or none) in which the rows of these numbers are marked by a vector."""
        table = pa.Table.from_pylist(list(rows), self.layout.schema)
        found = []
        for file in ParquetFileWriter(self.store, self.layout).write(table):
            vectors = DeletionVectorWriter(self.store)
            vector = vectors.add(np.array(dead, np.int64)) if dead else None
            vectors.close()
            # Statistics may be missing, but not beside a vector.
            known = file.stats if stats or dead else None
            found.append(replace(file, deletion_vector=vector, stats=known))
        return found

    def rows(self, files: Sequence[DataFile]) -> list[Row]:
        """All live rows."""
        reader = DataFileReader(self.store, self.layout)
        found: list[Row] = []
        for file in files:
            rows = reader.read(file).to_pylist()
            dead = set(reader.deleted_rows(file).tolist())
            found += [row for at, row in enumerate(rows) if at not in dead]
        return found

    def after(self, files: Sequence[DataFile], changes: FileChanges) -> list[DataFile]:
        """The table's files after these changes."""
        marked = {old.path: new for old, new in changes.marked}
        removed = {file.path for file in changes.removed}
        assert {*removed, *marked} <= {file.path for file in files}
        assert not removed & set(marked)
        left = [marked.get(file.path, file) for file in files if file.path not in removed]
        return [*left, *changes.added]
