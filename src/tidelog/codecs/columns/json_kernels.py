"""HOT PATH. Kernels that write JSON texts as VARIANT, Spark's binary form of them.

Parquet's specification "Variant Binary Encoding", version 1, with the choices of Spark's
`parse_json`: the shortest widths, a row's names in the order in which they are found, numbers with
an exponent as DOUBLE, all others as exact integers and decimals.
"""

from __future__ import annotations

import numpy as np
from numba import njit

# Why a text becomes no VARIANT.
NO_JSON, NAME_TWICE, MANY_DIGITS, HALF_CHARACTER, TOO_DEEP, TOO_LARGE = range(1, 7)

# What `measure_json` fills in.
VALUE_BYTES, METADATA_BYTES, DOUBLES, VALUES, NAMES, LEVELS, ROW_BYTES = range(7)

_MOST_LEVELS = 1_000  # of Spark's JSON parser
_MOST_BYTES = 16 << 20  # of Spark 4.0's VARIANT
_MOST_DIGITS = 38

_QUOTE, _BACKSLASH, _COMMA, _COLON = ord('"'), ord("\\"), ord(","), ord(":")
_OPEN, _CLOSE, _OPEN_LIST, _CLOSE_LIST = ord("{"), ord("}"), ord("["), ord("]")
_MINUS, _PLUS, _DOT, _ZERO, _NINE = ord("-"), ord("+"), ord("."), ord("0"), ord("9")
_EXPONENT, _EXPONENT_CAPITAL, _UNICODE = ord("e"), ord("E"), ord("u")
_SPACE, _TAB, _NEWLINE, _RETURN = ord(" "), ord("\t"), ord("\n"), ord("\r")
_ESCAPES = np.zeros(256, np.uint8)  # by the byte after a backslash, what the two mean
for _escape, _meaning in zip(b'"\\/bfnrt', b'"\\/\b\f\n\r\t', strict=True):
    _ESCAPES[_escape] = _meaning
_TRUE = np.frombuffer(b"true", np.uint8)
_FALSE = np.frombuffer(b"false", np.uint8)
_NULL = np.frombuffer(b"null", np.uint8)

# First bytes of values: the basic type in the lower two bits, above it what belongs to that.
_SHORT_STRING, _OBJECT, _LIST = 1, 2, 3
_OF_NULL, _OF_TRUE, _OF_FALSE = 0 << 2, 1 << 2, 2 << 2
_OF_DOUBLE, _OF_STRING = 7 << 2, 16 << 2
_OF_INT8, _OF_INT16, _OF_INT32, _OF_INT64 = 3 << 2, 4 << 2, 5 << 2, 6 << 2
_OF_DECIMAL4, _OF_DECIMAL8, _OF_DECIMAL16 = 8 << 2, 9 << 2, 10 << 2
_MOST_SHORT = 63  # bytes of a string whose length is in its first byte
# The most bytes that a value takes beyond its text's: a double; its id and its offset; the header.
_BESIDE = 9 + 8 + 9

# What may come next.
_VALUE, _VALUE_OR_CLOSE, _NAME, _NAME_OR_CLOSE, _AFTER_VALUE = range(5)


@njit(cache=True, nogil=True)
def measure_json(data, start, length, most):  # type: ignore[no-untyped-def]
    """Fill int64[7] ``most`` with upper bounds: of all rows the bytes of values and of metadata,
    and the numbers with an exponent; of one row the values, the names, the levels, and the bytes.

    Arguments as in `tidelog.codecs.columns.kernels`.
    """
    most[:] = 0
    for i in range(len(start)):
        if length[i] < 0:
            continue
        values, names, level, levels = 1, 0, 0, 0
        quoted = False
        at = np.int64(start[i])
        end = at + length[i]
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
                values += 1
            elif byte == _COLON:
                names += 1
            elif byte in (_OPEN, _OPEN_LIST):
                values += 1
                level += 1
                levels = max(level, levels)
            elif byte in (_CLOSE, _CLOSE_LIST):
                level -= 1
            elif byte in (_EXPONENT, _EXPONENT_CAPITAL):
                most[DOUBLES] += 1
            at += 1
        most[VALUE_BYTES] += length[i] + _BESIDE * values
        most[METADATA_BYTES] += length[i] + 5 + 4 * (names + 1)
        most[VALUES] = max(most[VALUES], values)
        most[NAMES] = max(most[NAMES], names)
        most[LEVELS] = max(most[LEVELS], levels)
        most[ROW_BYTES] = max(most[ROW_BYTES], length[i])


