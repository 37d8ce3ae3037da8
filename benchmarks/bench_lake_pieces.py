"""What the pieces of the Delta output cost. One thread, local disk.

``python -m benchmarks.bench_lake_pieces [--quick]`` prints, for a number and for a text of 36
characters as the key:

- CPU µs a row of writing 500,000 unsorted rows of 5 columns (floor: the same rows by pyarrow alone,
  in the order they come in);
- CPU ms of looking 1,000 and 475,000 keys up among 1,000,000 rows with a warm cache (floor:
  `numpy.searchsorted` of as many sorted numbers), and of building the index that was lost (floor:
  reading the key's column);
- CPU µs a change of settling 500,000 changes of 1,000,000 rows with a warm cache, where nothing of
  old rows has to be read, and where a tenth of the changes are partial; then of taking the dead
  rows out of their files by a deletion vector, and by rewriting (floor: writing the new rows).
"""

from __future__ import annotations

import argparse
import tempfile
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.table import Row, show
from tidelog.outputs.base.stores import open_file_store
from tidelog.outputs.lake.data_files.keys import KeyQuery
from tidelog.outputs.lake.data_files.layout import FileColumn, FileLayout
from tidelog.outputs.lake.data_files.look_up import KeyIndexCache, RowFinder
from tidelog.outputs.lake.data_files.parquet_files import ParquetFileWriter
from tidelog.outputs.lake.settling.changes import FoldedChanges
from tidelog.outputs.lake.settling.settle import SettleOptions, replace_files, settle
from tidelog.spark.formats.shapes import CHANGE_MISSING, CHANGE_OP, CHANGE_VERSION

COLUMNS = {
    "id": pa.int64(),
    "status": pa.string(),
    "amount": pa.decimal128(12, 2),
    "changed": pa.timestamp("us", "UTC"),
    "_version": pa.int64(),
}


def layout_of(key: pa.DataType) -> FileLayout:
    columns = tuple(FileColumn(name, name, kind) for name, kind in {**COLUMNS, "id": key}.items())
    return FileLayout(columns, (), ("id",), "_version", "", ("id", "_version"), False)


def rows_of(layout: FileLayout, count: int) -> pa.Table:
    rng = np.random.default_rng(1)
    numbers = rng.permutation(count)
    if layout.columns[0].type == pa.string():
        raw = rng.bytes(16 * count)
        ids: Any = [str(uuid.UUID(bytes=raw[16 * i : 16 * i + 16])) for i in range(count)]
    else:
        ids = numbers
    statuses = pa.array(["new", "paid", "sent", "returned"])
    return pa.table(
        {
            "id": ids,
            "status": statuses.take(pa.array(numbers % 4)),
            "amount": pa.array(numbers % 100_000).cast(pa.decimal128(21, 2)),
            "changed": pa.array(numbers + 1_700_000_000_000_000).cast(COLUMNS["changed"]),
            "_version": pa.array(np.arange(count)),
        }
    ).cast(layout.schema)


def cpu_s(call: Callable[[], object], times: int = 5) -> float:
    """The least of several runs, after one that warms up."""
    call()
    taken = []
    for _ in range(times):
        start = time.process_time()
        call()
        taken.append(time.process_time() - start)
    return min(taken)


