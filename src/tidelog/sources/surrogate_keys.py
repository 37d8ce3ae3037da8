"""Surrogate keys: keys that ``source.keys`` defines for tables without a primary key."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence

from tidelog.model.patterns import matches, pattern_of
from tidelog.model.schema import TableName


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


def keyless_message(dumped: bool) -> str:
    """What `check` says of a table without a primary key."""
    if dumped:
        return (
            "no primary key: its changes are captured, and a dump reads it whole under one "
            "snapshot; no copy of it can be kept"
        )
    return "no primary key, and its replica identity is an index: it is captured, and not dumped"


def unfit_key(
    keys: Mapping[str, Sequence[str]], table: TableName, present: Sequence[str]
) -> str | None:
    """Why a matching pattern gives the table no key; None if no pattern matches, or the
    key fits.
    """
    missing = [name for name in _matching_columns(keys, table) if name not in present]
    if not missing:
        return None
    return (
        f"source.keys names columns that it does not have: {', '.join(missing)}; its changes are "
        "captured without a key, and no copy of it can be kept: add the columns, or correct "
        "source.keys"
    )


def _matching_columns(keys: Mapping[str, Sequence[str]], table: TableName) -> tuple[str, ...]:
    return next((tuple(columns) for name, columns in keys.items() if matches([name], table)), ())
