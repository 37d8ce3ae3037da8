"""PostgreSQL's types that can be more than text: arrays, and numbers without limits."""

from __future__ import annotations

import re

from tidelog.codecs.array_types import element_logical, element_name
from tidelog.model.column_types import ColumnTypes
from tidelog.model.schema import Column

# Types of users and extensions have greater ids. Their arrays may have another separator.
_FIRST_USER_ID = 16_384
_NUMERIC = 1700
_MOST_DIGITS = 38
_NUMBER = re.compile(r"numeric\((\d+),(-?\d+)\)")


def native_logical(column: Column, types: ColumnTypes) -> str | None:
    """Return the logical type that the option ``types`` gives a column that is text without it;
    None: it is text.
    """
    if column.type_id == _NUMERIC and column.logical == "text":
        return _number(types)
    element = element_name(column.type_name) if column.type_id < _FIRST_USER_ID else None
    if types.arrays == "text" or element is None:
        return None
    return f"array({_element(element, types)})"


def _number(types: ColumnTypes) -> str | None:
    return None if types.numeric is None else "numeric({},{})".format(*types.numeric)


def _element(name: str, types: ColumnTypes) -> str:
    number = _NUMBER.fullmatch(name)
    if number is not None:
        precision, scale = int(number[1]), int(number[2])
        if precision <= _MOST_DIGITS and 0 <= scale <= precision:
            return f"numeric({precision},{scale})"  # a decimal would make NaN null
    if number is not None or name == "numeric":
        return _number(types) or "text"
    return element_logical(name)
