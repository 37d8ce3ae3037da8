"""Kind ``iceberg``: its section, its probe, and how it is opened."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Literal

from pydantic import Field, SecretStr, model_validator

from tidelog.eventlog.storage import provide_options
from tidelog.kinds.sections import Duration, Location, TablePattern
from tidelog.model.option_values import is_jdbc_catalog, is_object_store
from tidelog.outputs.base.builtin_kind import BuiltinKind, check_directory_access, normal_directory
from tidelog.outputs.base.hadoop_settings import store_options
from tidelog.outputs.base.sections import StorageOptionsSection, name_field
from tidelog.outputs.lake.config import LakeSection
from tidelog.ports import LogExtent, Output, OutputContext, OutputLocation, TargetTable

if TYPE_CHECKING:
    from tidelog.outputs.lake.iceberg.output import IcebergOptions


class IcebergSection(StorageOptionsSection, LakeSection):
    """Iceberg tables, one for each source table (docs/outputs/iceberg.md)."""

    without_type = ("json_", "json: the Iceberg output writes no VARIANT: leave it text")

    spark_jars = "iceberg"
    vacuum_least = (timedelta(hours=1), "1h")

    kind: Literal["iceberg"] = Field(description="The kind of output.")
    name: str = name_field(
        "iceberg",
        "Names the output in the event log and in properties of its tables: keep it for as long "
        "as they live.",
    )
    path: Location | None = Field(
        default=None,
        description="Directory or URL, the catalog's `warehouse`. Without `catalog`, the table "
        "`public.orders` goes to `<path>/public/orders`.",
        examples=["./data/lake"],
    )
    catalog: dict[str, SecretStr] = Field(
        default={},
        description="Properties of the Iceberg catalog, as its documentation has them: `type` "
        "(`hadoop`, `rest`, `jdbc`, `hive`, `glue`, …), `uri`, `warehouse`, … All are treated as "
        "secrets. Unset: `type: hadoop` at `path`.",
        examples=[{"type": "rest", "uri": "https://catalog", "token": "${CATALOG_TOKEN}"}],
    )
    catalog_name: str | None = Field(
        default=None,
        min_length=1,
        description="The name by which a JDBC catalog keeps its tables. Unset: `tidelog_` "
        "and the output's name if it has tables there, else that of the only other catalog in "
        "the database.",
        examples=["lake"],
    )
    deletes: Literal["hard", "soft"] = Field(
        default="hard",
        description="For copies. `hard`: a deleted row is removed. `soft`: it stays as it was "
        "last, with `_tidelog_deleted` true.",
    )
    partition_by: dict[TablePattern, list[str]] = Field(
        default={},
        description="By table or pattern, what a new copy is partitioned by: columns, or "
        "`years(c)`, `months(c)`, `days(c)`, `hours(c)`, `bucket(16, c)`, `truncate(4, c)` of one.",
        examples=[{"public.events": ["days(created_at)"]}],
    )
    vacuum_after: Duration | None = Field(
        default=None,
        description="Once an hour, snapshots of written tables are removed that are older, and the "
        "files that no other snapshot has. At least an hour. Unset: of Tidelog's snapshots that "
        "are older than an hour, the newest of each hour stays.",
        examples=["7d"],
    )
    mode: Literal["merge-on-read", "copy-on-write"] = Field(
        default="merge-on-read",
        description="Of new tables. `merge-on-read`: old places of changed rows go to "
        "delete files. `copy-on-write`: files that hold a changed row are rewritten.",
    )
    format_version: Literal[2, 3] = Field(
        default=2,
        description="For tables that are created. `3`: deletes are deletion vectors, which not all "
        "readers know.",
    )

    def calls_java(self) -> bool:
        return True

    @model_validator(mode="after")
    def _is_somewhere(self) -> IcebergSection:
        if self.path is None and not {"type", "catalog-impl"} & self.catalog.keys():
            raise ValueError("say where: path, or catalog with its type and uri")
        if self.path is not None and "warehouse" in self.catalog:
            raise ValueError("path is the catalog's warehouse: give one of the two")
        properties = self.catalog_properties()
        warehouse = properties.get("warehouse", "/")
        is_directory = properties.get("type") in ("hadoop", "jdbc", "hive")
        if is_directory and not warehouse.startswith("/") and ":/" not in warehouse:
            raise ValueError(
                f"catalog: warehouse: '{warehouse}' is a relative path: write it as "
                f"path: '{warehouse}', or as an absolute path or URL"
            )
        if self.storage_options and self.path is not None and not is_object_store(self.path):
            raise ValueError("storage_options are for an object store; path is a local directory")
        if self.catalog_name is not None and not is_jdbc_catalog(self.catalog_properties()):
            raise ValueError("catalog_name is for a JDBC catalog; others have one name space")
        return self

    def catalog_properties(self) -> dict[str, str]:
        """The catalog's properties, with their secrets."""
        given = {name: value.get_secret_value() for name, value in self.catalog.items()}
        if not {"type", "catalog-impl"} & given.keys():
            given["type"] = "hadoop"
        return given if self.path is None else {**given, "warehouse": str(self.path)}


