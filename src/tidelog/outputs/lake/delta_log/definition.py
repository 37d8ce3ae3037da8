"""What a Delta table looks like: columns, properties, protocol. Made and altered as Spark SQL's
CREATE TABLE and ALTER TABLE do it.

Delta protocol, "Change Metadata", "Protocol Evolution", "Column Mapping", "Type Widening",
"Clustered Table" and "Schema Serialization Format".
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from pyspark.sql.types import DataType, StructField

from tidelog.outputs.lake.delta_log.actions import TableMetadata, TableProtocol
from tidelog.outputs.lake.delta_log.features import with_features

_MODE: Final = "delta.columnMapping.mode"
_LARGEST_ID: Final = "delta.columnMapping.maxColumnId"
_ID: Final = "delta.columnMapping.id"
_PHYSICAL: Final = "delta.columnMapping.physicalName"
_TYPE_CHANGES: Final = "delta.typeChanges"
_WIDENING: Final = "delta.enableTypeWidening"
_CLUSTERING: Final = "delta.clustering"
_FEATURES: Final = {
    ("delta.enableDeletionVectors", "true"): "deletionVectors",
    ("delta.enableChangeDataFeed", "true"): "changeDataFeed",
    ("delta.enableInCommitTimestamps", "true"): "inCommitTimestamp",
    ("delta.checkpointPolicy", "v2"): "v2Checkpoint",
    (_WIDENING, "true"): "typeWidening",
    (_MODE, "name"): "columnMapping",
}
"""What a property asks of the protocol."""

Column = Mapping[str, Any]  # a field of the schema, as it is serialized


@dataclass(frozen=True)
class TableDefinition:
    """Protocol, metadata and domains of a table. Each method gives another one."""

    protocol: TableProtocol
    metadata: TableMetadata
    domains: Mapping[str, str] = field(default_factory=dict)

    def changes(self, before: TableDefinition | None) -> list[dict[str, Any]]:
        """Actions that make it from ``before``; None: there is no table yet."""
        actions: list[dict[str, Any]] = []
        if before is None or before.protocol != self.protocol:
            actions.append({"protocol": self.protocol.to_json()})
        if before is None or before.metadata != self.metadata:
            actions.append({"metaData": self.metadata.to_json()})
        had = {} if before is None else before.domains
        for name, text in self.domains.items():
            if had.get(name) != text:
                actions.append(_domain(name, text, removed=False))
        for name in had.keys() - self.domains.keys():
            actions.append(_domain(name, had[name], removed=True))
        return actions

    def with_columns(self, fields: Sequence[StructField], *, within: str = "") -> TableDefinition:
        """New ones at the end, NULL in all rows. ``within``: members of that column, a struct."""
        added = [{**each.jsonValue(), "nullable": True} for each in fields]
        if self._has_mapping:
            return self._mapped(added, _new_name, within)
        return self._with(columns=self._changed(within, lambda columns: [*columns, *added]))

    def with_type(self, column: str, kind: DataType, *, within: str = "") -> TableDefinition:
        """``column`` with a type that holds all values of its former one, and that Delta can widen
        it to. ``within``: it is a member of that column, a struct.
        """

        def widened(found: Column) -> Column:
            if found["name"] != column:
                return found
            metadata = dict(found["metadata"])
            change = {"toType": kind.jsonValue(), "fromType": found["type"]}
            metadata[_TYPE_CHANGES] = [*metadata.get(_TYPE_CHANGES, ()), change]
            return {**found, "type": kind.jsonValue(), "metadata": metadata}

        columns = self._changed(within, lambda columns: [widened(each) for each in columns])
        return self._with(columns=columns, properties={_WIDENING: "true"})

    def with_property(self, name: str, value: str) -> TableDefinition:
        """With what it asks of the protocol. In-commit timestamps are for new tables only."""
        return self._with(properties={name: value})

    def with_column_mapping(self) -> TableDefinition:
        """By name: columns that are there are called in files as they are now."""
        if self._has_mapping:
            return self
        return replace(self, metadata=replace(self.metadata, schema=_schema(())))._mapped(
            self._columns, lambda name: name
        )

    def with_clusters(self, columns: Sequence[str]) -> TableDefinition:
        """Liquid clustering by ``columns``, of a table that has no partitions."""
        names = {each["name"]: _physical(each) for each in self._columns}
        paths = [[names[name]] for name in columns]
        text = json.dumps(
            {"clusteringColumns": paths, "domainName": _CLUSTERING},
            ensure_ascii=False,
            separators=(",", ":"),
        )
        return replace(
            self,
            protocol=with_features(self.protocol, {"clustering", "domainMetadata"}),
            domains={**self.domains, _CLUSTERING: text},
        )

    def with_new_physical_column(self, name: str) -> TableDefinition:
        """Column ``name``, NULL in all rows from now on: files have its old values under another
        name. For tables with column mapping; not for a column of partitions or clusters.
        """
        largest = int(self.metadata.configuration[_LARGEST_ID])
        columns: list[Column] = []
        for each in self._columns:
            if each["name"] != name:
                columns.append(each)
                continue
            bare = {key: v for key, v in each["metadata"].items() if key != _TYPE_CHANGES}
            fresh = {**each, "nullable": True, "metadata": bare}
            renewed, largest = _assigned(fresh, largest, _new_name)
            columns.append(renewed)
        return self._with(columns=columns, properties={_LARGEST_ID: str(largest)})

    # ------------------------------------------------------------------

    @property
    def _columns(self) -> list[Column]:
        return list(self.metadata.schema["fields"])

    def _changed(self, within: str, change: Callable[[list[Column]], list[Column]]) -> list[Column]:
        """All columns, after the table's own, or the members of a struct, have been changed."""
        if not within:
            return change(self._columns)
        return [
            {**each, "type": {**each["type"], "fields": change(list(each["type"]["fields"]))}}
            if each["name"] == within
            else each
            for each in self._columns
        ]

    @property
    def _has_mapping(self) -> bool:
        return self.metadata.configuration.get(_MODE, "none") != "none"

    def _with(
        self,
        *,
        columns: Sequence[Column] | None = None,
        properties: Mapping[str, str] | None = None,
    ) -> TableDefinition:
        """Other columns, and further properties, and the protocol that they ask for."""
        metadata = replace(
            self.metadata,
            schema=self.metadata.schema if columns is None else _schema(columns),
            configuration={**self.metadata.configuration, **(properties or {})},
        )
        wanted = {_FEATURES[each] for each in _FEATURES.keys() & metadata.configuration.items()}
        if _holds(metadata.schema, "timestamp_ntz"):
            wanted.add("timestampNtz")
        return replace(self, protocol=with_features(self.protocol, wanted), metadata=metadata)

    def _mapped(
        self, added: Sequence[Column], name: Callable[[str], str], within: str = ""
    ) -> TableDefinition:
        """With further columns under column mapping; ``name``: the physical one of a column."""
        largest = int(self.metadata.configuration.get(_LARGEST_ID, 0))
        known = []
        for each in added:
            column, largest = _assigned(each, largest, name)
            known.append(column)
        columns = self._changed(within, lambda columns: [*columns, *known])
        return self._with(columns=columns, properties={_MODE: "name", _LARGEST_ID: str(largest)})


