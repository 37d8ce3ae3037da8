"""Batches of change events in Arrow, of one schema version; Python values are created on first use.

A column is converted to Python values at once, for all events of the batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from decimal import Decimal
from functools import cached_property
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidelog.model.schema import TableSchema
from tidelog.ports import SourceId

_CALENDAR: Final = {
    "D": (-719_162, 2_932_896),
    "us": (-62_135_596_800_000_000, 253_402_300_799_999_999),
}
"""The range of `datetime`, 0001-01-01 to 9999-12-31, in days and microseconds since 1970."""

_FLAT: Final = (
    pa.field("op", pa.string()),
    pa.field("version", pa.int64()),
    pa.field("missing", pa.list_(pa.string())),
    pa.field("kind", pa.uint8()),
    pa.field("schema_id", pa.int32()),
    pa.field("position", pa.int64()),
    pa.field("ordinal", pa.int64()),
    pa.field("xid", pa.int64()),
    pa.field("ts", pa.timestamp("us", "UTC")),
)


Share = tuple[int, int]
"""The index, from 0, and the number of the events that a transform made of one."""


def event_schema(row: pa.StructType) -> pa.Schema:
    """The columns of an `EventBatch` of a table with rows of type ``row``."""
    op, version, *rest = _FLAT
    return pa.schema([op, version, pa.field("before", row), pa.field("after", row), *rest])


class EventBatch:
    """``n`` events of one schema version of a table, in the log's order.

    Args:
        schema: schema version under which the events were written.
        origin: the source.
        data: columns as in `event_schema`. ``op``: c, u, d, r (dump row) or t (truncate).
            ``before`` and ``after``: structs of the table's columns, null if the log has no such
            image. ``missing``: names of the columns of ``after`` that the log does not have (an
            unchanged TOASTed value); they are null there. ``ts``: commit time.
        first: number of the first event in its task.
    """

    def __init__(
        self, schema: TableSchema, origin: SourceId, data: pa.RecordBatch, first: int = 0
    ) -> None:
        self.schema = schema
        self.origin = origin
        self.first = first
        self._data: pa.RecordBatch | None = data
        self._rows: int = data.num_rows
        self._whole: EventBatch = self
        self._at = 0
        self.share: Share | None = None
        self._lists: dict[str, list[Any]] = {}
        self._versions: npt.NDArray[np.int64] | None = None

    @property
    def data(self) -> pa.RecordBatch:
        """The events as Arrow. A slice's data is created on demand: if tables alternate, there are
        as many slices as events, and creating each would cost more than the rest of the work.
        """
        if self._data is None:
            self._data = self._whole.data.slice(self._at, self._rows)
        return self._data

    def __len__(self) -> int:
        return self._rows

    def __reduce__(self) -> tuple[Any, ...]:
        # As Arrow messages: pickled directly, a slice would include the whole batch.
        arrow = self.data.schema.serialize().to_pybytes(), self.data.serialize().to_pybytes()
        return _batch_of, (self.schema, self.origin, *arrow, self.first)

    def slice(self, start: int, stop: int) -> EventBatch:
        """The events ``start`` to ``stop``, over the same memory; they are converted to Python
        values together with the others.
        """
        part = EventBatch.__new__(EventBatch)
        part.schema, part.origin, part.first = self.schema, self.origin, self.first + start
        part._data, part._rows = None, max(0, min(stop, self._rows) - start)
        part._whole, part._at = self._whole, self._at + start
        part.share = self.share
        return part

    def _is_followed_by(self, other: EventBatch) -> bool:
        return other._whole is self._whole and other._at == self._at + self._rows

    def value(self, name: str, row: int) -> Any:
        """The Python value of a column; for ``before`` and ``after`` a tuple, None if null."""
        lists = self._whole._lists
        values = lists.get(name)
        if values is None:
            column = self._whole.data.column(name)
            image = name in ("before", "after")
            # Another thread may do the same at the same time, with the same result.
            values = lists[name] = _rows(column) if image else _values(column)
        return values[self._at + row]

    @property
    def versions(self) -> npt.NDArray[np.int64]:
        """The events' versions, int64[n]. Read once for all slices of a batch, of which there may
        be as many as events.
        """
        whole = self._whole
        if whole._versions is None:
            whole._versions = whole.data.column("version").to_numpy()
        return whole._versions[self._at : self._at + len(self)]

    @cached_property
    def old_names(self) -> frozenset[str] | None:
        """The columns that old images have; None: all."""
        whole = self.schema.identity_kind == "f"
        return None if whole else frozenset((*self.schema.identity, *self.schema.match_key))


def group_by_schema(parts: Sequence[EventBatch]) -> tuple[list[EventBatch], list[int]]:
    """One batch for each schema version, and for each part the index of its batch.

    So work for each batch is done only a few times, however the tables alternate.
    """
    groups: dict[tuple[SourceId, int], list[EventBatch]] = {}
    numbers: dict[tuple[SourceId, int], int] = {}
    places = []
    for part in parts:
        version = part.origin, part.schema.schema_id
        group = groups.setdefault(version, [])
        before = group[-1] if group else None
        if before is not None and before._is_followed_by(part):  # still a slice: no copy
            group[-1] = before._whole.slice(before._at, part._at + len(part))
        else:
            group.append(part)
        places.append(numbers.setdefault(version, len(numbers)))
    return [_concatenate(group) for group in groups.values()], places


def runs(parts: Iterable[EventBatch]) -> Iterator[EventBatch]:
    """Merge adjacent batches of one schema version with consecutive event numbers."""
    run: list[EventBatch] = []
    due: tuple[SourceId, int, int] | None = None
    for part in parts:
        shared = run and (part.share or run[-1].share)
        if shared or (run and (part.origin, part.schema.schema_id, part.first) != due):
            yield _concatenate(run)
            run = []
        run.append(part)
        due = part.origin, part.schema.schema_id, part.first + len(part)
    if run:
        yield _concatenate(run)


def _concatenate(parts: Sequence[EventBatch]) -> EventBatch:
    first = parts[0]
    if len(parts) == 1:
        return first
    data = pa.concat_batches([part.data for part in parts])
    return EventBatch(first.schema, first.origin, data, first.first)


def _batch_of(
    schema: TableSchema, origin: SourceId, columns: bytes, rows: bytes, first: int
) -> EventBatch:
    arrow = pa.ipc.read_schema(pa.py_buffer(columns))
    return EventBatch(schema, origin, pa.ipc.read_record_batch(pa.py_buffer(rows), arrow), first)


def _values(column: pa.Array) -> list[Any]:
    """As ``to_pylist``, but several times as fast if NumPy has the same values."""
    kind = column.type
    texts = pa.types.is_string(kind) or pa.types.is_binary(kind)
    numbers = pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)
    if texts or (numbers and not column.null_count):
        values: list[Any] = column.to_numpy(zero_copy_only=False).tolist()
    elif pa.types.is_decimal(kind):  # to_pylist converts the same texts one by one
        values = _each(Decimal, column.cast(pa.string()).to_numpy(zero_copy_only=False).tolist())
    elif (unit := _unit_in_calendar(column)) is not None:
        number = pa.int32() if unit == "D" else pa.int64()
        passed = column.cast(number).fill_null(0).to_numpy().astype(f"m8[{unit}]")
        epoch = pa.scalar(0, kind).as_py()
        values = [epoch + each for each in passed.tolist()]
        if column.null_count:
            valid = column.is_valid().to_pylist()
            values = [
                each if present else None for each, present in zip(values, valid, strict=True)
            ]
    else:
        try:
            values = column.to_pylist()
        except (OverflowError, ValueError):
            values = [_value(each) for each in column]
    return values


def _each(make: Callable[[Any], Any], values: list[Any]) -> list[Any]:
    return [None if each is None else make(each) for each in values]


def _unit_in_calendar(column: pa.Array) -> str | None:
    """The unit of dates, or of instants in UTC or without a zone, if Python has all; else None."""
    kind = column.type
    if pa.types.is_date32(kind):
        unit, number = "D", pa.int32()
    elif pa.types.is_timestamp(kind) and kind.unit == "us" and kind.tz in (None, "UTC"):
        unit, number = "us", pa.int64()
    else:
        return None
    least, most = _CALENDAR[unit]
    bounds = pc.min_max(column.cast(number)).as_py()
    low, high = bounds["min"], bounds["max"]
    return unit if low is None or (least <= low and high <= most) else None


def _value(scalar: pa.Scalar) -> Any:
    """A date or an instant; outside the range of `datetime` as text in ISO 8601, as in JSON
    outputs.
    """
    try:
        return scalar.as_py()
    except (OverflowError, ValueError):
        dated = pa.types.is_date(scalar.type)
        text = str(np.datetime64(scalar.value, "D" if dated else scalar.type.unit))
        sign = "-" * text.startswith("-")
        year, rest = text.removeprefix("-").split("-", 1)
        zone = "" if dated or scalar.type.tz is None else "Z"
        return f"{sign or '+' * (len(year) > 4)}{year:0>4}-{rest}{zone}"


def _rows(image: pa.StructArray) -> list[tuple[Any, ...] | None]:
    # By column: several times as fast as a struct's own to_pylist.
    columns = [_values(column) for column in image.flatten()]
    rows: list[tuple[Any, ...] | None] = list(zip(*columns, strict=True))
    if image.null_count:
        for row, present in enumerate(image.is_valid().to_pylist()):
            if not present:
                rows[row] = None
    return rows
