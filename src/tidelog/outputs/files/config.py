"""The section of outputs of kind ``files``."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from tidelog.kinds.column_types import TypesSection
from tidelog.kinds.sections import Bytes, Location
from tidelog.outputs.base.sections import ExecutorSection, name_field
from tidelog.outputs.base.stores.section import FileStoreSection


class FilesSection(FileStoreSection, ExecutorSection):
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
        description="Directories below `path`: `{table}` is the name that a step `route` gives, by "
        "default the source's; `{namespace}`, `{name}` the source's; `{date}`, `{year}`, "
        "`{month}`, `{day}`, `{hour}` of the commit, in UTC.",
        examples=["{namespace}/{name}/date={date}"],
    )
    format: Literal["parquet", "json"] = Field(default="parquet", description="`json`: JSON lines.")
    values: Literal["typed", "json"] = Field(
        default="typed",
        description="For Parquet's columns `key`, `before`, `after`: `typed`: structs of the "
        "table's columns. `json`: text, so that all tables have the same columns.",
    )
    types: TypesSection | None = Field(
        default=None,
        description="For typed values in Parquet: types of arrays and of numbers without limits, "
        "in new columns; see *types*. Unset: all are text, because changes of a table that is left "
        "out are in no file.",
        examples=[{"arrays": "native"}],
    )
    compression: Literal["zstd", "snappy", "gzip", "none"] | None = Field(
        default=None, description="Unset: Parquet's is `zstd`, JSON's none. JSON takes `gzip` only."
    )
    file_bytes: Bytes = Field(
        default=256 << 20, ge=1 << 20, description="A file of about this size is closed."
    )

    @model_validator(mode="after")
    def _format_fits(self) -> FilesSection:
        if self.types is not None and (self.format, self.values) != ("parquet", "typed"):
            raise ValueError("types: files of JSON, or with values json, have none")
        if self.format == "json" and self.compression in ("zstd", "snappy"):
            raise ValueError("compression of JSON is gzip or none")
        return self
