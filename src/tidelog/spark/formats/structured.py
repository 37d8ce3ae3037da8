"""Converts columns that are texts or bytes in the log and structured values in Debezium: arrays,
numbers beyond 38 digits or of any scale, ``hstore``, geometries.

As ``PostgresValueConverter`` and ``BinlogValueConverters`` of Debezium. A column that a step of an
output has computed is written unchanged.
"""

from __future__ import annotations

import base64
import json
import math
import re
import struct
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa

from tidelog.codecs.columns.values import CellError, column
from tidelog.model.option_values import DecimalMode
from tidelog.model.schema import element_logical

_DATA = "io.debezium.data."
_NUMBER = re.compile(r"(?:numeric|decimal)(?:\((\d+)(?:, ?(-?\d+))?\))?( .*)?", re.IGNORECASE)
_MOST_DIGITS = 38  # of decimals with a type of their own
_HSTORE = re.compile(r'"((?:[^"\\]|\\.)*)"=>(?:NULL|"((?:[^"\\]|\\.)*)")')
_GEOMETRIES = re.compile(
    r"(?:[^.]+\.)?(geometry|geography|point|linestring|polygon|multipoint|multilinestring"
    r"|multipolygon|geometrycollection|geomcollection)\b.*",
    re.IGNORECASE,
)
_EWKB_SRID = 0x2000_0000
_WKB_POINT_BYTES = 21
# An array's elements: a brace, a separator, a quoted element, or a plain one.
_TOKEN = re.compile(r'[{},]|"((?:[^"\\]|\\.)*)"|([^{},"]+)')
Leaves = list[str | None]
Schema = dict[str, Any]


def element_type(type_name: str) -> str:
    """Return the logical type that elements of this type decode to."""
    number = _NUMBER.fullmatch(type_name)
    if number is not None and number[1] and int(number[1]) <= _MOST_DIGITS:
        precision, scale = int(number[1]), int(number[2] or 0)
        return f"decimal({precision},{scale})" if 0 <= scale <= precision else "text"
    return element_logical(type_name)


def array_texts(
    values: pa.StringArray,
    element: str,
    texts_of: Callable[[pa.Array], pa.StringArray],
    *,
    typed: bool,
) -> pa.StringArray | None:
    """Return arrays as JSON arrays; those of several dimensions nested. None if a text is no
    array.

    Args:
        values: the source's texts.
        element: the type of the elements.
        texts_of: returns the JSON texts of elements, of the type that they decode to.
        typed: whether arrays of several dimensions are null, because the type does not allow them.
    """
    leaves: Leaves = []
    shapes: list[str | None] = []
    for text in values.to_pylist():
        shape = None if text is None else _split_leaves(text, leaves)
        if text is not None and shape is None:
            return None
        shapes.append(shape)
    decoded = _decoded(leaves, element_type(element))
    if decoded is None:
        return None
    texts = iter(each or "null" for each in texts_of(decoded).to_pylist())
    filled = [s and "".join(next(texts) if c == "." else c for c in s) for s in shapes]
    if typed:
        nested = [s is not None and s.count("[") > 1 for s in shapes]
        filled = [None if many else text for text, many in zip(filled, nested, strict=True)]
    return pa.array(filled, pa.string())


def _split_leaves(text: str, leaves: Leaves) -> str | None:
    """Return JSON's brackets and commas with a point for each element, which is added to
    ``leaves``.
    """
    if text.startswith("["):  # bounds, if they do not start at 1
        text = text.partition("=")[2]
    shape, at = [], 0
    while at < len(text):
        found = _TOKEN.match(text, at)
        if found is None:
            return None
        at = found.end()
        part = found[0]
        if part in "{},":
            shape.append({"{": "[", "}": "]"}.get(part, part))
            continue
        shape.append(".")
        if found[1] is not None:
            leaves.append(re.sub(r"\\(.)", r"\1", found[1], flags=re.DOTALL))
        else:
            leaves.append(None if part == "NULL" else part)
    return "".join(shape) if shape and shape[0] == "[" and shape[-1] == "]" else None


def _decoded(leaves: Leaves, logical: str) -> pa.Array | None:
    encoded = [None if leaf is None else leaf.encode() for leaf in leaves]
    length = np.array([-1 if e is None else len(e) for e in encoded], np.int32)
    sizes = np.maximum(length, 0)
    start = (np.cumsum(sizes) - sizes).astype(np.int32)
    data = np.frombuffer(b"".join(e or b"" for e in encoded) or b"\0", np.uint8)
    try:
        return column(data, start, length, logical)
    except CellError:
        return None


def number_scale(type_name: str) -> tuple[int | None] | None:
    """Return the scale of a number's type, in a tuple, in which None means any scale; None:
    another type.
    """
    found = _NUMBER.fullmatch(type_name)
    if found is None:
        return None
    return (int(found[2] or 0) if found[1] else None,)


def number_texts(
    values: pa.StringArray, scale: int | None, mode: DecimalMode, *, typed: bool
) -> pa.StringArray | None:
    """Return numbers as JSON, in modes ``precise`` and ``double``. None if a text is no number.

    ``typed``: numbers that are not finite are null in mode ``precise``, because the type does not
    allow them.
    """
    found: list[str | None] = []
    for text in values.to_pylist():
        if text is None:
            found.append(None)
            continue
        try:
            number = Decimal(text)
        except ArithmeticError:
            return None
        if not number.is_finite():
            found.append(None if typed and mode == "precise" else f'"{text}"')
        elif mode == "double":
            found.append(java_double(float(number)))
        else:
            found.append(_precise(number, scale))
    return pa.array(found, pa.string())


