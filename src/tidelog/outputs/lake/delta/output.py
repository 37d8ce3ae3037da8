"""The Delta output: writes a copy of each table, or its changes, exactly once, without Spark's SQL.

A batch's end is Delta's transaction version; its application names the log's generation and the
output. The rest is in `tidelog.outputs.lake.output`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from tidelog.errors import TableLeftOutError
from tidelog.model.patterns import all_but
from tidelog.model.schema import TableName
from tidelog.outputs.lake.delta.options import DeltaOptions
from tidelog.outputs.lake.delta.registration import Catalog, Registration, entry_of
from tidelog.outputs.lake.delta.table import DeltaTable, path_of
from tidelog.outputs.lake.delta.vacuum import Vacuum, VacuumTimes
from tidelog.outputs.lake.delta_log.table_state import commit_name
from tidelog.outputs.lake.idle import WatchedFiles, copies_if_idle
from tidelog.outputs.lake.output import LakeOutput
from tidelog.outputs.lake.settling.settle import FileChanges
from tidelog.outputs.lake.settling.tasks import RewriteWork
from tidelog.ports import LogExtent, StateStore
from tidelog.spark.transforms import destination_name

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class DeltaOutput(LakeOutput[DeltaTable]):
    """A directory (or object-store prefix) of Delta tables.

    Args:
        spark, log_path, tables, parallel_tables, state: see `LakeOutput`.
        path: the lake's root; a table is at ``path/namespace/name``.
        name: distinguishes this output from others of the same log; part of Delta's application id.
        options: see `DeltaOptions`.
        catalog: where its tables are registered; None: nowhere.
    """

    product = "Delta"
    _options: DeltaOptions

    def __init__(
        self,
        spark: SparkSession,
        log_path: str,
        path: str,
        *,
        tables: Sequence[str] = (),
        name: str = "delta",
        options: DeltaOptions | None = None,
        parallel_tables: int = 2,
        state: StateStore | None = None,
        catalog: Catalog | None = None,
    ) -> None:
        super().__init__(
            spark,
            log_path,
            tables=tables,
            name=name,
            options=options or DeltaOptions(),
            parallel_tables=parallel_tables,
            state=state,
        )
        self._root = path
        self._vacuum: Vacuum | None = None
        if self._options.vacuum_after_s is not None:
            times = VacuumTimes(state, f"vacuum/{self.log.generation}/{name}")
            self._vacuum = Vacuum(self._options.vacuum_after_s, f"{name}-vacuum", times)
        self._registration: Registration | None = None
        if catalog is not None:
            self._registration = Registration(catalog, f"{name}-catalog")

    def take_again(self, ask: Callable[[Sequence[str]], None]) -> None:
        super().take_again(ask)
        self._register()

    def unregistered_tables(self) -> Mapping[str, str]:
        """See `tidelog.ports.RegisteringOutput`."""
        return {} if self._registration is None else self._registration.messages()

    def _register(self) -> None:
        """Register the tables that there are now."""
        registration = self._registration
        if registration is None:
            return
        for table, copy in list(self._tables.items()):
            if registration.knows(table) or (metadata := copy.state.metadata) is None:
                continue
            with suppress(TableLeftOutError):  # somebody else's
                copy.check_ours(table, self.log.generation)
                name = self._destination(table)
                registration.add(entry_of(table, name, copy.path, metadata))

    def _maintain(self) -> None:
        super()._maintain()
        self._register()

    def close(self) -> None:
        if self._registration is not None:
            self._registration.close()
        if self._vacuum is not None:
            self._vacuum.close()
        super().close()

    def finish(self, stop: threading.Event) -> None:
        """See `tidelog.ports.MaintainedOutput`."""
        if self._vacuum is not None:
            self._vacuum.finish(stop)
        if self._registration is not None:
            self._registration.finish(stop)

    def _open(self, table: TableName, name: str) -> DeltaTable:
        path, keyless = path_of(self._root, table, name), self._options.keyless_layout_of(table)
        return DeltaTable(path, self._options.layout_of(table), self._jobs.rewrite, keyless)

    def _clean_up(self, written: Sequence[DeltaTable]) -> None:
        if self._vacuum is not None:
            self._vacuum.take_turn(written)


def files_if_idle(
    log: LogExtent, root: str, output: str, tables: Sequence[str], options: DeltaOptions
) -> Mapping[str, WatchedFiles] | None:
    """Return the tables' newest commits by path if the output has all of the log, else None."""

    def open_table(table: TableName) -> DeltaTable:
        path = path_of(root, table, destination_name(options.steps, table))
        keyless = options.keyless_layout_of(table)
        return DeltaTable(path, options.layout_of(table), _rewrite, keyless)

    copies = copies_if_idle(log, output, all_but(tables) or ("*.*",), open_table)
    return None if copies is None else {copy.path: _watched_files(copy) for copy in copies}


def _watched_files(copy: DeltaTable) -> WatchedFiles:
    version = copy.state.version
    newest = {commit_name(version): True} if version >= 0 else {}
    return {**newest, commit_name(version + 1): False}


def _rewrite(_: Sequence[RewriteWork]) -> list[FileChanges]:
    raise AssertionError("nothing is written without Spark")
