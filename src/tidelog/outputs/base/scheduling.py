"""Plans and runs the Spark jobs of a batch, for outputs that write from executors.

Tables that one task can read go together, large ones by a shuffle. The driver receives counts,
never rows.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import chain
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import functions as f
from pyspark.sql.types import LongType, StructField, StructType

from tidelog.errors import OutputRefusedError, RowsLeftOutError
from tidelog.eventlog.reader import EventLog, SegmentRef
from tidelog.model.schema import TableName, backticked
from tidelog.outputs.base import ranges, tasks
from tidelog.outputs.base.ranges import MESSAGES_TABLE
from tidelog.outputs.base.tasks import BatchWork, TableSlice, WriteCounts
from tidelog.outputs.base.writer import Delivery
from tidelog.ports import OutputBatch, TargetTable, TaskWriter
from tidelog.spark import folding, transforms
from tidelog.spark.executor_jobs import is_small, jvm_errors, map_in_arrow, run_on_executors
from tidelog.spark.formats.shapes import CHANGE_VERSION
from tidelog.spark.sessions.errors import known_error, lasting_reason
from tidelog.spark.transforms import Step, steps_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


# Jobs.

_COUNTS = StructType([StructField("rows", LongType()), StructField("rejected", LongType())])


def run_direct(
    spark: SparkSession,
    work: BatchWork,
    groups: Sequence[Sequence[TableSlice]],
    *,
    small: bool,
) -> list[WriteCounts]:
    """Run one task for each group of items: it reads, decodes and writes them in one process."""
    numbered = [(number, tuple(items)) for number, items in enumerate(groups)]
    return run_on_executors(spark, lambda each: tasks.run_items(work, *each), numbered, small=small)


def run_messages(spark: SparkSession, work: BatchWork, item: TableSlice) -> list[WriteCounts]:
    """Run one task that writes the source's logical messages, in the log's order."""
    small = is_small(spark, sum(map(bytes_of, item.refs)))
    return run_on_executors(
        spark, lambda each: tasks.run_messages(work, 0, [each]), [item], small=small
    )


def run_in_order(
    spark: SparkSession,
    work: BatchWork,
    tables: Sequence[TargetTable],
    refs: Sequence[SegmentRef],
    *,
    small: bool,
) -> list[WriteCounts]:
    """Run one task that writes everything, in the log's order."""
    everything = [(tuple(tables), tuple(refs))]
    return run_on_executors(
        spark, lambda each: tasks.run_in_order(work, *each), everything, small=small
    )


def run_frame(
    spark: SparkSession,
    work: BatchWork,
    table: TargetTable,
    steps: Sequence[Step],
    parts: Sequence[Sequence[SegmentRef]],
    *,
    tasks_at_once: int,
    ordered_by_key: bool,
) -> list[WriteCounts]:
    """Write a table through a DataFrame: read in ``parts``, shuffled by key if there are several
    parts, transformed.

    ``ordered_by_key``: rows have the shape `events`, and one task writes a key's changes in order.
    """
    refs = tuple(ref for part in parts for ref in part)
    read = (spark, work.log_path, work.task.generation, table.schema, refs)
    keyed = work.shape == "changes"
    below = work.task.deleted_below.get(str(table.source), 0)
    with contextlib.ExitStack() as stack:
        stack.enter_context(jvm_errors())
        if keyed:
            source = stack.enter_context(folding.read_newest(*read, parts=len(parts)))
            source = folding.with_deletes_below(source, below)
        else:
            source = folding.read_planned(*read, parts=len(parts), shape=work.shape)
        if ordered_by_key and len(parts) > 1:
            keys = [f.col(backticked(name)) for name in table.schema.match_key]
            source = source.repartition(tasks_at_once, *keys).sortWithinPartitions(
                f.col(CHANGE_VERSION)
            )
        if steps:
            source = transforms.apply(source, steps, table.schema, keyed=keyed)
        rows = map_in_arrow(source, _Write(work, table), _COUNTS).collect()
        return [WriteCounts(row["rows"], row["rejected"]) for row in rows]


class _Write:
    """The last step on executors: writes the rows of a partition and returns their counts."""

    def __init__(self, work: BatchWork, table: TargetTable) -> None:
        self._work = work
        self._table = table

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        number = context.partitionId() if context is not None else 0
        prepared = (tasks.prepare_rows(b, self._table, {}) for b in batches if b.num_rows)
        done = tasks.run_rows(self._work, number, self._table, prepared)
        yield pa.RecordBatch.from_pydict(
            {"rows": [done.rows], "rejected": [done.rejected]},
            pa.schema([("rows", pa.int64()), ("rejected", pa.int64())]),
        )


