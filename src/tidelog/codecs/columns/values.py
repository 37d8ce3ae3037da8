"""Converts a column's cells (the source's text output under fixed session settings) to an Arrow
array.

docs/reference/types.md is the user's view of this module.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidelog.codecs.columns import json_kernels, kernels, structure_kernels, times
from tidelog.codecs.columns.times import INVALID_DATE_IS_ERROR
from tidelog.model.records import Int32s, UInt8s, bitmap
from tidelog.model.schema import decimal_parameters, element_of, is_native, members_of

_ARROW_TYPES: dict[str, pa.DataType] = {
    "bool": pa.bool_(),
    "int16": pa.int16(),
    "int32": pa.int32(),
    "int64": pa.int64(),
    "float32": pa.float32(),
    "float64": pa.float64(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us"),
    "timestamptz": pa.timestamp("us", tz="UTC"),
    "binary": pa.binary(),
    "text": pa.string(),
    "bytes": pa.binary(),
    "variant": pa.struct(  # as Spark has it
        [
            pa.field("value", pa.binary(), nullable=False),
            pa.field("metadata", pa.binary(), nullable=False, metadata={"variant": "true"}),
        ]
    ),
    "map": pa.map_(pa.string(), pa.string()),
    "time": pa.time64("ns"),  # as Spark has it
}
_INTEGERS = {  # reading NumPy's limits takes as long as reading hundreds of values
    pa.from_numpy_dtype(dtype): (
        dtype,
        np.int64(np.iinfo(dtype).min),
        np.int64(np.iinfo(dtype).max),
    )
    for dtype in (np.int16, np.int32, np.int64)
}
_REASONS = {
    structure_kernels.NO_ARRAY: "is no array",
    structure_kernels.SEVERAL_DIMENSIONS: "is an array of several dimensions",
    structure_kernels.OTHER_BOUNDS: "is an array whose first index is not 1",
    structure_kernels.ONE_DIMENSION: "is an array of fewer dimensions",
}
_NO_VARIANT = {
    json_kernels.NO_JSON: "is no JSON",
    json_kernels.NAME_TWICE: "has an object with one name twice",
    json_kernels.MANY_DIGITS: "has a number of more than 38 digits",
    json_kernels.HALF_CHARACTER: "has half of a surrogate pair",
    json_kernels.TOO_DEEP: "has more than 1000 levels",
    json_kernels.TOO_LARGE: "has more than 16 MiB",
}
_MAX_BYTES = 2**31 - 1  # of a column with int32 offsets


class CellError(Exception):
    """The cell of ``row`` does not fit the column's type. The caller converts it to a DecodeError
    with names and versions; it contains no value on purpose.
    """

    def __init__(self, row: int) -> None:
        super().__init__(row)
        self.row = row


class UnfitCellError(CellError):
    """The cell of ``row`` is right, but not all of its type's values fit the type that was asked
    for. ``reason``: a predicate of the value, without the value.
    """

    def __init__(self, row: int, reason: str) -> None:
        super().__init__(row)
        self.reason = reason


class ColumnTooLargeError(Exception):
    """The column's text exceeds int32 offsets: decode fewer records at once."""


@lru_cache(maxsize=1024)
def arrow_type(logical: str) -> pa.DataType:
    """The Arrow type of a logical type; an unknown one is delivered as text."""
    parameters = decimal_parameters(logical)
    if parameters is not None:
        return pa.decimal128(*parameters)
    element = element_of(logical)
    if element is not None:
        return pa.list_(pa.field("element", arrow_type(element)))  # named as Spark does
    members = members_of(logical)
    if members is not None:
        return pa.struct([pa.field(name, arrow_type(kind)) for name, kind in members])
    return _ARROW_TYPES.get(logical, pa.string())


