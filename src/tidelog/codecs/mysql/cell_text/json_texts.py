"""Converts MySQL's binary JSON to the text that the server prints, and applies changes to a
document.

Format: MySQL internals, "JSON binary format" (``sql/json_binary.h``): a type byte, then the value.
An object or array is: count, size (two bytes each, four if large), for an object the keys'
positions and lengths, the values' types and positions (small values instead of the position), keys,
values. Partial updates: ``sql/json_diff.h``. The kernels convert common documents, Python code the
others.
"""

from __future__ import annotations

import base64
import re
import struct
from collections.abc import Callable

import numpy as np
from numba import njit

from tidelog.codecs.mysql import types
from tidelog.codecs.mysql.cell_text.kernels import put_decimal, put_unsigned

TEXT_FACTOR = 8
"""Factor of a document's largest text: at most this many bytes for each byte of its own (a control
character of a string takes six), plus `TEXT_EXTRA`.
"""
TEXT_EXTRA = 64
MAX_DEPTH = 100  # JSON_DOCUMENT_MAX_DEPTH

_LARGE_OBJECT, _LARGE_ARRAY, _LITERAL = 1, 3, 4
_INT16, _UINT16, _INT32, _UINT32, _INT64, _UINT64 = 5, 6, 7, 8, 9, 10
_STRING = 12
_TRUE, _FALSE = 1, 2
_BAD = -1
_SLOW = -2
_HEX = np.frombuffer(b"0123456789abcdef", dtype=np.uint8)
_NULL_TEXT = np.frombuffer(b"null", dtype=np.uint8)
_TRUE_TEXT = np.frombuffer(b"true", dtype=np.uint8)
_FALSE_TEXT = np.frombuffer(b"false", dtype=np.uint8)
_ESCAPES = np.zeros(256, dtype=np.uint8)
_ESCAPES[:32] = 1
for _byte, _letter in zip(b'\b\t\n\f\r"\\', b'btnfr"\\', strict=True):
    _ESCAPES[_byte] = _letter


@njit(cache=True, nogil=True)
def _number(data, at, size):  # type: ignore[no-untyped-def]
    value = np.int64(0)
    for k in range(size):
        value |= np.int64(data[at + k]) << (8 * k)
    return value


@njit(cache=True, nogil=True)
def _put_string(data, at, size, to):  # type: ignore[no-untyped-def]
    data[to] = 34
    to += 1
    for k in range(at, at + size):
        byte = data[k]
        escape = _ESCAPES[byte]
        if escape == 0:
            data[to] = byte
            to += 1
            continue
        data[to] = 92
        if escape > 1:
            data[to + 1] = escape
            to += 2
        else:
            data[to + 1] = 117
            data[to + 2] = 48
            data[to + 3] = 48
            data[to + 4] = _HEX[byte >> 4]
            data[to + 5] = _HEX[byte & 15]
            to += 6
    data[to] = 34
    return to + 1


@njit(cache=True, nogil=True)
def _put_text(data, text, to):  # type: ignore[no-untyped-def]
    for k in range(len(text)):
        data[to + k] = text[k]
    return to + len(text)


@njit(cache=True, nogil=True)
def _put_scalar(data, kind, at, end, to, limit):  # type: ignore[no-untyped-def]
    """Write the scalar of type ``kind`` at ``data[at:end]``; returns its end, `_BAD` or `_SLOW`."""
    if at >= end or to + 24 > limit:
        return np.int64(_BAD)
    if kind == _LITERAL:
        if data[at] == 0:
            return np.int64(_put_text(data, _NULL_TEXT, to))
        if data[at] == _TRUE:
            return np.int64(_put_text(data, _TRUE_TEXT, to))
        if data[at] == _FALSE:
            return np.int64(_put_text(data, _FALSE_TEXT, to))
        return np.int64(_BAD)
    if kind >= _INT16 and kind <= _UINT64:
        size = 2 if kind <= _UINT16 else 4 if kind <= _UINT32 else 8
        if at + size > end:
            return np.int64(_BAD)
        value = _number(data, at, size)
        if kind == _INT16 and value >= 1 << 15:
            value = int(value - (1 << 16))
        elif kind == _INT32 and value >= 1 << 31:
            value = int(value - (1 << 32))
        unsigned = np.uint64(value)
        if value < 0 and kind != _UINT64:
            data[to] = 45
            to += 1
            unsigned = np.uint64(0) - unsigned
        return np.int64(put_unsigned(data, to, unsigned))
    if kind == _STRING:
        length = np.int64(0)
        shift = 0
        while True:
            if at >= end or shift > 28:
                return np.int64(_BAD)
            byte = np.int64(data[at])
            at += 1
            length |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                break
        if length > end - at:
            return np.int64(_BAD)
        if to + 6 * length + 2 > limit:
            # Only text with every byte escaped, or overlapping values, can be this long.
            needed = np.int64(2)
            for k in range(at, at + length):
                escape = _ESCAPES[data[k]]
                needed += 1 if escape == 0 else 2 if escape > 1 else 6
            if to + needed > limit:
                return np.int64(_BAD)
        return np.int64(_put_string(data, at, length, to))
    return np.int64(_SLOW)