def _open(section: IcebergSection, context: OutputContext) -> Output:
    from tidelog.outputs.lake.iceberg.output import IcebergOutput

    return IcebergOutput(
        context.spark,
        context.log_path,
        section.catalog_properties(),
        catalog_name=section.catalog_name,
        storage_options=section.options(),
        tables=section.tables,
        name=section.name,
        options=_options(section),
        parallel_tables=section.parallelism,
        state=context.open_state(),
        conf=section.pipeline_conf,
        settings=section.model_dump_json(),
    )


def _idle(section: IcebergSection, log: LogExtent) -> bool:
    """Only by what an earlier run stored: what is beyond names of files, Java reads."""
    from tidelog.outputs.lake.idle import is_as_checked

    properties = section.catalog_properties()
    if properties.get("type") != "hadoop":
        return False
    place = properties["warehouse"]
    try:
        provide_options(place, section.options() or store_options(place, section.pipeline_conf))
    except ValueError:  # a setting that is not supported: opening the output reports it
        return False
    return is_as_checked(log, section.name, section.model_dump_json())


def _options(section: IcebergSection) -> IcebergOptions:
    from tidelog.outputs.lake.iceberg.output import IcebergOptions

    return IcebergOptions(
        **section.lake_options(),
        soft_deletes=section.deletes == "soft",
        partition_by=section.partition_by,
        mode=section.mode,
        format_version=section.format_version,
    )


def _location(section: IcebergSection) -> OutputLocation:
    found = section.catalog_properties()
    place = [found.get(name, "") for name in ("type", "catalog-impl", "uri")]
    # The name may be set, or change, where the tables are the same: the output checks that.
    warehouse = normal_directory(found.get("warehouse", ""))
    return OutputLocation([*place, warehouse], qualifier=section.catalog_name)


def _names(section: IcebergSection, tables: Sequence[TargetTable]) -> Iterator[str]:
    from tidelog.outputs.base.left_out import check_columns_differ, refused_names
    from tidelog.outputs.lake.iceberg.table import IcebergTable, check_reserved
    from tidelog.outputs.lake.table import parts_of

    options = _options(section)

    def check(table: TargetTable) -> None:
        layout = options.layout_of(table.source)
        check_columns_differ(table, layout.own, IcebergTable.product, ignores_case=True)
        check_reserved(table, layout)

    return refused_names(
        section.name, tables, check, lambda table: ".".join(parts_of(table.source, table.name))
    )


def _probe(section: IcebergSection) -> str | None:
    properties = section.catalog_properties()
    if properties.get("type") == "hadoop":
        return check_directory_access(properties["warehouse"])
    from tidelog.outputs.lake.iceberg.catalog_check import check_catalog

    name, conf = section.catalog_name, section.pipeline_conf
    return check_catalog(section.name, properties, name, section.tables, conf)


KIND = BuiltinKind(IcebergSection, _open, _location, probe_with=_probe, names=_names, idle=_idle)
