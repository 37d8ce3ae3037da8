"""The Iceberg output: a copy of each table in a catalog, exactly once, without Spark's SQL.

What is Iceberg's own is in `tidelog.outputs.lake.iceberg.table`, the rest in
`tidelog.outputs.lake.output`.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

from py4j.protocol import Py4JError, Py4JNetworkError

from tidelog.errors import OutputError, TidelogError, UsageError
from tidelog.model.patterns import choice
from tidelog.model.schema import TableName
from tidelog.outputs.lake.contents import TableContents
from tidelog.outputs.lake.errors import error_class_of
from tidelog.outputs.lake.iceberg.catalog import IcebergCatalog, catalog_of
from tidelog.outputs.lake.iceberg.partitioning import Partition
from tidelog.outputs.lake.iceberg.table import (
    DELETED,
    IcebergLayout,
    IcebergTable,
    committed_property,
    plain,
)
from tidelog.outputs.lake.idle import WatchedFiles, copies_if_idle, record_check
from tidelog.outputs.lake.java_libraries import JavaLibraries, java_libraries
from tidelog.outputs.lake.output import LakeOptions, LakeOutput, guarded
from tidelog.outputs.lake.table import application_of, parts_of
from tidelog.ports import LogExtent, StateStore
from tidelog.spark.sessions.jars import iceberg_jars

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

logger = logging.getLogger(__name__)

EXPIRE_EVERY_S: Final = 3600.0
THIN_AFTER_S: Final = 3600.0


@dataclass(frozen=True)
class IcebergOptions(LakeOptions):
    """``mode`` and ``format_version``: see `IcebergLayout`; of tables that are created."""

    mode: str = "merge-on-read"
    format_version: int = 2

    def layout_of(self, table: TableName) -> IcebergLayout:
        """Return the layout of the table in the lake of a table of the source."""
        by = [Partition.parse(each) for each in choice(self.partition_by, table, ())]
        partitions = tuple(each.sql(quote=False) for each in by)
        return self._layout(self.holds_of(table), partitions=partitions)

    def keyless_layout_of(self, table: TableName) -> IcebergLayout | None:
        """Return the layout of the changes of a table that has no key, in place of a copy's; None:
        they are not appended, or steps would alter them.
        """
        return self._layout("changes", keyless=True) if self.appends_keyless(table) else None

    def _layout(self, holds: TableContents, **more: Any) -> IcebergLayout:
        return IcebergLayout(
            version="version" if holds == "changes" else "_version",
            deleted=DELETED if self.soft_deletes and holds == "copy" else "",
            holds=holds,
            mode=self.mode,
            format_version=self.format_version,
            cache_bytes=self.cache_bytes,
            **more,
        )


class IcebergOutput(LakeOutput[IcebergTable]):
    """Tables of an Iceberg catalog.

    Args:
        spark: a session; one that is not ours has Iceberg's library
            (`tidelog.spark.sessions.jars.iceberg_jars`).
        log_path, tables, parallel_tables, state: see `LakeOutput`.
        catalog: properties of the catalog, as Iceberg's documentation has them.
        catalog_name: by which a JDBC catalog keeps its tables; None: see
            `tidelog.outputs.lake.iceberg.catalog`.
        storage_options: of the object store of the tables, as in `log.storage_options`.
        name: distinguishes this output from others of the same log; part of the property that says
            how far a table is.
        options: see `IcebergOptions`.
        conf: settings of Spark; see `tidelog.outputs.lake.java_libraries.java_libraries`.
        settings: which a later run compares, to see without Java that it has nothing to do; None:
            it needs Java.
    """

    product = "Iceberg"
    _options: IcebergOptions

    def __init__(
        self,
        spark: SparkSession,
        log_path: str,
        catalog: Mapping[str, str],
        *,
        catalog_name: str | None = None,
        storage_options: Mapping[str, str] | None = None,
        tables: Sequence[str] = (),
        name: str = "iceberg",
        options: IcebergOptions | None = None,
        parallel_tables: int = 2,
        state: StateStore | None = None,
        conf: Mapping[str, Any] | None = None,
        settings: str | None = None,
    ) -> None:
        super().__init__(
            spark,
            log_path,
            tables=tables,
            name=name,
            options=options or IcebergOptions(),
            parallel_tables=parallel_tables,
            state=state,
        )
        self._properties, self._catalog_name = dict(catalog), catalog_name
        self._storage_options = dict(storage_options or {})
        self._conf = dict(conf or {})
        self._settings = settings
        self._java: JavaLibraries | None = None
        self._root = catalog.get("warehouse") if catalog.get("type") == "hadoop" else None
        self._expired: dict[TableName, float] = {}  # when, of `time.monotonic`
        self._expiring: Future[None] | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=f"{name}-expire")

    @cached_property
    def _catalog(self) -> IcebergCatalog:
        """Opened when it is first needed: one that is away is tried again with the batch."""
        self._java = java_libraries(self._spark, self._conf, iceberg_jars)
        return catalog_of(
            self._spark,
            self._java,
            self.name,
            self._properties,
            self._catalog_name,
            self._storage_options,
        )

    def _java_has_ended(self) -> bool:
        return self._java is not None and self._java.ended

    @contextmanager
    def _guarded(self) -> Iterator[None]:
        """Open again what was in a Java process that has ended; its end now is an OutputError."""
        if self._java_has_ended():
            self._java = None
            self.__dict__.pop("_catalog", None)
            self._tables.clear()
            self._written.clear()
        try:
            yield
        except Py4JError as error:
            ours = self._java is not None and self._java.process is not None
            if not ours or not (isinstance(error, Py4JNetworkError) or self._java_has_ended()):
                raise
            raise OutputError(
                f"output {self.name}: the Java process of Iceberg's library has ended, and is "
                "started again: see that the host has enough memory"
            ) from error

    @guarded
    def prepare(self, generation: str) -> None:
        self._find_elsewhere(generation)
        super().prepare(generation)

    def _find_elsewhere(self, generation: str) -> None:
        """Raise UsageError if a table of the output is in another catalog of its database."""
        parts = [parts_of(table, self._destination(table)) for table in self._schemas()]
        committed = committed_property(application_of(generation, self.name))
        found = self._catalog.find_elsewhere(parts, committed)
        if found is not None:
            raise UsageError(
                f"output {self.name}: its table {'.'.join(found[1])} is in the catalog {found[0]} "
                f"of its database, and not in {self._catalog.name}. Set catalog_name: {found[0]}; "
                "or have the catalog take the other name (docs/outputs/iceberg.md, Catalogs)"
            )

    def finish(self, stop: threading.Event) -> None:
        """See `tidelog.ports.MaintainedOutput`: store that there is nothing to do, if it is so."""
        if self._expiring is not None:
            self._expiring.result()  # it commits
        try:
            if not stop.is_set():
                self._record_check()
        except TidelogError as error:
            logger.info("output %s: the next run starts Java in any case: %s", self.name, error)

    @guarded
    def _record_check(self) -> None:
        root, state, settings = self._root, self._state, self._settings
        if root is None or state is None or settings is None:
            return
        log = LogExtent(self._log_path, self.log.generation, self.log.latest_offset(), state)
        copies = copies_if_idle(log, self.name, self._patterns, self._table)
        if copies is not None:
            files = {f"{plain(each.location)}/metadata": _watched_files(each) for each in copies}
            record_check(log, self.name, settings, files)

    def close(self) -> None:
        self._thread.shutdown(wait=True)
        super().close()

    def _open(self, table: TableName, name: str) -> IcebergTable:
        layout = self._options.layout_of(table)
        parts = parts_of(table, name)
        location = ".".join(parts) if self._root is None else "/".join([self._root, *parts])
        branch = f"tidelog-{self.name}-"
        keyless = self._options.keyless_layout_of(table)
        rewrite = self._jobs.rewrite
        return IcebergTable(self._catalog, parts, location, layout, rewrite, branch, keyless)

    def _clean_up(self, written: Sequence[IcebergTable]) -> None:
        """Remove old snapshots of tables that were written, each once an hour: those that are older
        than the option ``vacuum_after`` says; without it thin them, because a commit writes the
        list of all.
        """
        after_s, now = self._options.vacuum_after_s, time.monotonic()
        if self._expiring is not None and not self._expiring.done():
            return
        names = {copy.location: table for table, copy in self._tables.items()}
        due = [
            copy
            for copy in written
            if now - self._expired.get(names[copy.location], -EXPIRE_EVERY_S) >= EXPIRE_EVERY_S
        ]
        self._expired |= {names[copy.location]: now for copy in due}
        if due:
            age_s = THIN_AFTER_S if after_s is None else after_s
            before_ms, thin = int((time.time() - age_s) * 1000), after_s is None
            self._expiring = self._thread.submit(_remove_snapshots, due, before_ms, thin)


def _watched_files(copy: IcebergTable) -> WatchedFiles:
    """Of a catalog of files, as ``HadoopTableOperations`` of Iceberg's library finds the newest."""
    name = copy.metadata_file()
    version = 0 if name is None else int(name.partition(".")[0].removeprefix("v"))
    later = {f"v{version + 1}{codec}.metadata.json": False for codec in ("", ".gz")}
    return {"version-hint.text": name is not None, **({name: True} if name else {}), **later}


def _remove_snapshots(tables: Sequence[IcebergTable], before_ms: int, thin: bool) -> None:
    """Not needed for a table to be right: a failure stops nothing, and is tried again."""
    for copy in tables:
        try:
            copy.remove_snapshots(before_ms, thin=thin)
        except Exception as error:  # noqa: BLE001 - whatever the library raises
            reason = error if isinstance(error, TidelogError) else error_class_of(error)
            logger.warning("%s: old snapshots were not removed: %s", copy.location, reason)
