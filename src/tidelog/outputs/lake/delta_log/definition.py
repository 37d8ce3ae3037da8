"""The definition of a Delta table: columns, properties, protocol; created and altered as by Spark
SQL's CREATE TABLE and ALTER TABLE.

Delta protocol, "Change Metadata", "Protocol Evolution", "Column Mapping", "Type Widening",
"Clustered Table" and "Schema Serialization Format".
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from pyspark.sql.types import DataType, StructField

from tidelog.outputs.lake.delta_log.actions import TableMetadata, TableProtocol
from tidelog.outputs.lake.delta_log.features import with_features
from tidelog.system.processes import unix_ms

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
"""The protocol's feature that a property needs."""

Column = Mapping[str, Any]  # a field of the schema, as it is serialized


@dataclass(frozen=True)
class TableDefinition:
    """Protocol, metadata and domains of a table. Immutable: methods return new ones."""

    protocol: TableProtocol
    metadata: TableMetadata
    domains: Mapping[str, str] = field(default_factory=dict)

    def changes(self, before: TableDefinition | None) -> list[dict[str, Any]]:
        """Return the actions from ``before`` to this definition; None: there is no table yet."""
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
        """Return the table with new columns at the end, NULL in all rows. ``within``: they are
        members of that column, a struct.
        """
        added = [{**each.jsonValue(), "nullable": True} for each in fields]
        if self.has_mapping:
            return self._mapped(added, _new_name, within)
        return self._with(columns=self._change_columns(within, lambda columns: [*columns, *added]))

    def with_type(self, column: str, kind: DataType, *, within: str = "") -> TableDefinition:
        """Return the table with a wider type of ``column``, one that fits all values of the former
        type and that Delta can widen it to. ``within``: it is a member of that column, a struct.
        """

        def widened(found: Column) -> Column:
            if found["name"] != column:
                return found
            metadata = dict(found["metadata"])
            change = {"toType": kind.jsonValue(), "fromType": found["type"]}
            metadata[_TYPE_CHANGES] = [*metadata.get(_TYPE_CHANGES, ()), change]
            return {**found, "type": kind.jsonValue(), "metadata": metadata}

        columns = self._change_columns(within, lambda columns: [widened(each) for each in columns])
        return self._with(columns=columns, properties={_WIDENING: "true"})

    def with_properties(self, properties: Mapping[str, str]) -> TableDefinition:
        """Return the table with properties, and the protocol that they need. In-commit
        timestamps are for new tables only.
        """
        return self._with(properties=properties)

    def with_column_mapping(self) -> TableDefinition:
        """Return the table with column mapping by name: files keep their columns' names."""
        if self.has_mapping:
            return self
        return replace(self, metadata=replace(self.metadata, schema=_schema(())))._mapped(
            self._columns, lambda name: name
        )

    def with_clusters(self, columns: Sequence[str]) -> TableDefinition:
        """Return the table with liquid clustering by ``columns``; it must have no partitions."""
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

    # ------------------------------------------------------------------

    @property
    def _columns(self) -> list[Column]:
        return list(self.metadata.schema["fields"])

    def _change_columns(
        self, within: str, change: Callable[[list[Column]], list[Column]]
    ) -> list[Column]:
        """Return all columns, after ``change`` of the table's own or of a struct's members."""
        if not within:
            return change(self._columns)
        return [
            {**each, "type": {**each["type"], "fields": change(list(each["type"]["fields"]))}}
            if each["name"] == within
            else each
            for each in self._columns
        ]

    @property
    def has_mapping(self) -> bool:
        """Has the table column mapping?"""
        return self.metadata.configuration.get(_MODE, "none") != "none"

    def _with(
        self,
        *,
        columns: Sequence[Column] | None = None,
        properties: Mapping[str, str] | None = None,
    ) -> TableDefinition:
        """Return the table with other columns, more properties, and the protocol for them."""
        metadata = replace(
            self.metadata,
            schema=self.metadata.schema if columns is None else _schema(columns),
            configuration={**self.metadata.configuration, **(properties or {})},
        )
        wanted = {_FEATURES[each] for each in _FEATURES.keys() & metadata.configuration.items()}
        if _holds(metadata.schema, "timestamp_ntz"):
            wanted.add("timestampNtz")
        if _holds(metadata.schema, "variant"):
            wanted.add("variantType")
        return replace(self, protocol=with_features(self.protocol, wanted), metadata=metadata)

    def _mapped(
        self, added: Sequence[Column], name: Callable[[str], str], within: str = ""
    ) -> TableDefinition:
        """Return the table with further columns under column mapping; ``name`` returns the
        physical name of a column.
        """
        largest = int(self.metadata.configuration.get(_LARGEST_ID, 0))
        known = []
        for each in added:
            column, largest = _assign_ids(each, largest, name)
            known.append(column)
        columns = self._change_columns(within, lambda columns: [*columns, *known])
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
    """Return the definition of a new table.

    Args:
        fields: its columns, in order.
        partitions: columns that it is partitioned by, in order.
        clusters: columns of its liquid clustering; not together with partitions.
        properties: its table properties.
        column_mapping: whether columns have other names in files, so that any name is possible.
        deletion_vectors: whether deleted rows may be marked, not only removed.
    """
    now = unix_ms()
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


def _assign_ids(column: Column, largest: int, name: Callable[[str], str]) -> tuple[Column, int]:
    """Return the column, and those inside it, with ids above ``largest`` and physical names; and
    the new largest id.
    """
    largest += 1
    metadata = {**column["metadata"], _ID: largest, _PHYSICAL: name(column["name"])}
    kind, largest = _assign_inner_ids(column["type"], largest, name)
    return {**column, "type": kind, "metadata": metadata}, largest


def _assign_inner_ids(kind: Any, largest: int, name: Callable[[str], str]) -> tuple[Any, int]:
    if not isinstance(kind, Mapping):
        return kind, largest
    made = dict(kind)
    if kind["type"] == "struct":
        made["fields"] = []
        for each in kind["fields"]:
            column, largest = _assign_ids(each, largest, name)
            made["fields"].append(column)
    for part in ("elementType", "keyType", "valueType"):
        if part in kind:
            made[part], largest = _assign_inner_ids(kind[part], largest, name)
    return made, largest


def _holds(kind: Any, wanted: str) -> bool:
    """Return True if the type is ``wanted``, or contains it."""
    if not isinstance(kind, Mapping):
        return bool(kind == wanted)
    parts = [kind.get(part) for part in ("elementType", "keyType", "valueType")]
    parts += [each["type"] for each in kind.get("fields", ())]
    return any(_holds(part, wanted) for part in parts)


def _domain(name: str, text: str, *, removed: bool) -> dict[str, Any]:
    return {"domainMetadata": {"domain": name, "configuration": text, "removed": removed}}
