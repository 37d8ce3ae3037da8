"""The output kinds ``delta`` and ``iceberg``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from tidelog.outputs.base.sections import BuiltinKind, check_directory_access, normal_directory
from tidelog.outputs.delivery_settings import transform_steps
from tidelog.outputs.lake.delta.config import DeltaSection
from tidelog.outputs.lake.iceberg.config import IcebergSection
from tidelog.ports import LogExtent, Output, OutputContext, OutputPlace, TargetTable

if TYPE_CHECKING:
    from tidelog.outputs.lake.delta.options import DeltaOptions
    from tidelog.outputs.lake.iceberg.output import IcebergOptions


def _delta(section: DeltaSection, context: OutputContext) -> Output:
    from tidelog.outputs.lake.delta.hive import HiveCatalog
    from tidelog.outputs.lake.delta.output import DeltaOutput

    section.provide_options()
    catalog = None if section.catalog is None else HiveCatalog(context.spark, section.catalog.uri)
    return DeltaOutput(
        context.spark,
        context.log_path,
        str(section.path),
        tables=section.tables,
        name=section.name,
        options=_delta_options(section),
        parallel_tables=section.parallelism,
        state=context.open_state(),
        catalog=catalog,
    )


def _delta_options(section: DeltaSection) -> DeltaOptions:
    from tidelog.outputs.lake.delta.options import DeltaOptions

    return DeltaOptions(
        **_lake_options(section),
        cluster_by=section.cluster_by,
        deletion_vectors=section.deletion_vectors,
        plain_names=section.names == "plain",
    )


def _iceberg(section: IcebergSection, context: OutputContext) -> Output:
    from tidelog.outputs.lake.iceberg.output import IcebergOutput

    return IcebergOutput(
        context.spark,
        context.log_path,
        section.catalog_properties(),
        catalog_name=section.catalog_name,
        storage_options=section.options(),
        tables=section.tables,
        name=section.name,
        options=_iceberg_options(section),
        parallel_tables=section.parallelism,
        state=context.open_state(),
    )


def _iceberg_options(section: IcebergSection) -> IcebergOptions:
    from tidelog.outputs.lake.iceberg.output import IcebergOptions

    return IcebergOptions(
        **_lake_options(section),
        mode=section.mode,
        format_version=section.format_version,
    )


def _lake_options(section: DeltaSection | IcebergSection) -> dict[str, Any]:
    after = section.vacuum_after
    return {
        "steps": transform_steps(section),
        "holds": section.holds,
        "on_schema_change": section.on_schema_change,
        "keyless": section.keyless,
        "soft_deletes": section.deletes == "soft",
        "partition_by": section.partition_by,
        "types": section.types.column_types(),
        "cache_bytes": section.cache_bytes,
        "vacuum_after_s": None if after is None else after.total_seconds(),
    }


def _delta_place(section: DeltaSection) -> OutputPlace:
    return OutputPlace([normal_directory(section.path)])


def _iceberg_place(section: IcebergSection) -> OutputPlace:
    found = section.catalog_properties()
    place = [found.get(name, "") for name in ("type", "catalog-impl", "uri")]
    # The name may be set, or change, where the tables are the same: the output checks that.
    warehouse = normal_directory(found.get("warehouse", ""))
    return OutputPlace([*place, warehouse], now=section.catalog_name)


def _delta_names(section: DeltaSection, tables: Sequence[TargetTable]) -> Iterator[str]:
    from tidelog.outputs.base.targets import refused_names
    from tidelog.outputs.lake.delta.table import DeltaTable, path_of
    from tidelog.outputs.lake.table import check_columns

    options = _delta_options(section)
    return refused_names(
        section.name,
        tables,
        lambda table: check_columns(DeltaTable.product, options.layout_of(table.source), table),
        lambda table: path_of(str(section.path), table.source, table.name),
    )


def _delta_idle(section: DeltaSection, log: LogExtent) -> bool:
    from tidelog.outputs.lake.delta.output import has_whole_log

    section.provide_options()
    options = _delta_options(section)
    return has_whole_log(log, str(section.path), section.name, section.tables, options)


def _iceberg_names(section: IcebergSection, tables: Sequence[TargetTable]) -> Iterator[str]:
    from tidelog.outputs.base.targets import refused_names
    from tidelog.outputs.lake.iceberg.table import IcebergTable, check_reserved
    from tidelog.outputs.lake.table import check_columns, parts_of

    options = _iceberg_options(section)

    def check(table: TargetTable) -> None:
        layout = options.layout_of(table.source)
        check_columns(IcebergTable.product, layout, table)
        check_reserved(table, layout)

    return refused_names(
        section.name, tables, check, lambda table: ".".join(parts_of(table.source, table.name))
    )


def _iceberg_probe(section: IcebergSection) -> str | None:
    properties = section.catalog_properties()
    if properties.get("type") == "hadoop":
        return check_directory_access(properties["warehouse"])
    from tidelog.outputs.lake.iceberg.catalog_check import check_catalog

    name, conf = section.catalog_name, section.pipeline_conf
    return check_catalog(section.name, properties, name, section.tables, conf)


DELTA = BuiltinKind(
    DeltaSection,
    _delta,
    _delta_place,
    probe_with=DeltaSection.probe,
    names=_delta_names,
    idle=_delta_idle,
)
ICEBERG = BuiltinKind(
    IcebergSection, _iceberg, _iceberg_place, probe_with=_iceberg_probe, names=_iceberg_names
)
