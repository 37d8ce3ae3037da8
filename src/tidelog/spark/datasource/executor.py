"""Reads a partition's segments on an executor: groups records by schema, decodes and shapes
them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import pairwise

import numpy as np
import pyarrow as pa

from tidelog.codecs.fold import fold
from tidelog.errors import DecodeError, TidelogError
from tidelog.eventlog.reader import EventLog, SegmentRef
from tidelog.model.records import Kind
from tidelog.model.schema import TableName, TableSchema
from tidelog.spark.datasource import partitions
from tidelog.spark.datasource.merging import combine, slices
from tidelog.spark.datasource.read_plan import ReadPlan
from tidelog.spark.formats import envelope, shaping, variant
from tidelog.spark.formats.events import events_batch
from tidelog.system import failpoints

# Decoding many small batches costs more than concatenating them; a big one need not be copied.
_BLOCK_BYTES = 8 << 20
# Folding needs several times the memory of a block; the result is a row per key.
_FOLD_BYTES = 64 << 20


def batches(plan: ReadPlan, log: EventLog, refs: Sequence[SegmentRef]) -> Iterator[pa.RecordBatch]:
    """Yields the rows of ``refs`` in this read's shape, in log order; ``changes``: once per key."""
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
        yield from slices(combine(list(found), plan.target))


def events_in_order(
    log: EventLog, refs: Sequence[SegmentRef], plans: Mapping[str, ReadPlan]
) -> Iterator[tuple[TableSchema, pa.RecordBatch]]:
    """Yields the events of several tables in log order, in runs of one schema version. ``plans``:
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
    """Yields the records of the wanted schemas. For ``raw`` (``control``) also records about their
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
                if (kinds == Kind.MESSAGE).any():
                    batch = batch.filter(pa.array(kinds != Kind.MESSAGE))
            elif tables is not None:
                batch = batch.filter(_of_tables(batch, tables))
            if batch.num_rows:
                yield batch


def _of_tables(batch: pa.RecordBatch, tables: Collection[str]) -> pa.BooleanArray:
    """Returns bool[n]: row changes, which are of these tables, and records about dumps of them."""
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
    """Yields neighbouring records of one schema version; a table changes its schema rarely."""
    ids = block.column("schema_id").to_numpy()
    bounds = [0, *(np.flatnonzero(np.diff(ids)) + 1).tolist(), len(ids)]
    for low, high in pairwise(bounds):
        yield block.slice(low, high - low)