@njit(cache=True, nogil=True)
def _hexadecimal(data, at, end):  # type: ignore[no-untyped-def]
    """Four hexadecimal digits as a number; -1 if they are none."""
    if at + 4 > end:
        return -1
    number = np.int64(0)
    for k in range(at, at + 4):
        byte = np.int64(data[k])
        letter = byte | 32
        if _ZERO <= byte <= _NINE:
            number = number * 16 + byte - _ZERO
        elif 97 <= letter <= 102:
            number = number * 16 + letter - 87
        else:
            return -1
    return number


@njit(cache=True, nogil=True)
def _utf8(out, to, code):  # type: ignore[no-untyped-def]
    """Write a character; returns where it ends."""
    if code < 0x80:
        out[to] = code
        return to + 1
    if code < 0x800:
        out[to] = 0xC0 | code >> 6
    else:
        if code < 0x10000:
            out[to] = 0xE0 | code >> 12
        else:
            out[to] = 0xF0 | code >> 18
            to += 1
            out[to] = 0x80 | code >> 12 & 0x3F
        to += 1
        out[to] = 0x80 | code >> 6 & 0x3F
    out[to + 1] = 0x80 | code & 0x3F
    return to + 2


@njit(cache=True, nogil=True)
def _string(data, at, end, out, to):  # type: ignore[no-untyped-def]
    """Write the string whose quote is at ``at`` to ``out`` from ``to`` on. Returns where it ends in
    the text, or minus the reason, and where it ends in ``out``.
    """
    at += 1
    while at < end:
        byte = data[at]
        if byte == _QUOTE:
            return at + 1, to
        if byte < _SPACE:
            break
        if byte != _BACKSLASH:
            out[to] = byte
            to += 1
            at += 1
            continue
        if at + 1 >= end:
            break
        byte = data[at + 1]
        at += 2
        if byte != _UNICODE:
            if _ESCAPES[byte] == 0:
                break
            out[to] = _ESCAPES[byte]
            to += 1
            continue
        code = _hexadecimal(data, at, end)
        if code < 0:
            break
        at += 4
        if 0xD800 <= code < 0xE000:
            low = -1
            if at + 1 < end and data[at] == _BACKSLASH and data[at + 1] == _UNICODE:
                low = _hexadecimal(data, at + 2, end)
            if code >= 0xDC00 or not 0xDC00 <= low < 0xE000:
                return -HALF_CHARACTER, to
            code = 0x10000 + ((code - 0xD800) << 10) + low - 0xDC00
            at += 6
        to = _utf8(out, to, code)
    return -NO_JSON, to


@njit(cache=True, nogil=True)
def _width(number):  # type: ignore[no-untyped-def]
    """The bytes of an unsigned number."""
    if number <= 0xFF:
        return 1
    if number <= 0xFFFF:
        return 2
    return 3 if number <= 0xFFFFFF else 4


@njit(cache=True, nogil=True)
def _put(out, to, number, width):  # type: ignore[no-untyped-def]
    """Write an int64 in ``width`` bytes, the lowest first; returns where it ends."""
    for k in range(width):
        out[to + k] = number >> (8 * k) & 0xFF
    return to + width


