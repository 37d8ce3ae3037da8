"""Notices what changes rows without row events, and tables that are new.

ADD COLUMN with a default, rewrites, attached or detached partitions and a truncate of a partition
change a table's rows, but the log says nothing of it (DESIGN.md §4). The catalogue does: its
fingerprint of the table's storage is compared with the one stored, and a difference asks for a dump
of the table. The fingerprints are stored, so that changes made while capture was down count too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tidelog.model.schema import TableName, TableSchema
from tidelog.ports import Catalogue, SchemaSeen, StateStore

SHAPES_KEY = "table-shapes"


class CatalogueWatch:
    """Compares the catalogue with what was stored. Used by one thread.

    Args:
        catalogue: of the source.
        state: keeps the fingerprints.
        patterns: the tables that are captured.
        request_dump: called with a table and why; must be safe to call twice.
    """

    def __init__(
        self,
        catalogue: Catalogue,
        state: StateStore,
        patterns: Sequence[str],
        request_dump: Callable[[TableName, str], None],
    ) -> None:
        self._catalogue = catalogue
        self._state = state
        self._patterns = patterns
        self._request_dump = request_dump

    def look(self) -> list[TableName]:
        """Compare once; the tables whose dump was asked for."""
        stored = self._state.get(SHAPES_KEY)
        known: dict[str, str] = dict(stored.value) if stored is not None else {}
        current: dict[str, str] = {}
        asked: list[TableName] = []
        for table in self._catalogue.tables(self._patterns):
            shape = self._catalogue.shape(table)
            if shape is None:
                continue
            name = str(table)
            current[name] = shape.storage
            if name in known and known[name] != shape.storage and shape.schema.key:
                asked.append(table)
                self._request_dump(table, "its rows may have changed without row events")
        if current != known:
            self._state.put(SHAPES_KEY, current, None)
        return asked


def changes_rows(seen: SchemaSeen) -> str | None:
    """Why a schema change calls for a dump of the table; None if it does not.

    Dropped columns and added ones that are NULL everywhere need none; whether an added column has a
    default is the catalogue's to say (`CatalogueWatch`), as are rewrites.
    """
    previous, schema = seen.previous, seen.schema
    if previous is None or previous.schema_id == schema.schema_id:
        return None
    if previous.match_key != schema.match_key:
        return "the key that rows are matched by changed"
    before = {column.name: column for column in previous.columns}
    added = [column for column in schema.columns if column.name not in before]
    if added and _dropped(previous, schema):
        return "columns were renamed, or dropped and added"
    if any(c.name in before and before[c.name].logical != c.logical for c in schema.columns):
        return "a column's type changed"
    return None


def _dropped(previous: TableSchema, schema: TableSchema) -> bool:
    return any(name not in schema.column_names for name in previous.column_names)
