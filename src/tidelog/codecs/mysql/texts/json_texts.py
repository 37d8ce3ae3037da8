"""MySQL's binary JSON → the text that the server prints, and changes to a document applied.

Format: MySQL internals, "JSON binary format" (``sql/json_binary.h``): a type byte, then the value.
An object or array is: count, size (two bytes each, four if large), for an object the keys' places
and lengths, the values' types and places (small values in the place's stead), keys, values. Partial
updates: ``sql/json_diff.h``. `tidelog.codecs.mysql.texts.json_kernel` does the common documents.
"""

from __future__ import annotations

import base64
import re
import struct
from collections.abc import Callable

import numpy as np

from tidelog.codecs.mysql import types
from tidelog.codecs.mysql.texts.number_kernels import put_decimal

_LARGE_OBJECT, _LARGE_ARRAY, _LITERAL = 1, 3, 4
_DOUBLE, _STRING, _OPAQUE = 11, 12, 15
_INTEGERS = {5: "<h", 6: "<H", 7: "<i", 8: "<I", 9: "<q", 10: "<Q"}
_LITERALS = {0: b"null", 1: b"true", 2: b"false"}
_INLINED = frozenset({_LITERAL, 5, 6})
_INLINED_LARGE = _INLINED | {7, 8}
_MAX_DEPTH = 100
_ESCAPED = re.compile(rb'[\x00-\x1f"\\]')
_SHORT = {
    b"\b": b"\\b", b"\t": b"\\t", b"\n": b"\\n", b"\f": b"\\f", b"\r": b"\\r", b'"': b'\\"',
    b"\\": b"\\\\",
}  # fmt: skip
_FIXED_DIGITS = 15  # MAX_DECPT_FOR_F_FORMAT of strings/dtoa.cc
_REPLACE, _INSERT, _REMOVE = 0, 1, 2
_STEP = re.compile(rb'\.("(?:[^"\\]|\\.)*"|[^.\[]+)|\[(\d+)\]', re.DOTALL)
_BASE64_LINE = 76

Tree = dict[bytes, "Tree"] | list["Tree"] | bytes
"""A document: objects by key, arrays, scalars as their texts."""


class MalformedJsonError(ValueError):
    """The bytes are no binary JSON; it holds no value on purpose."""


def text(document: bytes) -> bytes:
    """The text of a binary document."""
    return _written(_tree(document))


def changed(document: bytes, changes: bytes) -> bytes:
    """The text of a binary document after the changes of a partial update.

    Raises:
        MalformedJsonError: either is malformed, or a change does not fit the document.
    """
    tree = _tree(document)
    at = 0
    while at < len(changes):
        operation = changes[at]
        path, at = _packed(changes, at + 1)
        value: Tree | None = None
        if operation in (_REPLACE, _INSERT):
            binary, at = _packed(changes, at)
            value = _tree(binary)
        elif operation != _REMOVE:
            raise MalformedJsonError
        tree = _applied(tree, operation, _steps(path), value)
    return _written(tree)


def _tree(document: bytes) -> Tree:
    if not document:
        return b"null"
    try:
        return _value(document, document[0], 1, len(document), 0)
    except (IndexError, struct.error, KeyError, UnicodeDecodeError):
        raise MalformedJsonError from None


def _value(data: bytes, kind: int, at: int, end: int, depth: int) -> Tree:
    if kind > _LARGE_ARRAY:
        return _scalar(data, kind, at, end)
    if depth > _MAX_DEPTH:
        raise MalformedJsonError
    wide = 4 if kind & 1 else 2
    count, size = struct.unpack_from("<II" if wide == 4 else "<HH", data, at)
    is_object = kind <= _LARGE_OBJECT
    values = at + 2 * wide + (count * (wide + 2) if is_object else 0)
    stop = at + size
    if stop > end or values + count * (wide + 1) > stop:
        raise MalformedJsonError
    items: list[Tree] = []
    for index in range(count):
        entry = values + index * (wide + 1)
        inner = data[entry]
        if inner in (_INLINED_LARGE if wide == 4 else _INLINED):
            items.append(_scalar(data, inner, entry + 1, entry + 1 + wide))
            continue
        place = at + int.from_bytes(data[entry + 1 : entry + 1 + wide], "little")
        if not at < place < stop:
            raise MalformedJsonError
        items.append(_value(data, inner, place, stop, depth + 1))
    if not is_object:
        return items
    keys = []
    for index in range(count):
        entry = at + 2 * wide + index * (wide + 2)
        place = at + int.from_bytes(data[entry : entry + wide], "little")
        (length,) = struct.unpack_from("<H", data, entry + wide)
        if place + length > stop:
            raise MalformedJsonError
        keys.append(data[place : place + length])
    return dict(zip(keys, items, strict=True))