# Plans.

# Up to this size of a table, several tasks read all of it and each writes its keys. Above it, where
# a task's memory can't contain a row of every key, Spark shuffles rows, at ten times the CPU.
SHARED_BYTES = 256 << 20


_DECODED = 0.3  # of the work on a row, the part that every task does that shares its table
_UNEQUAL = 1.25  # times the mean: the most that the busiest task may have to do


@dataclass(frozen=True)
class TablePart:
    """The part of a batch for one table."""

    target: TargetTable
    refs: tuple[tuple[SegmentRef, ...], ...]  # by task

    @cached_property
    def all_refs(self) -> tuple[SegmentRef, ...]:
        return tuple(chain.from_iterable(self.refs))

    @cached_property
    def size_bytes(self) -> int:
        return sum(map(bytes_of, self.all_refs))


@dataclass(frozen=True)
class BatchPlan:
    """The plan of one batch.

    Attributes:
        batch: the offsets.
        tables: those for which tasks have something to write.
        tasks: the most tasks that write one table at once.
        removed: by table, the version that `ExecutorOutput.remove_below` was called with.
    """

    batch: OutputBatch
    tables: tuple[TargetTable, ...]
    tasks: int
    removed: Mapping[TableName, int]


def hash_partition_counts(sizes: Sequence[int], limits: Sequence[int], count: int) -> list[int]:
    """Return how many of ``count`` tasks read each table: one, if the tasks are about equal
    without sharing it, because each task that shares a table decodes all of it.

    Args:
        sizes: bytes of each table.
        limits: the most tasks that may share each table.
        count: number of tasks.
    """
    shares = [1] * len(sizes)
    while sizes:
        filled = [0.0] * count
        largest = [-1] * count  # table
        costs = [_cost(size, shared) for size, shared in zip(sizes, shares, strict=True)]
        for at in sorted(range(len(sizes)), key=lambda at: -costs[at]):
            for _ in range(shares[at]):
                least = filled.index(min(filled))
                filled[least] += costs[at]
                largest[least] = at if largest[least] < 0 else largest[least]
        most = filled.index(max(filled))
        if filled[most] * count <= _UNEQUAL * sum(filled):
            break
        if shares[largest[most]] >= min(count, limits[largest[most]]):
            break
        shares[largest[most]] += 1
    return shares


def _cost(size: float, shared: int) -> float:
    """Return the cost of each task that shares the table."""
    return size * (_DECODED + (1 - _DECODED) / shared)


def spread_items(items: Sequence[TableSlice], count: int) -> list[list[TableSlice]]:
    """Distribute ``items`` to at most ``count`` tasks, about equal in bytes."""
    sizes = [_cost(sum(map(bytes_of, item.refs)), item.hash_partition[1]) for item in items]
    groups: list[list[TableSlice]] = [[] for _ in range(min(count, len(items)))]
    filled = [0.0] * len(groups)
    for at in sorted(range(len(items)), key=lambda n: -sizes[n]):
        least = filled.index(min(filled))
        groups[least].append(items[at])
        filled[least] += sizes[at]
    return groups


def bytes_of(ref: SegmentRef) -> int:
    """Return about how many bytes a task processes for a segment."""
    return ref.payload_bytes + 64 * ref.rows