def new_table(
    fields: Sequence[StructField],
    *,
    partitions: Sequence[str] = (),
    clusters: Sequence[str] = (),
    properties: Mapping[str, str],
    column_mapping: bool,
    deletion_vectors: bool,
) -> TableDefinition:
    """A table that is not there yet.

    Args:
        fields: its columns, in order.
        partitions: columns that it is partitioned by, in order.
        clusters: columns of its liquid clustering; not together with partitions.
        properties: its table properties.
        column_mapping: columns have other names in files, so that any name will do.
        deletion_vectors: deleted rows may be marked, not only removed.
    """
    now = time.time_ns() // 1_000_000
    metadata = TableMetadata(
        str(uuid.uuid4()), _schema(()), tuple(partitions), {}, created_time_ms=now
    )
    vectors = {"delta.enableDeletionVectors": "true"} if deletion_vectors else {}
    empty = TableDefinition(TableProtocol(), metadata)
    columns = [each.jsonValue() for each in fields]
    if column_mapping:
        table = empty._with(properties={**properties, **vectors})._mapped(columns, _new_name)
    else:
        table = empty._with(columns=columns, properties={**properties, **vectors})
    return table.with_clusters(clusters) if clusters else table


def _schema(columns: Sequence[Column]) -> dict[str, Any]:
    return {"type": "struct", "fields": list(columns)}


def _physical(column: Column) -> str:
    return str(column["metadata"].get(_PHYSICAL, column["name"]))


def _new_name(_name: str) -> str:
    return f"col-{uuid.uuid4()}"


def _assigned(column: Column, largest: int, name: Callable[[str], str]) -> tuple[Column, int]:
    """The column, and those within it, with ids above ``largest`` and physical names; the largest
    id then.
    """
    largest += 1
    metadata = {**column["metadata"], _ID: largest, _PHYSICAL: name(column["name"])}
    kind, largest = _assigned_within(column["type"], largest, name)
    return {**column, "type": kind, "metadata": metadata}, largest


def _assigned_within(kind: Any, largest: int, name: Callable[[str], str]) -> tuple[Any, int]:
    if not isinstance(kind, Mapping):
        return kind, largest
    made = dict(kind)
    if kind["type"] == "struct":
        made["fields"] = []
        for each in kind["fields"]:
            column, largest = _assigned(each, largest, name)
            made["fields"].append(column)
    for part in ("elementType", "keyType", "valueType"):
        if part in kind:
            made[part], largest = _assigned_within(kind[part], largest, name)
    return made, largest


def _holds(kind: Any, wanted: str) -> bool:
    """Is a type ``wanted``, or within it?"""
    if not isinstance(kind, Mapping):
        return bool(kind == wanted)
    parts = [kind.get(part) for part in ("elementType", "keyType", "valueType")]
    parts += [each["type"] for each in kind.get("fields", ())]
    return any(_holds(part, wanted) for part in parts)


def _domain(name: str, text: str, *, removed: bool) -> dict[str, Any]:
    return {"domainMetadata": {"domain": name, "configuration": text, "removed": removed}}
