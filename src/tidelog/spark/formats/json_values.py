"""Converts columns to JSON texts, as Debezium's connectors with Kafka Connect's converter do.

Kernels build the texts, so that the cost is per column and batch, not per row and cell.

Of bit strings one bit is a boolean, more are bytes, the least significant first; as
``PostgresValueConverter.convertBits`` and ``JdbcValueConverters.padLittleEndian`` of Debezium:
PostgreSQL's have only the bytes up to the highest set bit, MySQL's have all bytes.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar, get_args

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidelog.codecs.columns.concatenation import KeyPiece, TextCells, has_escapes, join
from tidelog.codecs.columns.times import MICROSECONDS, SHORTEST, date_texts, timestamp_texts
from tidelog.codecs.wire_formats import wire_format
from tidelog.errors import ConfigError, OutputError
from tidelog.model.option_values import BigintUnsignedMode, BinaryMode, DecimalMode, TimeMode
from tidelog.model.records import Bools
from tidelog.model.schema import TableSchema, element_name
from tidelog.spark.formats import structured
from tidelog.spark.formats.structured import java_double, unscaled

# Bit strings.

_BITS = re.compile(r"bit( varying)?(?:\((\d+)\))?", re.IGNORECASE)
_UNLIMITED = 2**31 - 1


def bits_of(type_name: str) -> int | None:
    """Return the most bits that a column of this type has; None: it is no bit type."""
    found = _BITS.fullmatch(type_name)
    if found is None:
        return None
    return int(found[2]) if found[2] else _UNLIMITED if found[1] else 1


def are_bits(values: pa.Array) -> bool:
    """Return True if the values are bits as the log has them, and not the result of a step."""
    kind = values.type
    if pa.types.is_int64(kind) or pa.types.is_decimal(kind):
        return not pc.any(pc.less(values, pa.scalar(0).cast(kind))).as_py()
    if not pa.types.is_string(kind):
        return False
    return not pc.any(pc.match_substring_regex(values, "[^01]")).as_py()


def bit_texts(values: pa.Array, bits: int) -> pa.StringArray:
    """Return the JSON texts of PostgreSQL's texts of noughts and ones, or of MySQL's numbers."""
    if bits == 1:
        return pc.if_else(pc.equal(values.cast(pa.string()), "1"), "true", "false")
    ours = pa.types.is_string(values.type)
    found = [
        None if value is None else _bytes(int(value or "0", 2) if ours else int(value), ours, bits)
        for value in values.to_pylist()
    ]
    return pa.array(found, pa.string())


def _bytes(number: int, shortest: bool, bits: int) -> str:
    size = (max(number.bit_length(), 0 if shortest else bits) + 7) // 8
    return f'"{base64.b64encode(number.to_bytes(size, "little")).decode()}"'


# All values.

UNAVAILABLE = "__debezium_unavailable_value"
_ESCAPES = (("\\", "\\\\"), ('"', '\\"'), ("\n", "\\n"), ("\r", "\\r"), ("\t", "\\t"))
_RARE = "[\\x00-\\x1f\\x{10000}-\\x{10ffff}]"  # Jackson writes these as \uXXXX
_PRECISION = re.compile(r"\((\d)\)")
_WITHOUT_ZONE = " without time zone"
_TIME = re.compile(rf"time(\(\d\))?({_WITHOUT_ZONE})?", re.IGNORECASE)
_TIME_PARTS = r"^(?P<s>-?)(?P<h>\d+):(?P<m>\d+):(?P<x>\d+)\.?(?P<f>\d*)$"
_UNSIGNED_BIGINT = re.compile(r"bigint.* unsigned.*", re.IGNORECASE)
_TIME_WITHOUT_DIGITS = re.compile(r"(datetime|timestamp|time)(?!\w|\()", re.IGNORECASE)
_MILLISECONDS = 3  # digits: what Debezium's adaptive modes write as milliseconds


@dataclass(frozen=True, slots=True)
class ValueModes:
    """How values are written that JSON has no type for; named as Debezium's properties."""

    decimal: DecimalMode = "string"
    time: TimeMode = "microseconds"
    binary: BinaryMode = "base64"
    bigint_unsigned: BigintUnsignedMode = "long"
    schemas: bool = False
    """Are values sent with a schema? Then each must have its column's type."""
    extended_headers: bool = True
    """Have messages headers of connector and task?"""

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> ValueModes:
        """Return the modes of the source's options, in lower case. Raises ConfigError."""
        return cls(
            _choice(options, "decimalhandlingmode", "string", get_args(DecimalMode)),
            _choice(options, "timeprecisionmode", "microseconds", get_args(TimeMode)),
            _choice(options, "binaryhandlingmode", "base64", get_args(BinaryMode)),
            _choice(options, "bigintunsignedhandlingmode", "long", get_args(BigintUnsignedMode)),
        )


