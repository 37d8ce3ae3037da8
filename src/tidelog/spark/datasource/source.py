"""``format("tidelog")``: the event log as a batch and streaming source of Spark.

Facts of Spark 4.2's Python sources that determine the design: there is no column pruning, and Spark
keeps the filters of one query for all later queries of the same DataFrame, whose rows are then
missing; so options do both. A stream has one schema, and every planning step of a batch runs in its
own Python process, so that only options, offsets and the schema's metadata persist between them.

Spark 4.2 reads no metrics from Python sources, only the newest offset. So the offset that the
source reports there (Spark never stores it) contains the stream's lag behind the event log: in
``lastProgress``, in the progress events of listeners and in their output, without a listener of
ours.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import numpy as np
import pyarrow as pa
from pyspark.errors import AnalysisException
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
)
from pyspark.sql.types import StructType

from tidelog.errors import ConfigError, TidelogError
from tidelog.eventlog.reader import EventLog, SegmentRef
from tidelog.eventlog.storage import OPTIONS_VARIABLE
from tidelog.model.schema import TableName, TableSchema
from tidelog.spark.datasource import partitions, segment_rows
from tidelog.spark.datasource.executor import ReadPlan
from tidelog.spark.datasource.options import SourceOptions, check_order, end_of, start_of
from tidelog.spark.formats import shapes
from tidelog.spark.sessions.connect import current_session, is_open, is_remote
from tidelog.spark.sessions.versions import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from tidelog.system.version import check_format

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import DataFrameReader, SparkSession


# The lag of a stream.

LAG_MEMBER = "lag"  # of the reported offset


@dataclass(frozen=True, slots=True)
class Lag:
    """What a stream still has to read after the batch of this progress.

    Attributes:
        bytes: bytes of the event log, of all tables.
        records: records of the stream's tables.
        seconds: seconds since the oldest of these records was committed (if it is of a dump: read);
            0 without records.
    """

    bytes: int
    records: int
    seconds: float

    def to_json(self) -> dict[str, int | float]:
        return asdict(self)


NO_LAG = Lag(0, 0, 0.0)


def lag_at(
    log: EventLog, offset: int, tables: Sequence[str | TableName], now_s: float | None = None
) -> Lag:
    """Return the lag of a stream of ``tables`` (patterns; empty: all) that has read up to
    ``offset``.
    """
    chain = log.chain(offset)
    end = chain.next
    wanted = partitions.schemas_of(log, tables)
    records, oldest = 0, None
    for segment in chain.between(offset, end):
        ids = [i for i in segment.rows_by_schema if i and (wanted is None or i in wanted)]
        if not ids:
            continue
        if oldest is not None and segment.first >= offset:
            records += sum(segment.rows_by_schema[i] for i in ids)
            continue
        for ref in log.segments(max(offset, segment.first), segment.next):
            for batch in log.batches(ref, ("offset", "commit_ts"), schema_ids=ids):
                records += batch.num_rows
                if oldest is None:
                    oldest = int(np.min(batch.column("commit_ts").to_numpy()))
    now = time.time() if now_s is None else now_s
    seconds = 0.0 if oldest is None else max(0.0, round(now - oldest / 1e6, 3))
    return Lag(log.bytes_between(offset, end), records, seconds)


def lag_of(progress: Any) -> Lag | None:
    """Return the lag in a query's progress (``query.lastProgress``, or a listener's
    ``event.progress``): that of the source with the largest lag, None if no source is ours or none
    has reported it yet.
    """
    found = [_of_source(source) for source in (_sources(progress) if progress else ())]
    return max((each for each in found if each is not None), key=_seconds, default=None)


def _seconds(each: Lag) -> tuple[float, int]:
    return each.seconds, each.bytes


def _sources(progress: Any) -> Sequence[Any]:
    found = progress.get("sources") if isinstance(progress, Mapping) else progress.sources
    return list(found or ())


def _of_source(source: Any) -> Lag | None:
    reported = source["latestOffset"] if isinstance(source, Mapping) else source.latestOffset
    if isinstance(reported, str):
        try:
            reported = json.loads(reported)
        except ValueError:
            return None
    content = reported.get(LAG_MEMBER) if isinstance(reported, Mapping) else None
    return None if content is None else Lag(**content)


# The source.

# Spark puts these into the environment of a source's function when a stream starts
# (PythonStreamingSourceRunner.init). It is one java.util.HashMap for all streams: two that start
# together leave it with a wrong size, and no task can be read any more (OptionalDataException). So
# the variables are there from the start, and Spark only replaces their values.
_OF_STREAMS = {
    "SPARK_LOCAL_DIRS": "",
    "SPARK_AUTH_SOCKET_TIMEOUT": "",
    "SPARK_BUFFER_SIZE": "",
    "SPARK_PYTHON_RUNTIME": "PYTHON_WORKER",
}
# Shapes whose rows have one version of the table's schema, and the column whose metadata names it.
_DECODED_TO = {"typed": "after", "events": shapes.EVENT_BEFORE}
_registration = threading.Lock()
_registered: WeakKeyDictionary[SparkSession, str | None] = WeakKeyDictionary()
"""By session, the options of object stores that its source got."""
_POLL_S = 0.2
"""Spark polls the newest offset, ten milliseconds after each answer. If polling has a cost, an
answer without anything new is delayed by this time."""


def prepare_workers(spark: SparkSession) -> SparkContext | None:
    """Give Spark's Python workers their Python and, by the environment, the options of an object
    store that this process was given (`tidelog.eventlog.storage`); may be called again.

    Returns the session's context; None: it is one of Spark Connect, or is not open yet.
    """
    if is_remote(spark) or not is_open(spark):
        return None
    context: SparkContext = spark.sparkContext
    if OPTIONS_VARIABLE in os.environ:
        with _registration:
            _set_variables(context, {OPTIONS_VARIABLE: os.environ[OPTIONS_VARIABLE]})
    _choose_python(context)
    return context


def tidelog_reader(spark: SparkSession) -> DataFrameReader:
    """Return ``spark.read.format("tidelog")``, which is registered now if it was not, or not with
    the options of object stores that this process has now.

    Before it has a first Python source, Spark searches for others by processes: a second of CPU,
    which a pipeline that does not read by this source does without.
    """
    spark = current_session(spark)
    if _registered.get(spark, "") != os.environ.get(OPTIONS_VARIABLE):
        register(spark)
    return spark.read.format("tidelog")


def register(spark: SparkSession) -> None:
    """Register ``format("tidelog")`` with ``spark``, and `prepare_workers`; may be called again."""
    context = prepare_workers(spark)
    with _with_stream_variables(context):
        try:
            spark.dataSource.register(TidelogSource)
        except AnalysisException as error:
            # Spark 4.0 keeps the source that it has found by itself (pyspark_tidelog).
            if error.getCondition() != "DATA_SOURCE_ALREADY_EXISTS":
                raise
    _registered[spark] = os.environ.get(OPTIONS_VARIABLE)


def _choose_python(context: SparkContext) -> None:
    """Choose the Python of workers: the one that the session's ``spark.pyspark.python`` names, as
    under spark-submit, else that of ``PYSPARK_PYTHON``, else, on this machine, the one that runs
    here: not just any "python3", which may not have Tidelog.
    """
    configured = context.getConf().get("spark.pyspark.python")
    if configured is not None:
        context.pythonExec = configured
    elif "PYSPARK_PYTHON" not in os.environ and str(context.master).startswith("local"):
        context.pythonExec = sys.executable


@contextmanager
def _with_stream_variables(context: SparkContext | None) -> Iterator[None]:
    """While a source is registered inside, its functions get the variables of `_OF_STREAMS`, so
    that the start of a stream adds none.
    """
    if context is None:
        yield
        return
    with _registration:
        added = {name: _OF_STREAMS[name] for name in _OF_STREAMS if name not in context.environment}
        _set_variables(context, added)
        try:
            yield
        finally:
            found = context.environment.items()
            context.environment = {name: value for name, value in found if name not in added}


def _set_variables(context: SparkContext, variables: Mapping[str, str]) -> None:
    """Add variables of Python workers. The dict is replaced, never changed: other threads, which
    create functions, may be reading it.
    """
    context.environment = {**context.environment, **variables}


class TidelogSource(DataSource):
    """The data source; `tidelog.spark.datasource.options` lists its options."""

    @classmethod
    def name(cls) -> str:
        return "tidelog"

    def schema(self) -> StructType:
        options = SourceOptions.parse(self.options)
        if options.shape == "envelope":
            return shapes.ENVELOPE
        if options.shape == "variant":
            return shapes.VARIANT
        if options.shape == "raw":
            return shapes.RAW
        if options.shape == "segments":
            return shapes.SEGMENTS
        assert options.table is not None  # checked by SourceOptions
        log = EventLog.open(options.path)
        if options.shape == "changes":
            return shapes.changes(partitions.changes_schema(log, options))
        target = partitions.table_schema(log, options.table, options.schema_version)
        partitions.check_columns(target, options.columns or ())
        target = partitions.with_types(target, options)
        if options.shape == "events":
            return shapes.events(target)
        return shapes.typed(target, options.columns)

    def reader(self, schema: StructType) -> DataSourceReader:
        return _BatchReader(SourceOptions.parse(self.options), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        options = SourceOptions.parse(self.options)
        if options.ending.by != "latest":
            raise ConfigError(
                f"tidelog source: option ending{options.ending.by} is for batch reads only: a "
                "stream runs until it is stopped"
            )
        return _StreamReader(options, schema)


class SegmentRun(InputPartition):
    """A partition: neighbouring segments, all of one log generation."""

    def __init__(self, generation: str, refs: Sequence[SegmentRef]) -> None:
        self.generation = generation
        self.refs = tuple(refs)


class SegmentRows(InputPartition):
    """A partition of the ``segments`` shape: the rows themselves, known from metadata."""

    def __init__(self, rows: Sequence[tuple[Any, ...]]) -> None:
        self.rows = tuple(rows)


@lru_cache(maxsize=8)
def cached_log(path: str, generation: str) -> EventLog:
    """Return the log, cached because workers are reused: its schemas are read once. The generation
    identifies a recreated log.
    """
    log = EventLog.open(path)
    partitions.check_generation(log, generation)
    return log


def _target(log: EventLog, options: SourceOptions, schema: StructType) -> TableSchema | None:
    """Return the schema version that the shape's schema was made from; it may not be the newest
    any more.
    """
    if options.key is not None and options.table is not None:
        options.key.check(partitions.table_versions(log, options.table))
    if options.shape in _DECODED_TO:
        metadata = schema[_DECODED_TO[options.shape]].metadata
        written = log.schemas.get(int(metadata[shapes.SCHEMA_ID]))
        return partitions.with_types(written, options)
    if options.shape == "changes":
        return partitions.changes_schema(log, options)
    return None


class _BatchReader(DataSourceReader):
    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self.options = options
        self.schema = schema
        log = EventLog.open(options.path)
        self.plan = ReadPlan(options, _target(log, options, schema), schema)

    def partitions(self) -> Sequence[InputPartition]:
        options = self.options
        log = EventLog.open(options.path)
        if options.refs is not None:
            partitions.check_generation(log, options.refs.generation)
            return _runs(log, options.refs.refs, options)
        end = end_of(log, options.ending)
        start = start_of(log, options.starting, options.tables)
        check_order(options.starting, start, options.ending, end)
        return _partitions(log, options, start, end)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _read(self.plan, partition)


class _StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self.options = options
        self.log = EventLog.open(options.path)
        self.target = _target(self.log, options, schema)
        self.plan = ReadPlan(options, self.target, schema)
        # Records of other versions before here are older than the version decoded to.
        self.known = 0 if self.target is None else partitions.end_of_version(self.log, self.target)
        self.last: int | None = None  # of AvailableNow: the last offset to read
        self.planned: int | None = None  # the end of the newest batch
        self.idle = False  # the last check found nothing new

    def __getstate__(self) -> dict[str, Any]:
        # Executors use the reader only for its `read`.
        return {"plan": self.plan}

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        options = self.options
        start = start_of(self.log, options.starting, options.tables)
        self.planned = start
        return self._offset(start)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        if self.options.max_records is not None:
            return ReadMaxRows(self.options.max_records)
        return ReadMaxBytes(self.options.max_bytes)

    def latestOffset(  # noqa: N802  # Spark gives no arguments before 4.2
        self, start: dict[str, Any] | None = None, limit: ReadLimit | None = None
    ) -> dict[str, Any]:
        if start is None:
            if self.planned is None:  # restarted, and Spark gave no start
                return self._offset(self.log.latest_offset())
            start = self._offset(self.planned)
        limit = limit or self.getDefaultReadLimit()
        if self.last is None and self._is_idle(start):
            return start
        end = self.log.latest_offset(after=self.planned)
        begin = self.planned = self._checked_offset(start)
        if self.last is not None:
            end = min(end, self.last)
        if end <= begin:
            return start
        if isinstance(limit, ReadAllAvailable):
            self.planned = end
            return self._offset(end)
        self.planned = partitions.end_of_batch(
            self.log,
            begin,
            end,
            max_bytes=limit.max_bytes
            if isinstance(limit, ReadMaxBytes)
            else self.options.max_bytes,
            max_records=limit.max_rows if isinstance(limit, ReadMaxRows) else None,
            tables=self.options.tables,
            whole=self.options.shape == "segments",
        )
        return self._offset(self.planned)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self.last = self.log.latest_offset()

    def reportLatestOffset(self) -> dict[str, Any]:  # noqa: N802
        if self.planned is None:
            return self._offset(self.log.latest_offset(durable=False))
        if self.idle:  # Spark calls both methods, one after the other
            return self._offset(self.planned) | {LAG_MEMBER: NO_LAG.to_json()}
        latest = self._offset(self.log.chain(self.planned).next)
        with suppress(TidelogError):  # the error is raised again where rows are read
            behind = lag_at(self.log, self.planned, self.options.tables)
            latest[LAG_MEMBER] = behind.to_json()
        return latest

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        _check_format(end)
        begin, until = self._checked_offset(start), int(end["offset"])
        self.planned = max(self.planned or 0, until)  # of a batch that a restart plans again
        if begin >= until:
            return []
        if self.options.shape in _DECODED_TO and self.target is not None:
            begins = max(begin, self.known)
            partitions.stop_at_new_schema(self.log, self.target, begins, until)
        return _partitions(self.log, self.options, begin, until)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _read(self.plan, partition)

    def _is_idle(self, start: dict[str, Any]) -> bool:
        """Is everything planned that the log has, as far as cheap polls show?"""
        at = int(start["offset"])
        known = at == self.planned and start["generation"] == self.log.generation
        self.idle = known and not self.log.poll(at, _POLL_S)
        return self.idle

    def _offset(self, offset: int) -> dict[str, Any]:
        return {"generation": self.log.generation, "offset": offset}

    def _checked_offset(self, start: dict[str, Any]) -> int:
        _check_format(start)
        partitions.check_generation(self.log, str(start["generation"]))
        offset = int(start["offset"])
        partitions.check_start(self.log, offset, "this query")
        return offset


def _check_format(offset: dict[str, Any]) -> None:
    check_format(offset.get("format"), "this query's checkpoint")


def _partitions(
    log: EventLog, options: SourceOptions, start: int, end: int
) -> list[InputPartition]:
    if start >= end:
        return []
    if options.shape == "segments":
        return [SegmentRows(segment_rows.rows_of_segments(log, start, end, options.tables))]
    wanted = partitions.schemas_of(log, options.tables)
    names = None if wanted is None else {str(schema.table) for schema in wanted.values()}
    return _runs(log, log.segments(start, end, tables=names), options)


def _runs(
    log: EventLog, refs: Sequence[SegmentRef], options: SourceOptions
) -> list[InputPartition]:
    spread = partitions.partition_refs(
        refs, partition_bytes=options.partition_bytes, partitions=options.partitions
    )
    return [SegmentRun(log.generation, run) for run in spread]


def _read(plan: ReadPlan, partition: InputPartition) -> Iterator[pa.RecordBatch]:
    if isinstance(partition, SegmentRows):
        yield from segment_rows.batches(partition.rows, plan.arrow_schema)
    elif isinstance(partition, SegmentRun):  # else: Spark's placeholder for "no partitions"
        from tidelog.spark.datasource import executor  # planning processes need no decoder

        log = cached_log(plan.options.path, partition.generation)
        yield from executor.batches(plan, log, partition.refs)
