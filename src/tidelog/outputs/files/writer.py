"""Writes events into staged files, on executors. Readers see them after the driver's commit.

Files are in directories by table and time of commit, with Hive's naming.
"""

from __future__ import annotations

import json
import string
import uuid
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tidelog.codecs.columns.times import timestamp_texts
from tidelog.errors import ConfigError
from tidelog.outputs.base.file_store import file_errors
from tidelog.outputs.base.parquet_columns import dictionary_columns
from tidelog.outputs.base.stores import FileStore
from tidelog.outputs.base.writer import Writer
from tidelog.outputs.files.commits import Attempt, StagedFile
from tidelog.outputs.formatters.messages import EventColumns
from tidelog.ports import TargetTable, WriteTask
from tidelog.spark.formats.envelope import join_texts, json_rows
from tidelog.spark.formats.json_values import with_time_texts
from tidelog.spark.formats.shapes import CHANGE_MISSING

# Directories.

_TABLE = ("table", "namespace", "name")
_DAYS = ("date", "year", "month", "day")
_DAY_US, _HOUR_US = 86_400_000_000, 3_600_000_000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_COPYING = "._COPYING_"
# Characters that Hive and Spark write as %XX in the value of a partition column.
_ESCAPED = frozenset("\"#%'*/:=?\\\x7f{[]^") | {chr(code) for code in range(0x20)}


@dataclass(frozen=True)
class FilesLayout:
    """Directories from ``pattern``: ``{table}`` (the destination's name), ``{namespace}``,
    ``{name}`` (the source's), ``{date}``, ``{year}``, ``{month}``, ``{day}``, ``{hour}`` of the
    commit, in UTC. Raises ConfigError for anything else.
    """

    pattern: str

    def __post_init__(self) -> None:
        known = (*_TABLE, *_DAYS, "hour")
        try:
            fields = self._fields()
        except ValueError as error:
            raise ConfigError(f"layout {self.pattern!r}: {error}") from None
        unknown = [name for name in fields if name not in known]
        if unknown:
            raise ConfigError(
                f"layout {self.pattern!r}: {{{unknown[0]}}} is not one of {', '.join(known)}"
            )
        for part in self.pattern.split("/"):
            if not part or part.startswith(("_", ".")):
                raise ConfigError(
                    f"layout {self.pattern!r}: a directory can't be empty, nor begin with _ or . "
                    "(readers pass over such)"
                )
        if "hour" in fields and not {"date", "day"} & set(fields):
            raise ConfigError(f"layout {self.pattern!r}: {{hour}} needs {{date}} before it")

    @property
    def has_table_column(self) -> bool:
        """Is the table's name a partition column?"""
        return "table" in self._fields()

    def split(
        self, table: TargetTable, rows: pa.RecordBatch, microseconds: pa.Array
    ) -> Iterator[tuple[str, pa.RecordBatch]]:
        """Yield rows by their directory, each part in order; ``microseconds`` int64, since
        1970.
        """
        period_us = self._period_us
        if period_us == 0:
            yield self.directory(table, 0), rows
            return
        periods = microseconds.to_numpy(zero_copy_only=False) // period_us
        first = int(periods[0])
        if (periods == first).all():
            yield self.directory(table, first * period_us), rows
            return
        for period in np.unique(periods).tolist():
            part = rows.filter(pa.array(periods == period))
            yield self.directory(table, period * period_us), part

    def directory(self, table: TargetTable, microseconds: int) -> str:
        """Return the directory of commits at that time."""
        return self.of_table(table, (_EPOCH + timedelta(microseconds=microseconds)))

    def of_table(self, table: TargetTable, at: datetime = _EPOCH) -> str:
        values = {
            "table": table.name,
            "namespace": table.source.namespace,
            "name": table.source.name,
            "date": at.strftime("%Y-%m-%d"),
            "year": at.strftime("%Y"),
            "month": at.strftime("%m"),
            "day": at.strftime("%d"),
            "hour": at.strftime("%H"),
        }
        found = self.pattern.format(**{name: _escaped(value) for name, value in values.items()})
        return "/".join(map(visible_name, found.split("/")))

    @property
    def _period_us(self) -> int:
        fields = self._fields()
        if "hour" in fields:
            return _HOUR_US
        return _DAY_US if set(_DAYS) & set(fields) else 0

    def _fields(self) -> list[str]:
        return [name for _, name, _, _ in string.Formatter().parse(self.pattern) if name]


