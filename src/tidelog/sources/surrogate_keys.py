"""Keys that ``source.keys`` names for tables without a primary key."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tidelog.model.patterns import matches
from tidelog.model.schema import TableName


def surrogate_key(
    keys: Mapping[str, Sequence[str]], table: TableName, present: Sequence[str]
) -> tuple[str, ...]:
    """The columns of the first pattern that names the table; () if there is none, or the table
    lacks one of them: then it has no key, and `unfit_key` says why.
    """
    columns = _named(keys, table)
    return columns if set(columns) <= set(present) else ()


def unfit_key(
    keys: Mapping[str, Sequence[str]], table: TableName, present: Sequence[str]
) -> str | None:
    """Why a table that a pattern names has no key of it; None: no pattern names it, or it has."""
    missing = [name for name in _named(keys, table) if name not in present]
    if not missing:
        return None
    return (
        f"source.keys names columns that it does not have: {', '.join(missing)}; its changes are "
        "captured without a key and it is not dumped: add the columns, or correct source.keys"
    )


def _named(keys: Mapping[str, Sequence[str]], table: TableName) -> tuple[str, ...]:
    return next((tuple(columns) for name, columns in keys.items() if matches([name], table)), ())