def _scalar(data: bytes, kind: int, at: int, end: int) -> bytes:
    if kind == _LITERAL:
        return _LITERALS[data[at]]
    if kind in _INTEGERS:
        layout = _INTEGERS[kind]
        if at + struct.calcsize(layout) > end:
            raise MalformedJsonError
        return str(struct.unpack_from(layout, data, at)[0]).encode()
    if kind == _DOUBLE:
        if at + 8 > end:
            raise MalformedJsonError
        return double_text(struct.unpack_from("<d", data, at)[0])
    if kind == _STRING:
        return _quoted(_variable(data, at, end))
    if kind == _OPAQUE:
        return _opaque(data[at], _variable(data, at + 1, end))
    raise MalformedJsonError


def _variable(data: bytes, at: int, end: int) -> bytes:
    """The bytes whose length stands before them, seven bits a byte."""
    size = 0
    for shift in range(0, 35, 7):
        if at >= end:
            raise MalformedJsonError
        byte = data[at]
        at += 1
        size |= (byte & 127) << shift
        if byte < 128:
            break
    else:
        raise MalformedJsonError
    if size > end - at:
        raise MalformedJsonError
    return data[at : at + size]


def double_text(value: float) -> bytes:
    """A double as ``my_gcvt`` prints it: the shortest digits that give it again, with an exponent
    where the point would stand more than 15 places away; ``.0`` behind whole numbers.
    """
    mantissa, _, exponent = f"{value!r}".partition("e")
    sign = "-" if mantissa.startswith("-") else ""
    whole, _, fraction = mantissa.removeprefix("-").partition(".")
    digits = (whole + fraction).lstrip("0")
    point = len(whole) + int(exponent or 0) - (len(whole + fraction) - len(digits))
    digits = digits.rstrip("0")
    if not digits:
        return f"{sign}0.0".encode()
    if not -_FIXED_DIGITS + 1 <= point <= _FIXED_DIGITS:
        tail = "." + digits[1:] if len(digits) > 1 else ""
        return f"{sign}{digits[0]}{tail}e{point - 1}".encode()
    if point <= 0:
        return f"{sign}0.{'0' * -point}{digits}".encode()
    if point >= len(digits):
        return f"{sign}{digits}{'0' * (point - len(digits))}.0".encode()
    return f"{sign}{digits[:point]}.{digits[point:]}".encode()


def _opaque(kind: int, value: bytes) -> bytes:
    """A value of a type of SQL's: decimals as numbers, temporals as texts, others as base64."""
    if kind == types.NEWDECIMAL:
        return _decimal(value)
    if kind in _TEMPORALS and len(value) == 8:
        return b'"' + _TEMPORALS[kind](struct.unpack("<q", value)[0]).encode() + b'"'
    encoded = base64.b64encode(value)
    lines = [encoded[at : at + _BASE64_LINE] for at in range(0, len(encoded), _BASE64_LINE)]
    # As MySQL 9.7 prints it. 8.0.12 prints the line ends as they are, which is no JSON.
    return b'"base64:type%d:' % kind + b"\\n".join(lines) + b'"'


def _decimal(value: bytes) -> bytes:
    precision, scale = value[0], value[1]
    if not 0 < precision <= 65 or scale > precision:
        raise MalformedJsonError
    buffer = np.zeros(len(value) + 160, dtype=np.uint8)
    buffer[: len(value)] = list(value)
    end = put_decimal(buffer, 2, precision, scale, len(value) + 40)
    if end < 0:
        raise MalformedJsonError
    return buffer[len(value) + 40 : end].tobytes()


