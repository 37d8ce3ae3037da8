"""Writes events into staged files; runs on executors. Readers see them once the driver says so."""

from __future__ import annotations

import uuid
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tidelog.outputs.base.executors.writer import Writer
from tidelog.outputs.base.stores.errors import failing
from tidelog.outputs.base.stores.port import FileStore
from tidelog.outputs.files.events import json_lines, records
from tidelog.outputs.files.layout import FilesLayout
from tidelog.outputs.files.staged_files import Attempt, StagedFile
from tidelog.ports import TargetTable, WriteTask

STAGED = ".staged"  # what DuckDB's *.parquet does not match
_GROUP_BYTES = 64 << 20
_TASK_BYTES = 256 << 20


@dataclass(frozen=True)
class FileFormat:
    """``kind`` parquet or json; ``values`` typed or json; a file is closed at about ``file_bytes``
    and another begun. ``compression``: Parquet's codec; of JSON gzip or none.
    """

    kind: str = "parquet"
    values: str = "typed"
    compression: str = "zstd"
    file_bytes: int = 256 << 20

    @property
    def typed(self) -> bool:
        return self.kind == "parquet" and self.values == "typed"

    @property
    def suffix(self) -> str:
        if self.kind == "parquet":
            return ".parquet"
        return ".json.gz" if self.compression == "gzip" else ".json"


class FilesWriter(Writer):
    """Each attempt of a task writes files of its own under ``staging``, and says which when all are
    whole; the driver takes one attempt of each task.
    """

    def __init__(
        self, store: FileStore, staging: str, layout: FilesLayout, file_format: FileFormat
    ) -> None:
        self._store = store
        self._staging = staging
        self._layout = layout
        self._format = file_format

    def open(self, task: WriteTask) -> None:
        self._task = task
        self._attempt = f"{task.number:05d}-{uuid.uuid4().hex[:12]}"
        self._first = ""
        self._open: dict[tuple[str, str], _File] = {}
        self._done: list[StagedFile] = []
        self._count = 0

    def write(self, table: TargetTable, rows: pa.RecordBatch) -> None:
        if not rows.num_rows:
            return
        self._first = self._first or str(table.source)
        found = records(table, rows, typed=self._format.typed, named=not self._layout.tells_table)
        micros = found.column("ts").combine_chunks().cast(pa.int64())
        (whole,) = found.combine_chunks().to_batches()
        for directory, part in self._layout.split(table, whole, micros):
            self._add(table.name, directory, part)

    def commit(self) -> None:
        for key in list(self._open):
            self._close(key)
        if not self._done:
            return
        self._store.sync([each.staged for each in self._done])
        self._store.sync([self._staging])
        attempt = Attempt(f"{self._task.number}:{self._first}", tuple(self._done))
        self._store.put(f"{self._staging}/{self._attempt}.json", attempt.to_json())

    def close(self) -> None:
        unfinished, self._open = self._open, {}
        for file in unfinished.values():
            file.abandon()
        self._store.delete(file.name for file in unfinished.values())

    def _add(self, table: str, directory: str, rows: pa.RecordBatch) -> None:
        key = (table, directory)
        file = self._open.get(key)
        if file is not None and file.schema != rows.schema:
            self._close(key)
            file = None
        if file is None:
            self._count += 1
            name = f"{self._staging}/{self._attempt}-{self._count:05d}{STAGED}"
            file = self._open[key] = _File(self._store, name, rows.schema, self._format)
        file.add(rows)
        if file.written_bytes >= self._format.file_bytes:
            self._close(key)
        if sum(each.waiting_bytes for each in self._open.values()) > _TASK_BYTES:
            max(self._open.values(), key=lambda each: each.waiting_bytes).flush()

    def _close(self, key: tuple[str, str]) -> None:
        file = self._open.pop(key)
        file.finish()
        self._done.append(StagedFile(file.name, key[1], key[0], file.rows))


class _File:
    """Rows gather to row groups; the file is created with the first."""

    def __init__(
        self, store: FileStore, name: str, schema: pa.Schema, file_format: FileFormat
    ) -> None:
        self.name = name
        self.schema = schema
        self.rows = 0
        self.waiting_bytes = 0
        self._store = store
        self._format = file_format
        self._waiting: list[pa.RecordBatch] = []
        self._raw: Any = None
        self._sink: Any = None  # what takes bytes or rows

    @property
    def written_bytes(self) -> int:
        return 0 if self._raw is None else int(self._raw.tell())

    def add(self, rows: pa.RecordBatch) -> None:
        self._waiting.append(rows)
        self.waiting_bytes += rows.nbytes
        self.rows += rows.num_rows
        if self.waiting_bytes >= min(_GROUP_BYTES, 4 * self._format.file_bytes):
            self.flush()

    def flush(self) -> None:
        if not self._waiting:
            return
        rows = pa.Table.from_batches(self._waiting)
        self._waiting, self.waiting_bytes = [], 0
        with failing(self.name, "written"):
            if self._raw is None:
                self._create()
            if self._format.kind == "parquet":
                self._sink.write_table(rows)
            else:
                self._sink.write(json_lines(rows))

    def finish(self) -> None:
        self.flush()
        with failing(self.name, "written"):
            self._sink.close()
            self._raw.close()

    def abandon(self) -> None:
        if self._raw is not None:
            with suppress(OSError):
                self._raw.close()

    def _create(self) -> None:
        raw = self._raw = self._store.open_output(self.name)
        if self._format.kind == "parquet":
            self._sink = pq.ParquetWriter(raw, self.schema, compression=self._format.compression)
        elif self._format.compression == "gzip":
            self._sink = pa.CompressedOutputStream(raw, "gzip")
        else:
            self._sink = raw
