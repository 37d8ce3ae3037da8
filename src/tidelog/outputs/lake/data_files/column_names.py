"""The names that columns of a source have in a Delta table.

Without column mapping Delta refuses some characters in names, and not every reader reads a table
with column mapping right. So a plain name has ``_`` in their place, and the column's metadata keeps
the source's name, by which we go on to find the column.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

from pyspark.sql.types import StructField, StructType

SOURCE_NAME: Final = "tidelog.name"
"""The key in a column's metadata of the source's name, where the table has another one."""

# Characters that Delta allows in names only under column mapping.
_UNMAPPED: Final = re.compile(r"[ ,;{}()\n\t=]")


def needs_mapping(names: Iterable[str]) -> bool:
    """Returns True if one of the names is possible only under column mapping."""
    return any(_UNMAPPED.search(name) for name in names)


def plain_names(names: Iterable[str], known: Mapping[str, str]) -> dict[str, str]:
    """Returns the names in a table of the source's columns ``names``, by the source's: plain, and
    different from each other whatever the case.

    Args:
        names: columns of the source.
        known: the names in the table of the columns that it has, by the source's; they stay.
    """
    found = {name.lower(): (name, own) for name, own in known.items()}
    taken = {own.lower() for own in known.values()}
    fresh = [name for name in names if name.lower() not in found]
    for name in sorted(fresh, key=lambda each: needs_mapping([each])):  # others keep their names
        plain = own = _UNMAPPED.sub("_", name)
        number = 1
        while own.lower() in taken:
            number += 1
            own = f"{plain}_{number}"
        taken.add(own.lower())
        found[name.lower()] = name, own
    return dict(found.values())


def renamed(field: StructField, names: Mapping[str, str]) -> StructField:
    """Returns a column, with its members if it is a struct, by its name in the table; ``names`` as
    of `plain_names`.
    """
    kind = field.dataType
    if isinstance(kind, StructType):
        kind = StructType([renamed(each, names) for each in kind.fields])
    by_case = {name.lower(): own for name, own in names.items()}
    own = by_case.get(field.name.lower(), field.name)
    if own.lower() == field.name.lower():
        return StructField(field.name, kind, field.nullable, field.metadata)
    metadata = {**(field.metadata or {}), SOURCE_NAME: field.name}
    metadata["comment"] = f"in the source: {field.name}"
    return StructField(own, kind, field.nullable, metadata)


def source_name(declared: Mapping[str, Any]) -> str:
    """Returns the source's name of a column of a serialized schema."""
    return str((declared.get("metadata") or {}).get(SOURCE_NAME, declared["name"]))


def with_source_names(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a serialized schema with the source's names of columns, and of members of structs."""
    return {**schema, "fields": [_with_source_name(each) for each in schema["fields"]]}


def _with_source_name(declared: Mapping[str, Any]) -> dict[str, Any]:
    kind = declared["type"]
    if isinstance(kind, Mapping) and kind["type"] == "struct":
        kind = with_source_names(kind)
    return {**declared, "name": source_name(declared), "type": kind}
