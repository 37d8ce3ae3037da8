"""Applies the option ``types`` to the tables of an output: columns that exist keep their type."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from tidelog.codecs.native_types import native_logicals
from tidelog.model.column_types import ColumnTypes
from tidelog.model.schema import TableSchema
from tidelog.spark.transforms import Step, delivered_names, steps_of

_LIMITS = re.compile(r"decimal\w*\((\d+), ?(\d+)\)")


def with_types(
    schema: TableSchema,
    types: ColumnTypes | None,
    steps: Sequence[Step],
    have: Mapping[str, str],
) -> TableSchema:
    """Returns the schema with the types that its columns have in the destination, and those that
    ``types`` gives new ones.

    Args:
        schema: the source's.
        types: the output's option; None: it has none, and all such columns are text.
        steps: of the output.
        have: SQL types, or Arrow's, of the destination's columns, by their names there.
    """
    if types is None:
        return schema
    kinds = {name.lower(): kind for name, kind in have.items()}
    own = steps_of(steps, schema.table)
    names = zip(schema.column_names, delivered_names(schema.column_names, own), strict=True)
    kept = {
        name: types_of(kinds[theirs.lower()], types)
        for name, theirs in names
        if theirs is not None and theirs.lower() in kinds
    }
    return schema.with_logicals(native_logicals(schema, types, kept))


def types_of(kind: str, types: ColumnTypes) -> ColumnTypes:
    """Returns the option by which a column has this type, SQL's or Arrow's. A decimal has it by the
    option only if ``types`` has decimals: else it was one in the source.
    """
    limits = _LIMITS.search(kind) if types.numeric is not None else None
    return ColumnTypes(
        arrays="native" if kind.startswith(("array<", "list<")) else "text",
        numeric=(int(limits[1]), int(limits[2])) if limits else None,
    )
