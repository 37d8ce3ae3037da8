"""Kind ``delta``: its section, its probe, and how it is opened."""

from __future__ import annotations

import socket
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Final, Literal

from pydantic import Field

from tidelog.errors import OutputError
from tidelog.kinds.sections import Duration, Location, Section, TablePattern
from tidelog.outputs.base.builtin_kind import BuiltinKind, normal_directory, probe_store
from tidelog.outputs.base.sections import FileStoreSection, HeaderValue, name_field
from tidelog.outputs.lake.config import LakeSection
from tidelog.ports import LogExtent, Output, OutputContext, OutputLocation, TargetTable
from tidelog.system.extras import check_installed

if TYPE_CHECKING:
    from tidelog.outputs.lake.delta.options import DeltaOptions
    from tidelog.outputs.lake.delta.registration import Catalog
    from tidelog.outputs.lake.delta.unity import UnityCatalog

_PROBE_S: Final = 5.0


class HiveSection(Section):
    """A Hive Metastore in which an output registers its tables."""

    type: Literal["hive"] = Field(description="The kind of catalog.")
    uri: str = Field(
        pattern=r"^thrift://[^\s/,]+:\d+(,thrift://[^\s/,]+:\d+)*$",
        description="`thrift://host:port`; several, separated by commas: one that answers.",
        examples=["thrift://metastore:9083"],
    )

    def probe(self) -> str:
        """Return what `tidelog check` finds there. Raises OutputError."""
        failed = ""
        for uri in self.uri.split(","):
            host, _, port = uri.removeprefix("thrift://").rpartition(":")
            try:
                socket.create_connection((host.strip("[]"), int(port)), _PROBE_S).close()
            except (OSError, UnicodeError) as error:  # the second: no host has such a name
                why = getattr(error, "strerror", None) or error
                failed = f"the Hive Metastore at {uri} does not answer: {why}"
            else:
                return f"the Hive Metastore answers at {uri}"
        raise OutputError(failed)


class UnitySection(Section):
    """A server of Unity Catalog in which an output registers its tables."""

    type: Literal["unity"] = Field(description="The kind of catalog.")
    uri: str = Field(
        pattern=r"^https?://[^\s/@]+$",
        description="The server, without the path of its API.",
        examples=["https://unity.example.org"],
    )
    name: str = Field(
        pattern=r"^[^\s./]{1,255}$", description="The catalog, which must exist.", examples=["main"]
    )
    token: HeaderValue | None = Field(
        default=None,
        min_length=1,
        description="Sent as `Authorization: Bearer`.",
        examples=["${UNITY_TOKEN}"],
    )

    def open(self) -> UnityCatalog:
        """Return the catalog. Raises MissingExtraError."""
        check_installed("httpx")
        from tidelog.outputs.lake.delta.unity import UnityCatalog

        token = None if self.token is None else self.token.get_secret_value()
        return UnityCatalog(self.uri, self.name, token)

    def probe(self) -> str:
        """Return what `tidelog check` finds there. Raises OutputError."""
        self.open().check()
        return f"Unity Catalog at {self.uri} has the catalog {self.name}"