def column(
    data: UInt8s,
    start: Int32s,
    length: Int32s,
    logical: str,
    target: str | None = None,
    *,
    invalid_dates: int = INVALID_DATE_IS_ERROR,
) -> pa.Array:
    """Convert the cells at ``data[start[i] : start[i] + length[i]]``; ``length[i]`` < 0 is null.

    Args:
        data: uint8[...], the payload buffer.
        start: int32[n].
        length: int32[n].
        logical: the type that the texts were written as; of composites with fewer attributes than
            ``target``, the others are NULL, with more, they are left out: a type that keeps its
            attributes only gets more.
        target: the type of the result; ``logical`` if None. The texts are parsed as ``target``, as
            ALTER TYPE in the source does, except in the two cases below.
        invalid_dates: how to convert dates that no calendar has (``0000-00-00``), see
            `tidelog.codecs.columns.times`.

    Raises:
        CellError: a text is not of the type, or does not fit.
        UnfitCellError: ``target`` is one of the types that only who reads asks for
            (`tidelog.model.schema.NATIVE`), which don't fit all values.
    """
    target = target or logical
    element = element_of(target)
    if element is not None:
        nested = target.startswith("multirange(") or element_of(element) is not None
        convert_lists = _lists_of_groups if nested else _lists
        written = element_of(logical) or logical
        elements = (written if "struct(" in written else element, element)
        return convert_lists(data, start, length, elements, arrow_type(target))
    if target == "interval":
        return _intervals(data, start, length, arrow_type(target))
    members = members_of(target)
    if members is not None and target.startswith("range("):
        return _ranges(data, start, length, members, arrow_type(target))
    if members is not None:
        attributes = (members_of(logical) if logical.startswith("struct(") else None) or members
        arrays = _members(data, start, length, attributes, members)
        buffers = [validity(length)]
        return pa.Array.from_buffers(arrow_type(target), len(start), buffers, children=arrays)
    if logical != target and not is_native(target):
        if logical == "float32" and target == "float64":
            # The database widens the float32 value, not its shortest text.
            return _floats(data, start, length, pa.float32()).cast(pa.float64())
        if logical == "bool":
            return _booleans(data, start, length, pa.bool_()).cast(arrow_type(target))
    parameters = decimal_parameters(target)
    if parameters is not None and target.startswith("numeric"):
        return _numbers(data, start, length, pa.decimal128(*parameters))
    if parameters is not None:
        rounding = logical != target
        return _decimals(data, start, length, pa.decimal128(*parameters), rounding)
    if target == "date":
        return _dates(data, start, length, arrow_type(target), invalid_dates)
    if target in ("timestamp", "timestamptz"):
        return _timestamps(data, start, length, arrow_type(target), invalid_dates)
    convert = _CONVERSIONS.get(target, _texts)
    return convert(data, start, length, arrow_type(target))


def validity(length: Int32s) -> pa.Buffer | None:
    """Arrow's validity bitmap; None if no length is negative."""
    valid = length >= 0
    if valid.all():
        return None
    return bitmap(valid)


def _require_parsed(bad_row: int) -> None:
    if bad_row >= 0:
        raise CellError(int(bad_row))


def _fixed(kind: pa.DataType, length: Int32s, values: npt.NDArray[np.generic]) -> pa.Array:
    return pa.Array.from_buffers(kind, len(length), [validity(length), pa.py_buffer(values)])


def _booleans(data: UInt8s, start: Int32s, length: Int32s, kind: pa.DataType) -> pa.Array:
    out = np.empty(len(start), dtype=np.uint8)
    _require_parsed(kernels.booleans(data, start, length, out))
    return pa.Array.from_buffers(kind, len(length), [validity(length), bitmap(out.view(np.bool_))])


def _integers(data: UInt8s, start: Int32s, length: Int32s, kind: pa.DataType) -> pa.Array:
    dtype, low, high = _INTEGERS[kind]
    out = np.empty(len(start), dtype)
    _require_parsed(kernels.integers(data, start, length, low, high, out))
    return _fixed(kind, length, out)


def _floats(data: UInt8s, start: Int32s, length: Int32s, kind: pa.DataType) -> pa.Array:
    single = kind == pa.float32()
    out = np.empty(len(start), dtype=np.float64)
    slow = np.empty(len(start), dtype=np.bool_)
    _require_parsed(kernels.floats(data, start, length, single, out, slow))
    values = out.astype(np.float32) if single else out
    rows = np.flatnonzero(slow)
    if len(rows):
        texts = _texts(data, start[rows], length[rows], pa.string())
        parsed = texts.cast(kind).to_numpy()  # the kernel has checked the grammar
        too_large = np.isinf(parsed)
        if too_large.any():
            raise CellError(int(rows[np.argmax(too_large)]))
        values[rows] = parsed
    return _fixed(kind, length, values)