PLAIN_HANDLING = ValueModes()
_T = TypeVar("_T")


def _choice(options: Mapping[str, str], name: str, default: _T, known: tuple[_T, ...]) -> _T:
    text = options.get(name, default)
    for each in known:
        if each == text:
            return each
    spelled = ", ".join(map(str, known))
    raise ConfigError(f"tidelog source: option {name!r} must be one of {spelled}, not {text!r}")


def type_names(schema: TableSchema) -> dict[str, str]:
    """Return, by column, the source's own spelling of its type, with the implied precision:
    ``datetime`` of MySQL and MariaDB has whole seconds, ``timestamp`` of PostgreSQL microseconds.
    """
    digits = wire_format(schema).fraction_digits
    if digits == MICROSECONDS:
        return {column.name: column.type_name for column in schema.columns}
    implied = rf"\1({digits})"
    return {c.name: _TIME_WITHOUT_DIGITS.sub(implied, c.type_name, count=1) for c in schema.columns}


def json_rows(
    rows: pa.StructArray,
    names: Sequence[str],
    missing: Bools | None = None,
    handling: ValueModes = PLAIN_HANDLING,
    types: Mapping[str, str] | None = None,
) -> pa.StringArray:
    """Return each row as a JSON object of the columns ``names``; null for a null row.

    Args:
        rows: rows with the columns.
        names: names of the columns, in order.
        missing: bool[n, names]: cells that the log does not have.
        handling: modes for values that JSON has no type for.
        types: the result of `type_names`; with it, times of day are numbers.
    """
    n = len(rows)
    if rows.null_count == n:
        return pa.nulls(n, pa.string())
    pieces: list[KeyPiece] = []
    for number, name in enumerate(names):
        pieces.append(("{" if not number else ",") + json.dumps(name, ensure_ascii=False) + ":")
        values = rows.field(rows.type.get_field_index(name))
        cells = _cells(values, handling, None if types is None else types.get(name))
        if missing is not None and missing[:, number].any():
            unknown = pa.array(missing[:, number])
            type_name = None if types is None else types.get(name)
            placeholder = _unavailable(values.type, handling, type_name)
            cells = TextCells(pc.if_else(unknown, placeholder, cells.texts()))
        pieces.append(cells)
    text = join_texts(*pieces, "}") if names else pa.repeat(pa.scalar("{}"), n)
    if rows.null_count:
        text = pc.if_else(rows.is_valid(), text, pa.scalar(None, pa.string()))
    return text


def _unavailable(kind: pa.DataType, handling: ValueModes, type_name: str | None) -> pa.Scalar:
    """Return the JSON text, or null, for a value that the log does not have."""
    if not handling.schemas:
        return pa.scalar(f'"{UNAVAILABLE}"')
    if pa.types.is_binary(kind) and structured.geometry_of(kind, type_name or "") is None:
        return pa.scalar(f'"{binary_text(UNAVAILABLE.encode(), handling.binary)}"')
    bits = bits_of(type_name or "")
    if bits is not None and bits > 1 and holds_bits(kind):
        return pa.scalar(f'"{binary_text(UNAVAILABLE.encode(), "base64")}"')
    plain = type_name is None or not (
        is_time(type_name) or _is_structured(kind, handling, type_name)
    )
    text = pa.types.is_string(kind) and plain and bits is None
    return pa.scalar(f'"{UNAVAILABLE}"' if text else None, pa.string())


def _is_structured(kind: pa.DataType, handling: ValueModes, type_name: str) -> bool:
    """Return True if such a column's value is no text in JSON."""
    return (
        element_name(type_name) is not None
        or structured.geometry_of(kind, type_name) is not None
        or (structured.number_scale(type_name) is not None and handling.decimal != "string")
    )


