"""Settle 500,000 changes of a Delta table of 1,000,000 rows. One thread, local disk, warm cache.

``python -m benchmarks.bench_lake_settling [--quick]`` prints CPU µs a change of `settle`, where
nothing of old rows has to be read, and where a tenth of the changes are partial; then of taking the
dead rows out of their files by a deletion vector, and by rewriting. Floor: writing the new rows.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa

from benchmarks.bench_lake_files import cpu_s, layout_of, rows_of, run
from benchmarks.table import Row, show
from tidelog.outputs.base.stores.port import open_file_store
from tidelog.outputs.lake.data_files.key_index_cache import KeyIndexCache
from tidelog.outputs.lake.data_files.parquet_files import ParquetFileWriter
from tidelog.outputs.lake.settling.changes import FoldedChanges
from tidelog.outputs.lake.settling.replace_files import SettleOptions, replace_files
from tidelog.outputs.lake.settling.settle import settle
from tidelog.spark.formats.shapes import CHANGE_MISSING, CHANGE_OP, CHANGE_VERSION


def changes_of(rows: pa.Table, *, partial: bool) -> FoldedChanges:
    """Newer states of all ``rows``; of a tenth of them the status is not known, if ``partial``."""
    count = len(rows)
    missing = [[1] if partial and number % 10 == 0 else None for number in range(count)]
    changed = rows.drop_columns(["_version"])
    changed = changed.append_column(CHANGE_OP, pa.array(["u"] * count))
    changed = changed.append_column(CHANGE_VERSION, pa.array(np.arange(count) + 10_000_000))
    changed = changed.append_column(CHANGE_MISSING, pa.array(missing, pa.list_(pa.int16())))
    return FoldedChanges.from_changes(changed, rows.column_names)


def bench(kind: pa.DataType, label: str, scale: int, folder: Path) -> None:
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
    show(found)


if __name__ == "__main__":
    run(bench, __doc__)