def visible_name(name: str) -> str:
    """Return a file's or directory's name that readers do not ignore: Spark, Hive and Hadoop hide
    names that begin with ``_`` or ``.``, or end in ``._COPYING_``. Escaped as in partition columns.
    """
    if name.startswith(("_", ".")):
        name = f"%{ord(name[0]):02X}{name[1:]}"
    if name.endswith(_COPYING):
        name = f"{name.removesuffix(_COPYING)}%2E{_COPYING[1:]}"
    return name


def _escaped(value: str) -> str:
    return "".join(f"%{ord(c):02X}" if c in _ESCAPED else c for c in value)


# Records and files.

_TS = pa.timestamp("us", "UTC")


def records(table: TargetTable, events: pa.RecordBatch, *, typed: bool, named: bool) -> pa.Table:
    """Return one record for each event, in order.

    Columns, as in the source's shape ``typed``: ``op``, ``version``, ``ts`` (of the commit; of a
    dump's row: when it was read), ``schema_version``, ``position``, ``xid``, ``key``, ``before``,
    ``after``, ``missing`` (names of missing columns of ``after``).

    Args:
        table: the events' table.
        events: events of the shape `tidelog.spark.formats.shapes.events`, missing columns by name.
        typed: whether ``key``, ``before`` and ``after`` are structs of the table's columns; else
            JSON text.
        named: whether a column ``table`` comes first.
    """
    found = EventColumns(table, events)
    before = _before(found)
    without_row = pc.or_(found.deleted, found.truncate)
    columns: dict[str, pa.Array] = {}
    if named:
        columns["table"] = pa.repeat(pa.scalar(table.name), found.n)
    columns |= {
        "op": found.op.cast(pa.string()),
        "version": found.version,
        "ts": found.commit_ts.cast(_TS),
        "schema_version": found.source.column("schema_id"),
        "position": found.source.column("position"),
        "xid": found.source.column("xid"),
    }
    if typed:
        if table.key:
            columns["key"] = _select(found.row, table.key)
        columns["before"] = before
        columns["after"] = _select(found.row, found.names, nulls=without_row)
    else:
        columns["key"] = found.key
        columns["before"] = _texts(before, found.names)
        columns["after"] = _texts(_select(found.row, found.names, nulls=without_row), found.names)
    columns["missing"] = events.column(CHANGE_MISSING).cast(pa.list_(pa.string()))
    return pa.table(columns)


def json_lines(rows: pa.Table) -> pa.Buffer:
    """Return `records` with JSON texts, as JSON lines; ``key``, ``before`` and ``after`` are
    objects.
    """
    batch = rows.combine_chunks().to_batches()[0]
    pieces: list[str | pa.Array] = []
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        pieces.append(("," if pieces else "{") + json.dumps(name) + ":")
        if name in ("key", "before", "after"):
            pieces.append(column)
        elif name == "missing":
            pieces.append(_lists(column))
        elif name == "ts":
            pieces += ['"', timestamp_texts(column), 'Z"']
        elif pa.types.is_string(column.type):
            plain = pa.array([json.dumps(v) for v in column.unique().to_pylist()], pa.string())
            pieces.append(plain.take(column.dictionary_encode().indices))
        else:
            pieces.append(column.cast(pa.string()))
    lines = join_texts(*pieces, "}\n")
    return lines.buffers()[2].slice(0, pc.sum(pc.binary_length(lines)).as_py())


