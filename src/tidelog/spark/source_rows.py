"""Reads the source's rows as a DataFrame: executors read them like a dump's chunks."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from tidelog.codecs.decode import decode
from tidelog.errors import ChunkBusyError, ChunkError
from tidelog.eventlog.segments import RECORD_SCHEMA
from tidelog.model.records import LogBatch, binary_array
from tidelog.model.schema import TableSchema
from tidelog.ports import ChunkReader, ChunkRequest, ChunkRows
from tidelog.spark.formats.shapes import row_type
from tidelog.spark.sessions.versions import arrow_schema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SELECT_ROWS = 50_000
SELECT_BYTES = 64 << 20
_numbers = itertools.count(1)


class ReaderFactory(Protocol):
    """Opens a chunk reader; pickled to the executors."""

    def __call__(self) -> ChunkReader: ...


def records_of(rows: LogBatch) -> pa.RecordBatch:
    """Return a chunk's rows in the event log's record layout, for the decoder."""
    numbers = pa.array(range(len(rows)), pa.int64())
    return pa.RecordBatch.from_arrays(
        [
            numbers,
            pa.array(rows.kind, pa.uint8()),
            pa.array(rows.schema_id, pa.int32()),
            pa.array(rows.position, pa.int64()),
            pa.array(rows.ordinal, pa.int64()),
            pa.array(rows.xid, pa.int64()),
            pa.array(rows.commit_ts, pa.int64()),
            binary_array(rows.payload_offsets, rows.payload),
        ],
        schema=RECORD_SCHEMA,
    )


def read_rows(
    open_reader: ReaderFactory, schema: TableSchema, requests: Iterable[ChunkRequest]
) -> Iterator[pa.RecordBatch]:
    """Yield the source's rows, decoded to ``schema``. Runs on executors."""
    reader = open_reader()
    try:
        for request in requests:
            after = request.after
            while True:
                room = SELECT_BYTES if request.keys is None else 0
                part = replace(request, after=after, limit_rows=SELECT_ROWS, limit_bytes=room)
                chunk = retry_while_busy(partial(_read_and_release, reader, part))
                if _shape(chunk.schema) != _shape(schema):
                    raise ChunkError(f"{schema.table} was altered while it was read: verify again")
                present = chunk.rows.filter(chunk.rows.kind == ord("r"))
                if len(present):
                    decoded = decode(records_of(present), chunk.schema, target=schema, before=False)
                    assert decoded.after is not None
                    yield pa.RecordBatch.from_struct_array(decoded.after)
                if chunk.exhausted or request.keys is not None:
                    break
                after = chunk.last_key
    finally:
        reader.close()


def _read_and_release(reader: ChunkReader, request: ChunkRequest) -> ChunkRows:
    """Read a chunk and release the reader's lock against DDL; also after an error."""
    try:
        return reader.read(request)
    finally:
        reader.release()


def _shape(schema: TableSchema) -> list[tuple[str, str]]:
    return [(column.name, column.type_name) for column in schema.columns]


def source_frame(
    spark: SparkSession,
    open_reader: ReaderFactory,
    schema: TableSchema,
    requests: list[ChunkRequest],
) -> DataFrame:
    """Return the source's rows of ``requests``, each read by one task."""
    # Spark refuses a name that another session's frames had.
    format_name = f"tidelog-source-rows-{next(_numbers)}"

    class SourceRows(DataSource):
        """A source for one frame: its data is inside the pickled class, never in options, which
        Spark shows in plans.
        """

        @classmethod
        def name(cls) -> str:
            return format_name

        def schema(self) -> StructType:
            return row_type(schema)

        def reader(self, schema: StructType) -> DataSourceReader:
            return Reader()

    class Reader(DataSourceReader):
        def partitions(self) -> Sequence[InputPartition]:
            return [InputPartition(place) for place in range(len(requests))]

        def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
            kind = arrow_schema(row_type(schema))
            for batch in read_rows(open_reader, schema, [requests[partition.value]]):
                yield batch.cast(kind)

    spark.dataSource.register(SourceRows)
    return spark.read.format(format_name).load()


PATIENCE_S: Final = 60.0
_PAUSE_S: Final = 0.2
_Answer = TypeVar("_Answer")


def retry_while_busy(read: Callable[[], _Answer]) -> _Answer:
    """Return the result of ``read``, retried while another session holds a lock that it waits for.

    A session of ours waits for a lock shorter than the server's deadlock timeout, so that the
    server never aborts the application's statement. DDL may take longer than that. Raises
    ChunkBusyError after ``PATIENCE_S``.
    """
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            return read()
        except ChunkBusyError:
            if time.monotonic() >= deadline:
                raise
        time.sleep(_PAUSE_S)
