"""What chunk readers of all sources share: keys, their texts, conditions, and slices of a range.

Slices spread a read over time. The texts of key columns, from typed values, need not be spelled as
the server would spell them: the server compares keys as values. A dump's condition is checked on
the server before the dump begins.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.compute as pc

from tidelog.codecs.columns.times import date_texts, timestamp_texts
from tidelog.errors import (
    ChunkDeniedError,
    ChunkError,
    ChunkRefusedError,
    ChunkVoidError,
    TidelogError,
    UsageError,
)
from tidelog.model.schema import TableSchema
from tidelog.ports import ChunkRequest

Key = tuple[str | None, ...]

# A spread chunk is read in slices of about a millisecond of the server's work.
SLICE_ROWS = 1_000
SLICE_BYTES = 256 << 10
LEAST_SLICE_ROWS = 50

# Keys are read in growing steps until the size of their rows is known.
FIRST_KEYS = 64
KEYS_GROWTH = 8


def bounded_key(request: ChunkRequest, schema: TableSchema) -> tuple[str, ...]:
    """The columns of the request's bounds. Raises ChunkVoidError if the key has changed."""
    key = schema.match_key
    lengths = {len(bound) for bound in (request.after, request.upto) if bound is not None}
    if request.key_columns not in (None, key) or not lengths <= {len(key)}:
        raise ChunkVoidError(
            f"reading a chunk of {schema.table}: the key that its rows are matched by "
            "has changed since the dump began; start the dump of this table again"
        )
    return key


def given_keys(request: ChunkRequest, schema: TableSchema) -> tuple[tuple[str, ...], list[Key]]:
    """The columns of the requested keys, and each key once. Raises ChunkError if they don't fit."""
    columns = request.key_columns or schema.key
    if not set(columns) <= set(schema.column_names):
        raise ChunkError(
            f"reading keys of {schema.table}: it has no columns {', '.join(columns)} (any more)"
        )
    keys = list(dict.fromkeys(request.keys or ()))
    if any(len(key) != len(columns) for key in keys):
        raise ChunkError(
            f"reading keys of {schema.table}: a key does not have one value for each of "
            f"the columns {', '.join(columns)}"
        )
    return columns, keys


def may_hold_null(schema: TableSchema, key: Sequence[str]) -> bool:
    """Return True if a value of the key may be NULL; then rows may share the key."""
    return any(schema.columns[schema.column_index(name)].nullable for name in key)


class Slices:
    """Spreads a range over ``request.spread_s``: the rows to read next, and pauses in between.

    Slices are statements of one transaction, under its snapshot: together they return the rows of
    one statement. That would not hold where two rows may share a key: then there is only one slice.

    Attributes:
        limit: rows of the next slice.
        count: rows read.
        rested_s: seconds of all pauses.
    """

    def __init__(self, request: ChunkRequest, schema: TableSchema, key: Sequence[str]) -> None:
        self._wanted = request.limit_rows
        self._limit_bytes = request.limit_bytes
        self._spread_s = request.spread_s
        spread = request.spread_s > 0 and not may_hold_null(schema, key)
        self.limit = min(SLICE_ROWS, self._wanted) if spread else self._wanted
        self.count = 0
        self.rested_s = 0.0
        self._begun = time.monotonic()

    def more(self, rows: int, size: int) -> bool:
        """Count ``rows`` read rows, of ``size`` bytes in all slices together. Returns False if the
        range is complete; otherwise pauses, and the next slice is due.
        """
        self.count += rows
        if rows < self.limit or self.count == self._wanted:
            return False
        if self._limit_bytes and size >= self._limit_bytes:
            return False
        due = self._spread_s * self.count / self._wanted - (time.monotonic() - self._begun)
        if due > 0:
            time.sleep(due)
            self.rested_s += due
        by_bytes = SLICE_BYTES * self.count // max(size, 1)
        least = max(LEAST_SLICE_ROWS, min(SLICE_ROWS, by_bytes))
        self.limit = min(least, self._wanted - self.count)
        return True


