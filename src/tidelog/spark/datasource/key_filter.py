"""Selects the changes of given keys before anything but the keys is decoded."""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from tidelog.codecs.columns import invalid_dates
from tidelog.errors import ConfigError
from tidelog.model.records import Kind
from tidelog.model.schema import Column, TableSchema

_HEX = re.compile(r"(?:\\x|0x)((?:[0-9a-f]{2})*)", re.IGNORECASE)
_NUMERIC = ("numeric", "decimal")  # without or beyond 38 digits delivered as text: 1.50 is 1.5
_PADDED = ("character", "bpchar", "char")


@dataclass(frozen=True, slots=True)
class KeyFilter:
    """The wanted values, by column of the key. Rows must match in every column."""

    values: Mapping[str, Any]

    @classmethod
    def parse(cls, text: str) -> KeyFilter:
        """Returns the filter of a JSON object of one row's key. Raises ConfigError without the
        values.
        """
        try:
            found = json.loads(text, parse_float=str)  # 1.10 is not a binary fraction
        except ValueError:
            found = None
        if not isinstance(found, dict) or not found:
            raise ConfigError(
                "tidelog source: option 'key' must be a JSON object of the key's columns, e.g. "
                '{"id": 42}'
            )
        if any(value is None or isinstance(value, (dict, list)) for value in found.values()):
            raise ConfigError("tidelog source: option 'key': values must be numbers or texts")
        return cls(found)

    def check(self, versions: Sequence[TableSchema]) -> None:
        """Raises ConfigError if no version of the table has these columns in its key.

        Args:
            versions: the table's schemas, the newest last.
        """
        if any(set(self.values) <= set(schema.match_key) for schema in versions):
            return
        newest = versions[-1]
        other = next((n for n in self.values if n not in newest.match_key), next(iter(self.values)))
        key = ", ".join(newest.match_key) or "none"
        raise ConfigError(
            f"tidelog source: option 'key': {other!r} is not of the key of {newest.table} ({key})"
        )

    def select(self, records: pa.RecordBatch, written: TableSchema) -> pa.RecordBatch:
        """Returns the records, all of the version ``written``, that have such a key before or after
        the change; and truncates.

        Under a version with another key: records with these values in the columns of these names,
        if the record has them; none if the table had no such column.
        """
        from tidelog.codecs.decode import decode  # planning processes need no decoder

        columns = [column for column in written.columns if column.name in self.values]
        wanted = pc.equal(records.column("kind"), int(Kind.TRUNCATE))
        if columns:
            decoded = decode(records, written, columns=[column.name for column in columns])
            for image in (decoded.after, decoded.before):
                assert image is not None
                if image.null_count < len(image):
                    wanted = pc.or_(wanted, self._matching(image, columns, written.match_key))
        return records.filter(wanted)

    def _matching(
        self, image: pa.StructArray, columns: Sequence[Column], key: Sequence[str]
    ) -> pa.BooleanArray:
        found = image.is_valid()
        any_equal = pa.repeat(pa.scalar(False), len(image))
        for column in columns:
            cells = image.field(image.type.get_field_index(column.name))
            same = _equal(cells, self.values[column.name], column)
            any_equal = pc.or_(any_equal, same)
            if column.name not in key:
                # It may be missing: of an old row, often only the key is logged.
                same = pc.or_(same, cells.is_null())
            found = pc.and_(found, same)
        return pc.and_(found, any_equal)


def _equal(cells: pa.Array, value: Any, column: Column) -> pa.BooleanArray:
    """Returns bool[n], false for null. Raises ConfigError for a value that no cell can have."""
    kind = cells.type
    base = column.type_name.lower().partition("(")[0].strip()
    try:
        if pa.types.is_binary(kind):
            wanted = pa.array([_bytes(value)], kind)
        else:
            text = json.dumps(value) if isinstance(value, bool) else str(value)
            if pa.types.is_decimal(kind) and text == "NaN":
                return cells.is_null()  # null in a key means NaN (`nan_key`)
            if base == "uuid":
                text = str(uuid.UUID(text))
            elif base in _NUMERIC and pa.types.is_string(kind):
                text = _plain(text)
                cells = _without_zeros(cells)
            elif base in _PADDED and pa.types.is_string(kind):
                text = text.rstrip(" ")
                cells = pc.utf8_rtrim(cells, characters=" ")
            wanted = invalid_dates.value(text, kind)
            if wanted is None:
                wanted = pa.array([text], pa.string()).cast(kind)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, TypeError, ValueError):
        raise ConfigError(
            f"tidelog source: option 'key': the value of {column.name!r} is not of type "
            f"{column.type_name if base == 'uuid' else kind}"
        ) from None
    return pc.is_in(cells, value_set=wanted)


def _bytes(value: Any) -> bytes:
    r"""Parses a value as keys of dumps are given: hexadecimal digits after ``0x`` or ``\x``, or a
    text.
    """
    if not isinstance(value, str):
        raise TypeError
    digits = _HEX.fullmatch(value)
    return value.encode() if digits is None else bytes.fromhex(digits[1])


def _plain(text: str) -> str:
    """Returns a number without exponent and trailing zeros; ``NaN`` and the like unchanged."""
    try:
        number = Decimal(text)
    except InvalidOperation:
        raise ValueError from None
    if not number.is_finite():
        return text
    plain = f"{number:f}"
    plain = plain.rstrip("0").rstrip(".") if "." in plain else plain
    return "0" if plain == "-0" else plain


def _without_zeros(cells: pa.Array) -> pa.Array:
    fraction = pc.match_substring(cells, ".")
    short = pc.utf8_rtrim(pc.utf8_rtrim(cells, characters="0"), characters=".")
    return pc.if_else(fraction, short, cells)
