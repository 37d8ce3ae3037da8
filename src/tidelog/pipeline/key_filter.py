"""The changes of chosen keys, picked before anything but the keys is decoded."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from tidelog.errors import ConfigError
from tidelog.model.records import Kind
from tidelog.model.schema import TableSchema


@dataclass(frozen=True, slots=True)
class KeyFilter:
    """By column of the key, the values that are wanted. Rows have to match in every column."""

    values: Mapping[str, tuple[Any, ...]]

    @classmethod
    def parse(cls, text: str) -> KeyFilter:
        """From a JSON object of one row's key. Raises ConfigError without the values."""
        try:
            found = json.loads(text)
        except ValueError:
            found = None
        if not isinstance(found, dict) or not found:
            raise ConfigError(
                "tidelog source: option 'key' must be a JSON object of the key's columns, e.g. "
                '{"id": 42}'
            )
        if any(value is None or isinstance(value, (dict, list)) for value in found.values()):
            raise ConfigError("tidelog source: option 'key': values must be numbers or texts")
        return cls({name: (value,) for name, value in found.items()})

    def check(self, schema: TableSchema) -> None:
        """Raises ConfigError if the table has no such key."""
        other = [name for name in self.values if name not in schema.match_key]
        if other:
            key = ", ".join(schema.match_key) or "none"
            raise ConfigError(
                f"tidelog source: option 'key': {other[0]!r} is not of the key of {schema.table} "
                f"({key})"
            )

    def of(self, records: pa.RecordBatch, written: TableSchema) -> pa.RecordBatch:
        """Those of ``records``, all of the version ``written``, that have such a key before or
        after the change; and truncates.
        """
        from tidelog.wire.decode import decode  # the decoder: not for the planning processes

        if not set(self.values) <= set(written.match_key):
            return records  # an older version with another key: nothing is lost
        decoded = decode(records, written, columns=list(self.values))
        assert decoded.after is not None
        assert decoded.before is not None
        wanted = pc.equal(records.column("kind"), int(Kind.TRUNCATE))
        for image in (decoded.after, decoded.before):
            if image.null_count < len(image):
                wanted = pc.or_(wanted, self._matching(image))
        return records.filter(wanted)

    def _matching(self, image: pa.StructArray) -> pa.BooleanArray:
        found = image.is_valid()
        for name, values in self.values.items():
            cells = image.field(image.type.get_field_index(name))
            found = pc.and_(found, pc.is_in(cells, value_set=_cast(name, values, cells.type)))
        return found


def _cast(name: str, values: tuple[Any, ...], kind: pa.DataType) -> pa.Array:
    try:
        if pa.types.is_binary(kind):
            return pa.array([bytes(value) for value in values], kind)
        texts = [json.dumps(v) if isinstance(v, bool) else str(v) for v in values]
        return pa.array(texts, pa.string()).cast(kind)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, TypeError, ValueError):
        raise ConfigError(
            f"tidelog source: option 'key': the value of {name!r} is not of type {kind}"
        ) from None
