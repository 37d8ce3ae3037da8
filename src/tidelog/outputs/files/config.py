"""Kind ``files``: its section, how it is opened, and what its files are named."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Literal

from pydantic import Field, model_validator

from tidelog.kinds.sections import Bytes, Location
from tidelog.outputs.base.builtin_kind import BuiltinKind, normal_directory, probe_store
from tidelog.outputs.base.progress import has_whole_log
from tidelog.outputs.base.sections import FileStoreSection, TypedSection, name_field
from tidelog.outputs.delivery_settings import delivery_of
from tidelog.ports import LogExtent, Output, OutputContext, OutputLocation, TargetTable

if TYPE_CHECKING:
    from tidelog.outputs.files.writer import FileFormat


class FilesSection(FileStoreSection, TypedSection):
    """Every change as a record in files by table and date (docs/outputs/files.md)."""

    kind: Literal["files"] = Field(description="The kind of output.")
    name: str = name_field(
        "files",
        "Names the output's progress and its files: keep it.",
    )
    path: Location = Field(
        description="Directory, or a URL: `s3://`, `gs://`, `abfs://`, `hdfs://`.",
        examples=["./data/activity"],
    )
    layout: str = Field(
        default="table={table}/date={date}",
        min_length=1,
        description="Directories below `path`: `{table}` (the name that a step `route` "
        "gives), the source's `{namespace}`, `{name}`; `{date}`, `{year}`, `{month}`, "
        "`{day}`, `{hour}` of the commit, in UTC.",
        examples=["{namespace}/{name}/date={date}"],
    )
    format: Literal["parquet", "json"] = Field(default="parquet", description="`json`: JSON lines.")
    values: Literal["typed", "json"] = Field(
        default="typed",
        description="For Parquet's columns `key`, `before`, `after`: `typed`: structs of the "
        "table's columns. `json`: text, so that all tables have the same columns.",
    )
    compression: Literal["zstd", "snappy", "gzip", "none"] | None = Field(
        default=None, description="Unset: Parquet's is `zstd`, JSON's none. JSON takes `gzip` only."
    )
    file_bytes: Bytes = Field(
        default=256 << 20, ge=1 << 20, description="A file of about this size is closed."
    )

    @model_validator(mode="after")
    def _format_fits(self) -> FilesSection:
        if self.format == "json" and self.compression in ("zstd", "snappy"):
            raise ValueError("compression of JSON is gzip or none")
        return self


def file_format_of(section: FilesSection) -> FileFormat:
    """Return the format of files."""
    from tidelog.outputs.files.writer import FileFormat

    compression = section.compression or ("zstd" if section.format == "parquet" else "none")
    return FileFormat(section.format, section.values, compression, section.file_bytes)


def _open(section: FilesSection, context: OutputContext) -> Output:
    from tidelog.outputs.files.output import FilesOutput
    from tidelog.spark.datasource.source import prepare_workers

    section.provide_options()
    prepare_workers(context.spark)  # so that its workers get the options too
    delivery = delivery_of(section, keyed=False, order="none")
    delivery = replace(delivery, types=section.column_types())
    return FilesOutput(
        context.spark,
        context.log_path,
        context.open_state(),
        delivery,
        path=section.path,
        layout=section.layout,
        file_format=file_format_of(section),
    )


def _location(section: FilesSection) -> OutputLocation:
    # Readers read directories with a common prefix together.
    return OutputLocation([normal_directory(section.path), section.layout.partition("{")[0]])


def _names(section: FilesSection, tables: Sequence[TargetTable]) -> Iterator[str]:
    from tidelog.outputs.base.left_out import refused_names
    from tidelog.outputs.files.output import directory_of
    from tidelog.outputs.files.writer import FilesLayout

    layout = FilesLayout(section.layout)

    def directory(table: TargetTable) -> str:
        return directory_of(section.name, layout, table)

    if file_format_of(section).typed:
        return refused_names(section.name, tables, directory, directory)
    return refused_names(section.name, tables, directory)


def _idle(section: FilesSection, log: LogExtent) -> bool:
    from tidelog.outputs.base.stores import open_file_store
    from tidelog.outputs.files.commits import Commits

    if not has_whole_log(log, section.name):
        return False
    section.provide_options()
    store = open_file_store(section.path)
    store.check()
    return Commits(store, section.name).is_finished(log.generation, log.end)


KIND = BuiltinKind(FilesSection, _open, _location, probe_with=probe_store, names=_names, idle=_idle)
