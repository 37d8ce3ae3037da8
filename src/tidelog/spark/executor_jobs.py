"""Runs Python functions on executors: on work items, and on the Arrow batches of a DataFrame.

Uses only the public DataFrame API (`createDataFrame`, `mapInArrow`, `toArrow`), no RDD.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar, cast

import pyarrow as pa
from pyspark import cloudpickle
from pyspark.sql.types import BinaryType, IntegerType, StructField, StructType
from pyspark.util import PythonEvalType

from tidelog.eventlog.storage import OPTIONS_VARIABLE
from tidelog.model.schema import backticked
from tidelog.spark.sessions.connect import is_remote
from tidelog.spark.sessions.errors import Py4JNetworkError, spark_gone_error
from tidelog.spark.sessions.local import LocalSession

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def map_in_arrow(source: DataFrame, function: object, schema: StructType) -> DataFrame:
    """Call `DataFrame.mapInArrow` without pandas, which it requires but does not use; the client of
    Spark Connect needs it anyhow.
    """
    if is_remote(source.sparkSession):
        called = _WithStorageOptions(function, os.environ.get(OPTIONS_VARIABLE))
        return source.mapInArrow(called.__call__, schema)
    from pyspark.sql.classic.dataframe import DataFrame as ClassicDataFrame
    from pyspark.sql.udf import UserDefinedFunction

    call = UserDefinedFunction(
        function.__call__,  # type: ignore[operator]
        returnType=schema,
        evalType=PythonEvalType.SQL_MAP_ARROW_ITER_UDF,
    )
    column = call(*(source[backticked(name)] for name in source.columns))
    classic = cast("ClassicDataFrame", source)
    mapped = classic._jdf.mapInArrow(column._jc, False, None)
    return ClassicDataFrame(mapped, classic.sparkSession)


class _WithStorageOptions:
    """Calls a function with the options of object stores that the driver has: the environment of
    a server's executors is not ours to set.
    """

    def __init__(self, function: Any, options: str | None) -> None:
        self._function = function
        self._options = options

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        if self._options is not None:
            os.environ[OPTIONS_VARIABLE] = self._options
        yield from self._function(batches)


Work = TypeVar("Work")
Result = TypeVar("Result")

_PICKLED = StructType([StructField("number", IntegerType()), StructField("pickled", BinaryType())])
_ARROW = pa.schema([("number", pa.int32()), ("pickled", pa.binary())])


def run_on_executors(
    spark: SparkSession,
    function: Callable[[Work], Result],
    items: Sequence[Work],
    *,
    small: bool = False,
) -> list[Result]:
    """Return ``function(item)`` of each item, by one Spark job; in the order of ``items``.

    Items are spread over at most ``spark.default.parallelism`` tasks, neighbours together: give as
    many groups of work as there are cores. Function, items and results are pickled. A task may run
    twice. An error of ``function`` fails the job, see `tidelog.spark.sessions.errors.find_error`.

    ``small``: as `is_small` says: this process does the work in threads, with copies of function
    and items as tasks have them.
    """
    if not items:
        return []
    if small and isinstance(spark, LocalSession):
        own = [cloudpickle.loads(_pickled((function, each))) for each in items]
        return spark.tasks.run(lambda each: each[0](each[1]), own)
    with jvm_errors():
        return _results(map_in_arrow(_frame_with(spark, items), _ItemCall(function), _PICKLED))


@contextmanager
def jvm_errors() -> Iterator[None]:
    """Raise SparkGoneError where the JVM does not answer: no retry helps."""
    try:
        yield
    except (ConnectionError, Py4JNetworkError) as error:
        raise spark_gone_error() from error


def is_small(spark: SparkSession, size_bytes: int) -> bool:
    """Is work on ``size_bytes`` done by this process, in less time than a Spark job takes? Only
    where Spark's tasks would run on this machine.
    """
    return isinstance(spark, LocalSession) and size_bytes <= spark.tasks.small_bytes > 0


def run_on_partitions(
    source: DataFrame, function: Callable[[Iterator[pa.RecordBatch]], Result]
) -> list[Result]:
    """Return ``function(batches)`` of each partition of ``source``, by one Spark job, in the order
    of the partitions. Pickled, may run twice, and raises like `run_on_executors`.
    """
    with jvm_errors():
        return _results(map_in_arrow(source, _PartitionCall(function), _PICKLED))


def rows_on_executors(
    spark: SparkSession,
    function: Callable[[Work], Iterator[pa.RecordBatch]],
    items: Sequence[Work],
    schema: StructType,
) -> DataFrame:
    """Return the rows that ``function(item)`` yields for each item, as batches of ``schema``; read
    each time the DataFrame is computed. No items: no rows.
    """
    if not items:
        return spark.createDataFrame([], schema)
    return map_in_arrow(_frame_with(spark, items), _RowsCall(function), schema)


def _frame_with(spark: SparkSession, items: Sequence[Any]) -> DataFrame:
    rows = pa.table(
        {"number": range(len(items)), "pickled": [_pickled(each) for each in items]},
        schema=_ARROW,
    )
    return spark.createDataFrame(rows, schema=_PICKLED)


def _results(frame: DataFrame) -> list[Any]:
    """Return the tasks' unpickled results, in the order of their numbers."""
    found = frame.toArrow().sort_by("number")
    return [cloudpickle.loads(each) for each in found.column("pickled").to_pylist()]


def _row(number: int, result: Any) -> pa.RecordBatch:
    return pa.record_batch([[number], [_pickled(result)]], schema=_ARROW)


def _pickled(item: Any) -> bytes:
    data: bytes = cloudpickle.dumps(item)  # type: ignore[no-untyped-call]
    return data


class _ItemCall:
    def __init__(self, function: Callable[[Any], Any]) -> None:
        self._function = function

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            numbers, items = batch.column(0).to_pylist(), batch.column(1).to_pylist()
            for number, item in zip(numbers, items, strict=True):
                yield _row(number, self._function(cloudpickle.loads(item)))


class _PartitionCall:
    def __init__(self, function: Callable[[Iterator[pa.RecordBatch]], Any]) -> None:
        self._function = function

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        context = TaskContext.get()
        number = context.partitionId() if context is not None else 0
        yield _row(number, self._function(batches))


class _RowsCall:
    def __init__(self, function: Callable[[Any], Iterator[pa.RecordBatch]]) -> None:
        self._function = function

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for item in batch.column(1).to_pylist():
                yield from self._function(cloudpickle.loads(item))
