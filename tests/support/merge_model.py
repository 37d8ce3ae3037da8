"""What MERGE made of a lake's table (rules: docs/internals/lake-rules.md), row by row in Python.

Clauses stand here as they stood in SQL; null is None, and a comparison with it is false.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

Row = dict[str, Any]


@dataclass(frozen=True)
class Change:
    """One row of the source: ``values`` by column, ``missing`` names of columns, or None."""

    op: str
    version: int
    values: Row
    missing: Sequence[str] | None = None


@dataclass(frozen=True)
class MergeModel:
    """Attributes: names of all columns but our own, of the key, of our own; see `FileLayout`."""

    columns: Sequence[str]
    key: Sequence[str]
    version: str
    deleted: str
    null_key: bool

    def merge(self, table: Sequence[Row], source: Sequence[Change], below: int) -> list[Row]:
        """The table's rows afterwards, in no order."""
        source = [self.deleted_below(change, below) for change in source]
        table = self._newest_of_changed_keys(table, source)
        rows = []
        for row in table:
            change = next((each for each in source if self._same(row, each)), None)
            if change is None:
                rows += self.not_in_source(row, below)
            else:
                rows += self._matched(row, change, below)
        for change in source:
            known = any(self._same(row, change) for row in table)
            if change.op == "u" and change.missing is None and not known:
                rows.append(self._inserted(change))
        return rows

    @staticmethod
    def deleted_below(change: Change, below: int) -> Change:
        return Change("d", change.version, change.values) if change.version < below else change

    def _newest_of_changed_keys(self, table: Sequence[Row], source: Sequence[Change]) -> list[Row]:
        """Not so in MERGE, which changed each of several rows of a key."""
        lost: set[int] = set()
        for change in source:
            same = [i for i, row in enumerate(table) if self._same(row, change)]
            if same:
                versions = {i: table[i][self.version] for i in same}
                newest = max(same, key=lambda i: (-1 if versions[i] is None else versions[i], -i))
                lost |= {i for i in same if i != newest}
        return [row for i, row in enumerate(table) if i not in lost]

    def _same(self, row: Row, change: Change) -> bool:
        return all(
            row[name] == change.values[name] and (row[name] is not None or self.null_key)
            for name in self.key
        )

    def _matched(self, row: Row, change: Change, below: int) -> list[Row]:
        version = row[self.version]
        newer = version is None or change.version > version
        may_remove = newer or (below > 0 and version < below)
        if may_remove and change.op == "d":
            if not self.deleted:
                return []
            latest = change.version if version is None else max(version, change.version)
            return [{**row, self.version: latest, self.deleted: True}]
        may_update = newer
        if self.deleted:
            may_update = newer and (change.missing is None or not row[self.deleted])
        if may_update:
            told = {k: v for k, v in change.values.items() if k not in (change.missing or ())}
            return [{**row, **told, **self._own(change)}]
        return [row]

    def _inserted(self, change: Change) -> Row:
        return {**dict.fromkeys(self.columns), **change.values, **self._own(change)}

    def not_in_source(self, row: Row, below: int) -> list[Row]:
        version = row[self.version]
        if not below or version is None or version >= below:
            return [row]
        if not self.deleted:
            return []
        return [row if row[self.deleted] else {**row, self.deleted: True}]

    def _own(self, change: Change) -> Row:
        return {self.version: change.version, **({self.deleted: False} if self.deleted else {})}