class JobScheduler:
    """Runs the Spark jobs of an output's batches, several at once.

    Args:
        spark: the session that runs them.
        log: the event log that batches refer to.
        delivery: the output's options.
        cores: returns the number of tasks that run at once; called for each batch.
    """

    def __init__(
        self, spark: SparkSession, log: EventLog, delivery: Delivery, cores: Callable[[], int]
    ) -> None:
        self._spark = spark
        self._log = log
        self._delivery = delivery
        self._cores = cores
        self._pool = ThreadPoolExecutor(max(1, min(4, cores())), thread_name_prefix=delivery.name)

    def close(self) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)

    def run(
        self, work: BatchWork, shuffled: TaskWriter, parts: Sequence[TablePart], batch: OutputBatch
    ) -> int:
        """Write ``parts`` and return the number of rejected records, once all tasks have committed.

        Args:
            work: what all tasks have in common.
            shuffled: the writer for tasks that read a shuffle, in place of ``work.writer``.
            parts: what the batch has of each table.
            batch: the offsets that are written.
        """
        delivery, cores = self._delivery, self._cores()
        small = is_small(self._spark, sum(part.size_bytes for part in parts))
        truncates = set()
        if not delivery.keyed and (
            delivery.order == "key" or (small and delivery.order == "total")
        ):
            truncates = set(ranges.truncated(self._log, batch.start, batch.end))
        small = small and not truncates  # for which a task may read all of a topic
        if small:
            cores = 1  # one connection
        messages = [part for part in parts if part.target.source == MESSAGES_TABLE]
        rejected = 0
        if messages:
            rejected = _rejected(self._messages(work, messages[0]))
            parts = [part for part in parts if part.target.source != MESSAGES_TABLE]
            if not parts:
                return rejected
        stepped = [p for p in parts if steps_of(delivery.steps, p.target.source)]
        if not delivery.keyed and delivery.order == "total":
            if stepped:
                raise OutputRefusedError(
                    f"output {delivery.name}: order total has no steps but route; use order key"
                )
            tables = [part.target for part in parts]
            names = tuple(str(table.source) for table in tables)
            refs = self._log.segments(batch.start, batch.end, tables=names)
            written = run_in_order(self._spark, work, tables, list(refs), small=small)
            return rejected + _rejected(written)
        framed = replace(work, writer=shuffled)
        items: list[TableSlice] = []
        whole: list[TablePart] = []
        todo: list[Callable[[], list[WriteCounts]]] = []
        for part in parts:
            steps = steps_of(delivery.steps, part.target.source)
            if not delivery.keyed and (
                not part.target.schema.match_key
                or str(part.target.source) in truncates
                or (delivery.order == "key" and _may_merge_keys(part.target))
            ):
                # All of the table's rows are in one order, which a shuffle by key does not keep.
                part = replace(part, refs=(part.all_refs,))
            if steps and part.refs:
                todo.append(partial(self._frame, framed, part, steps, cores))
            elif not delivery.keyed and delivery.order == "none":
                items += [TableSlice(part.target, refs) for refs in part.refs or ((),)]
            elif len(part.refs) < 2 or not delivery.keyed or part.size_bytes <= SHARED_BYTES:
                whole.append(part)
            else:
                todo.append(partial(self._frame, framed, part, (), cores))
        # Every task decodes all of a table that it shares, and formats and writes only its keys.
        limits = [max(1, len(part.refs)) for part in whole]
        counts = hash_partition_counts([part.size_bytes for part in whole], limits, cores)
        for part, count in zip(whole, counts, strict=True):
            items += [
                TableSlice(part.target, part.all_refs, (partition, count))
                for partition in range(count)
            ]
        if items:
            groups = spread_items(items, cores)
            todo.insert(0, lambda: run_direct(self._spark, work, groups, small=small))
        futures = [self._pool.submit(each) for each in todo]
        failures = [error for each in futures if (error := each.exception()) is not None]
        if failures:
            raise failures[0]
        return rejected + sum(_rejected(each.result()) for each in futures)

    def _messages(self, work: BatchWork, part: TablePart) -> list[WriteCounts]:
        own_work = replace(work, formatter=self._delivery.messages, skipped=frozenset())
        return run_messages(self._spark, own_work, TableSlice(part.target, part.all_refs))

    def _frame(
        self, work: BatchWork, part: TablePart, steps: Sequence[Step], cores: int
    ) -> list[WriteCounts]:
        try:
            return run_frame(
                self._spark,
                work,
                part.target,
                steps,
                part.refs,
                tasks_at_once=cores,
                ordered_by_key=not self._delivery.keyed and self._delivery.order == "key",
            )
        except Exception as error:
            if known_error(error) is None and (why := lasting_reason(error)):
                table = part.target.source
                raise RowsLeftOutError(f"{table}: output {self._delivery.name}: {why}") from error
            raise


def _rejected(written: Sequence[WriteCounts]) -> int:
    return sum(each.rejected for each in written)


def _may_merge_keys(table: TargetTable) -> bool:
    """Return True if steps may make one of several keys: their changes go to different tasks."""
    lost = len(table.key) < len(table.schema.match_key)
    return lost or any(name not in table.unchanged for name in table.key)
