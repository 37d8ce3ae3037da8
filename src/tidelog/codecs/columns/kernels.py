"""HOT PATH. Kernels that convert a column's cells to values: numbers, bytes and texts.

Every kernel takes ``data`` (uint8[...]), ``start`` and ``length`` (int32[n], a length < 0 is NULL)
and fills ``out``. Those that parse return the first row that does not parse, or -1. A NULL row's
number is set to 0.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

# Numbers.

_MINUS, _PLUS, _DOT, _ZERO = ord("-"), ord("+"), ord("."), ord("0")
_EXPONENT, _EXPONENT_CAPITAL = ord("e"), ord("E")
_NAN = np.frombuffer(b"NaN", dtype=np.uint8)
_INFINITY = np.frombuffer(b"Infinity", dtype=np.uint8)
# A float64 represents these, and integers up to 2**53, exactly: one multiplication or division of
# the two is correctly rounded (Clinger 1990, the fast path of every strtod).
_POWERS_OF_TEN = np.array([10.0**k for k in range(23)])
_EXACT_INTEGER = 2**53
_MIDPOINT_BITS = 0x1FFFFFFF  # bits of a float64 below a float32's precision
_MIDPOINT = 0x10000000
_UINT64_TENS = np.array([10**k for k in range(20)], dtype=np.uint64)


@njit(cache=True, nogil=True)
def booleans(data, start, length, out):  # type: ignore[no-untyped-def]
    """``t`` or ``f`` → uint8 1 or 0."""
    for i in range(len(start)):
        out[i] = 0
        if length[i] < 0:
            continue
        if length[i] != 1:
            return i
        byte = data[start[i]]
        if byte == 116:
            out[i] = 1
        elif byte != 102:
            return i
    return -1


@njit(cache=True, nogil=True)
def integers(data, start, length, low, high, out):  # type: ignore[no-untyped-def]
    """Decimal integers within ``low``..``high`` → ``out``'s integer type."""
    for i in range(len(start)):
        size = length[i]
        if size < 0:
            out[i] = 0
            continue
        position = np.int64(start[i])
        end = position + size
        negative = size > 0 and data[position] == _MINUS
        if negative:
            position += 1
        # 19 digits fit into uint64; PostgreSQL writes no leading zeros.
        if position == end or end - position > 19:
            return i
        value = np.uint64(0)
        while position < end:
            digit = np.uint64(data[position]) - np.uint64(_ZERO)  # wraps far above 9 if below '0'
            if digit > np.uint64(9):
                return i
            value = value * np.uint64(10) + digit
            position += 1
        if negative:
            if value > np.uint64(1) << np.uint64(63):
                return i
            signed = -np.int64(value)  # 2**63 wraps to the right result
        else:
            if value >= np.uint64(1) << np.uint64(63):
                return i
            signed = np.int64(value)
        if signed < low or signed > high:
            return i
        out[i] = signed
    return -1


@njit(cache=True, nogil=True)
def _equals(data, position, size, word):  # type: ignore[no-untyped-def]
    if size != len(word):
        return False
    for k in range(size):  # noqa: SIM110 - numba has no all()
        if data[position + k] != word[k]:
            return False
    return True


