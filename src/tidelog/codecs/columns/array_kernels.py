r"""HOT PATH. Kernels that split texts of arrays (PostgreSQL's ``array_out``) into their elements.

PostgreSQL manual, "Array Input and Output Syntax": elements in braces between commas; those with
special characters are quoted, with a backslash before ``"`` and ``\``; NULL is not quoted. Bounds
stand in front if an index does not begin at 1: ``[0:1]={a,b}``.
"""

from __future__ import annotations

import numpy as np
from numba import njit

# Why a text is no array of one dimension.
NO_ARRAY, SEVERAL_DIMENSIONS, OTHER_BOUNDS = 1, 2, 3

_OPEN, _CLOSE, _BRACKET, _COMMA = ord("{"), ord("}"), ord("["), ord(",")
_QUOTE, _BACKSLASH = ord('"'), ord("\\")
_NULL = np.frombuffer(b"NULL", dtype=np.uint8)


@njit(cache=True, nogil=True)
def count_elements(data, start, length, offsets):  # type: ignore[no-untyped-def]
    """Fill int32[n + 1] ``offsets`` with 0 and the ends of the rows' elements; NULL rows have none.

    Arguments as in `tidelog.codecs.columns.number_kernels`. Returns the first row that is no array
    of one dimension, and the reason; or -1 and 0.
    """
    total = 0
    offsets[0] = 0
    for i in range(len(start)):
        if length[i] >= 0:
            at = np.int64(start[i])
            end = at + length[i] - 1
            if length[i] > 0 and data[at] == _BRACKET:
                return i, OTHER_BOUNDS
            if length[i] < 2 or data[at] != _OPEN or data[end] != _CLOSE:
                return i, NO_ARRAY
            at += 1
            if at < end:
                if data[at] == _OPEN:
                    return i, SEVERAL_DIMENSIONS
                total += 1
            quoted = False
            while at < end:
                byte = data[at]
                if quoted:
                    if byte == _BACKSLASH:
                        at += 1
                    elif byte == _QUOTE:
                        quoted = False
                elif byte == _QUOTE:
                    quoted = True
                elif byte == _COMMA:
                    total += 1
                elif byte in (_OPEN, _CLOSE):
                    return i, NO_ARRAY
                at += 1
            if quoted or at > end:
                return i, NO_ARRAY
        offsets[i + 1] = total
    return -1, 0


@njit(cache=True, nogil=True)
def split_elements(data, start, length, out, element_start, element_length):  # type: ignore[no-untyped-def]
    """Write the elements' texts to uint8[...] ``out``, and where they are to int32[elements];
    the length of NULL is -1.

    ``count_elements`` must have accepted the rows. Returns the first row with a malformed element,
    or -1.
    """
    element = 0
    to = 0
    for i in range(len(start)):
        if length[i] <= 2:  # NULL, or empty braces
            continue
        at = np.int64(start[i]) + 1
        end = np.int64(start[i]) + length[i] - 1
        while True:
            begin = to
            null = False
            if at < end and data[at] == _QUOTE:
                at += 1
                while data[at] != _QUOTE:
                    if data[at] == _BACKSLASH:
                        at += 1
                    out[to] = data[at]
                    to += 1
                    at += 1
                at += 1
                if at < end and data[at] != _COMMA:
                    return i
            else:
                while at < end and data[at] != _COMMA:
                    if data[at] == _QUOTE:
                        return i
                    out[to] = data[at]
                    to += 1
                    at += 1
                if to == begin:
                    return i
                null = to - begin == len(_NULL)
                for k in range(len(_NULL)):
                    null = null and out[begin + k] == _NULL[k]
            element_start[element] = begin
            element_length[element] = -1 if null else to - begin
            element += 1
            if at >= end:
                break
            at += 1
    return -1