class KeySteps:
    """Splits requested keys so that their rows stay below ``request.limit_bytes``.

    The first steps are small, until the size of rows is known; then a step has as many keys as
    there is room for.

    Args:
        request: the keys.
        row_bytes: the known mean size of the table's rows; 0: unknown.
        most: most keys of one step; 0: no limit.

    Attributes:
        read: keys whose rows were read.
        room: most bytes of the step's rows; 0: no limit.
    """

    def __init__(self, request: ChunkRequest, row_bytes: float, most: int = 0) -> None:
        self._request = request
        self._keys = request.keys or ()
        self._row_bytes = row_bytes
        self._most = most or len(self._keys)
        self._step = self._most
        if request.limit_bytes:
            self._step = int(request.limit_bytes / 2 / row_bytes) if row_bytes else FIRST_KEYS
        self._given = 0
        self._size = 0
        self.read = 0
        self.room = 0

    @property
    def row_bytes(self) -> float:
        """The mean size of the rows that were read, in bytes."""
        return self._size / max(self.read, 1)

    def next(self) -> ChunkRequest | None:
        """The next step; None if the chunk ends here."""
        left, limit = len(self._keys) - self.read, self._request.limit_bytes
        if not left or (limit and self._size >= limit):
            return None
        self._given = max(1, min(self._step, self._most, left))
        # A single row may have any size.
        self.room = limit - self._size if limit and (self._given > 1 or self._size) else 0
        return replace(self._request, keys=self._keys[self.read : self.read + self._given])

    def count_step(self, size: int) -> None:
        """Count the step's keys as read; their rows have ``size`` bytes."""
        self.read += self._given
        self._size += size
        if limit := self._request.limit_bytes:
            room = (limit - self._size) / 2 / max(self.row_bytes, self._row_bytes, 1.0)
            self._step = min(KEYS_GROWTH * max(self._given, FIRST_KEYS), int(room))

    def note_overflow(self) -> bool:
        """Note that the step's rows exceed its room. Returns False if the chunk ends before this
        step; True if its rows are dropped and the next step is smaller.
        """
        self._row_bytes = max(self._row_bytes, self._request.limit_bytes / self._given)
        self._step = self._given // 4
        return not self.read


# Texts of key columns, for each kind of server.

_TEXT = pa.string()


@dataclass(frozen=True)
class KeySpelling:
    """How one kind of server spells values.

    Attributes:
        true: the boolean true.
        false: the boolean false.
        utc: the suffix of a timestamp with a time zone.
        binary: converts bytes to text.
    """

    true: str
    false: str
    utc: str
    binary: Callable[[bytes], str]


def key_texts(values: pa.Array, spelling: KeySpelling) -> pa.StringArray:
    """Convert ``n`` values to ``n`` texts; nulls stay null.

        =====================  ==================================================================
        boolean, binary        as ``spelling`` says
        integer, decimal       digits
        float                  the shortest that reads back as the same number; ``nan``, ``inf``
        date, time             ISO
        timestamp              ISO with a space, microseconds; one with a zone as UTC
        UUID (Arrow, Parquet)  as usual
        text                   unchanged
        =====================  ==================================================================

    Raises:
        UsageError: no key column can have this type.
    """
    if isinstance(values, pa.ExtensionArray):
        if values.type.extension_name == "arrow.uuid":
            return _map_values(values.storage, lambda value: str(uuid.UUID(bytes=value)))
        return key_texts(values.storage, spelling)
    kind = values.type
    if pa.types.is_dictionary(kind):
        return key_texts(values.dictionary_decode(), spelling)
    if pa.types.is_boolean(kind):
        return pc.if_else(values, spelling.true, spelling.false)
    if pa.types.is_timestamp(kind):
        return _timestamps(values, spelling.utc)
    if pa.types.is_float16(kind):
        return values.cast(pa.float32()).cast(_TEXT)
    if pa.types.is_date64(kind):
        values = values.cast(pa.date32())
        kind = values.type
    if pa.types.is_date32(kind):
        return pc.utf8_ltrim(date_texts(values), "+")
    if _is_binary(kind):
        return _map_values(values, spelling.binary)
    if pa.types.is_nested(kind) or pa.types.is_duration(kind) or pa.types.is_interval(kind):
        raise UsageError(f"values of type {kind} can't be part of a key")
    try:
        return values.cast(_TEXT)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        raise UsageError(f"values of type {kind} can't be part of a key") from None


def _map_values(values: pa.Array, spell: Callable[[bytes], str]) -> pa.StringArray:
    return pa.array([v if v is None else spell(v) for v in values.to_pylist()], _TEXT)


def _timestamps(values: pa.Array, utc: str) -> pa.StringArray:
    zone = values.type.tz
    # A timestamp with a zone counts microseconds in UTC, so the cast gives the UTC time.
    plain = values.cast(pa.timestamp("us", zone), safe=False)
    texts = pc.utf8_ltrim(timestamp_texts(plain, " "), "+")
    if zone is None or not utc:
        return texts
    return pc.binary_join_element_wise(texts, utc, "", null_handling="emit_null")


def _is_binary(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_binary(kind)
        or pa.types.is_large_binary(kind)
        or pa.types.is_fixed_size_binary(kind)
        or pa.types.is_binary_view(kind)
    )


# Conditions.


@contextmanager
def only_condition_errors() -> Iterator[None]:
    """Pass on only the errors that say that the server can't understand the condition.

    All other errors (a lock, a missing right, a lost connection) are ignored here: the dump itself
    may meet them or not.
    """
    try:
        yield
    except ChunkDeniedError:
        pass
    except ChunkRefusedError:
        raise
    except TidelogError:
        pass