def _time_text(packed: int) -> str:
    sign = "-" if packed < 0 else ""
    packed = abs(packed)
    value, micros = packed >> 24, packed & 0xFFFFFF
    return f"{sign}{value >> 12 & 1023:02}:{value >> 6 & 63:02}:{value & 63:02}.{micros:06}"


def _date_text(packed: int) -> str:
    date = abs(packed) >> 41
    return f"{date // 32 // 13:04}-{date // 32 % 13:02}-{date % 32:02}"


def _datetime_text(packed: int) -> str:
    return f"{_date_text(packed)} {_time_text(abs(packed) & (1 << 41) - 1)}"


_TEMPORALS: dict[int, Callable[[int], str]] = {
    types.DATE: _date_text,
    types.TIME: _time_text,
    types.DATETIME: _datetime_text,
    types.TIMESTAMP: _datetime_text,
}


def _quoted(value: bytes) -> bytes:
    return b'"' + _ESCAPED.sub(_escape, value) + b'"'


def _escape(match: re.Match[bytes]) -> bytes:
    return _SHORT.get(match[0]) or b"\\u%04x" % match[0][0]


def _written(tree: Tree) -> bytes:
    if isinstance(tree, bytes):
        return tree
    if isinstance(tree, list):
        return b"[" + b", ".join(_written(item) for item in tree) + b"]"
    # Objects are kept by the keys' length, then bytes.
    keys = sorted(tree, key=lambda key: (len(key), key))
    return b"{" + b", ".join(_quoted(k) + b": " + _written(tree[k]) for k in keys) + b"}"


# ---------------------------------------------------------------- partial updates


def _packed(data: bytes, at: int) -> tuple[bytes, int]:
    """The bytes behind a packed length, and where they end."""
    if at >= len(data):
        raise MalformedJsonError
    first = data[at]
    at += 1
    more = {0xFC: 2, 0xFD: 3, 0xFE: 8}.get(first, 0)
    size = int.from_bytes(data[at : at + more], "little") if more else first
    at += more
    if size > len(data) - at:
        raise MalformedJsonError
    return data[at : at + size], at + size


def _steps(path: bytes) -> list[bytes | int]:
    """``$.a[0]."b c"`` without or with its ``$`` as keys and indices."""
    steps: list[bytes | int] = []
    at = 1 if path.startswith(b"$") else 0
    while at < len(path):
        match = _STEP.match(path, at)
        if match is None:
            raise MalformedJsonError
        if match[2] is not None:
            steps.append(int(match[2]))
        else:
            steps.append(_unquoted(match[1]))
        at = match.end()
    return steps


def _unquoted(key: bytes) -> bytes:
    if not key.startswith(b'"'):
        return key
    letters = {b"b": b"\b", b"t": b"\t", b"n": b"\n", b"f": b"\f", b"r": b"\r"}

    def plain(match: re.Match[bytes]) -> bytes:
        if match[1] is not None:
            return chr(int(match[1], 16)).encode()
        return letters.get(match[2], match[2])

    return re.sub(rb"\\(?:u([0-9a-fA-F]{4})|(.))", plain, key[1:-1], flags=re.DOTALL)


def _applied(tree: Tree, operation: int, steps: list[bytes | int], value: Tree | None) -> Tree:
    if not steps:
        if operation != _REPLACE or value is None:
            raise MalformedJsonError
        return value
    parent = tree
    for step in steps[:-1]:
        parent = _child(parent, step)
    last = steps[-1]
    if isinstance(parent, dict) and isinstance(last, bytes):
        if operation == _REMOVE:
            if last not in parent:
                raise MalformedJsonError
            del parent[last]
        elif value is not None:
            parent[last] = value
        return tree
    if isinstance(parent, list) and isinstance(last, int):
        if operation == _INSERT and value is not None:
            parent.insert(last, value)
        elif last < len(parent):
            if operation == _REMOVE:
                del parent[last]
            elif value is not None:
                parent[last] = value
        else:
            raise MalformedJsonError
        return tree
    raise MalformedJsonError


def _child(parent: Tree, step: bytes | int) -> Tree:
    if isinstance(parent, dict) and isinstance(step, bytes) and step in parent:
        return parent[step]
    if isinstance(parent, list) and isinstance(step, int) and step < len(parent):
        return parent[step]
    raise MalformedJsonError
