"""HOT PATH. Kernel: MySQL's binary JSON → the text that the server prints.

The format and its sources: `tidelog.codecs.mysql.texts.json_texts`, which also writes the documents
that hold numbers or values this kernel leaves to it (doubles, decimals, dates).
"""

from __future__ import annotations

import numpy as np
from numba import njit

from tidelog.codecs.mysql.texts.digit_kernels import put_unsigned

TEXT_FACTOR = 8
"""A document's text has at most this many bytes for each of its own (a control character of a
string takes six), and `TEXT_EXTRA`."""
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
    """Write the scalar of type ``kind`` at ``data[at:end]``; where it ends, `_BAD` or `_SLOW`."""
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
            # Only where every byte is escaped, or values overlap, can it be as long.
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
    """Write the document at ``data[at:end]``; where the text ends, `_BAD` or `_SLOW`.

    ``stack``: int64[MAX_DEPTH + 1, 5]: where an object or array is and ends, its type, elements,
    the next element's number.
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
    """As `tidelog.codecs.mysql.texts.number_kernels`; bool[n] ``slow``: the documents left
    to Python. ``data`` has room for what `TEXT_FACTOR` and `TEXT_EXTRA` say.
    """
    stack = np.zeros((MAX_DEPTH + 1, 5), dtype=np.int64)
    for i in range(len(start)):
        if not binary[i] or length[i] < 0:
            continue
        if length[i] == 0:  # what the server writes for a document that it could not make
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
