"""HOT PATH. Sums of MD5 numbers of texts, by RFC 1321."""

from __future__ import annotations

import math

import numpy as np
from numba import njit

from tidelog.model.records import Int64s, UInt8s

HALF_BITS = 30
"""A number has 60 bits: 2³³ rows' halves can be added up in 64 bits."""

# RFC 1321, 3.4: the sines, and by step how far is rotated and which word is taken.
_SINES = np.array([int(abs(math.sin(step + 1)) * 2**32) for step in range(64)], np.uint32)
_TURNS = np.repeat(
    np.array([[7, 12, 17, 22], [5, 9, 14, 20], [4, 11, 16, 23], [6, 10, 15, 21]], np.uint32),
    4,
    axis=0,
).ravel()
_WORDS = np.array([(n * (1, 5, 3, 7)[n // 16] + (0, 1, 5, 0)[n // 16]) % 16 for n in range(64)])
_A, _B = np.uint32(0x6745_2301), np.uint32(0xEFCD_AB89)
_C, _D = np.uint32(0x98BA_DCFE), np.uint32(0x1032_5476)
_32 = np.uint32(32)
_BLOCK, _END_MARK, _LENGTH_AT = 64, 0x80, 56


@njit(cache=True, nogil=True)
def add_up(
    data: UInt8s, starts: Int64s, places: Int64s, rows: Int64s, upper: Int64s, lower: Int64s
) -> None:
    """Add each text's number to the sums of its place: the first 60 bits of its MD5.

    Args:
        data: uint8[…], all texts.
        starts: int64[n + 1], where texts start and end.
        places: int64[n], the place of each.
        rows: int64[p], how many there are in each place; added to.
        upper: int64[p], sums of the numbers' upper halves; added to.
        lower: int64[p], of the lower ones.
    """
    tail = np.empty(2 * _BLOCK, np.uint8)
    words = np.empty(16, np.uint32)
    for row in range(len(places)):
        place = places[row]
        number = _number(data, starts[row], starts[row + 1], tail, words)
        rows[place] += 1
        upper[place] += np.int64(number >> np.uint64(HALF_BITS))
        lower[place] += np.int64(number & np.uint64((1 << HALF_BITS) - 1))


@njit(cache=True, nogil=True)
def _number(data, start, end, tail, words):  # type: ignore[no-untyped-def]
    """The first 60 bits of the MD5 of ``data[start:end]``."""
    state = (_A, _B, _C, _D)
    whole = (end - start) // _BLOCK
    for block in range(whole):
        state = _after_block(data, start + block * _BLOCK, state, words)
    rest = end - start - whole * _BLOCK
    padded = _BLOCK if rest < _LENGTH_AT else 2 * _BLOCK
    tail[:rest] = data[end - rest : end]
    tail[rest] = _END_MARK
    tail[rest + 1 : padded] = 0
    bits = np.uint64(end - start) << np.uint64(3)
    for byte in range(8):
        tail[padded - 8 + byte] = np.uint8((bits >> np.uint64(8 * byte)) & np.uint64(0xFF))
    state = _after_block(tail, 0, state, words)
    if padded > _BLOCK:
        state = _after_block(tail, _BLOCK, state, words)
    first = (np.uint64(_swapped(state[0])) << np.uint64(32)) | np.uint64(_swapped(state[1]))
    return first >> np.uint64(4)


@njit(cache=True, nogil=True)
def _after_block(data, at, state, words):  # type: ignore[no-untyped-def]
    for word in range(16):
        byte = at + 4 * word
        words[word] = (
            np.uint32(data[byte])
            | np.uint32(np.uint32(data[byte + 1]) << np.uint32(8))
            | np.uint32(np.uint32(data[byte + 2]) << np.uint32(16))
            | np.uint32(np.uint32(data[byte + 3]) << np.uint32(24))
        )
    a, b, c, d = state
    for step in range(64):
        if step < 16:
            mixed = np.uint32(d ^ (b & (c ^ d)))
        elif step < 32:
            mixed = np.uint32(c ^ (d & (b ^ c)))
        elif step < 48:
            mixed = np.uint32(b ^ c ^ d)
        else:
            mixed = np.uint32(c ^ (b | ~d))
        total = np.uint32(a + mixed + _SINES[step] + words[_WORDS[step]])
        turn = _TURNS[step]
        turned = np.uint32(np.uint32(total << turn) | np.uint32(total >> np.uint32(_32 - turn)))
        a, d, c, b = d, c, b, np.uint32(b + turned)
    return (
        np.uint32(state[0] + a),
        np.uint32(state[1] + b),
        np.uint32(state[2] + c),
        np.uint32(state[3] + d),
    )


@njit(cache=True, nogil=True)
def _swapped(word):  # type: ignore[no-untyped-def]
    """The word with its bytes in the other order."""
    return np.uint32(
        np.uint32(word << np.uint32(24))
        | np.uint32((word & np.uint32(0xFF00)) << np.uint32(8))
        | np.uint32((word >> np.uint32(8)) & np.uint32(0xFF00))
        | np.uint32(word >> np.uint32(24))
    )