def _decimals(
    data: UInt8s, start: Int32s, length: Int32s, kind: pa.DataType, rounding: bool
) -> pa.Array:
    out = np.empty((len(start), 2), dtype=np.uint64)
    null = np.empty(len(start), dtype=np.bool_)
    _require_parsed(
        kernels.decimals(data, start, length, kind.precision, kind.scale, rounding, out, null)
    )
    return pa.Array.from_buffers(kind, len(start), [_valid(null), pa.py_buffer(out)])


def _numbers(data: UInt8s, start: Int32s, length: Int32s, kind: pa.DataType) -> pa.Array:
    """Numbers without limits: each is held exactly, or refused."""
    try:
        found = _decimals(data, start, length, kind, False)
    except CellError as error:
        raise UnfitCellError(error.row, "is infinite, or has too many digits") from None
    if found.null_count > np.count_nonzero(length < 0):
        valid = found.is_valid().to_numpy(zero_copy_only=False)
        raise UnfitCellError(int(np.argmax((length >= 0) & ~valid)), "is NaN")
    return found


_Written = tuple[str, str]  # a type as it was written, and as it is read


def _lists(
    data: UInt8s, start: Int32s, length: Int32s, element: _Written, kind: pa.DataType
) -> pa.Array:
    offsets = np.empty(len(start) + 1, dtype=np.int32)
    counted = structure_kernels.count_elements(data, start, length, offsets)
    starts, lengths = _element_places(counted, offsets)
    out = _room(length)
    row = structure_kernels.split_elements(data, start, length, out, starts, lengths)
    if row >= 0:
        raise UnfitCellError(int(row), "is no array")
    out.flags.writeable = False
    return _list_array(kind, length, offsets, element, (out, starts, lengths))


def _lists_of_groups(
    data: UInt8s, start: Int32s, length: Int32s, element: _Written, kind: pa.DataType
) -> pa.Array:
    """Arrays of arrays, and multiranges."""
    offsets = np.empty(len(start) + 1, dtype=np.int32)
    counted = structure_kernels.count_groups(data, start, length, offsets)
    starts, lengths = _element_places(counted, offsets)
    structure_kernels.split_groups(data, start, length, starts, lengths)
    return _list_array(kind, length, offsets, element, (data, starts, lengths))


def _element_places(counted: tuple[int, int], offsets: Int32s) -> tuple[Int32s, Int32s]:
    """Memory for where the elements that a kernel has counted are. Raises what it says of a row."""
    row, why = counted
    if row >= 0:
        raise UnfitCellError(int(row), _REASONS[why])
    starts = np.empty(int(offsets[-1]), dtype=np.int32)
    return starts, np.empty_like(starts)


_Cells = tuple[UInt8s, Int32s, Int32s]


def _list_array(
    kind: pa.DataType, length: Int32s, offsets: Int32s, element: _Written, cells: _Cells
) -> pa.Array:
    try:
        elements = column(*cells, *element)
    except CellError as error:
        row = int(np.searchsorted(offsets, error.row, side="right")) - 1
        raise _unfit_part(row, error, "element", element[1]) from None
    buffers = [validity(length), pa.py_buffer(offsets)]
    return pa.Array.from_buffers(kind, len(length), buffers, children=[elements])


def _unfit_part(row: int, error: CellError, part: str, logical: str) -> UnfitCellError:
    why = error.reason if isinstance(error, UnfitCellError) else f"is no {logical}"
    return UnfitCellError(row, f"has an {part} that {why}")


def _room(length: Int32s) -> UInt8s:
    """Memory for the texts of the parts of cells."""
    return np.empty(int(np.maximum(length, 0).sum(dtype=np.int64)) or 1, dtype=np.uint8)


_Members = Sequence[tuple[str, str]]


