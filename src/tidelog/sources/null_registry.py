"""A schema registry in memory, for rows that no event log stores."""

from __future__ import annotations

import threading

from tidelog.model.schema import TableName, TableSchema


class NullRegistry:
    """`tidelog.ports.SchemaRegistry` for the readers of one process: its numbers mean nothing
    outside it.

    Thread-safe.
    """

    def __init__(self) -> None:
        self._schemas: list[TableSchema] = []
        self._lock = threading.Lock()

    def register(self, schema: TableSchema) -> TableSchema:
        with self._lock:
            for known in self._schemas:
                if known.fingerprint == schema.fingerprint:
                    return known
            self._schemas.append(schema.numbered(len(self._schemas) + 1))
            return self._schemas[-1]

    def get(self, schema_id: int) -> TableSchema:
        return self._schemas[schema_id - 1]

    def versions(self, table: TableName) -> list[TableSchema]:
        return [schema for schema in self._schemas if schema.table == table]

    def latest(self, table: TableName) -> TableSchema | None:
        found = self.versions(table)
        return found[-1] if found else None