def is_time(type_name: str) -> bool:
    """Is it a time of day, or MySQL's of any length? Such values are written as numbers."""
    return _TIME.fullmatch(type_name) is not None


def is_bigint_unsigned(type_name: str) -> bool:
    """Is it MySQL's BIGINT UNSIGNED, for which Spark has no integer type?"""
    return _UNSIGNED_BIGINT.fullmatch(type_name) is not None


def is_short(mode: TimeMode, type_name: str, *, of_day: bool) -> bool:
    """Does an adaptive mode write such a column as milliseconds?"""
    precision = _PRECISION.search(type_name)
    adaptive = mode == "adaptive" or (mode == "adaptive_time_microseconds" and not of_day)
    return adaptive and precision is not None and int(precision[1]) <= _MILLISECONDS


def json_values(
    values: pa.Array, handling: ValueModes = PLAIN_HANDLING, type_name: str | None = None
) -> pa.StringArray:
    """Return values as JSON text or null. ``type_name``: as ``types`` of `json_rows`."""
    return _cells(values, handling, type_name).texts()


def with_time_texts(values: pa.Array) -> pa.Array:
    """Return the values with their dates, and timestamps without a zone, as ISO 8601's texts, also
    those inside arrays and structs.
    """
    kind = values.type
    if pa.types.is_date32(kind):
        return date_texts(values)
    if pa.types.is_timestamp(kind) and kind.tz is None:
        return timestamp_texts(values.cast(pa.timestamp("us")))
    if pa.types.is_struct(kind):
        members = [with_time_texts(values.field(number)) for number in range(kind.num_fields)]
        names = [field.name for field in kind]
        return pa.StructArray.from_arrays(members, names, mask=values.is_null())
    if pa.types.is_list(kind):
        lengths = pc.fill_null(pc.list_value_length(values), 0).to_numpy(zero_copy_only=False)
        bounds = pa.array(np.concatenate([[0], np.cumsum(lengths)]), pa.int32())
        elements = with_time_texts(values.flatten())
        return pa.ListArray.from_arrays(bounds, elements, mask=values.is_null())
    return values


def join_texts(*pieces: KeyPiece) -> pa.StringArray:
    """Return the pieces one after the other, row by row; a null is written ``null``."""
    return join(pieces, "null")


def _cells(values: pa.Array, handling: ValueModes, type_name: str | None) -> TextCells:
    kind = values.type
    bits = bits_of(type_name or "")
    if bits is not None and are_bits(values):
        return TextCells(bit_texts(values, bits))
    if pa.types.is_nested(kind):
        return _nested(values, handling)
    structured_texts = _structured(values, handling, type_name or "")
    if structured_texts is not None:
        return structured_texts
    if pa.types.is_boolean(kind):
        return TextCells(pc.if_else(values, "true", "false"))
    if pa.types.is_integer(kind):
        return TextCells(values)
    if pa.types.is_floating(kind):
        return TextCells(_floats(values))
    if pa.types.is_date32(kind):
        if handling.time == "isostring":
            return TextCells(date_texts(values), '"', 'Z"')
        return TextCells(values.view(pa.int32()))
    if pa.types.is_timestamp(kind):
        return _timestamps(values, handling.time, type_name or "")
    if pa.types.is_decimal(kind):
        if is_bigint_unsigned(type_name or "") and handling.bigint_unsigned == "long":
            return TextCells(values.cast(pa.string()))
        return _decimals(values, handling.decimal)
    if pa.types.is_binary(kind):
        return _binaries(values, handling.binary)
    if pa.types.is_time(kind):
        return TextCells(values.cast(pa.time64("us")).cast(pa.string()), '"', '"')
    if type_name is not None and is_time(type_name):
        return _times(values, handling.time, type_name)
    return _quoted(values)