class DeltaSection(FileStoreSection, LakeSection):
    """Delta tables, one for each source table (docs/outputs/delta.md)."""

    without_type = ("time", "time: Delta has no type for times of day: leave it text")

    kind: Literal["delta"] = Field(description="The kind of output.")
    name: str = name_field(
        "delta",
        "Names the output in the event log and in the Delta transaction log: keep it for as "
        "long as the output's tables live.",
    )
    path: Location = Field(
        description="Directory or URL; the table `public.orders` goes to `<path>/public/orders`.",
        examples=["./data/lake"],
    )
    deletes: Literal["hard", "soft"] = Field(
        default="hard",
        description="For copies. `hard`: a deleted row is removed. `soft`: it stays as it was "
        "last, with `_deleted` true.",
    )
    partition_by: dict[TablePattern, list[str]] = Field(
        default={},
        description="By table or pattern, the columns that its table is partitioned by. They can't "
        "be changed later.",
        examples=[{"public.events": ["day"]}],
    )
    cluster_by: dict[TablePattern, Annotated[list[str], Field(min_length=1, max_length=4)]] = Field(
        default={},
        description="By table or pattern, the columns of Delta's liquid clustering, which OPTIMIZE "
        "lays rows out by. May be changed.",
        examples=[{"public.orders": ["customer_id"]}],
    )
    deletion_vectors: bool = Field(
        default=True,
        description="Whether new copies have deletion vectors. Without them the file of a "
        "changed row is rewritten, which costs much more, but older readers can read the "
        "table.",
    )
    names: Literal["plain", "exact"] = Field(
        default="plain",
        description="Names of new columns. `plain`: a character that Delta refuses (space, "
        "tab, newline, `,;{}()=`) becomes `_`. `exact`: the source's names, by column "
        "mapping, which some readers read wrongly.",
    )
    catalog: Annotated[HiveSection | UnitySection, Field(discriminator="type")] | None = Field(
        default=None,
        description="Where tables are registered, so that people query them by name. Unset: "
        "nowhere.",
        examples=[{"type": "hive", "uri": "thrift://metastore:9083"}],
    )
    vacuum_after: Duration | None = Field(
        default=None,
        description="Once a day, files are removed that no version of this last period has. At "
        "least a week. Unset: never.",
        examples=["7d"],
    )

    def calls_java(self) -> bool:
        return isinstance(self.catalog, HiveSection)


def _open(section: DeltaSection, context: OutputContext) -> Output:
    from tidelog.outputs.lake.delta.hive import HiveCatalog
    from tidelog.outputs.lake.delta.output import DeltaOutput

    section.provide_options()
    catalog: Catalog | None = None
    if isinstance(section.catalog, HiveSection):
        catalog = HiveCatalog(context.spark, section.catalog.uri, section.pipeline_conf)
    elif section.catalog is not None:
        catalog = section.catalog.open()
    return DeltaOutput(
        context.spark,
        context.log_path,
        str(section.path),
        tables=section.tables,
        name=section.name,
        options=_options(section),
        parallel_tables=section.parallelism,
        state=context.open_state(),
        catalog=catalog,
    )


def _options(section: DeltaSection) -> DeltaOptions:
    from tidelog.outputs.lake.delta.options import DeltaOptions

    return DeltaOptions(
        **section.lake_options(),
        soft_deletes=section.deletes == "soft",
        partition_by=section.partition_by,
        cluster_by=section.cluster_by,
        deletion_vectors=section.deletion_vectors,
        plain_names=section.names == "plain",
    )


def _location(section: DeltaSection) -> OutputLocation:
    return OutputLocation([normal_directory(section.path)])


def _names(section: DeltaSection, tables: Sequence[TargetTable]) -> Iterator[str]:
    from tidelog.outputs.base.left_out import check_columns_differ, refused_names
    from tidelog.outputs.lake.delta.table import DeltaTable, path_of

    options = _options(section)
    return refused_names(
        section.name,
        tables,
        lambda table: check_columns_differ(
            table,
            options.layout_of(table.source).own,
            DeltaTable.product,
            ignores_case=True,
        ),
        lambda table: path_of(str(section.path), table.source, table.name),
    )


def _idle(section: DeltaSection, log: LogExtent) -> bool:
    from tidelog.outputs.lake.idle import is_as_checked, record_check

    section.provide_options()
    settings = section.model_dump_json()
    if is_as_checked(log, section.name, settings):
        return True
    from tidelog.outputs.lake.delta.output import files_if_idle

    options = _options(section)
    files = files_if_idle(log, str(section.path), section.name, section.tables, options)
    if files is not None:
        record_check(log, section.name, settings, files)
    return files is not None


def _probe(section: DeltaSection) -> str | None:
    found = probe_store(section)
    if section.catalog is None:
        return found
    return "; ".join(each for each in (found, section.catalog.probe()) if each)


KIND = BuiltinKind(
    DeltaSection,
    _open,
    _location,
    probe_with=_probe,
    names=_names,
    idle=_idle,
)