@njit(cache=True, nogil=True)
def _number(data, at, end, out, to):  # type: ignore[no-untyped-def]
    """Write a number. Returns where it ends in the text, or minus the reason; where it ends in
    ``out``; and whether it is a double, of which only the first byte is written.
    """
    negative = data[at] == _MINUS
    if negative:
        at += 1
    first = at
    ten, half, mask = np.uint64(10), np.uint64(32), np.uint64(0xFFFFFFFF)
    high, low = np.uint64(0), np.uint64(0)
    digits, whole, fraction = 0, 0, 0
    point = False
    while at < end:
        byte = data[at]
        if _ZERO <= byte <= _NINE:
            if digits > 0 or byte != _ZERO:
                digits += 1
                if digits <= _MOST_DIGITS:
                    lower = (low & mask) * ten + np.uint64(byte - _ZERO)
                    upper = (low >> half) * ten + (lower >> half)
                    high = high * ten + (upper >> half)
                    low = upper << half | lower & mask
            if point:
                fraction += 1
            else:
                whole += 1
        elif byte == _DOT and not point:
            point = True
        else:
            break
        at += 1
    if whole == 0 or (whole > 1 and data[first] == _ZERO) or (point and fraction == 0):
        return -NO_JSON, to, False
    if at < end and data[at] in (_EXPONENT, _EXPONENT_CAPITAL):
        at += 1
        if at < end and data[at] in (_PLUS, _MINUS):
            at += 1
        first = at
        while at < end and _ZERO <= data[at] <= _NINE:
            at += 1
        out[to] = _OF_DOUBLE
        return (at if at > first else -NO_JSON), to + 9, True
    limit = np.uint64(1) << np.uint64(63)
    if not point and digits <= 19 and (low < limit or (negative and low == limit)):
        number = np.int64(~low + np.uint64(1)) if negative else np.int64(low)
        if -(1 << 7) <= number < 1 << 7:
            out[to] = _OF_INT8
            return at, _put(out, to + 1, number, 1), False
        if -(1 << 15) <= number < 1 << 15:
            out[to] = _OF_INT16
            return at, _put(out, to + 1, number, 2), False
        if -(1 << 31) <= number < 1 << 31:
            out[to] = _OF_INT32
            return at, _put(out, to + 1, number, 4), False
        out[to] = _OF_INT64
        return at, _put(out, to + 1, number, 8), False
    if digits > _MOST_DIGITS or fraction > _MOST_DIGITS:
        return -MANY_DIGITS, to, False
    if negative:
        low = ~low + np.uint64(1)
        high = ~high + np.uint64(1) if low == np.uint64(0) else ~high
    out[to + 1] = fraction
    longest = max(digits, fraction)
    if longest <= 9:
        out[to] = _OF_DECIMAL4
        return at, _put(out, to + 2, np.int64(low), 4), False
    to_high = _put(out, to + 2, np.int64(low), 8)
    if longest <= 18:
        out[to] = _OF_DECIMAL8
        return at, to_high, False
    out[to] = _OF_DECIMAL16
    return at, _put(out, to_high, np.int64(high), 8), False


@njit(cache=True, nogil=True)
def _is_word(data, at, end, word):  # type: ignore[no-untyped-def]
    same = at + len(word) <= end
    for k in range(len(word)):
        same = same and data[at + k] == word[k]
    return same


@njit(cache=True, nogil=True)
def _name_id(names, ends, count, end, table, table_rows, row):  # type: ignore[no-untyped-def]
    """The id of the name ``names[ends[count]:end]`` among the ``count`` names of the row; ``count``
    if it is a new one, which is then kept. The table is of open addresses.
    """
    begin = ends[count]
    code = np.uint64(14695981039346656037)  # FNV-1a
    for k in range(begin, end):
        code = (code ^ np.uint64(names[k])) * np.uint64(1099511628211)
    last = len(table) - 1
    slot = np.int64((code ^ code >> np.uint64(32)) & np.uint64(last))
    while table_rows[slot] == row:
        other = table[slot]
        if ends[other + 1] - ends[other] == end - begin:
            same = True
            for k in range(end - begin):
                same = same and names[ends[other] + k] == names[begin + k]
            if same:
                return other
        slot = slot + 1 & last
    table_rows[slot] = row
    table[slot] = count
    ends[count + 1] = end
    return np.int64(count)


@njit(cache=True, nogil=True)
def _is_before(names, ends, one, other):  # type: ignore[no-untyped-def]
    """Is a name before another in the order of UTF-16, by which Java searches fields?"""
    for k in range(min(ends[one + 1] - ends[one], ends[other + 1] - ends[other])):
        left, right = names[ends[one] + k], names[ends[other] + k]
        if left != right:
            # UTF-16 writes characters of four bytes below those from U+E000 on.
            if left >= 0xEE and right >= 0xEE and (left >= 0xF0) != (right >= 0xF0):
                return left >= 0xF0
            return left < right
    return ends[one + 1] - ends[one] < ends[other + 1] - ends[other]


