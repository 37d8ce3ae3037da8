"""A lake whose copies Spark's MERGE keeps: tables in parallel, a MERGE for each table of a batch.

Executors decode the range and fold it to the newest state per key; one MERGE brings it over. Names
in SQL are quoted by `tidelog.spark.transforms.quoted`.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tidelog.codecs.wire_formats import nan_key, wire_format
from tidelog.model.schema import TableName
from tidelog.outputs.base.ranges import delivered_schema
from tidelog.outputs.lake.iceberg import rows as lake_rows
from tidelog.outputs.lake.iceberg.merged_table import MergedTable
from tidelog.outputs.lake.output import CopyWrite, LakeOptions, LakeOutput, TableWork, reason_of
from tidelog.ports import StateStore
from tidelog.spark import transforms
from tidelog.spark.changes import folding
from tidelog.spark.datasource.source import register
from tidelog.spark.sessions.session import in_session
from tidelog.spark.transforms import steps_of
from tidelog.system import failpoints

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

logger = logging.getLogger(__name__)

# Settings of sessions that run our MERGEs.
SESSION_CONF = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.ansi.enabled": "true",
    "spark.sql.parquet.datetimeRebaseModeInWrite": "CORRECTED",
    "spark.sql.parquet.datetimeRebaseModeInRead": "CORRECTED",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
}


@dataclass(frozen=True)
class MergingOptions(LakeOptions):
    """``optimize_every_s``: seconds after which small files of written tables are rewritten,
    and those removed that are older than ``vacuum_after_s``.
    """

    optimize_every_s: float | None = None


class MergingOutput(LakeOutput[MergedTable]):
    """Args: see `LakeOutput`; ``parallel_tables``: how many tables are merged at once."""

    _options: MergingOptions

    def __init__(
        self,
        spark: SparkSession,
        log_path: str,
        *,
        tables: Sequence[str],
        name: str,
        options: MergingOptions,
        parallel_tables: int,
        state: StateStore | None,
    ) -> None:
        super().__init__(spark, log_path, tables=tables, name=name, options=options, state=state)
        self._written: set[TableName] = set()  # since they were optimized
        self._optimized_at = time.monotonic()
        self._pool = ThreadPoolExecutor(max(1, parallel_tables), thread_name_prefix=name)

    def close(self) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)
        super().close()

    def _write_copies(self, works: Sequence[TableWork]) -> None:
        self._in_parallel([(self._bring_over, work) for work in works])

    def _maintain(self) -> None:
        every_s = self._options.optimize_every_s
        if every_s is not None and time.monotonic() - self._optimized_at >= every_s:
            self._in_parallel([(self._optimize, table) for table in sorted(self._written)])
            self._optimized_at = time.monotonic()

    def _in_parallel(self, calls: Sequence[tuple[Any, ...]]) -> None:
        futures: list[Any] = [self._pool.submit(*call) for call in calls]
        raised = [error for future in futures if (error := future.exception()) is not None]
        if raised:
            raise raised[0]

    def _bring_over(self, work: TableWork) -> None:
        with self._named_errors(work):
            found = self._plan_write(work)
            if found is not None:
                self._write_all([found])

    def _write_all(self, writes: Sequence[CopyWrite[MergedTable]]) -> None:
        for write in writes:
            work, copy = write.work, write.copy
            with copy.committing(self._application, write.since, work.end):
                failpoints.hit("lake.table.write")
                if write.parts:
                    self._write_rows(write)
                elif work.deleted_below:
                    lake_rows.remove_below(copy, work.deleted_below)
            self._written.add(work.table)

    def _write_rows(self, write: CopyWrite[MergedTable]) -> None:
        copy, work, target = write.copy, write.work, write.target
        assert target is not None  # of rows
        steps = steps_of(self._options.steps, work.table)
        columns = write.columns
        schema = target.schema if steps else delivered_schema(target.schema, columns)
        read = (self._read_session, self._log_path, self._log.generation, schema, write.refs)
        with folding.read_newest(*read, parts=len(write.parts)) as source:
            changes = folding.with_deletes_below(source, work.deleted_below)
            # Names of missing columns instead of their numbers.
            changes = transforms.apply(changes, steps, schema, keyed=True)
            changes = in_session(changes, copy.spark)
            may_lack = columns if steps else wire_format(schema).possibly_missing_columns(schema)
            if copy.is_empty():
                lake_rows.append(copy, changes, columns)
            else:
                lacking = frozenset(may_lack) - set(target.key)
                lake_rows.merge(
                    copy,
                    changes,
                    columns,
                    target.key,
                    lacking,
                    work.deleted_below,
                    null_key=bool(nan_key(target.schema)),
                )

    def _optimize(self, table: TableName) -> None:
        """Not needed for the copy to be right: a failure stops nothing, and is tried again."""
        copy = self._table(table)
        try:
            copy.optimize(self._options.vacuum_after_s)
            self._written.discard(table)
        except Exception as error:  # noqa: BLE001 - whatever Spark raises
            logger.warning("%s could not be optimized: %s", copy.location, reason_of(error))

    def _session(self, conf: Mapping[str, str]) -> SparkSession:
        """A session beside the one given, for our statements."""
        session = self._spark.newSession()
        for name, value in {**SESSION_CONF, **conf}.items():
            session.conf.set(name, value)
        register(session)
        return session
