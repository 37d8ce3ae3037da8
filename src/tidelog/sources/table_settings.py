"""Keys that a configuration gives tables without one, and columns that it excludes.

Surrogate keys are those of ``source.keys``, for tables without a primary key. The schemas that a
source builds lack the columns of ``source.exclude_columns``, so that its log reader leaves their
bytes out of records, and a chunk does not select them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from tidelog.errors import ExcludedKeyError
from tidelog.model.patterns import (
    columns_of_any_table,
    exclusion,
    matches,
    matching_columns,
    pattern_of,
)
from tidelog.model.schema import TableName, TableSchema
from tidelog.model.units import printable
from tidelog.sources.findings import Finding

# Surrogate keys.

KEYLESS = (
    "no primary key: its changes are captured, and a dump reads it whole under one snapshot; "
    "without a key no copy of it can be kept"
)
"""What `check` says of a table without a key."""


def surrogate_key(
    keys: Mapping[str, Sequence[str]], table: TableName, present: Sequence[str]
) -> tuple[str, ...]:
    """The columns of the first matching pattern; () if none matches, or if the table lacks a
    column: then `unfit_key` says why.
    """
    columns = _matching_columns(keys, table)
    return columns if set(columns) <= set(present) else ()


def proposed_key(table: TableName, unique: Iterable[Sequence[str]]) -> str | None:
    """The line of ``source.keys`` that names the shortest of a table's ``unique`` keys; None if
    there is none. Columns of these are NOT NULL.
    """
    shortest = min(unique, key=len, default=None)
    if shortest is None:
        return None
    line = json.dumps({pattern_of(table): list(shortest)}, ensure_ascii=False)
    return f"its unique index can be the key, set source.keys: {line}"


def unfit_key(
    keys: Mapping[str, Sequence[str]], table: TableName, present: Sequence[str]
) -> str | None:
    """Why a matching pattern gives the table no key; None if no pattern matches, or the
    key fits.
    """
    missing = [name for name in _matching_columns(keys, table) if name not in present]
    if not missing:
        return None
    spelled = {name.casefold(): name for name in present}
    for number, name in enumerate(missing):
        if (like := spelled.get(name.casefold())) is not None:
            missing[number] = f"{name} (did you mean {like}?)"
    return (
        f"source.keys names columns that it does not have: {', '.join(missing)}; its changes are "
        "captured without a key, and no copy of it can be kept: add the columns, or correct "
        "source.keys"
    )


def _matching_columns(keys: Mapping[str, Sequence[str]], table: TableName) -> tuple[str, ...]:
    return next((tuple(columns) for name, columns in keys.items() if matches([name], table)), ())


def settings_version(exclude_columns: Sequence[str], keys: Mapping[str, Sequence[str]]) -> str:
    """A text that changes with the settings by which schemas are built; empty without any."""
    return "".join(
        hashlib.sha256(json.dumps(setting).encode()).hexdigest()[:16]
        for setting in (exclude_columns, keys)
        if setting
    )


# Excluded columns.


@dataclass(frozen=True, slots=True)
class ColumnExclusion:
    """Which columns of captured tables are excluded.

    ``patterns``: see `tidelog.model.patterns`. ``ignore_case``: in the source, names of
    columns that differ only in upper and lower case are one.
    """

    patterns: tuple[str, ...] = ()
    ignore_case: bool = False

    @classmethod
    def of(cls, patterns: Sequence[str], *, ignore_case: bool = False) -> ColumnExclusion:
        return cls(tuple(patterns), ignore_case)

    def apply(
        self, schema: TableSchema, above: Sequence[TableName] = (), *, dropped: bool = False
    ) -> TableSchema:
        """Return the schema without the excluded columns, whichever it excluded before.

        ``above``: the tables of which it is a partition, whose columns are excluded here too.
        ``dropped``: the table is gone, and may have been a partition of any table: all columns that
        are excluded of some table are excluded, but for those by which rows are matched.
        Raises ExcludedKeyError if rows are matched by one of them.
        """
        if not (self.patterns or schema.excluded):
            return schema
        whole = schema.whole
        names = whole.column_names
        matched = {
            name
            for table in (schema.table, *above)
            for name in matching_columns(self.patterns, table, names, ignore_case=self.ignore_case)
        }
        in_identity = () if schema.identity_kind == "f" else schema.identity
        matching = {*schema.key, *in_identity}
        needed = [name for name in names if name in matched & matching]
        if needed:
            listed = ", ".join(map(printable, needed))
            raise ExcludedKeyError(
                schema.table,
                f"source.exclude_columns excludes {listed}, by which its rows are matched. Take "
                f"{'it' if len(needed) == 1 else 'them'} out of source.exclude_columns, or give "
                f"the table another key, or {exclusion(schema.table)}",
            )
        if dropped:
            matched |= {*columns_of_any_table(self.patterns, names)} - matching
        return schema.without(matched)


def excluded_finding(schema: TableSchema) -> Finding:
    """The finding of `tidelog check` that names a table's excluded columns."""
    names = ", ".join(printable(each.column.name) for each in schema.excluded)
    text = f"not captured, as source.exclude_columns says: {names}"
    return Finding(f"table {schema.table}", "ok", text)