@njit(cache=True, nogil=True)
def _sort_fields(ids, offsets, first, end, names, ends):  # type: ignore[no-untyped-def]
    """Sort fields by their names (Shell's sort). Returns False if two have the same name."""
    gap = (end - first) // 2
    while gap > 0:
        for k in range(first + gap, end):
            name, offset = ids[k], offsets[k]
            at = k
            while at - gap >= first and _is_before(names, ends, name, ids[at - gap]):
                ids[at], offsets[at] = ids[at - gap], offsets[at - gap]
                at -= gap
            ids[at], offsets[at] = name, offset
        gap //= 2
    differ = True
    for k in range(first + 1, end):
        differ = differ and ids[k] != ids[k - 1]
    return differ


@njit(cache=True, nogil=True)
def _close(out, begin, to, is_object, ids, offsets, first, end):  # type: ignore[no-untyped-def]
    """Write the header of an object or a list in front of its values, which are at
    ``out[begin:to]``. Returns the bytes of the header.
    """
    count = end - first
    large = 4 if count > 0xFF else 1
    offset_width = _width(to - begin)
    id_width = 0
    if is_object:
        greatest = 0
        for k in range(first, end):
            greatest = max(greatest, ids[k])
        id_width = _width(greatest)
    size = 1 + large + count * id_width + (count + 1) * offset_width
    for k in range(to - 1, begin - 1, -1):
        out[k + size] = out[k]
    is_large = large == 4
    if is_object:
        out[begin] = (is_large << 4 | id_width - 1 << 2 | offset_width - 1) << 2 | _OBJECT
    else:
        out[begin] = (is_large << 2 | offset_width - 1) << 2 | _LIST
    at = _put(out, begin + 1, np.int64(count), large)
    for k in range(first, end):
        at = _put(out, at, np.int64(ids[k]), id_width)
    for k in range(first, end):
        at = _put(out, at, offsets[k], offset_width)
    _put(out, at, np.int64(to - begin), offset_width)
    return size


@njit(cache=True, nogil=True)
def _metadata(out, to, names, ends, count):  # type: ignore[no-untyped-def]
    """Write a row's names; returns where they end."""
    width = _width(max(ends[count], count))
    out[to] = 1 | width - 1 << 6
    to = _put(out, to + 1, np.int64(count), width)
    for k in range(count + 1):
        to = _put(out, to, ends[k], width)
    for k in range(ends[count]):
        out[to + k] = names[k]
    return to + ends[count]


