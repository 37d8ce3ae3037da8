"""Reads a partition's segments on an executor: decodes, shapes and merges their records.

Records are grouped by schema. `tidelog.codecs.fold` folds a batch of records of one schema version.
A range has several batches: more than fit into memory at once, or records of several versions. They
are merged into one row per key.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import StructType

from tidelog.codecs.cell_positions import missing_flags, missing_indices
from tidelog.codecs.decode import decode, expand_key_changes, expanded_ops, find_key_changes
from tidelog.codecs.fold import fold
from tidelog.errors import DecodeError, TidelogError
from tidelog.eventlog.reader import EventLog, SegmentRef
from tidelog.model.records import RecordKind
from tidelog.model.schema import TableName, TableSchema
from tidelog.spark.datasource import partitions
from tidelog.spark.datasource.options import SourceOptions
from tidelog.spark.formats import envelope, shaping, variant
from tidelog.spark.formats.shapes import CHANGE_MISSING, CHANGE_OP, EVENT_BEFORE, EVENT_SOURCE
from tidelog.spark.sessions.versions import arrow_schema
from tidelog.system import failpoints

# Merging: several folded batches, one after the other in log order.

# Spark converts a batch to rows as a whole; a huge one costs memory in two processes at once.
_BATCH_ROWS = 64_000

_Rows = npt.NDArray[np.int64]


def merge_batches(batches: Sequence[pa.RecordBatch], schema: TableSchema) -> pa.RecordBatch | None:
    """Fold ``batches`` (of the shape `changes`) to the newest row per match key of ``schema``.

    A column that is missing in the newest row gets its last value from a row of the key since its
    last delete. Returns None if there are no rows.
    """
    filled = [batch for batch in batches if batch.num_rows]
    if len(filled) < 2:
        return filled[0] if filled else None
    rows = pa.concat_batches(filled)
    group, newest = _groups(rows, schema.match_key)
    chosen = np.sort(newest)
    missing = rows.column(CHANGE_MISSING)
    if missing.null_count == len(missing):
        return rows.take(pa.array(chosen))
    return _fill_missing(rows, schema, group, chosen)


def slices(rows: pa.RecordBatch | None) -> Iterator[pa.RecordBatch]:
    """Yield ``rows`` in slices that Spark reads one by one."""
    for start in range(0, 0 if rows is None else rows.num_rows, _BATCH_ROWS):
        assert rows is not None
        yield rows.slice(start, _BATCH_ROWS)


def _groups(rows: pa.RecordBatch, key: Sequence[str]) -> tuple[_Rows, _Rows]:
    """Return int64[n], each row's key as a number; int64[keys], each key's last row."""
    n = rows.num_rows
    table = pa.Table.from_batches([rows.select(list(key))])
    table = table.append_column("_tidelog_row", pa.array(np.arange(n, dtype=np.int64)))
    grouped = table.group_by(list(key), use_threads=False).aggregate([("_tidelog_row", "list")])
    lists = grouped.column("_tidelog_row_list").combine_chunks()
    if isinstance(lists, pa.ChunkedArray):
        lists = lists.chunk(0)
    counts = pc.list_value_length(lists).to_numpy(zero_copy_only=False)
    members = lists.flatten().to_numpy(zero_copy_only=False)
    group = np.empty(n, np.int64)
    group[members] = np.repeat(np.arange(len(counts)), counts)
    newest = np.zeros(len(counts), np.int64)
    np.maximum.at(newest, group, np.arange(n))
    return group, newest


def _fill_missing(
    rows: pa.RecordBatch, schema: TableSchema, group: _Rows, chosen: _Rows
) -> pa.RecordBatch:
    deleted = pc.equal(rows.column(CHANGE_OP), "d").to_numpy(zero_copy_only=False)
    unknown = missing_flags(rows.column(CHANGE_MISSING), len(schema.columns))
    still = np.zeros((len(chosen), len(schema.columns)), np.bool_)
    columns = list(rows.select(rows.schema.names).take(pa.array(chosen)).columns)
    for index, column in enumerate(schema.columns):
        if not unknown[:, index].any():
            continue
        # A delete determines every column: nothing older counts.
        known = np.flatnonzero(~unknown[:, index] | deleted)
        last = np.full(int(group.max()) + 1, -1, np.int64)
        np.maximum.at(last, group[known], known)
        of_chosen = last[group[chosen]]
        none = (of_chosen < 0) | (deleted[of_chosen] & ~deleted[chosen])
        still[:, index] = none
        values = rows.column(column.name).take(pa.array(of_chosen, mask=none))
        columns[rows.schema.get_field_index(column.name)] = values
    columns[rows.schema.get_field_index(CHANGE_MISSING)] = missing_indices(still, len(still))
    return pa.RecordBatch.from_arrays(columns, schema=rows.schema)


@dataclass
class ReadPlan:
    """The plan of one read: picklable, without open files or logs."""

    options: SourceOptions
    target: TableSchema | None
    spark_schema: StructType
    _arrow: pa.Schema | None = field(default=None, repr=False)

    @property
    def arrow_schema(self) -> pa.Schema:
        """The shape's Arrow schema, exactly as Spark expects it."""
        if self._arrow is None:
            self._arrow = arrow_schema(self.spark_schema)
        return self._arrow