@njit(cache=True, nogil=True)
def _document(data, at, end, to, limit, stack):  # type: ignore[no-untyped-def]
    """Write the document at ``data[at:end]``; returns the end of the text, `_BAD` or `_SLOW`.

    ``stack``: int64[MAX_DEPTH + 1, 5]: the begin and end of an object or array, its type, its
    number of elements, the next element's index.
    """
    kind = np.int64(data[at])
    at += 1
    if kind > _LARGE_ARRAY:
        return _put_scalar(data, kind, at, end, to, limit)
    depth = 0
    base = at
    stop = end
    while True:
        # Open the object or array of type ``kind`` at ``base``, whose room ends at ``stop``.
        wide = 4 if kind & 1 else 2
        if base + 2 * wide > stop or depth > MAX_DEPTH or to + 4 > limit:
            return np.int64(_BAD)
        count = _number(data, base, wide)
        size = _number(data, base + wide, wide)
        entry = wide + 1 + (wide + 2 if kind <= _LARGE_OBJECT else 0)
        if size > stop - base or 2 * wide + count * entry > size:
            return np.int64(_BAD)
        stack[depth, 0] = base
        stack[depth, 1] = base + size
        stack[depth, 2] = kind
        stack[depth, 3] = count
        stack[depth, 4] = 0
        data[to] = 123 if kind <= _LARGE_OBJECT else 91
        to += 1
        opened = False
        while not opened:
            base = stack[depth, 0]
            stop = stack[depth, 1]
            kind = stack[depth, 2]
            count = stack[depth, 3]
            index = stack[depth, 4]
            is_object = kind <= _LARGE_OBJECT
            wide = 4 if kind & 1 else 2
            if index == count:
                if to + 4 > limit:
                    return np.int64(_BAD)
                data[to] = 125 if is_object else 93
                to += 1
                depth -= 1
                if depth < 0:
                    return np.int64(to)
                continue
            stack[depth, 4] = index + 1
            if to + 8 > limit:
                return np.int64(_BAD)
            if index:
                data[to] = 44
                data[to + 1] = 32
                to += 2
            values = base + 2 * wide
            if is_object:
                key = values + index * (wide + 2)
                values += count * (wide + 2)
                key_at = base + _number(data, key, wide)
                key_size = _number(data, key + wide, 2)
                if key_at < base or key_at + key_size > stop or to + key_size + 8 > limit:
                    return np.int64(_BAD)
                needed = np.int64(8)
                for k in range(key_at, key_at + key_size):
                    escape = _ESCAPES[data[k]]
                    needed += 1 if escape == 0 else 2 if escape > 1 else 6
                if to + needed > limit:
                    return np.int64(_BAD)
                to = _put_string(data, key_at, key_size, to)
                data[to] = 58
                data[to + 1] = 32
                to += 2
            value = values + index * (wide + 1)
            inner = np.int64(data[value])
            inlined = inner in (_LITERAL, _INT16, _UINT16) or (
                wide == 4 and inner in (_INT32, _UINT32)
            )
            if inlined:
                to = _put_scalar(data, inner, value + 1, value + 1 + wide, to, limit)
                if to < 0:
                    return to
                continue
            place = base + _number(data, value + 1, wide)
            if place <= base or place >= stop:
                return np.int64(_BAD)
            if inner > _LARGE_ARRAY:
                to = _put_scalar(data, inner, place, stop, to, limit)
                if to < 0:
                    return to
                continue
            depth += 1
            base = place
            kind = inner
            opened = True


