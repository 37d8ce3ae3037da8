"""HOT PATH. Kernels that take texts of several values apart: PostgreSQL's arrays, ranges,
composites, ``hstore`` and intervals; and times of day.

Arguments as in `tidelog.codecs.columns.kernels`. Parts are texts again, of which some are copied
without quotes and escapes to ``out``.

Arrays are texts of ``array_out`` (manual, "Array Input and Output Syntax"): elements in braces
between commas. Those with special characters are quoted, with a backslash before quotes and
backslashes; NULL is not quoted. Bounds stand in front if an index does not begin at 1:
``[0:1]={a,b}``. Composites and ranges are ``record_out``'s and ``range_out``'s (manual, "Composite
Type Input and Output Syntax"): in quotes, quotes and backslashes are doubled; NULL is empty.
"""

from __future__ import annotations

import numpy as np
from numba import njit

# Arrays.

# Why a text is no array of as many dimensions as its type.
NO_ARRAY, SEVERAL_DIMENSIONS, OTHER_BOUNDS, ONE_DIMENSION = 1, 2, 3, 4

_OPEN, _CLOSE, _BRACKET, _COMMA = ord("{"), ord("}"), ord("["), ord(",")
_QUOTE, _BACKSLASH = ord('"'), ord("\\")
_NULL = np.frombuffer(b"NULL", dtype=np.uint8)
_UPPER_CASE = 0xDF
_TAB, _RETURN, _SPACE = ord("\t"), ord("\r"), ord(" ")
_ROUND, _ROUND_END, _BRACKET_END = ord("("), ord(")"), ord("]")


@njit(cache=True, nogil=True)
def _why_no_array(data, at, length):  # type: ignore[no-untyped-def]
    """Why the text at ``at`` is not in the braces of an array; 0 if it is."""
    if length > 0 and data[at] == _BRACKET:
        return OTHER_BOUNDS
    if length < 2 or data[at] != _OPEN or data[at + length - 1] != _CLOSE:
        return NO_ARRAY
    return 0


@njit(cache=True, nogil=True)
def count_elements(data, start, length, offsets):  # type: ignore[no-untyped-def]
    """Fill int32[n + 1] ``offsets`` with 0 and the ends of the rows' elements; NULL rows have none.
    Returns the first row that is no array of one dimension, and the reason; or -1 and 0.
    """
    total = 0
    offsets[0] = 0
    for i in range(len(start)):
        if length[i] >= 0:
            at = np.int64(start[i]) + 1
            end = at + length[i] - 2
            why = _why_no_array(data, at - 1, length[i])
            if why:
                return i, why
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
                    byte = data[at]
                    if byte in (_QUOTE, _BACKSLASH, _SPACE) or _TAB <= byte <= _RETURN:
                        return i
                    out[to] = data[at]
                    to += 1
                    at += 1
                if to == begin:
                    return i
                null = to - begin == len(_NULL)
                for k in range(len(_NULL)):
                    null = null and out[begin + k] & _UPPER_CASE == _NULL[k]
            element_start[element] = begin
            element_length[element] = -1 if null else to - begin
            element += 1
            if at >= end:
                break
            at += 1
    return -1


@njit(cache=True, nogil=True)
def count_groups(data, start, length, offsets):  # type: ignore[no-untyped-def]
    """`count_elements` for elements that are in braces or brackets of their own: those of arrays of
    several dimensions, and ranges.
    """
    total = 0
    offsets[0] = 0
    for i in range(len(start)):
        if length[i] >= 0:
            at = np.int64(start[i]) + 1
            end = at + length[i] - 2
            why = _why_no_array(data, at - 1, length[i])
            if why:
                return i, why
            while at < end:
                at = _group_end(data, at, end)
                if at < 0:
                    return i, ONE_DIMENSION
                total += 1
                if at < end:
                    if data[at] != _COMMA or at + 1 == end:
                        return i, NO_ARRAY
                    at += 1
        offsets[i + 1] = total
    return -1, 0


@njit(cache=True, nogil=True)
def split_groups(data, start, length, element_start, element_length):  # type: ignore[no-untyped-def]
    """Fill in where the elements that `count_groups` counted are in ``data``."""
    element = 0
    for i in range(len(start)):
        at = np.int64(start[i]) + 1
        end = np.int64(start[i]) + length[i] - 1
        while length[i] >= 0 and at < end:
            begin = at
            at = _group_end(data, at, end)
            element_start[element] = begin
            element_length[element] = at - begin
            element += 1
            at += 1


