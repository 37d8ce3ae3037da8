"""What an executor does with a run of segments: read, group by schema, decode, shape."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from tidelog.errors import DecodeError, TidelogError
from tidelog.eventlog.reader import EventLog, SegmentRef
from tidelog.model.records import Kind
from tidelog.model.schema import TableSchema
from tidelog.pipeline import envelope, planning, shapes
from tidelog.pipeline.combining import combine, sliced
from tidelog.pipeline.options import SourceOptions
from tidelog.wire.fold import fold

# Decoding many small batches costs more than copying them together; a big one need not be copied.
_BLOCK_BYTES = 8 << 20
# Folding needs memory of several times a block; what is left of it is a row per key.
_FOLD_BYTES = 64 << 20


@dataclass
class Reading:
    """One read's plan as executors get it: picklable, holds no file and no log."""

    options: SourceOptions
    target: TableSchema | None
    spark_schema: StructType
    _arrow: pa.Schema | None = field(default=None, repr=False)

    @property
    def arrow_schema(self) -> pa.Schema:
        """The shape's Arrow schema, exactly as Spark expects it."""
        if self._arrow is None:
            self._arrow = to_arrow_schema(self.spark_schema, timezone="UTC")
        return self._arrow

    def batches(self, log: EventLog, refs: Sequence[SegmentRef]) -> Iterator[pa.RecordBatch]:
        """The rows of ``refs`` in this read's shape, in log order; ``changes``: once per key."""
        schemas = planning.schemas_of(log, self.options.tables)
        if schemas is not None and not schemas:
            return
        folds = self.options.shape == "changes"
        records = _records(log, refs, schemas, self.options.shape == "raw")
        found = self._decoded(log, _blocks(records, _FOLD_BYTES if folds else _BLOCK_BYTES))
        if not folds:
            yield from found
        elif self.target is not None:
            yield from sliced(combine(list(found), self.target))

    def _decoded(self, log: EventLog, blocks: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for block in blocks:
            try:
                yield from self._shaped(log, block)
            except TidelogError:
                raise
            except Exception as error:
                offsets = block.column("offset")
                table = self.target.table if self.target else "several tables"
                raise DecodeError(
                    f"{table}: offsets {offsets[0].as_py()} to {offsets[-1].as_py()} could not be "
                    f"decoded ({type(error).__name__})"
                ) from error

    def _shaped(self, log: EventLog, block: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        shape = self.options.shape
        if shape == "raw":
            yield shapes.raw_batch(block, log.schemas.get, self.arrow_schema)
        elif shape == "envelope":
            yield envelope.batch(block, log, self.options, self.arrow_schema)
        else:
            assert self.target is not None
            for run in _schema_runs(block):
                written = log.schemas.get(run.column("schema_id")[0].as_py())
                if shape == "typed":
                    yield shapes.typed_batch(
                        run,
                        written,
                        self.target,
                        self.options.columns,
                        self.options.before,
                        self.arrow_schema,
                    )
                else:
                    yield shapes.changes_batch(fold(run, written, self.target), self.arrow_schema)


def _records(
    log: EventLog,
    refs: Sequence[SegmentRef],
    schemas: dict[int, TableSchema] | None,
    control: bool,
) -> Iterator[pa.RecordBatch]:
    """Records of the wanted schemas; control records and the source's messages for ``raw`` only."""
    wanted = None if schemas is None else schemas.keys()
    for ref in refs:
        for batch in log.batches(ref, schema_ids=wanted):
            if not control and wanted is None:
                ids = batch.column("schema_id").to_numpy()
                if not ids.all():
                    batch = batch.filter(pa.array(ids != 0))
            if not control:
                kinds = batch.column("kind").to_numpy()
                if (kinds == Kind.MESSAGE).any():
                    batch = batch.filter(pa.array(kinds != Kind.MESSAGE))
            if batch.num_rows:
                yield batch


def _blocks(batches: Iterator[pa.RecordBatch], limit: int) -> Iterator[pa.RecordBatch]:
    """Neighbours put together up to ``limit`` bytes."""
    held: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        if held and size + batch.nbytes > limit:
            yield _together(held)
            held, size = [], 0
        held.append(batch)
        size += batch.nbytes
    if held:
        yield _together(held)


def _together(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    if len(batches) == 1:
        return batches[0]
    return pa.concat_batches(batches)


def _schema_runs(block: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Neighbouring records of one schema version; a table changes its schema rarely."""
    ids = block.column("schema_id").to_numpy()
    bounds = [0, *(np.flatnonzero(np.diff(ids)) + 1).tolist(), len(ids)]
    for low, high in zip(bounds, bounds[1:], strict=False):
        yield block.slice(low, high - low)