@njit(cache=True, nogil=True)
def documents(data, start, length, binary, slow, to):  # type: ignore[no-untyped-def]
    """Like `tidelog.codecs.mysql.cell_text.kernels`; bool[n] ``slow``: the documents left to
    Python. ``data`` has the room that `TEXT_FACTOR` and `TEXT_EXTRA` define.
    """
    stack = np.zeros((MAX_DEPTH + 1, 5), dtype=np.int64)
    for i in range(len(start)):
        if not binary[i] or length[i] < 0:
            continue
        if length[i] == 0:  # the server writes this for a document that it could not build
            start[i] = to
            length[i] = 4
            to = _put_text(data, _NULL_TEXT, to)
            continue
        at = np.int64(start[i])
        size = np.int64(length[i])
        end = _document(data, at, at + size, to, to + TEXT_FACTOR * size + TEXT_EXTRA, stack)
        if end == _SLOW:
            slow[i] = True
            continue
        if end < 0:
            return -1 - i
        start[i] = to
        length[i] = end - to
        to = end
    return to


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
_DECIMAL_DIGITS = 81  # of the buffer of my_decimal; a document may name more than DECIMAL's 65

Tree = dict[bytes, "Tree"] | list["Tree"] | bytes
"""A document: objects by key, arrays, scalars as text."""


class MalformedJsonError(ValueError):
    """The bytes are not binary JSON; contains no value on purpose."""


def text(document: bytes) -> bytes:
    """The text of a binary document."""
    return _to_text(_tree(document))


def apply_changes(document: bytes, changes: bytes) -> bytes:
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
        tree = _apply(tree, operation, _steps(path), value)
    return _to_text(tree)


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
    """The bytes after their length, which has seven bits per byte."""
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
    """A double as ``my_gcvt`` prints it: the shortest digits that read back as the same number. It
    has an exponent if the point would be more than 15 digits away and not between two digits; whole
    numbers end in ``.0``.
    """
    mantissa, _, exponent = f"{value!r}".partition("e")
    sign = "-" if mantissa.startswith("-") else ""
    whole, _, fraction = mantissa.removeprefix("-").partition(".")
    digits = (whole + fraction).lstrip("0")
    point = len(whole) + int(exponent or 0) - (len(whole + fraction) - len(digits))
    digits = digits.rstrip("0")
    if not digits:
        return f"{sign}0.0".encode()
    if point <= -_FIXED_DIGITS or (point > _FIXED_DIGITS and point >= len(digits)):
        tail = "." + digits[1:] if len(digits) > 1 else ""
        return f"{sign}{digits[0]}{tail}e{point - 1}".encode()
    if point <= 0:
        return f"{sign}0.{'0' * -point}{digits}".encode()
    if point >= len(digits):
        return f"{sign}{digits}{'0' * (point - len(digits))}.0".encode()
    return f"{sign}{digits[:point]}.{digits[point:]}".encode()


def _opaque(kind: int, value: bytes) -> bytes:
    """A value of an SQL type: decimals as numbers, temporals as text, others as base64."""
    if kind == types.NEWDECIMAL:
        return _decimal(value)
    if kind in _TEMPORALS and len(value) == 8:
        return b'"' + _TEMPORALS[kind](struct.unpack("<q", value)[0]).encode() + b'"'
    encoded = base64.b64encode(value)
    lines = [encoded[at : at + _BASE64_LINE] for at in range(0, len(encoded), _BASE64_LINE)]
    # As MySQL 9.7 prints it. 8.0.12 prints the line ends unescaped, which is invalid JSON.
    return b'"base64:type%d:' % kind + b"\\n".join(lines) + b'"'


def _decimal(value: bytes) -> bytes:
    precision, scale = value[0], value[1]
    if not 0 < precision <= _DECIMAL_DIGITS or scale > precision:
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


def _to_text(tree: Tree) -> bytes:
    if isinstance(tree, bytes):
        return tree
    if isinstance(tree, list):
        return b"[" + b", ".join(_to_text(item) for item in tree) + b"]"
    # Objects are ordered by the keys' length, then bytes.
    keys = sorted(tree, key=lambda key: (len(key), key))
    return b"{" + b", ".join(_quoted(k) + b": " + _to_text(tree[k]) for k in keys) + b"}"


# ---------------------------------------------------------------- partial updates


def _packed(data: bytes, at: int) -> tuple[bytes, int]:
    """The bytes after a packed length, and their end."""
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
    """The keys and indices of ``$.a[0]."b c"``, with or without its ``$``."""
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


def _apply(tree: Tree, operation: int, steps: list[bytes | int], value: Tree | None) -> Tree:
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