@njit(cache=True, nogil=True)
def write_variants(  # type: ignore[no-untyped-def]
    data, start, length, most, values, value_ends, metadata, metadata_ends, doubles
):
    """Write each text as the value and the metadata of a VARIANT; NULL rows as nothing.

    Args:
        data: as in `tidelog.codecs.columns.kernels`.
        start: the same.
        length: the same.
        most: what `measure_json` filled in.
        values: uint8[VALUE_BYTES].
        value_ends: int64[n + 1], filled with 0 and the ends of the rows' values.
        metadata: uint8[METADATA_BYTES].
        metadata_ends: as ``value_ends``, for metadata.
        doubles: int64[DOUBLES, 3], filled with the numbers that are still to be written: where to
            in ``values``, and the start and the length of their texts.

    Returns the first row that becomes no VARIANT or -1, the reason, and the number of doubles.
    """
    ids = np.zeros(most[VALUES], np.int64)
    offsets = np.empty(most[VALUES], np.int64)
    names = np.empty(most[ROW_BYTES] + 1, np.uint8)
    ends = np.zeros(most[NAMES] + 2, np.int64)
    slots = 2
    while slots < 2 * most[NAMES]:
        slots *= 2
    table = np.empty(slots, np.int64)
    table_rows = np.full(slots, -1, np.int64)
    levels = min(most[LEVELS], _MOST_LEVELS) + 1
    begins = np.empty(levels, np.int64)  # by level: where the values are, and the first item,
    firsts = np.empty(levels, np.int64)  # and the first double
    firsts_of_doubles = np.empty(levels, np.int64)
    objects = np.empty(levels, np.bool_)
    to, to_metadata, count_of_doubles = np.int64(0), np.int64(0), 0
    value_ends[0] = 0
    metadata_ends[0] = 0
    for i in range(len(start)):
        if length[i] < 0:
            value_ends[i + 1] = to
            metadata_ends[i + 1] = to_metadata
            continue
        at = np.int64(start[i])
        end = at + length[i]
        level, items, count = 0, 0, 0
        state = _VALUE
        closes = False
        while True:
            while at < end and data[at] in (_SPACE, _NEWLINE, _TAB, _RETURN):
                at += 1
            if at >= end:
                break
            byte = data[at]
            if state == _AFTER_VALUE:
                if level == 0:
                    return i, NO_JSON, 0
                closes = byte == (_CLOSE if objects[level] else _CLOSE_LIST)
                if not closes:
                    if byte != _COMMA:
                        return i, NO_JSON, 0
                    state = _NAME if objects[level] else _VALUE
                    at += 1
                    continue
            else:
                closes = (state == _NAME_OR_CLOSE and byte == _CLOSE) or (
                    state == _VALUE_OR_CLOSE and byte == _CLOSE_LIST
                )
            if closes:
                first, begin = firsts[level], begins[level]
                is_object = objects[level]
                if is_object and not _sort_fields(ids, offsets, first, items, names, ends):
                    return i, NAME_TWICE, 0
                size = _close(values, begin, to, is_object, ids, offsets, first, items)
                for k in range(firsts_of_doubles[level], count_of_doubles):
                    doubles[k, 0] += size
                to += size
                items = first  # which is after the item that it is itself
                level -= 1
                state = _AFTER_VALUE
                at += 1
                continue
            if state in (_NAME, _NAME_OR_CLOSE):
                if byte != _QUOTE:
                    return i, NO_JSON, 0
                at, name_end = _string(data, at, end, names, ends[count])
                if at < 0:
                    return i, -at, 0
                while at < end and data[at] in (_SPACE, _NEWLINE, _TAB, _RETURN):
                    at += 1
                if at >= end or data[at] != _COLON:
                    return i, NO_JSON, 0
                ids[items] = _name_id(names, ends, count, name_end, table, table_rows, i)
                count += ids[items] == count
                state = _VALUE
                at += 1
                continue
            if level > 0:
                offsets[items] = to - begins[level]
            if byte in (_OPEN, _OPEN_LIST):
                level += 1
                if level >= levels:
                    return i, TOO_DEEP, 0
                begins[level] = to
                items += level > 1
                firsts[level] = items
                firsts_of_doubles[level] = count_of_doubles
                objects[level] = byte == _OPEN
                state = _NAME_OR_CLOSE if byte == _OPEN else _VALUE_OR_CLOSE
                at += 1
                continue
            if byte == _QUOTE:
                at, string_end = _string(data, at, end, values, to + 5)
                if at < 0:
                    return i, -at, 0
                size = string_end - to - 5
                if size > _MOST_SHORT:
                    values[to] = _OF_STRING
                    _put(values, to + 1, np.int64(size), 4)
                    to = string_end
                else:
                    values[to] = size << 2 | _SHORT_STRING
                    for k in range(to + 1, to + 1 + size):
                        values[k] = values[k + 4]
                    to += 1 + size
            elif byte == _MINUS or _ZERO <= byte <= _NINE:
                number_start = at
                at, number_end, is_double = _number(data, at, end, values, to)
                if at < 0:
                    return i, -at, 0
                if is_double:
                    doubles[count_of_doubles, 0] = to + 1
                    doubles[count_of_doubles, 1] = number_start
                    doubles[count_of_doubles, 2] = at - number_start
                    count_of_doubles += 1
                to = number_end
            elif _is_word(data, at, end, _TRUE):
                values[to] = _OF_TRUE
                to += 1
                at += 4
            elif _is_word(data, at, end, _FALSE):
                values[to] = _OF_FALSE
                to += 1
                at += 5
            elif _is_word(data, at, end, _NULL):
                values[to] = _OF_NULL
                to += 1
                at += 4
            else:
                return i, NO_JSON, 0
            if level > 0:
                items += 1
            state = _AFTER_VALUE
        if state != _AFTER_VALUE or level > 0:
            return i, NO_JSON, 0
        to_metadata = _metadata(metadata, to_metadata, names, ends, count)
        value_ends[i + 1] = to
        metadata_ends[i + 1] = to_metadata
        if max(to - value_ends[i], to_metadata - metadata_ends[i]) > _MOST_BYTES:
            return i, TOO_LARGE, 0
    return -1, 0, count_of_doubles
