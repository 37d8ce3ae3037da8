"""Outputs of kind ``iceberg``."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any, Literal, Self

from pydantic import Field, PrivateAttr, SecretStr, field_validator, model_validator

from tidelog.kinds.sections import Duration, Location, TablePattern
from tidelog.model.option_values import is_object_store
from tidelog.outputs.base.sections import (
    StorageOptionsSection,
    name_field,
)
from tidelog.outputs.lake.config import LakeSection


class IcebergSection(StorageOptionsSection, LakeSection):
    """Iceberg tables, one for each source table (docs/outputs/iceberg.md)."""

    without_type = ("json_", "json: the Iceberg output writes no VARIANT: leave it text")

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
        description="By table or pattern, what the copy is partitioned by, for good: columns, or "
        "`years(c)`, `months(c)`, `days(c)`, `hours(c)`, `bucket(16, c)`, `truncate(4, c)` of one.",
        examples=[{"public.events": ["days(created_at)"]}],
    )
    vacuum_after: Duration | None = Field(
        default=None,
        description="Once an hour, snapshots of written tables are removed that are older, and the "
        "files that no other snapshot has. At least an hour. Unset: never.",
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

    _conf: dict[str, Any] = PrivateAttr(default_factory=dict)

    @field_validator("vacuum_after")
    @classmethod
    def _vacuum_is_safe(cls, after: timedelta | None) -> timedelta | None:
        if after is not None and after < timedelta(hours=1):
            raise ValueError("vacuum_after: readers may still need younger files; at least 1h")
        return after

    @model_validator(mode="after")
    def _is_somewhere(self) -> IcebergSection:
        if self.path is None and not {"type", "catalog-impl"} & self.catalog.keys():
            raise ValueError("say where: path, or catalog with its type and uri")
        if self.path is not None and "warehouse" in self.catalog:
            raise ValueError("path is the catalog's warehouse: give one of the two")
        if self.storage_options and self.path is not None and not is_object_store(self.path):
            raise ValueError("storage_options are for an object store; path is a local directory")
        if self.catalog_name is not None and not is_jdbc(self.catalog_properties()):
            raise ValueError("catalog_name is for a JDBC catalog; others have one name space")
        return self

    def with_pipeline_conf(self, conf: Mapping[str, Any]) -> Self:
        """See `StorageOptionsSection`: all of it."""
        found = self.model_copy()
        found._conf = dict(conf)
        return found

    @property
    def pipeline_conf(self) -> Mapping[str, Any]:
        """Spark's settings, as the pipeline has them."""
        return self._conf

    def catalog_properties(self) -> dict[str, str]:
        """The catalog's properties, with their secrets."""
        given = {name: value.get_secret_value() for name, value in self.catalog.items()}
        if not {"type", "catalog-impl"} & given.keys():
            given["type"] = "hadoop"
        return given if self.path is None else {**given, "warehouse": str(self.path)}


def is_jdbc(properties: Mapping[str, str]) -> bool:
    """Is it a JDBC catalog, which keeps the tables of many catalogs by their names?"""
    impl = properties.get("catalog-impl", "")
    return properties.get("type", "").lower() == "jdbc" or impl.endswith(".JdbcCatalog")