def java_double(value: float) -> str:
    """Return the text of a double as Java writes it, for JSON: one that is not finite is a
    string.
    """
    if not math.isfinite(value):
        return '"NaN"' if math.isnan(value) else '"Infinity"' if value > 0 else '"-Infinity"'
    if value == 0 or 1e-3 <= abs(value) < 1e7:
        return repr(value)
    sign, digits, exponent = Decimal(repr(value)).normalize().as_tuple()
    assert isinstance(exponent, int)  # finite
    rest = "".join(map(str, digits[1:])) or "0"
    return f"{'-' * sign}{digits[0]}.{rest}E{exponent + len(digits) - 1}"


def _precise(number: Decimal, scale: int | None) -> str:
    if scale is not None:
        return f'"{unscaled(number, scale)}"'
    _, digits, exponent = number.as_tuple()
    assert isinstance(exponent, int)  # finite
    while exponent < 0 and digits[-1] == 0:  # trailing zeros have no meaning
        digits, exponent = digits[:-1] or (0,), exponent + 1
    own = max(0, -exponent)
    return f'{{"scale":{own},"value":"{unscaled(number, own)}"}}'


def unscaled(number: Decimal, scale: int) -> str:
    """Return ``number`` times ``10**scale`` as the bytes of Java's BigInteger, in Base64."""
    sign, digits, exponent = number.as_tuple()
    assert isinstance(exponent, int)  # finite
    value = int(Decimal((0, digits, 0)))  # int() accepts texts of at most 4,300 digits
    shift = scale + exponent
    value = value * 10**shift if shift >= 0 else value // 10**-shift
    value = -value if sign else value
    size = (value if value >= 0 else ~value).bit_length() // 8 + 1
    return base64.b64encode(value.to_bytes(size, "big", signed=True)).decode()


def is_hstore(type_name: str) -> bool:
    """Is it the extension's type, in whatever schema?"""
    return type_name.rpartition(".")[2] == "hstore"


def hstore_texts(values: pa.StringArray) -> pa.StringArray:
    """Return each as the text of a JSON object, in the server's order; not yet quoted."""
    return pa.array([None if v is None else _hstore(v) for v in values.to_pylist()], pa.string())


def _hstore(text: str) -> str:
    pairs = {_plain(found[1]): _plain(found[2]) for found in _HSTORE.finditer(text)}
    return json.dumps(pairs, ensure_ascii=False, separators=(",", ":"))


def _plain(text: str | None) -> str | None:
    return None if text is None else re.sub(r"\\(.)", r"\1", text, flags=re.DOTALL)


def geometry_of(kind: pa.DataType, type_name: str) -> str | None:
    """Return ``point``, ``geometry`` or ``geography``: Debezium's type for a column of MySQL,
    MariaDB (bytes) or PostGIS; None for another type. PostgreSQL's own ``point`` is a text, not
    WKB.
    """
    found = _GEOMETRIES.fullmatch(type_name)
    if found is None:
        return None
    name = found[1].lower()
    if pa.types.is_binary(kind):
        return "point" if name == "point" else "geometry"
    return name if name in ("geometry", "geography") and pa.types.is_string(kind) else None


def geometry_texts(values: pa.Array, shape: str) -> pa.StringArray | None:
    """Return JSON objects of WKB and SRID. None if a value is no geometry."""
    found: list[str | None] = []
    for value in values.to_pylist():
        if value is None:
            found.append(None)
            continue
        try:
            # MySQL's and MariaDB's come without their SRID (docs/reference/debezium.md).
            wkb, srid = (value, 0) if isinstance(value, bytes) else _of_ewkb(value)
        except (ValueError, struct.error):
            return None
        members = ""
        if shape == "point" and len(wkb) == _WKB_POINT_BYTES:
            x, y = struct.unpack_from("<dd" if wkb[0] else ">dd", wkb, 5)
            members = f'"x":{java_double(x)},"y":{java_double(y)},'
        encoded = base64.b64encode(wkb).decode()
        found.append(f'{{{members}"wkb":"{encoded}","srid":{srid or "null"}}}')
    return pa.array(found, pa.string())


def _of_ewkb(text: str) -> tuple[bytes, int]:
    ewkb = bytes.fromhex(text)
    order = "<" if ewkb[0] else ">"
    kind, srid = struct.unpack_from(f"{order}II", ewkb, 1)
    return ewkb, srid if kind & _EWKB_SRID else 0


def array_schema(items: Schema) -> Schema:
    """Return Connect's schema of arrays of ``items``."""
    return {"type": "array", "items": {**items, "optional": True}}


def variable_scale_schema() -> Schema:
    """Return Connect's schema of numbers of any scale."""
    return _object("VariableScaleDecimal", [("int32", False, "scale"), ("bytes", False, "value")])


def geometry_schema(shape: str) -> Schema:
    """Return Connect's schema of the results of `geometry_texts`."""
    members = [("bytes", False, "wkb"), ("int32", True, "srid")]
    if shape == "point":
        members = [("double", False, "x"), ("double", False, "y"), *members]
    return _object(f"geometry.{shape.capitalize()}", members)


def _object(name: str, members: list[tuple[str, bool, str]]) -> Schema:
    fields = [{"type": kind, "optional": null, "field": field} for kind, null, field in members]
    return {"type": "struct", "fields": fields, "name": _DATA + name, "version": 1}
