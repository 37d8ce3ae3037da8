"""The files output: an activity log with every change as a record in Parquet or JSON files by table
and date, exactly once for readers of the directory.

Tasks write files that readers don't see; when all tasks are done, the driver commits them and moves
them into place (`tidelog.outputs.files.commits`). The output's offset is that of the newest commit.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from tidelog.errors import ConfigError, OutputRefusedError
from tidelog.model.schema import TableName
from tidelog.outputs.base.executor_output import ExecutorOutput
from tidelog.outputs.base.left_out import check_directory, check_has_columns
from tidelog.outputs.base.scheduling import BatchPlan
from tidelog.outputs.base.stores import open_file_store
from tidelog.outputs.base.writer import Delivery
from tidelog.outputs.files.commits import Commits
from tidelog.outputs.files.writer import FileFormat, FilesLayout, FilesWriter, visible_name
from tidelog.ports import StateStore, TargetTable, TaskWriter

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def directory_of(output: str, layout: FilesLayout, table: TargetTable) -> str:
    """Describes the directory of the table's files. Raises NameRefusedError if no directory can
    have that name.
    """
    place = layout.of_table(table)
    check_directory(output, table.source, place)
    return f"the directory {place} (see `layout`)"


class FilesOutput(ExecutorOutput):
    """`tidelog.ports.Output` over a directory of files.

    Args:
        spark, log_path, state: see `ExecutorOutput`.
        delivery: ordered, without a formatter. The order is `none`: records have versions.
        path: directory or URL that pyarrow supports.
        layout: pattern of directories, see `FilesLayout`.
        file_format: format of the files.
    """

    def __init__(
        self,
        spark: SparkSession,
        log_path: str,
        state: StateStore,
        delivery: Delivery,
        *,
        path: str,
        layout: str,
        file_format: FileFormat,
    ) -> None:
        if delivery.keyed or delivery.formatter is not None:
            raise ConfigError("a files output delivers every change, as rows")
        self._store = open_file_store(path)
        self._layout = FilesLayout(layout)
        self._format = file_format
        self._commits = Commits(self._store, delivery.name)
        super().__init__(spark, log_path, state, delivery)

    def check(self, generation: str) -> None:
        """Finish the moves that a crash after a commit has left."""
        self._store.check()
        newest = self._commits.newest
        if newest is not None and newest.generation != generation:
            raise OutputRefusedError(
                f"output {self.name}: {self._store.path} was filled from generation "
                f"{newest.generation} of the event log, this log is generation {generation}: it "
                "was recreated. Give the output another directory, or another name."
            )
        self._commits.finish()

    def create(self, table: TargetTable) -> None:
        if self._format.typed:
            check_has_columns(table.schema)
        directory_of(self.name, self._layout, table)

    def address(self, table: TargetTable) -> str | None:
        """Return the table's directory if files have typed columns, of one table each; files of
        JSON may have several tables.
        """
        if not self._format.typed:
            return None
        return directory_of(self.name, self._layout, table)

    def table_offset(self, table: TableName) -> int | None:
        newest = self._commits.newest
        return None if newest is None else newest.end

    def before_batch(self, *, again: bool) -> None:
        self._commits.finish()

    @contextmanager
    def writing(self, plan: BatchPlan) -> Iterator[TaskWriter]:
        staging = self._commits.staging(uuid.uuid4().hex[:12])
        yield FilesWriter(self._store, staging, self._layout, self._format)
        newest, batch = self._commits.newest, plan.batch
        start = batch.start if newest is None else max(batch.start, newest.end)
        prefix = f"{visible_name(self.name)}-"
        generation = batch.generation
        self._commits.publish(staging, generation, start, batch.end, prefix, self._format.suffix)
