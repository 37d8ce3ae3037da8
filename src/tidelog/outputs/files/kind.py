"""Kind ``files``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from tidelog.model.column_types import ColumnTypes
from tidelog.outputs.base.kinds import BuiltinKind, directory
from tidelog.outputs.base.progress import has_whole_log
from tidelog.outputs.delivery_settings import delivery_of
from tidelog.outputs.files.config import FilesSection
from tidelog.ports import LogExtent, Output, OutputContext, OutputPlace, TargetTable


def _open(section: FilesSection, context: OutputContext) -> Output:
    from tidelog.outputs.files.output import FilesOutput
    from tidelog.outputs.files.writer import FileFormat
    from tidelog.spark.datasource.source import register

    section.provide_options()
    register(context.spark)  # so that its workers get the options too
    delivery = delivery_of(section, keyed=False, order="none")
    types = ColumnTypes("text") if section.types is None else section.types.column_types()
    delivery = replace(delivery, types=types)
    compression = section.compression or ("zstd" if section.format == "parquet" else "none")
    return FilesOutput(
        context.spark,
        context.log_path,
        context.open_state(),
        delivery,
        path=section.path,
        layout=section.layout,
        file_format=FileFormat(section.format, section.values, compression, section.file_bytes),
    )


def _place(section: FilesSection) -> OutputPlace:
    # Readers read directories with a common prefix together.
    return OutputPlace([directory(section.path), section.layout.partition("{")[0]])


def _names(section: FilesSection, tables: Sequence[TargetTable]) -> Iterator[str]:
    from tidelog.outputs.base.targets import refused_names
    from tidelog.outputs.files.layout import FilesLayout
    from tidelog.outputs.files.output import directory_of
    from tidelog.outputs.files.writer import FileFormat

    layout = FilesLayout(section.layout)

    def directory(table: TargetTable) -> str:
        return directory_of(section.name, layout, table)

    if FileFormat(section.format, section.values).typed:
        return refused_names(section.name, tables, directory, directory)
    return refused_names(section.name, tables, directory)


def _idle(section: FilesSection, log: LogExtent) -> bool:
    from tidelog.outputs.base.stores.port import open_file_store
    from tidelog.outputs.files.commits import Commits

    if not has_whole_log(log, section.name):
        return False
    section.provide_options()
    store = open_file_store(section.path)
    store.check()
    return Commits(store, section.name).is_finished(log.generation, log.end)


KIND = BuiltinKind(
    FilesSection, _open, _place, probe_with=FilesSection.probe, names=_names, idle=_idle
)