def files(kind: pa.DataType, label: str, scale: int, folder: Path) -> list[Row]:
    layout, store = layout_of(kind), open_file_store(str(folder))
    written, count = 500_000 // scale, 1_000_000 // scale
    rows = rows_of(layout, count)
    part = rows.slice(0, written)
    plain = folder / "plain.parquet"
    write = cpu_s(lambda: ParquetFileWriter(store, layout).write(part), 3) / written * 1e6
    floor = cpu_s(
        lambda: pq.write_table(part, plain, compression="zstd", use_dictionary=["status"]), 3
    )
    floor = floor / written * 1e6
    line = f"write 500,000 rows of 5 columns by {label}, CPU a row"
    found = [Row(line, f"{write:.2f} µs", f"{floor:.2f} µs", f"{write / floor:.1f} ×", "≤ 1 µs")]

    cache = KeyIndexCache(str(folder / "indexes"))
    made = ParquetFileWriter(store, layout, cache=cache).write(rows)
    look_up = RowFinder(store, layout, cache)
    numbers = np.arange(count)
    for asked, goal in ((1_000, "< 10 ms"), (475_000 // scale, "")):
        keys = rows.select(["id"]).slice(0, asked)
        assert sum(len(e.rows) for e in look_up.find(made, KeyQuery(keys, layout))) == asked
        took = cpu_s(lambda keys=keys: look_up.find(made, KeyQuery(keys, layout))) * 1e3  # type: ignore[misc]
        wanted = np.sort(numbers[:: count // asked][:asked])
        least = cpu_s(lambda wanted=wanted: np.searchsorted(numbers, wanted)) * 1e3  # type: ignore[misc]
        line = f"look {asked:,} keys up among 1,000,000 rows by {label}, warm, CPU"
        ratio = f"{took / least:.1f} ×"
        found.append(Row(line, f"{took:.2f} ms", f"{least:.2f} ms", ratio, goal))

    def lost() -> None:
        empty = KeyIndexCache(tempfile.mkdtemp(dir=folder))
        RowFinder(store, layout, empty).find(
            made, KeyQuery(rows.select(["id"]).slice(0, 1), layout)
        )

    took = cpu_s(lost, 3) * 1e3
    path = folder / made[0].path
    least = cpu_s(lambda: pq.read_table(path, columns=["id"], use_threads=False), 3) * 1e3
    line = f"build the index of 1,000,000 rows by {label}, CPU"
    found.append(Row(line, f"{took:.0f} ms", f"{least:.0f} ms", f"{took / least:.1f} ×", ""))
    return found


def changes_of(rows: pa.Table, *, partial: bool) -> FoldedChanges:
    """Newer states of all ``rows``; of a tenth of them the status is not known, if ``partial``."""
    count = len(rows)
    missing = [[1] if partial and number % 10 == 0 else None for number in range(count)]
    changed = rows.drop_columns(["_version"])
    changed = changed.append_column(CHANGE_OP, pa.array(["u"] * count))
    changed = changed.append_column(CHANGE_VERSION, pa.array(np.arange(count) + 10_000_000))
    changed = changed.append_column(CHANGE_MISSING, pa.array(missing, pa.list_(pa.int16())))
    return FoldedChanges.from_changes(changed, rows.column_names)


def settling(kind: pa.DataType, label: str, scale: int, folder: Path) -> list[Row]:
    layout, store = layout_of(kind), open_file_store(str(folder))
    cache = KeyIndexCache(str(folder / "indexes"))
    rows = rows_of(layout, 1_000_000 // scale)
    files = ParquetFileWriter(store, layout, cache=cache).write(rows)
    part = rows.slice(0, 500_000 // scale)
    columns = [name for name in layout.schema.names if name != layout.version]
    floor = cpu_s(lambda: ParquetFileWriter(store, layout, cache=cache).write(part), 3)
    floor = floor / len(part) * 1e6

    def line(what: str, seconds: float, goal: str = "") -> Row:
        took = seconds / len(part) * 1e6
        ratio = f"{took / floor:.1f} ×"
        return Row(f"{what}, key: {label}", f"{took:.2f} µs", f"{floor:.2f} µs", ratio, goal)

    found = []
    for partial, what in ((False, "settle complete changes"), (True, "settle, a tenth partial")):
        changes = changes_of(part, partial=partial)
        took = cpu_s(
            lambda changes=changes: settle(changes, files, store, layout, columns, cache),  # type: ignore[misc]
            3,
        )
        goal = "" if partial else f"≤ {floor + 1.5:.2f} µs"
        found.append(line(what, took, goal))
    settled = settle(changes_of(part, partial=False), files, store, layout, columns, cache)
    by_path = {file.path: file for file in files}
    for vectors, what in ((True, "mark dead rows"), (False, "rewrite files")):
        options = SettleOptions(deletion_vectors=vectors, rewrite_share=1.0)
        took = cpu_s(
            lambda options=options: replace_files(settled.dead, by_path, store, layout, options),  # type: ignore[misc]
            3,
        )
        found.append(line(what, took))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a hundredth of the rows")
    scale = 100 if parser.parse_args().quick else 1
    for kind, label in ((pa.int64(), "a number"), (pa.string(), "a text")):
        for piece in (files, settling):
            with tempfile.TemporaryDirectory() as folder:
                show(piece(kind, label, scale, Path(folder)))


if __name__ == "__main__":
    main()
