"""What all outputs of the event log share, before they differ in how they write.

Two bases derive from `BaseOutput`. With `tidelog.outputs.base.executor_output.ExecutorOutput` tasks
write to the destination themselves; with `tidelog.outputs.lake.output.LakeOutput` tasks write
files, which the driver commits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from typing import TYPE_CHECKING

from tidelog.errors import ConfigError, OutputRefusedError, TableLeftOutError
from tidelog.eventlog.reader import EventLog
from tidelog.model.patterns import matches
from tidelog.model.schema import TableName, TableSchema
from tidelog.outputs.base.left_out import DumpRequests, LeftOutTableStore
from tidelog.ports import StateStore, TargetTable, WriteLease
from tidelog.spark.datasource.partitions import schemas_now
from tidelog.spark.datasource.source import prepare_workers
from tidelog.spark.sessions.connect import default_parallelism
from tidelog.spark.transforms import Step, target_table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class BaseOutput:
    """The tables that an output writes, its lease, and the tables that it leaves out.

    Args:
        spark: the session that runs its jobs.
        log_path: the event log that batches refer to.
        name: distinguishes this output from others of the same log.
        tables: names or patterns of the tables that it writes.
        state: keeps the tables that are left out; None: such a table stops the output.
        settings: see `LeftOutTableStore`.

    Attributes:
        log: the event log.
        lease: the pipeline's, of epoch 0 where there is none.
        dumps: requests dumps of rows that the destination lost.
    """

    keyed: bool = True
    """Does the output keep copies, which a whole dump repairs, whatever rows are missing?"""

    def __init__(
        self,
        spark: SparkSession,
        log_path: str,
        *,
        name: str,
        tables: Sequence[str],
        state: StateStore | None,
        settings: object,
    ) -> None:
        self.name = name
        self.log = EventLog.open(log_path)
        self.lease = WriteLease()
        self.dumps = DumpRequests(name)
        self._spark = spark
        self._log_path = log_path
        self._patterns = tables
        self._state = state
        self._open_left_out = partial(LeftOutTableStore, state, self.log.generation, name, settings)
        prepare_workers(spark)

    @cached_property
    def left_out(self) -> LeftOutTableStore:
        """The tables that are left out."""
        return self._open_left_out()

    def set_lease(self, lease: WriteLease) -> None:
        """See `tidelog.ports.LedOutput`."""
        self.lease = lease

    def prepare(self, generation: str) -> None:
        """Check that the pipeline reads the log that the output opened."""
        if self.log.generation != generation:
            raise OutputRefusedError(
                f"output {self.name} reads generation {self.log.generation} of the event log, the "
                f"pipeline generation {generation}: restart the pipeline"
            )

    def rejected(self) -> int:
        """See `tidelog.ports.RejectingOutput`."""
        return 0

    def left_out_tables(self) -> Mapping[str, str]:
        """See `tidelog.ports.RejectingOutput`."""
        return self.left_out.messages()

    def keyless_tables(self) -> Mapping[str, str]:
        """See `tidelog.ports.RejectingOutput`."""
        return self.left_out.keyless()

    def take_again(self, ask: Callable[[Sequence[str]], None]) -> None:
        """See `tidelog.ports.RejectingOutput`."""
        schemas = self._schemas().values()
        self.left_out.take_again(schemas, self._prepare_table, ask, self.log.latest_offset())

    def transformed(
        self, schema: TableSchema, steps: Sequence[Step], *, keyed: bool
    ) -> TargetTable:
        """Return the table as ``steps`` deliver it. Raises TableLeftOutError if they don't fit."""
        try:
            return target_table(self._spark, schema, steps, self.log.source, keyed=keyed)
        except ConfigError as error:
            raise TableLeftOutError(f"output {self.name}: {error}") from error

    def close(self) -> None:
        if self._state is not None:
            self._state.close()

    # ------------------------------------------------ for the bases

    def _prepare_table(self, schema: TableSchema) -> object:
        """Prepare the destination for rows of ``schema``, the newest one of a table that was left
        out. Raises TableLeftOutError if it can't have them still.
        """
        raise NotImplementedError

    def _schemas(self) -> dict[TableName, TableSchema]:
        """Return the newest schemas of the tables that the output writes."""
        found = schemas_now(self.log)
        return {table: schema for table, schema in found.items() if self._is_selected(table)}

    def _is_selected(self, table: TableName) -> bool:
        return matches(self._patterns, table)

    def _check_tables(
        self, check: Callable[[TableSchema], object]
    ) -> dict[TableName, TableLeftOutError]:
        """Call ``check`` with each table's newest schema, and return the errors of those that must
        be left out. Raises ConfigError if steps fit none of the tables: then the steps are wrong.
        """
        schemas, left_out = self._schemas(), {}
        for table, schema in schemas.items():
            try:
                check(schema)
            except TableLeftOutError as error:
                left_out[table] = error
        causes = [each.__cause__ for each in left_out.values()]
        wrong = [each for each in causes if isinstance(each, ConfigError)]
        if wrong and len(wrong) == len(schemas):
            raise wrong[0]
        return left_out

    def _cores(self) -> int:
        """Return the number of tasks that run at once now: executors come and go."""
        return default_parallelism(self._spark)
