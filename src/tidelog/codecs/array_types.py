"""Types of arrays by their names in a source, and what their elements decode to."""

from __future__ import annotations

import re

_OTHER_SEPARATOR = ("box[]",)
# By the type's name without lengths; others are text.
_ELEMENTS = {
    "boolean": "bool",
    "smallint": "int16",
    "integer": "int32",
    "bigint": "int64",
    "oid": "int64",
    "real": "float32",
    "double precision": "float64",
    "date": "date",
    "timestamp without time zone": "timestamp",
    "timestamp with time zone": "timestamptz",
    "bytea": "binary",
}


def element_name(type_name: str) -> str | None:
    """Return the name of the type of an array's elements; None: it is no array, or one whose text
    has another separator than a comma.
    """
    if not type_name.endswith("[]") or type_name in _OTHER_SEPARATOR:
        return None
    return type_name.removesuffix("[]")


def element_logical(name: str) -> str:
    """Return the logical type of elements of this type, unless it is a number of limited digits."""
    return _ELEMENTS.get(re.sub(r"\(\d+\)", "", name), "text")
