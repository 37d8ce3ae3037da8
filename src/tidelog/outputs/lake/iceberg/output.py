"""The Iceberg output: a copy of each table in a catalog, kept by MERGE, exactly once.

What is Iceberg's own is in `tidelog.outputs.lake.iceberg.table`, the rest in
`tidelog.outputs.lake.output`.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tidelog.errors import UsageError
from tidelog.model.patterns import choice
from tidelog.model.schema import TableName
from tidelog.outputs.lake.iceberg.merging_output import MergingOptions, MergingOutput
from tidelog.outputs.lake.iceberg.state import IcebergCatalog
from tidelog.outputs.lake.iceberg.table import DELETED, IcebergLayout, IcebergTable, Partition
from tidelog.outputs.lake.table import parts_of
from tidelog.ports import StateStore
from tidelog.spark.sessions.jars import ICEBERG_VERSION, SPARK_OF_ICEBERG
from tidelog.spark.sessions.versions import SPARK_VERSION

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True)
class IcebergOptions(MergingOptions):
    """``mode`` and ``format_version``: see `IcebergLayout`; of tables that are created."""

    mode: str = "merge-on-read"
    format_version: int = 2


class IcebergOutput(MergingOutput):
    """Tables of an Iceberg catalog; all share a Spark session.

    Args:
        spark: a session with Iceberg's classes.
        log_path: the event log that batches refer to.
        catalog: properties of the catalog, as Iceberg's documentation has them.
        tables: names or patterns; empty: all.
        name: identifies this output among others of the same log; part of the property that says
            how far a table is.
        options: see there.
        parallel_tables: how many tables are merged at once.
        state: keeps which tables are left out; None: such a table stops it.
    """

    product = "Iceberg"
    _options: IcebergOptions

    def __init__(
        self,
        spark: SparkSession,
        log_path: str,
        catalog: Mapping[str, str],
        *,
        tables: Sequence[str] = (),
        name: str = "iceberg",
        options: IcebergOptions | None = None,
        parallel_tables: int = 2,
        state: StateStore | None = None,
    ) -> None:
        check_spark()
        super().__init__(
            spark,
            log_path,
            tables=tables,
            name=name,
            options=options or IcebergOptions(),
            parallel_tables=parallel_tables,
            state=state,
        )
        known_as, conf = catalog_conf(name, catalog)
        self._shared = self._session(conf)
        self._catalog = IcebergCatalog(self._shared, known_as)
        self._root = catalog.get("warehouse") if catalog.get("type") == "hadoop" else None
        self._branch = f"tidelog-{name}-{uuid.uuid4().hex}"

    def _open(self, table: TableName, name: str) -> IcebergTable:
        options = self._options
        by = [Partition.parse(each) for each in choice(options.partition_by, table, ())]
        layout = IcebergLayout(
            deleted=DELETED if options.soft_deletes else "",
            partitions=tuple(each.sql(quote=False) for each in by),
            mode=options.mode,
            format_version=options.format_version,
        )
        parts = parts_of(table, name)
        location = ".".join(parts) if self._root is None else "/".join([self._root, *parts])
        return IcebergTable(self._shared, self._catalog, parts, location, layout, self._branch)


def catalog_conf(output: str, catalog: Mapping[str, str]) -> tuple[str, dict[str, str]]:
    """The name by which Spark knows the catalog of an output, and the settings that say so."""
    name = "tidelog_" + re.sub(r"[^a-z0-9]", "_", output.lower())
    key = f"spark.sql.catalog.{name}"
    conf = {key: "org.apache.iceberg.spark.SparkCatalog"}
    conf |= {f"{key}.{option}": value for option, value in catalog.items()}
    # What is committed has to be read from the catalog, not from memory.
    return name, conf | {f"{key}.cache-enabled": "false"}


def check_spark() -> None:
    """Raises UsageError if this Spark is not the one that Iceberg is built for."""
    if SPARK_VERSION != SPARK_OF_ICEBERG:
        raise UsageError(
            f"an output of kind iceberg needs Spark {SPARK_OF_ICEBERG}, which Iceberg "
            f"{ICEBERG_VERSION} is built for; installed is pyspark {SPARK_VERSION}. Run it from a "
            "virtual environment of its own: pip install 'tidelog[iceberg]'"
        )