def _structured(values: pa.Array, handling: ValueModes, type_name: str) -> TextCells | None:
    """Return the cells of a column whose text or bytes have a structure; None for other
    columns.
    """
    shape = structured.geometry_of(values.type, type_name)
    found = None if shape is None else structured.geometry_texts(values, shape)
    if pa.types.is_string(values.type):
        element = element_name(type_name)
        scale = structured.number_scale(type_name)
        if element is not None:
            found = structured.array_texts(
                values,
                element,
                lambda leaves: _cells(leaves, handling, element).texts(),
                typed=handling.schemas,
            )
        elif scale is not None and handling.decimal != "string":
            mode, typed = handling.decimal, handling.schemas
            found = structured.number_texts(values, scale[0], mode, typed=typed)
        elif structured.is_hstore(type_name):
            return _quoted(structured.hstore_texts(values))
    return None if found is None else TextCells(found)


def _nested(values: pa.Array, handling: ValueModes) -> TextCells:
    """Return arrays as JSON's, and structs and maps as objects."""
    kind = values.type
    if pa.types.is_struct(kind):
        return TextCells(json_rows(values, [field.name for field in kind], None, handling))
    opening, closing = "[", "]"
    if pa.types.is_map(kind):
        opening, closing = "{", "}"
        values = values.cast(pa.list_(pa.struct([kind.key_field, kind.item_field])))
        keys, found = values.flatten().flatten()
        elements = join_texts(_quoted(keys.cast(pa.string())), ":", _cells(found, handling, None))
    else:
        elements = join_texts(_cells(values.flatten(), handling, None))
    lengths = pc.fill_null(pc.list_value_length(values), 0).to_numpy(zero_copy_only=False)
    bounds = pa.array(np.concatenate([[0], np.cumsum(lengths)]), pa.int64())
    lists = pa.LargeListArray.from_arrays(bounds, elements.cast(pa.large_string()))
    joined = pc.binary_join(lists, pa.scalar(",", pa.large_string())).cast(pa.string())
    is_valid = values.is_valid().to_numpy(zero_copy_only=False)
    return TextCells(joined, opening, closing, None if is_valid.all() else is_valid)


def holds_bits(kind: pa.DataType) -> bool:
    """Can a column of this type be one of bits, as the log has it?"""
    return bool(pa.types.is_string(kind) or pa.types.is_int64(kind) or pa.types.is_decimal(kind))


def _floats(values: pa.Array) -> pa.StringArray:
    """Return texts of floats as Java writes them."""
    texts = values.cast(pa.string())
    sizes = pc.abs(values)
    whole = pc.and_(pc.invert(pc.match_substring(texts, ".")), pc.less(sizes, 1e7))
    usual = pc.if_else(whole, pc.binary_join_element_wise(texts, ".0", ""), texts)
    plain = pc.or_(pc.and_(pc.greater_equal(sizes, 1e-3), pc.less(sizes, 1e7)), pc.equal(values, 0))
    rest = pc.fill_null(pc.invert(plain), False)
    if not pc.any(rest).as_py():
        return usual
    spelled = [java_double(float(text)) for text in texts.filter(rest).to_pylist()]
    return pc.replace_with_mask(usual, rest, pa.array(spelled, pa.string()))


def _timestamps(values: pa.TimestampArray, mode: TimeMode, type_name: str) -> TextCells:
    instants = values.view(pa.int64())
    if values.type.tz is None and mode != "isostring":
        return _micros(instants, mode, type_name)
    if values.type.tz is None:
        digits = SHORTEST
    else:
        precision = _PRECISION.search(type_name)
        digits = MICROSECONDS if precision is None else int(precision[1])
    return TextCells(timestamp_texts(values, digits=digits), '"', 'Z"')


def _times(texts: pa.StringArray, mode: TimeMode, type_name: str) -> TextCells:
    """Return times of day, or MySQL's of any length, in the source's texts."""
    if mode == "isostring":
        if type_name.endswith(_WITHOUT_ZONE):  # MySQL's 24:30:00 is no time of day
            texts = pc.replace_substring_regex(texts, "^24:", "00:")
        return TextCells(texts, '"', 'Z"')
    return _micros(_micros_of(texts), mode, type_name, of_day=True)


def time_micros(texts: pa.StringArray, column: str) -> pa.Int64Array:
    """Return microseconds of times of day, or MySQL's of any length, in the source's texts. Raises
    OutputError, which names the column, if a text is no time.
    """
    micros = _micros_of(texts)
    if micros.null_count != texts.null_count:
        raise OutputError(f"column {column}: a row's value is not a time, though its type says so")
    return micros


