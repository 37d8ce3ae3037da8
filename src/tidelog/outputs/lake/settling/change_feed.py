"""Files of a Delta table's change data feed: each row that changes, before and after.

Delta protocol, "Change Data Files" and "Add CDC File".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import pyarrow as pa

from tidelog.outputs.base.stores.port import FileStore, open_file_store
from tidelog.outputs.lake.data_files.layout import FileColumn, FileLayout
from tidelog.outputs.lake.data_files.parquet_files import ParquetFileWriter
from tidelog.outputs.lake.settling.row_buffer import RowBuffer

_FOLDER = "_change_data"
_TYPE = FileColumn("_change_type", "_change_type", pa.string())


@dataclass(frozen=True, slots=True)
class ChangeFile:
    """A file of changes, as action ``cdc`` names it; see `DataFile`."""

    path: str
    partition_values: Mapping[str, str | None]
    size: int


class ChangeFeedWriter:
    """Writes the changes of one task. All rows have all columns of the layout.

    Args:
        store: where the table is.
        layout: of the table.
    """

    def __init__(self, store: FileStore, layout: FileLayout) -> None:
        # In whatever order: nobody looks keys up in these files.
        own = replace(
            layout, columns=(*layout.columns, _TYPE), key=(), statistics=(), prefix_length=0
        )
        folder = open_file_store(f"{store.path.rstrip('/')}/{_FOLDER}")
        self._buffer = RowBuffer(ParquetFileWriter(folder, own))

    def inserted(self, rows: pa.Table) -> None:
        """Rows of keys that the table lacked."""
        self._add(rows, "insert")

    def updated(self, before: pa.Table, after: pa.Table) -> None:
        """Rows that replace others."""
        self._add(before, "update_preimage")
        self._add(after, "update_postimage")

    def deleted(self, rows: pa.Table) -> None:
        """Rows that nothing replaces."""
        self._add(rows, "delete")

    def close(self) -> tuple[ChangeFile, ...]:
        """The files that hold all changes that were given."""
        return tuple(
            ChangeFile(f"{_FOLDER}/{file.path}", file.partition_values, file.size)
            for file in self._buffer.close()
        )

    def _add(self, rows: pa.Table, kind: str) -> None:
        kinds = pa.repeat(pa.scalar(kind), len(rows))
        self._buffer.add(rows.append_column(_TYPE.name, kinds))