# The shape `events`: every change as a row, column by column.


def events_batch(
    records: pa.RecordBatch, written: TableSchema, target: TableSchema, schema: pa.Schema
) -> pa.RecordBatch:
    """Return records of one schema version in the shape `tidelog.spark.formats.shapes.events` of
    ``target``.
    """
    decoded = decode(records, written, target=target)
    after, before = decoded.after, decoded.before
    assert after is not None
    assert before is not None
    moved = find_key_changes(decoded, target)
    op = decoded.op
    use_old = after.is_null()
    at = None
    if moved.any():  # such a record twice: its old key's delete, then its new key's creation
        at, first = expand_key_changes(moved)
        op = expanded_ops(op, moved, at, first)
        use_old = pc.or_(use_old.take(pa.array(at)), pa.array(first))
    places = None if at is None else pa.array(at)

    def spread(values: pa.Array) -> pa.Array:
        return values if places is None else values.take(places)

    after, before = spread(after), spread(before)
    columns = [
        pc.if_else(use_old, before.field(i), after.field(i)) if use_old.true_count else c
        for i, c in enumerate(after.flatten())
    ]
    source = pa.StructArray.from_arrays(
        [spread(records.column(f.name)).cast(f.type) for f in schema.field(EVENT_SOURCE).type],
        fields=list(schema.field(EVENT_SOURCE).type),
    )
    missing = decoded.missing
    if missing is not None and at is not None:
        missing = missing[at]
        missing[np.asarray(use_old.to_numpy(zero_copy_only=False))] = False
    old = shaping.as_struct(before, schema.field(EVENT_BEFORE).type)
    arrays = [
        op.cast(pa.string()),
        spread(decoded.version),
        *columns,
        missing_indices(missing, len(op)),
        old,
        source,
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


# Reading.

# Decoding many small batches costs more than concatenating them; a big one need not be copied.
_BLOCK_BYTES = 8 << 20
# Folding needs several times the memory of a block; the result is a row per key.
_FOLD_BYTES = 64 << 20


def batches(plan: ReadPlan, log: EventLog, refs: Sequence[SegmentRef]) -> Iterator[pa.RecordBatch]:
    """Yield the rows of ``refs`` in this read's shape, in log order; ``changes``: once per key."""
    failpoints.hit("output.read")
    schemas = partitions.schemas_of(log, plan.options.tables)
    if schemas is not None and not schemas:
        return
    folds = plan.options.shape == "changes"
    records = _records(log, refs, schemas, plan.options.shape == "raw")
    found = _decoded(plan, log, _blocks(records, _FOLD_BYTES if folds else _BLOCK_BYTES))
    if not folds:
        yield from found
    elif plan.target is not None:
        yield from slices(merge_batches(list(found), plan.target))


def events_in_order(
    log: EventLog, refs: Sequence[SegmentRef], plans: Mapping[str, ReadPlan]
) -> Iterator[tuple[TableSchema, pa.RecordBatch]]:
    """Yield the events of several tables in log order, in runs of one schema version. ``plans``:
    the plan of each table (shape ``events``).
    """
    schemas = partitions.schemas_of(log, [TableName.parse(table) for table in plans]) or {}
    for block in _blocks(_records(log, refs, schemas, False), _BLOCK_BYTES):
        for run in _schema_runs(block):
            written = log.schemas.get(run.column("schema_id")[0].as_py())
            for batch in _decoded(plans[str(written.table)], log, iter([run])):
                yield written, batch


def _decoded(
    plan: ReadPlan, log: EventLog, blocks: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    key = plan.options.key
    for block in blocks:
        try:
            if key is None:
                yield from _shaped(plan, log, block)
                continue
            for run in _schema_runs(block):
                chosen = key.select(run, log.schemas.get(run.column("schema_id")[0].as_py()))
                if chosen.num_rows:
                    yield from _shaped(plan, log, chosen)
        except TidelogError:
            raise
        except Exception as error:
            offsets = block.column("offset")
            table = plan.target.table if plan.target else "several tables"
            raise DecodeError(
                f"{table}: offsets {offsets[0].as_py()} to {offsets[-1].as_py()} could not be "
                f"decoded ({type(error).__name__})"
            ) from error


def _shaped(plan: ReadPlan, log: EventLog, block: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    shape = plan.options.shape
    if shape == "raw":
        yield shaping.raw_batch(block, log.schemas.get, plan.arrow_schema)
    elif shape == "envelope":
        yield envelope.batch(block, log, plan.options, plan.arrow_schema)
    elif shape == "variant":
        yield variant.batch(block, log, plan.options, plan.arrow_schema)
    else:
        assert plan.target is not None
        for run in _schema_runs(block):
            written = log.schemas.get(run.column("schema_id")[0].as_py())
            if shape == "typed":
                yield shaping.typed_batch(
                    run,
                    written,
                    plan.target,
                    plan.options.columns,
                    plan.options.before,
                    plan.arrow_schema,
                )
            elif shape == "events":
                yield events_batch(run, written, plan.target, plan.arrow_schema)
            else:
                yield shaping.changes_batch(fold(run, written, plan.target), plan.arrow_schema)


def _records(
    log: EventLog,
    refs: Sequence[SegmentRef],
    schemas: dict[int, TableSchema] | None,
    control: bool,
) -> Iterator[pa.RecordBatch]:
    """Yield the records of the wanted schemas. For ``raw`` (``control``) also records about their
    dumps and, if all schemas are wanted, the source's messages.
    """
    wanted = None if schemas is None else {*schemas, 0} if control else schemas.keys()
    tables = None if schemas is None else {str(schema.table) for schema in schemas.values()}
    for index, ref in enumerate(refs):
        log.read_ahead(refs[index : index + 32])
        for batch in log.batches(ref, schema_ids=wanted):
            if not control and wanted is None:
                ids = batch.column("schema_id").to_numpy()
                if not ids.all():
                    batch = batch.filter(pa.array(ids != 0))
            if not control:
                kinds = batch.column("kind").to_numpy()
                if (kinds == RecordKind.MESSAGE).any():
                    batch = batch.filter(pa.array(kinds != RecordKind.MESSAGE))
            elif tables is not None:
                batch = batch.filter(_of_tables(batch, tables))
            if batch.num_rows:
                yield batch


def _of_tables(batch: pa.RecordBatch, tables: Collection[str]) -> pa.BooleanArray:
    """Return bool[n]: row changes, which are of these tables, and records about dumps of them."""
    keep = batch.column("schema_id").to_numpy() != 0
    for place in np.flatnonzero(~keep).tolist():
        keep[place] = shaping.control_table(batch, place) in tables
    return pa.array(keep)


def _blocks(batches: Iterator[pa.RecordBatch], limit: int) -> Iterator[pa.RecordBatch]:
    """Concatenate neighbours up to ``limit`` bytes."""
    waiting: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        if waiting and size + batch.nbytes > limit:
            yield _concatenate(waiting)
            waiting, size = [], 0
        waiting.append(batch)
        size += batch.nbytes
    if waiting:
        yield _concatenate(waiting)


def _concatenate(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    if len(batches) == 1:
        return batches[0]
    return pa.concat_batches(batches)


def _schema_runs(block: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Yield neighbouring records of one schema version; a table changes its schema rarely."""
    ids = block.column("schema_id").to_numpy()
    bounds = [0, *(np.flatnonzero(np.diff(ids)) + 1).tolist(), len(ids)]
    for low, high in pairwise(bounds):
        yield block.slice(low, high - low)