def _micros_of(texts: pa.StringArray) -> pa.Int64Array:
    parts = pc.extract_regex(texts, _TIME_PARTS)
    hours, minutes, seconds = (
        pc.struct_field(parts, name).cast(pa.int64()) for name in ("h", "m", "x")
    )
    fraction = pc.utf8_rpad(pc.struct_field(parts, "f"), 6, "0").cast(pa.int64())
    whole = pc.add(pc.multiply(pc.add(pc.multiply(hours, 60), minutes), 60), seconds)
    micros = pc.add(pc.multiply(whole, 1_000_000), fraction)
    negative = pc.equal(pc.struct_field(parts, "s"), "-")
    return pc.if_else(negative, pc.negate(micros), micros)


def _micros(
    micros: pa.Int64Array, mode: TimeMode, type_name: str, of_day: bool = False
) -> TextCells:
    if mode == "connect" or is_short(mode, type_name, of_day=of_day):
        plain = pc.fill_null(micros, 0).to_numpy(zero_copy_only=False) // 1000
        micros = pa.array(plain, mask=micros.is_null().to_numpy(zero_copy_only=False))
    elif mode == "nanoseconds":
        micros = _nanoseconds(micros)
    return TextCells(micros)


def _nanoseconds(micros: pa.Int64Array) -> pa.Int64Array:
    """Return nanoseconds; values beyond 64 bits (before 1677, after 2262) become the least or the
    greatest value.
    """
    limit = np.iinfo(np.int64)
    low, high = int(limit.min) // 1000 + 1, int(limit.max) // 1000
    found = pc.multiply(pc.max_element_wise(pc.min_element_wise(micros, high), low), 1000)
    found = pc.if_else(pc.greater(micros, high), int(limit.max), found)
    return pc.if_else(pc.less(micros, low), int(limit.min), found)


def _decimals(values: pa.Decimal128Array, mode: DecimalMode) -> TextCells:
    if mode == "double":  # by texts: Arrow's own cast of decimals does not give the nearest number
        return TextCells(_floats(values.cast(pa.string()).cast(pa.float64())))
    if mode == "precise":
        scale = values.type.scale
        found = [None if v is None else unscaled(v, scale) for v in values.to_pylist()]
        return TextCells(pa.array(found, pa.string()), '"', '"')
    texts = values.cast(pa.string())
    rest = pc.fill_null(pc.match_substring(texts, "E"), False)
    if pc.any(rest).as_py():
        spelled = [f"{value:f}" for value in values.filter(rest).to_pylist()]
        texts = pc.replace_with_mask(texts, rest, pa.array(spelled, pa.string()))
    return TextCells(texts, '"', '"')


def _binaries(values: pa.BinaryArray, mode: BinaryMode) -> TextCells:
    found = [None if v is None else binary_text(v, mode) for v in values.to_pylist()]
    return TextCells(pa.array(found, pa.string()), '"', '"')


def binary_text(value: bytes, mode: BinaryMode) -> str:
    """Return bytes as a text of JSON."""
    if mode == "hex":
        return value.hex()
    if mode == "base64-url-safe":
        return base64.urlsafe_b64encode(value).decode()
    return base64.b64encode(value).decode()


def _quoted(texts: pa.StringArray) -> TextCells:
    if not has_escapes(texts):
        return TextCells(texts, '"', '"')
    escaped = texts
    for character, code in _ESCAPES:
        escaped = pc.replace_substring(escaped, character, code)
    rest = pc.fill_null(pc.match_substring_regex(escaped, _RARE), False)
    if pc.any(rest).as_py():  # rare, so row by row
        spelled = [_RARE_TEXT.sub(_escape, text) for text in escaped.filter(rest).to_pylist()]
        escaped = pc.replace_with_mask(escaped, rest, pa.array(spelled, pa.string()))
    return TextCells(escaped, '"', '"')


_RARE_TEXT = re.compile("[\x00-\x1f\U00010000-\U0010ffff]")


def _escape(found: re.Match[str]) -> str:
    short = {"\b": "\\b", "\f": "\\f"}.get(found[0])
    units = np.frombuffer(found[0].encode("utf-16-be"), ">u2").tolist()
    return short or "".join(f"\\u{unit:04X}" for unit in units)
