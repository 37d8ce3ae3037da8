"""Rows that wait to be written, so that files become neither small nor memory large."""

from __future__ import annotations

import pyarrow as pa

from tidelog.outputs.lake.data_files.parquet_files import ParquetFileWriter
from tidelog.outputs.lake.delta_log.actions import DataFile

_MOST_BYTES = 256 << 20


class RowBuffer:
    """Writes what it is given, when it holds much of it and at the end."""

    def __init__(self, writer: ParquetFileWriter) -> None:
        self._writer = writer
        self._waiting: list[pa.Table] = []
        self._bytes = 0
        self._written: list[DataFile] = []

    def add(self, rows: pa.Table) -> None:
        """All columns of the layout."""
        self._waiting.append(rows)
        self._bytes += rows.nbytes
        if self._bytes >= _MOST_BYTES:
            self._write()

    def close(self) -> tuple[DataFile, ...]:
        """The files that hold all rows that were given."""
        self._write()
        return tuple(self._written)

    def _write(self) -> None:
        rows = [each for each in self._waiting if len(each)]
        if rows:
            self._written += self._writer.write(pa.concat_tables(rows))
        self._waiting, self._bytes = [], 0
