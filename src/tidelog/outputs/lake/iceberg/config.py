"""Outputs of kind ``iceberg``."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, SecretStr, model_validator

from tidelog.kinds.sections import Duration, Location, TablePattern
from tidelog.model.schema import TableName
from tidelog.outputs.base.sections import KEYLESS, SkipOrFail, name_field
from tidelog.outputs.lake.config import LakeSection


class IcebergSection(LakeSection):
    """Iceberg tables, one for each source table, kept by MERGE (docs/outputs/iceberg.md). Needs
    Spark 4.1, in an environment of its own.
    """

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
    deletes: Literal["hard", "soft"] = Field(
        default="hard",
        description="`hard`: a deleted row is removed. `soft`: it stays as it was last, with "
        "`_tidelog_deleted` true.",
    )
    keyless: SkipOrFail = KEYLESS
    partition_by: dict[TablePattern, list[str]] = Field(
        default={},
        description="By table or pattern, what the copy is partitioned by, for good: columns, or "
        "`years(c)`, `months(c)`, `days(c)`, `hours(c)`, `bucket(16, c)`, `truncate(4, c)` of one.",
        examples=[{"public.events": ["days(created_at)"]}],
    )
    optimize_every: Duration | None = Field(
        default=None,
        description="After so long the small files of tables that were written are rewritten as "
        "large ones, between two batches. Unset: never.",
        examples=["1h"],
    )
    vacuum_after: Duration | None = Field(
        default=None,
        description="With `optimize_every`: then files are removed that no version of the last so "
        "long has. At least a week. Unset: never.",
        examples=["7d"],
    )
    parallelism: int = Field(default=2, ge=1, le=256, description="Tables that are merged at once.")
    mode: Literal["merge-on-read", "copy-on-write"] = Field(
        default="merge-on-read",
        description="Of tables that are created. `merge-on-read`: changed rows go to new files, "
        "and their old places to delete files, which readers apply. `copy-on-write`: files that "
        "hold a changed row are written anew.",
    )
    format_version: Literal[2, 3] = Field(
        default=2,
        description="For tables that are created. `3`: deletes are deletion vectors, which not all "
        "readers know.",
    )

    def keyless_of(self, table: TableName) -> SkipOrFail:
        return self.keyless

    @model_validator(mode="after")
    def _is_somewhere(self) -> IcebergSection:
        if self.vacuum_after is not None and self.optimize_every is None:
            raise ValueError("vacuum_after needs optimize_every")
        if self.path is None and not {"type", "catalog-impl"} & self.catalog.keys():
            raise ValueError("say where: path, or catalog with its type and uri")
        if self.path is not None and "warehouse" in self.catalog:
            raise ValueError("path is the catalog's warehouse: give one of the two")
        return self

    def catalog_properties(self) -> dict[str, str]:
        """The catalog's properties, with their secrets."""
        given = {name: value.get_secret_value() for name, value in self.catalog.items()}
        if not {"type", "catalog-impl"} & given.keys():
            given["type"] = "hadoop"
        return given if self.path is None else {**given, "warehouse": str(self.path)}