@njit(cache=True, nogil=True)
def _group_end(data, at, end):  # type: ignore[no-untyped-def]
    """Where the group that begins at ``at`` ends; -1 if none begins there."""
    opened = data[at]
    depth = 0
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
        elif opened == _OPEN:
            depth += (byte == _OPEN) - (byte == _CLOSE)
        elif opened in (_BRACKET, _ROUND):
            depth += (byte in (_BRACKET, _ROUND)) - (byte in (_BRACKET_END, _ROUND_END))
        else:
            return -1
        at += 1
        if depth == 0 and not quoted:
            return at
    return -1


# Composites and ranges.

_EMPTY = np.frombuffer(b"empty", dtype=np.uint8)


@njit(cache=True, nogil=True)
def range_flags(data, start, length, flags):  # type: ignore[no-untyped-def]
    """Fill uint8[3, n] ``flags``: is the lower bound of ranges inclusive, is the upper one, is the
    range empty? Returns the first row that is no range, or -1.
    """
    for i in range(len(start)):
        for k in range(3):
            flags[k, i] = 0
        if length[i] < 0:
            continue
        first = np.int64(start[i])
        last = first + length[i] - 1
        if length[i] == len(_EMPTY) and data[first] == _EMPTY[0]:
            flags[2, i] = 1
            continue
        if length[i] < 3:
            return i
        flags[0, i] = data[first] == _BRACKET
        flags[1, i] = data[last] == _BRACKET_END
        if not (flags[0, i] or data[first] == _ROUND):
            return i
        if not (flags[1, i] or data[last] == _ROUND_END):
            return i
    return -1


@njit(cache=True, nogil=True)
def split_members(data, start, length, out, member_start, member_length):  # type: ignore[no-untyped-def]
    """Write the texts of the members of composites, and of the bounds of ranges, to uint8[...]
    ``out``, and where they are to int32[members, n]; the length of NULL is -1.

    Returns the first row with another number of members, or that is no such text; or -1.
    """
    members = len(member_start)
    to = 0
    for i in range(len(start)):
        for k in range(members):
            member_start[k, i] = 0
            member_length[k, i] = -1
        if length[i] < 0:
            continue
        at = np.int64(start[i]) + 1
        end = np.int64(start[i]) + length[i] - 1
        if end < at or data[at - 1] not in (_ROUND, _BRACKET):
            return i
        if data[end] not in (_ROUND_END, _BRACKET_END):
            return i
        if members == 0:
            if at != end:
                return i
            continue
        member = 0
        begin = to
        null = True
        quoted = False
        while at <= end:
            byte = data[at]
            if at == end or (byte == _COMMA and not quoted):
                if member == members or quoted:
                    return i
                member_start[member, i] = begin
                member_length[member, i] = -1 if null else to - begin
                member += 1
                begin = to
                null = True
            elif byte == _QUOTE and not quoted:
                quoted = True
                null = False
            elif byte == _QUOTE and data[at + 1] != _QUOTE:
                quoted = False
            else:
                if byte in (_QUOTE, _BACKSLASH):
                    at += 1
                    if at >= end:
                        return i
                out[to] = data[at]
                to += 1
                null = False
            at += 1
        if member != members:
            return i
    return -1


# ``hstore``: ``"a"=>"1", "b"=>NULL`` (manual, "hstore External Representation").

_EQUALS, _GREATER = ord("="), ord(">")


@njit(cache=True, nogil=True)
def count_pairs(data, start, length, offsets):  # type: ignore[no-untyped-def]
    """Fill int32[n + 1] ``offsets`` with 0 and the ends of the rows' pairs; returns the first row
    that is no ``hstore``, or -1.
    """
    total = 0
    offsets[0] = 0
    for i in range(len(start)):
        at = np.int64(start[i])
        end = at + length[i]
        while length[i] > 0 and at < end:
            at = _string_end(data, at, end)
            if at < 0 or at + 2 >= end or data[at] != _EQUALS or data[at + 1] != _GREATER:
                return i
            at += 2
            if data[at] == _QUOTE:
                at = _string_end(data, at, end)
            elif _is_word(data, at, end, _NULL):
                at += len(_NULL)
            else:
                return i
            if at < 0 or at > end:
                return i
            total += 1
            if at < end:
                if at + 2 >= end or data[at] != _COMMA or data[at + 1] != _SPACE:
                    return i
                at += 2
        offsets[i + 1] = total
    return -1


@njit(cache=True, nogil=True)
def _is_word(data, at, end, word):  # type: ignore[no-untyped-def]
    """Do the bytes at ``at`` begin with ``word``?"""
    if end - at < len(word):
        return False
    for k in range(len(word)):  # noqa: SIM110 - numba has no all()
        if data[at + k] != word[k]:
            return False
    return True


@njit(cache=True, nogil=True)
def _string_end(data, at, end):  # type: ignore[no-untyped-def]
    """Where the quoted string at ``at`` ends; -1 if there is none."""
    if data[at] != _QUOTE:
        return -1
    at += 1
    while at < end:
        if data[at] == _QUOTE:
            return at + 1
        at += 2 if data[at] == _BACKSLASH else 1
    return -1