@njit(cache=True, nogil=True)
def floats(data, start, length, single, out, slow):  # type: ignore[no-untyped-def]
    """Convert float texts to float64 in ``out``, exactly rounded (for float32 if ``single``).

    ``slow`` (bool[n]) marks the rows where the fast path can't guarantee that. The grammar is
    checked for all rows.
    """
    for i in range(len(start)):
        out[i] = 0.0
        slow[i] = False
        size = np.int64(length[i])
        if size < 0:
            continue
        position = np.int64(start[i])
        end = position + size
        negative = size > 0 and data[position] == _MINUS
        if negative:
            position += 1
        if position == end:
            return i
        if data[position] > 57:  # a letter
            if not negative and _equals(data, position, size, _NAN):
                out[i] = np.nan
            elif _equals(data, position, end - position, _INFINITY):
                out[i] = -np.inf if negative else np.inf
            else:
                return i
            continue
        mantissa = np.int64(0)
        digits = 0  # significant ones
        seen = 0
        exponent = np.int64(0)
        fraction = False
        while position < end:
            byte = data[position]
            if byte >= 48 and byte <= 57:
                seen += 1
                if digits > 0 or byte != 48:
                    digits += 1
                if digits <= 18:
                    mantissa = mantissa * 10 + np.int64(byte - 48)
                if fraction:
                    exponent -= 1
            elif byte == _DOT and not fraction:
                fraction = True
            else:
                break
            position += 1
        if seen == 0:
            return i
        if position < end:
            if data[position] != _EXPONENT and data[position] != _EXPONENT_CAPITAL:
                return i
            position += 1
            down = False
            if position < end and (data[position] == _MINUS or data[position] == _PLUS):
                down = data[position] == _MINUS
                position += 1
            if position == end or end - position > 5:
                return i
            power = np.int64(0)
            while position < end:
                if data[position] < 48 or data[position] > 57:
                    return i
                power = power * 10 + np.int64(data[position] - 48)
                position += 1
            exponent += -power if down else power
        if digits > 18 or mantissa > _EXACT_INTEGER or exponent > 22 or exponent < -22:
            if mantissa != 0:
                slow[i] = True
                continue
            exponent = np.int64(0)
        value = np.float64(mantissa)
        if exponent < 0:
            value /= _POWERS_OF_TEN[-exponent]
        else:
            value *= _POWERS_OF_TEN[exponent]
        out[i] = -value if negative else value
        if single and mantissa != 0:
            # Rounding twice is wrong only from a float64 midway between two float32s.
            slow[i] = (out[i : i + 1].view(np.int64)[0] & _MIDPOINT_BITS) == _MIDPOINT
    return -1


@njit(cache=True, nogil=True)
def decimals(data, start, length, precision, scale, rounding, out, null):  # type: ignore[no-untyped-def]
    """Convert numeric texts to decimal128, as ``out`` uint64[n, 2] (low word first).

    ``NaN`` sets ``null[i]``. Digits beyond ``scale`` must be zeros, or, with ``rounding``, are
    rounded half away from zero, as in PostgreSQL.
    """
    for i in range(len(start)):
        out[i, 0] = np.uint64(0)
        out[i, 1] = np.uint64(0)
        null[i] = length[i] < 0
        size = np.int64(length[i])
        if size < 0:
            continue
        position = np.int64(start[i])
        end = position + size
        if _equals(data, position, size, _NAN):
            null[i] = True
            continue
        negative = size > 0 and data[position] == _MINUS
        if negative:
            position += 1
        upper = np.uint64(0)  # the first digits; after them up to 19 more in lower
        lower = np.uint64(0)
        lower_digits = 0
        digits = 0
        seen = 0
        fraction = -1  # digits after the point; -1 before it
        carry = False
        while position < end:
            byte = data[position]
            position += 1
            if byte == _DOT:
                if fraction >= 0:
                    return i
                fraction = 0
                continue
            if byte < 48 or byte > 57:
                return i
            seen += 1
            if fraction >= 0:
                fraction += 1
                if fraction > scale:
                    if fraction == scale + 1 and byte >= 53:
                        carry = True
                    if byte != 48 and not rounding:
                        return i
                    continue
            if digits > 0 or byte != 48:
                digits += 1
                if digits > precision:
                    return i
                if digits <= 19:
                    upper = upper * np.uint64(10) + np.uint64(byte - 48)
                else:
                    lower = lower * np.uint64(10) + np.uint64(byte - 48)
                    lower_digits += 1
        if seen == 0:
            return i
        zeros = scale - min(max(fraction, 0), scale)
        if digits > 0:
            digits += zeros
            if digits > precision:
                return i
            for k in range(zeros):
                if digits - zeros + k < 19:
                    upper = upper * np.uint64(10)
                else:
                    lower = lower * np.uint64(10)
                    lower_digits += 1
        # value = upper * 10**lower_digits + lower in 128 bits, by halves of 32 bits
        high = np.uint64(0)
        low = upper
        if lower_digits > 0:
            factor = _UINT64_TENS[lower_digits]
            mask = np.uint64(0xFFFFFFFF)
            shift = np.uint64(32)
            a0 = upper & mask
            a1 = upper >> shift
            b0 = factor & mask
            b1 = factor >> shift
            p00 = a0 * b0
            middle = a1 * b0 + (p00 >> shift)
            middle_low = (middle & mask) + a0 * b1
            high = a1 * b1 + (middle >> shift) + (middle_low >> shift)
            low = (middle_low << shift) | (p00 & mask)
            low = low + lower
            if low < lower:
                high = high + np.uint64(1)
        if rounding and carry:
            low = low + np.uint64(1)
            if low == np.uint64(0):
                high = high + np.uint64(1)
            if not _below_power_of_ten(high, low, precision):
                return i
        if negative:
            low = ~low + np.uint64(1)
            high = ~high
            if low == np.uint64(0):
                high = high + np.uint64(1)
        out[i, 0] = low
        out[i, 1] = high
    return -1