def _ranges(
    data: UInt8s, start: Int32s, length: Int32s, members: _Members, kind: pa.DataType
) -> pa.Array:
    flags = np.empty((3, len(start)), dtype=np.uint8)
    row = structure_kernels.range_flags(data, start, length, flags)
    if row >= 0:
        raise UnfitCellError(int(row), "is no range")
    bounded = np.where(flags[2], np.int32(-1), length).astype(np.int32)
    arrays = _members(data, start, bounded, members[:2], members[:2])
    for each in flags.view(np.bool_):
        buffers = [validity(length), bitmap(each)]
        arrays.append(pa.Array.from_buffers(pa.bool_(), len(start), buffers))
    return pa.Array.from_buffers(kind, len(start), [validity(length)], children=arrays)


def _members(
    data: UInt8s, start: Int32s, length: Int32s, written: _Members, members: _Members
) -> list[pa.Array]:
    """The columns of ``members``, of texts that have those ``written``: the first ones are the
    same, whatever their names.
    """
    starts = np.empty((len(written), len(start)), dtype=np.int32)
    lengths = np.empty_like(starts)
    out = _room(length)
    row = structure_kernels.split_members(data, start, length, out, starts, lengths)
    if row >= 0:
        raise UnfitCellError(int(row), "has other attributes than its type has now")
    out.flags.writeable = False
    arrays = []
    for number, (_, logical) in enumerate(members):
        if number >= len(written):
            arrays.append(pa.nulls(len(start), arrow_type(logical)))
            continue
        try:
            cells = out, starts[number], lengths[number]
            arrays.append(column(*cells, written[number][1], logical))
        except CellError as error:
            raise _unfit_part(error.row, error, "attribute", logical) from None
    return arrays


def _intervals(data: UInt8s, start: Int32s, length: Int32s, kind: pa.DataType) -> pa.Array:
    months, days, micros = (np.empty(len(start), dtype=np.int64) for _ in range(3))
    row = structure_kernels.intervals(data, start, length, months, days, micros)
    if row >= 0:
        raise UnfitCellError(int(row), "is infinite, or no interval")
    arrays = [
        _fixed(pa.int32(), length, months.astype(np.int32)),
        _fixed(pa.int32(), length, days.astype(np.int32)),
        _fixed(pa.int64(), length, micros),
    ]
    return pa.Array.from_buffers(kind, len(start), [validity(length)], children=arrays)


def _times_of_day(data: UInt8s, start: Int32s, length: Int32s, kind: pa.DataType) -> pa.Array:
    out = np.empty(len(start), dtype=np.int64)
    row = structure_kernels.times_of_day(data, start, length, out)
    if row >= 0:
        raise UnfitCellError(int(row), "is no time of day before 24:00")
    return _fixed(kind, length, out * 1_000)


def _maps(data: UInt8s, start: Int32s, length: Int32s, kind: pa.DataType) -> pa.Array:
    offsets = np.empty(len(start) + 1, dtype=np.int32)
    row = structure_kernels.count_pairs(data, start, length, offsets)
    if row >= 0:
        raise UnfitCellError(int(row), "is no hstore")
    starts = np.empty((2, int(offsets[-1])), dtype=np.int32)
    lengths = np.empty_like(starts)
    out = _room(length)
    structure_kernels.split_pairs(data, start, length, out, starts, lengths)
    out.flags.writeable = False
    parts = [_texts(out, starts[part], lengths[part], pa.string()) for part in range(2)]
    entries = pa.StructArray.from_arrays(parts, fields=[kind.key_field, kind.item_field])
    buffers = [validity(length), pa.py_buffer(offsets)]
    return pa.Array.from_buffers(kind, len(start), buffers, children=[entries])


def _variants(data: UInt8s, start: Int32s, length: Int32s, kind: pa.DataType) -> pa.Array:
    most = np.empty(json_kernels.ROW_BYTES + 1, dtype=np.int64)
    json_kernels.measure_json(data, start, length, most)
    values = np.empty(most[json_kernels.VALUE_BYTES], dtype=np.uint8)
    metadata = np.empty(most[json_kernels.METADATA_BYTES], dtype=np.uint8)
    ends, metadata_ends = (np.empty(len(start) + 1, dtype=np.int64) for _ in range(2))
    doubles = np.empty((most[json_kernels.DOUBLES], 3), dtype=np.int64)
    row, why, count = json_kernels.write_variants(
        data, start, length, most, values, ends, metadata, metadata_ends, doubles
    )
    if row >= 0:
        raise UnfitCellError(int(row), _NO_VARIANT[why])
    if max(ends[-1], metadata_ends[-1]) > _MAX_BYTES:
        raise ColumnTooLargeError
    if count:
        _write_doubles(data, doubles[:count], values, ends)
    binaries = [_sliced(values, ends), _sliced(metadata, metadata_ends)]
    return pa.Array.from_buffers(kind, len(start), [validity(length)], children=binaries)