@njit(cache=True, nogil=True)
def split_pairs(data, start, length, out, part_start, part_length):  # type: ignore[no-untyped-def]
    """Write keys and values of the pairs that `count_pairs` counted to uint8[...] ``out``, and
    where they are to int32[2, pairs]; the length of NULL is -1.
    """
    pair = 0
    to = 0
    for i in range(len(start)):
        at = np.int64(start[i])
        end = at + length[i]
        while length[i] > 0 and at < end:
            for part in range(2):
                part_start[part, pair] = to
                part_length[part, pair] = -1
                if data[at] != _QUOTE:
                    at += len(_NULL)
                    continue
                begin = to
                at += 1
                while data[at] != _QUOTE:
                    if data[at] == _BACKSLASH:
                        at += 1
                    out[to] = data[at]
                    to += 1
                    at += 1
                at += 1
                part_length[part, pair] = to - begin
                if part == 0:
                    at += 2
            pair += 1
            at += 2


# Intervals and times of day.

_MINUS, _DOT, _COLON, _ZERO, _NINE = ord("-"), ord("."), ord(":"), ord("0"), ord("9")
_PLUS = ord("+")
_YEAR, _MONTH, _DAY = (np.frombuffer(unit, dtype=np.uint8) for unit in (b"year", b"mon", b"day"))
_PLURAL = ord("s")
_SECOND_US = 1_000_000
_DAY_US = 86_400 * _SECOND_US


@njit(cache=True, nogil=True)
def _clock(data, at, end):  # type: ignore[no-untyped-def]
    """Microseconds of the text ``H…:MM:SS[.f…]`` at ``at``, which must end at ``end``; -1 if it is
    none.
    """
    total, number, digits, colons = np.int64(0), np.int64(0), 0, 0
    while at < end and data[at] != _DOT:
        if data[at] == _COLON:
            if digits == 0 or colons == 2:
                return -1
            total = (total + number) * 60
            number, digits = np.int64(0), 0
            colons += 1
        elif _ZERO <= data[at] <= _NINE and digits < 10:
            number = number * 10 + (data[at] - _ZERO)
            digits += 1
        else:
            return -1
        at += 1
    if colons != 2 or digits != 2:
        return -1
    total = (total + number) * _SECOND_US
    scale = np.int64(_SECOND_US)
    at += 1
    while at < end:
        scale //= 10
        if not _ZERO <= data[at] <= _NINE or scale == 0:
            return -1
        total += (data[at] - _ZERO) * scale
        at += 1
    return total


@njit(cache=True, nogil=True)
def times_of_day(data, start, length, out):  # type: ignore[no-untyped-def]
    """Microseconds since midnight; returns the first row that is no time of day, or -1."""
    for i in range(len(start)):
        out[i] = 0
        if length[i] >= 0:
            begin = np.int64(start[i])
            out[i] = _clock(data, begin, begin + length[i])
            if not 0 <= out[i] < _DAY_US:
                return i
    return -1


@njit(cache=True, nogil=True)
def intervals(data, start, length, months, days, micros):  # type: ignore[no-untyped-def]
    """Intervals of ``IntervalStyle`` postgres, such as ``1 year 2 mons -3 days -04:05:06.7``.
    Returns the first row that is none, such as an infinite one, or -1.
    """
    for i in range(len(start)):
        months[i] = days[i] = micros[i] = 0
        if length[i] < 0:
            continue
        at = np.int64(start[i])
        end = at + length[i]
        if at == end:
            return i
        while at < end:
            word = at
            while at < end and data[at] != _SPACE:
                at += 1
            stop = at
            negative = data[word] == _MINUS
            first = word + 1 if negative or data[word] == _PLUS else word
            number = np.int64(0)
            k = first
            while k < stop and _ZERO <= data[k] <= _NINE and k - first < 10:
                number = number * 10 + (data[k] - _ZERO)
                k += 1
            if k == first:
                return i
            if k < stop:
                number = _clock(data, first, stop)
                if number < 0:
                    return i
                micros[i] = -number if negative else number
            else:
                number = -number if negative else number
                at += 1
                unit = at
                while at < end and data[at] != _SPACE:
                    at += 1
                size = at - unit
                if size > 1 and data[at - 1] == _PLURAL:
                    size -= 1
                if size == len(_YEAR) and _is_word(data, unit, end, _YEAR):
                    months[i] += 12 * number
                elif size == len(_MONTH) and _is_word(data, unit, end, _MONTH):
                    months[i] += number
                elif size == len(_DAY) and _is_word(data, unit, end, _DAY):
                    days[i] = number
                else:
                    return i
            at += 1
    return -1