_TENS_HIGH = np.array([10**k >> 64 for k in range(39)], dtype=np.uint64)
_TENS_LOW = np.array([10**k & (2**64 - 1) for k in range(39)], dtype=np.uint64)


@njit(cache=True, nogil=True)
def _below_power_of_ten(high, low, power):  # type: ignore[no-untyped-def]
    if high != _TENS_HIGH[power]:
        return high < _TENS_HIGH[power]
    return low < _TENS_LOW[power]


# Memory at addresses, which numba's kernels can't read and copy otherwise.

_intrinsic: Callable[[Any], Any] = intrinsic


@_intrinsic
def copy_bytes(typing_context: Any, target: Any, source: Any, length: Any) -> Any:
    """memcpy(target, source, length) of addresses."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        byte_pointer = ir.IntType(8).as_pointer()
        word = ir.IntType(64)
        memcpy = builder.module.declare_intrinsic("llvm.memcpy", [byte_pointer, byte_pointer, word])
        to = builder.inttoptr(arguments[0], byte_pointer)
        from_ = builder.inttoptr(arguments[1], byte_pointer)
        builder.call(memcpy, [to, from_, arguments[2], ir.Constant(ir.IntType(1), 0)])
        return context.get_dummy_value()

    return types.none(types.int64, types.int64, types.int64), generate


def _reader(kind: Any) -> Any:
    def reader(typing_context: Any, address: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            pointer = context.get_value_type(kind).as_pointer()
            return builder.load(builder.inttoptr(arguments[0], pointer), align=1)

        return kind(types.int64), generate

    return _intrinsic(reader)


read_byte, read_int32, read_int64 = map(_reader, (types.uint8, types.int32, types.int64))
"""Read the value at an address."""


# Variable-width values.

_X, _BACKSLASH = ord("x"), ord("\\")
_NIBBLE = np.full(256, 255, dtype=np.uint8)
for _k, _byte in enumerate(b"0123456789abcdef"):
    _NIBBLE[_byte] = _k
for _k, _byte in enumerate(b"ABCDEF"):
    _NIBBLE[_byte] = 10 + _k


@njit(cache=True, nogil=True)
def text_offsets(length, out):  # type: ignore[no-untyped-def]
    """Fill int32[n + 1] ``out``; returns the total bytes (beyond int32: the caller must split)."""
    total = np.int64(0)
    out[0] = 0
    for i in range(len(length)):
        total += max(length[i], 0)
        out[i + 1] = total
    return total


@njit(cache=True, nogil=True)
def gather(data, start, length, offsets, out):  # type: ignore[no-untyped-def]
    """Copy the cells back to back."""
    source, target = data.ctypes.data, out.ctypes.data
    for i in range(len(length)):
        if length[i] > 0:
            copy_bytes(target + offsets[i], source + start[i], np.int64(length[i]))


@njit(cache=True, nogil=True)
def hex_offsets(data, start, length, out):  # type: ignore[no-untyped-def]
    r"""Fill int32[n + 1] ``out`` for ``\x…`` cells; returns the first row that is not
    one, or -1.
    """
    total = np.int64(0)
    out[0] = 0
    for i in range(len(length)):
        size = np.int64(length[i])
        if size >= 0:
            position = np.int64(start[i])
            if size < 2 or size % 2 or data[position] != _BACKSLASH or data[position + 1] != _X:
                return i
            total += size // 2 - 1
        out[i + 1] = total
    return -1


@njit(cache=True, nogil=True)
def hex_bytes(data, start, length, offsets, out):  # type: ignore[no-untyped-def]
    r"""Decode ``\x…`` cells; returns the first row with an invalid digit, or -1."""
    for i in range(len(length)):
        target = np.int64(offsets[i])
        source = np.int64(start[i]) + 2
        bad = np.uint8(0)
        for k in range(np.int64(offsets[i + 1]) - target):
            high = _NIBBLE[data[source + 2 * k]]
            low = _NIBBLE[data[source + 2 * k + 1]]
            bad |= high | low
            out[target + k] = np.uint8(high << 4) | low
        if bad > 15:
            return i
    return -1