def _write_doubles(
    data: UInt8s, doubles: npt.NDArray[np.int64], values: UInt8s, ends: npt.NDArray[np.int64]
) -> None:
    """Write the numbers that `write_variants` left."""
    places, starts, lengths = doubles.T
    texts = _texts(data, starts.astype(np.int32), lengths.astype(np.int32), pa.string())
    numbers = texts.cast(pa.float64()).to_numpy()  # the kernel has checked the grammar
    too_large = np.isinf(numbers)
    if too_large.any():
        row = int(np.searchsorted(ends, places[np.argmax(too_large)], side="right")) - 1
        raise UnfitCellError(row, "has a number that no double holds")
    values[places[:, None] + np.arange(8)] = numbers.astype("<f8").view(np.uint8).reshape(-1, 8)


def _sliced(data: UInt8s, ends: npt.NDArray[np.int64]) -> pa.BinaryArray:
    buffers = [None, pa.py_buffer(ends.astype(np.int32)), pa.py_buffer(data[: ends[-1]])]
    return pa.Array.from_buffers(pa.binary(), len(ends) - 1, buffers)


def _dates(
    data: UInt8s, start: Int32s, length: Int32s, kind: pa.DataType, invalid: int
) -> pa.Array:
    out = np.empty(len(start), dtype=np.int32)
    null = np.empty(len(start), dtype=np.bool_)
    _require_parsed(times.dates(data, start, length, invalid, out, null))
    return pa.Array.from_buffers(kind, len(start), [_valid(null), pa.py_buffer(out)])


def _timestamps(
    data: UInt8s, start: Int32s, length: Int32s, kind: pa.DataType, invalid: int
) -> pa.Array:
    out = np.empty(len(start), dtype=np.int64)
    null = np.empty(len(start), dtype=np.bool_)
    _require_parsed(times.timestamps(data, start, length, invalid, out, null))
    return pa.Array.from_buffers(kind, len(start), [_valid(null), pa.py_buffer(out)])


def _valid(null: npt.NDArray[np.bool_]) -> pa.Buffer | None:
    return bitmap(~null) if null.any() else None


def _texts(data: UInt8s, start: Int32s, length: Int32s, kind: pa.DataType) -> pa.Array:
    offsets = np.empty(len(start) + 1, dtype=np.int32)
    total = kernels.text_offsets(length, offsets)
    if total > _MAX_BYTES:
        raise ColumnTooLargeError
    out = np.empty(total, dtype=np.uint8)
    kernels.gather(data, start, length, offsets, out)
    buffers = [validity(length), pa.py_buffer(offsets), pa.py_buffer(out)]
    return pa.Array.from_buffers(kind, len(start), buffers)


def _binaries(data: UInt8s, start: Int32s, length: Int32s, kind: pa.DataType) -> pa.Array:
    offsets = np.empty(len(start) + 1, dtype=np.int32)
    _require_parsed(kernels.hex_offsets(data, start, length, offsets))
    out = np.empty(int(offsets[-1]), dtype=np.uint8)
    _require_parsed(kernels.hex_bytes(data, start, length, offsets, out))
    buffers = [validity(length), pa.py_buffer(offsets), pa.py_buffer(out)]
    return pa.Array.from_buffers(kind, len(start), buffers)


_Conversion = Callable[[UInt8s, Int32s, Int32s, pa.DataType], pa.Array]
_CONVERSIONS: dict[str, _Conversion] = {
    "bool": _booleans,
    "int16": _integers,
    "int32": _integers,
    "int64": _integers,
    "float32": _floats,
    "float64": _floats,
    "binary": _binaries,
    "text": _texts,
    "bytes": _texts,
    "variant": _variants,
    "map": _maps,
    "time": _times_of_day,
}