def _before(found: EventColumns) -> pa.StructArray:
    """Return the old row, of the delivered columns: as far as the log has it; of a delete at least
    the key. After transforms: only of deletes.
    """
    if found.before is None:
        return _select(found.row, found.names, nulls=pc.invert(found.deleted))
    kind = found.before.type
    names = [name for name in found.names if kind.get_field_index(name) >= 0]
    # If a created row took another row's key, the delete before has the old row.
    nulls = pc.or_(found.before.is_null(), pc.equal(found.op, "c"))
    return _select(found.before, names, nulls=nulls)


def _select(
    rows: pa.StructArray, names: Sequence[str], nulls: pa.Array | None = None
) -> pa.StructArray:
    """Return the members ``names`` of a struct; null where it is null, and where ``nulls``."""
    at = [rows.type.get_field_index(name) for name in names]
    nulls = rows.is_null() if nulls is None else pc.or_(nulls, rows.is_null())
    fields = [pa.field(name, rows.type.field(i).type) for name, i in zip(names, at, strict=True)]
    return pa.StructArray.from_arrays([rows.field(i) for i in at], fields=fields, mask=nulls)


def _texts(rows: pa.StructArray, names: Sequence[str]) -> pa.StringArray:
    """Return rows as JSON objects, dates and times in ISO 8601."""
    kept = [name for name in names if rows.type.get_field_index(name) >= 0]
    arrays = [with_time_texts(rows.field(rows.type.get_field_index(name))) for name in kept]
    fields = [pa.field(name, array.type) for name, array in zip(kept, arrays, strict=True)]
    plain = pa.StructArray.from_arrays(arrays, fields=fields, mask=rows.is_null())
    return json_rows(plain, kept)


def _lists(names: pa.Array) -> pa.Array:
    """Return list<string> as JSON; few values differ."""
    if names.null_count == len(names):
        return pa.nulls(len(names), pa.string())
    texts = [None if v is None else json.dumps(v, ensure_ascii=False) for v in names.to_pylist()]
    return pa.array(texts, pa.string())


STAGED = ".staged"  # does not match DuckDB's *.parquet
_GROUP_BYTES = 64 << 20
_TASK_BYTES = 256 << 20


@dataclass(frozen=True)
class FileFormat:
    """The format of files.

    Attributes:
        kind: parquet or json.
        values: typed or json.
        compression: Parquet's codec; of JSON gzip or none.
        file_bytes: about the size at which a file is closed and another begun.
    """

    kind: str
    values: str
    compression: str
    file_bytes: int

    @property
    def typed(self) -> bool:
        return self.kind == "parquet" and self.values == "typed"

    @property
    def suffix(self) -> str:
        if self.kind == "parquet":
            return ".parquet"
        return ".json.gz" if self.compression == "gzip" else ".json"


class FilesWriter(Writer):
    """Each attempt of a task writes its own files under ``staging``, and lists them when all are
    whole; the driver uses one attempt of each task.
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
        found = records(
            table, rows, typed=self._format.typed, named=not self._layout.has_table_column
        )
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
    """Collects rows to row groups; creates the file with the first one."""

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
        self._sink: Any = None  # receives bytes or rows

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
        with file_errors(self.name, "written"):
            if self._raw is None:
                self._create(rows)
            if self._format.kind == "parquet":
                self._sink.write_table(rows)
            else:
                self._sink.write(json_lines(rows))

    def finish(self) -> None:
        self.flush()
        with file_errors(self.name, "written"):
            self._sink.close()
            self._raw.close()

    def abandon(self) -> None:
        if self._raw is not None:
            with suppress(OSError):
                self._raw.close()

    def _create(self, first: pa.Table) -> None:
        raw = self._raw = self._store.open_output(self.name)
        if self._format.kind == "parquet":
            codec = self._format.compression
            # Without a codec numbers that repeat are much smaller with one.
            dictionaries = codec == "none" or dictionary_columns(first)
            self._sink = pq.ParquetWriter(
                raw, self.schema, compression=codec, use_dictionary=dictionaries
            )
        elif self._format.compression == "gzip":
            self._sink = pa.CompressedOutputStream(raw, "gzip")
        else:
            self._sink = raw
