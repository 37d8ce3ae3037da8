"""HOT PATH. One pass over whole binlog events; measured by ``benchmarks/bench_binlog_scan.py``.

The kernel frames transactions, verifies checksums, counts ordinals and splits rows events into the
event log's payloads, one per row. It only reads lengths; executors decode rows. Formats:
`tidelog.codecs.mysql.binlog.events`. Little-endian throughout.

Every length from the stream is checked against the event's end before it is used.
"""

from __future__ import annotations

from numba import njit

from tidelog.codecs.byte_order import (
    little_int64_at,
    little_uint16_at,
    little_uint24_at,
    little_uint32_at,
    little_uint48_at,
)
from tidelog.codecs.mysql.binlog import kernels as kernel
from tidelog.codecs.mysql.binlog.events import HEADER_BYTES
from tidelog.codecs.mysql.binlog.kernels import (
    COLUMNS,
    JSON_COLUMNS,
    LEFT_OUT,
    MAP_END,
    MAP_START,
    crc32,
    event_place,
    image_end,
    images_differ,
    may_repeat,
    present_count,
    write_kept_columns,
)
from tidelog.model.records import Int32s, Int64s, UInt8s

_BEFORE, _AFTER, _PARTIAL = 1, 2, 4  # flags of the payload
_BEFORE_AND_AFTER = _BEFORE | _AFTER


@njit(inline="always")
def is_rows(typed: int) -> bool:
    """Return True for the type of a rows event."""
    return (
        kernel.WRITE_V1 <= typed <= kernel.DELETE_V1
        or kernel.WRITE <= typed <= kernel.DELETE
        or typed == kernel.PARTIAL_UPDATE
    )


@njit(inline="always")
def table_number(table_id: int, ids: Int64s, numbers: Int64s) -> int:
    """The table's row with the id; -1: none. ``ids`` are sorted."""
    low = 0
    high = len(ids)
    while low < high:
        middle = (low + high) >> 1
        if ids[middle] < table_id:
            low = middle + 1
        else:
            high = middle
    if low == len(ids) or ids[low] != table_id:
        return -1
    return int(numbers[low])


@njit(nogil=True)
def same_map(data: UInt8s, body: int, body_end: int, maps: UInt8s, table: Int64s) -> bool:
    """Return True if ``data[body:body_end]`` is the known table map."""
    known = table[MAP_START]
    if table[MAP_END] - known != body_end - body:
        return False
    for j in range(body_end - body):  # noqa: SIM110 (numba)
        if data[body + j] != maps[known + j]:
            return False
    return True


@njit(nogil=True)
def columns_of(data: UInt8s, typed: int, at: int, body_end: int) -> tuple[int, int]:
    """The position of a rows event's bitmaps, and its number of columns; -1: it is malformed.
    ``at``: the end of its table id and flags.
    """
    if typed not in (kernel.WRITE_V1, kernel.UPDATE_V1, kernel.DELETE_V1):
        if at + 2 > body_end or little_uint16_at(data, at) < 2:
            return at, -1
        at += little_uint16_at(data, at)  # extra data
    if at + 1 > body_end:
        return at, -1
    columns = int(data[at])
    at += 1
    if columns == 252:
        if at + 2 > body_end:
            return at, -1
        columns = little_uint16_at(data, at)
        at += 2
    elif columns > 252 or columns == 251:
        return at, -1
    return at, columns


@njit(nogil=True)
def options_end(data: UInt8s, at: int, end: int, table: Int64s) -> int:
    """The end of the bytes before the new image of a partial update; -1: it is malformed."""
    if at + 1 > end or data[at] > 250:
        return -1
    if data[at] & 1:
        return int(at + 1 + ((table[JSON_COLUMNS] + 7) >> 3))
    return at + 1


@njit(inline="always")
def _copy_few(source: UInt8s, start: int, size: int, target: UInt8s, at: int) -> None:
    for i in range(size):
        target[at + i] = source[start + i]


@njit(inline="always")
def write_payload(
    data: UInt8s,
    bits: int,
    images: tuple[int, int, int],
    row_flags: int,
    table: Int64s,
    walks: Int32s,
    payload: UInt8s,
    used: int,
) -> int:
    """Write a row's payload from ``used`` on; returns its end.

    Args:
        data: the events.
        bits: the position of the bitmaps of present columns: one, or two for an update.
        images: the beginning of the first image, its end, and the end of the second one.
        row_flags: which images there are.
        table: the table's slots.
        walks: see `scan`.
        payload: a buffer with room for it.
        used: the bytes of ``payload`` in use.
    """
    row, middle, end = images
    columns = table[COLUMNS]
    kept = columns - table[LEFT_OUT]
    width = (columns + 7) >> 3
    payload[used] = 1
    payload[used + 1] = row_flags
    payload[used + 2] = kept & 0xFF
    payload[used + 3] = kept >> 8
    used += 4
    if table[LEFT_OUT]:
        used = write_kept_columns(data, bits, row, False, table, walks, payload, used)
        if row_flags & _BEFORE_AND_AFTER == _BEFORE_AND_AFTER:
            partial = row_flags & _PARTIAL != 0
            used = write_kept_columns(
                data, bits + width, middle, partial, table, walks, payload, used
            )
        return used
    _copy_few(data, bits, width, payload, used)
    used += width
    payload[used : used + middle - row] = data[row:middle]
    used += middle - row
    if row_flags & _BEFORE_AND_AFTER == _BEFORE_AND_AFTER:
        _copy_few(data, bits + width, width, payload, used)
        used += width
        payload[used : used + end - middle] = data[middle:end]
        used += end - middle
    return used


@njit(inline="always")
def is_word(data: UInt8s, start: int, end: int, word: bytes) -> bool:
    """Return True if ``data[start:end]`` is this word."""
    if end - start != len(word):
        return False
    for i in range(len(word)):  # noqa: SIM110 (numba)
        if data[start + i] != word[i]:
            return False
    return True


@njit(inline="always")
def is_after(position: int, ordinal: int, last_position: int, last_ordinal: int) -> bool:
    """Return True if the record is after the last one."""
    return position > last_position or (position == last_position and ordinal > last_ordinal)


@njit(nogil=True)
def source_of(
    data: UInt8s, start: int, mariadb: bool, sources: UInt8s, count: int, last: int
) -> int:
    """The row of ``sources`` that numbered the GTID event at ``start``; -1: none of the first
    ``count``. ``last``: the row to try first, -1 if there is none.
    """
    body = start + HEADER_BYTES
    for k in range(-1, count):
        candidate = last if k < 0 else k
        if candidate < 0:
            continue
        same = True
        if mariadb:
            for j in range(4):
                if (
                    sources[candidate, j] != data[body + 8 + j]
                    or sources[candidate, 4 + j] != data[start + 5 + j]
                ):
                    same = False
                    break
        else:
            for j in range(16):
                if sources[candidate, j] != data[body + 1 + j]:
                    same = False
                    break
        if same:
            return candidate
    return -1


@njit(nogil=True)
def commit_ts_of(data: UInt8s, start: int, body_end: int, mariadb: bool) -> int:
    """The commit time of the group with the GTID event at ``start``, microseconds since 1970."""
    body = start + HEADER_BYTES
    if not mariadb and body + 49 <= body_end and data[body + 25] == 2:
        # The commit time on this server, microseconds in 55 bits.
        commit_us = little_uint32_at(data, body + 42) | little_uint24_at(data, body + 46) << 32
        commit_us &= (1 << 55) - 1
        if commit_us:
            return int(commit_us)
    return int(little_uint32_at(data, start) * 1_000_000)


_NO_TABLE = 0xFFFFFF  # in a rows event that only ends a statement
_STATEMENT_END = 1
_I, _U, _D = ord("I"), ord("U"), ord("D")


@njit(cache=True, nogil=True)
def scan(
    data: UInt8s,
    offsets: Int64s,
    first: int,
    ids: Int64s,
    numbers: Int64s,
    tables: Int64s,
    walks: Int32s,
    steps: Int32s,
    maps: UInt8s,
    sources: UInt8s,
    state: Int64s,
    kind: UInt8s,
    schema_id: Int32s,
    position: Int64s,
    ordinal: Int64s,
    commit_ts: Int64s,
    payload_offsets: Int32s,
    payload: UInt8s,
    gtid_position: Int64s,
    gtid_number: Int64s,
    gtid_source: Int32s,
) -> int:
    """Scan events from ``first`` on until the end, lack of room, or one that Python must process.

    Args:
        data: the events.
        offsets: int64[n + 1]; event ``i`` is ``data[offsets[i]:offsets[i + 1]]``. The caller has
            checked the first and the last.
        first: the event to begin at (after ``state[ROW_AT]`` bytes of it).
        ids: sorted table ids.
        numbers: the row of ``tables`` of each id.
        tables: int64[k, TABLE_SLOTS].
        walks: int32[..., 4], for each column the bytes of its length prefix (0: none), the length
            of values without one, 1 if its updates are to be noticed, and flags: IS_LEFT_OUT,
            IS_JSON.
        steps: int32[..., 2], for a row without NULLs: bytes to skip, then the length prefix of a
            column of variable length.
        maps: the tables' maps, back to back.
        sources: uint8[..., 16], the sources of transaction numbers: a uuid, or domain and server
            id.
        state: int64[STATE_SLOTS], read and written.
        kind: uint8[r], out, like all that follow: the columns of `LogBatch`, written from 0 on.
        schema_id: int32[r].
        position: int64[r].
        ordinal: int64[r].
        commit_ts: int64[r].
        payload_offsets: int32[r + 1].
        payload: uint8[...].
        gtid_position: int64[g], of the groups that begin.
        gtid_number: int64[g].
        gtid_source: int32[g], rows of ``sources``.

    Returns:
        END, SPECIAL, FULL, WATCHED_ROW or an error code.
    """
    offset = state[kernel.OFFSET]
    file = state[kernel.FILE]
    in_group = state[kernel.IN_GROUP]
    group_start = state[kernel.GROUP_START]
    record_position = state[kernel.RECORD_POSITION]
    group_ts = state[kernel.COMMIT_TS]
    next_ordinal = state[kernel.NEXT_ORDINAL]
    begun = state[kernel.BEGUN]
    standalone = state[kernel.STANDALONE]
    held = state[kernel.HELD]
    last_position = state[kernel.LAST_POSITION]
    last_ordinal = state[kernel.LAST_ORDINAL]
    checksum, mode = state[kernel.CHECKSUM], state[kernel.MODE]
    source = state[kernel.SOURCE]
    row_at = state[kernel.ROW_AT]

    count = len(offsets) - 1
    begin_of_all, end_of_all = offsets[0], offsets[count]
    record = used = gtids = 0
    payload_offsets[0] = 0
    event_start = event_end = offset
    code, i = kernel.END, first
    while i < count:
        start = offsets[i]
        end = offsets[i + 1]
        length = end - start
        if start < begin_of_all or length < HEADER_BYTES or end > end_of_all:
            code = kernel.MALFORMED
            break
        typed = data[start + 4]
        if mode != kernel.INFLATED and little_uint32_at(data, start + 9) != length:
            code = kernel.MALFORMED
            break
        body = start + HEADER_BYTES
        body_end = end
        if checksum and mode == kernel.WHOLE and not may_repeat(typed):
            body_end = end - 4
            if body_end < body:
                code = kernel.MALFORMED
                break
            if row_at == 0 and crc32(data, start, body_end) != little_uint32_at(data, body_end):
                code = kernel.BAD_CHECKSUM
                break
        if mode == kernel.INNER:
            event_start = state[kernel.EVENT_START]
            event_end = state[kernel.EVENT_END]
        else:
            in_order, event_start, event_end = event_place(data, start, offset)
            if not in_order:
                code = kernel.OUT_OF_ORDER
                break

        if is_rows(typed):
            if not in_group:
                code = kernel.OUTSIDE
                break
            if body + 8 > body_end:
                code = kernel.MALFORMED
                break
            rows_flags = little_uint16_at(data, body + 6)
            if not held:
                table_id = little_uint48_at(data, body)
                at, columns = columns_of(data, typed, body + 8, body_end)
                if columns < 0:
                    code = kernel.MALFORMED
                    break
                number = table_number(table_id, ids, numbers)
                if number < 0:
                    if table_id != _NO_TABLE:
                        code = kernel.UNMAPPED
                        break
                    at = body_end
                elif tables[number, kernel.COLUMNS] < 0:
                    # Such a table counts events instead of rows, and any change may be one to
                    # notice.
                    table = tables[number]
                    if is_after(record_position, next_ordinal, last_position, last_ordinal):
                        if typed in (kernel.DELETE, kernel.DELETE_V1):
                            table[kernel.NOTICED] |= table[kernel.NOTICE] & kernel.DELETED
                        elif typed not in (kernel.WRITE, kernel.WRITE_V1):
                            table[kernel.NOTICED] |= table[kernel.NOTICE] & kernel.REKEYED
                        last_position = record_position
                        last_ordinal = next_ordinal
                    next_ordinal += 1
                else:
                    table = tables[number]
                    if table[kernel.COLUMNS] != columns:
                        code = kernel.COLUMN_COUNT
                        break
                    width = (columns + 7) >> 3
                    updates = typed in (kernel.UPDATE, kernel.UPDATE_V1, kernel.PARTIAL_UPDATE)
                    partial = typed == kernel.PARTIAL_UPDATE
                    first_bits = at
                    second_bits = at + width
                    at += width * 2 if updates else width
                    if at > body_end:
                        code = kernel.MALFORMED
                        break
                    first_present = present_count(data, first_bits, columns)
                    second_present = present_count(data, second_bits, columns) if updates else 0
                    schema = table[kernel.SCHEMA]
                    head = 4 + (width * 2 if updates else width)
                    if updates:
                        row_kind = _U
                        row_flags = _BEFORE | _AFTER | (_PARTIAL if partial else 0)
                    elif typed in (kernel.WRITE, kernel.WRITE_V1):
                        row_kind = _I
                        row_flags = _AFTER
                    else:
                        row_kind = _D
                        row_flags = _BEFORE
                    one_without_bytes = at == body_end and first_present == 0
                    if schema != 0:
                        table[kernel.CHANGED_BY] = group_start
                    if row_at:
                        at = start + row_at
                        one_without_bytes = False
                    while at < body_end or one_without_bytes:
                        row = at
                        at = image_end(
                            data, at, body_end, first_bits, first_present, table, walks, steps
                        )
                        middle = after_at = at
                        if updates and at <= body_end:
                            if partial:
                                at = options_end(data, at, body_end, table)
                                if at < 0:
                                    code = kernel.TORN_ROW
                                    break
                            after_at = at
                            at = image_end(
                                data, at, body_end, second_bits, second_present, table, walks, steps
                            )
                        if at > body_end and schema == 0 and table[kernel.LOOSE]:
                            if is_after(record_position, next_ordinal, last_position, last_ordinal):
                                last_position = record_position
                                last_ordinal = next_ordinal
                            next_ordinal += 1
                            break
                        if at > body_end or (at == row and not one_without_bytes):
                            code = kernel.TORN_ROW
                            break
                        one_without_bytes = False
                        if is_after(record_position, next_ordinal, last_position, last_ordinal):
                            if schema != 0:
                                need = head + at - row
                                if (
                                    record == len(kind)
                                    or used + need > len(payload)
                                    or (schema == kernel.WATCHED and record > 0)
                                ):
                                    row_at = row - start
                                    state[kernel.NEED] = need
                                    code = kernel.FULL
                                    break
                                images = (row, middle, at)
                                used = write_payload(
                                    data, first_bits, images, row_flags, table, walks, payload, used
                                )
                                kind[record] = row_kind
                                schema_id[record] = schema
                                position[record] = record_position
                                ordinal[record] = next_ordinal
                                commit_ts[record] = group_ts
                                record += 1
                                payload_offsets[record] = used
                            if table[kernel.NOTICE] & ~table[kernel.NOTICED]:
                                if row_kind == _D:
                                    table[kernel.NOTICED] |= table[kernel.NOTICE] & kernel.DELETED
                                elif (
                                    updates
                                    and table[kernel.NOTICE] & kernel.REKEYED
                                    and images_differ(
                                        data, row, first_bits, first_present,
                                        after_at, second_bits, second_present, at, table, walks,
                                    )
                                ):  # fmt: skip
                                    table[kernel.NOTICED] |= kernel.REKEYED
                            last_position = record_position
                            last_ordinal = next_ordinal
                            if schema == kernel.WATCHED:
                                next_ordinal += 1
                                row_at = at - start
                                code = kernel.WATCHED_ROW
                                break
                        next_ordinal += 1
                    if code != kernel.END:
                        break
            row_at = 0
            if standalone and rows_flags & _STATEMENT_END:
                in_group = 0
        elif typed == kernel.TABLE_MAP:
            if not in_group:
                code = kernel.OUTSIDE
                break
            if body + 8 > body_end:
                code = kernel.MALFORMED
                break
            if not held:
                number = table_number(little_uint48_at(data, body), ids, numbers)
                if number < 0:
                    code = kernel.SPECIAL
                    break
                if not same_map(data, body, body_end, maps, tables[number]):
                    code = kernel.SPECIAL
                    break
        elif typed in (kernel.GTID, kernel.ANONYMOUS_GTID, kernel.MARIADB_GTID):
            mariadb = typed == kernel.MARIADB_GTID
            if in_group:
                code = kernel.NESTED
                break
            if mode == kernel.INNER or body + (13 if mariadb else 25) > body_end:
                code = kernel.MALFORMED
                break
            if mariadb and data[body + 12] & 0xC0:  # XA
                code = kernel.SPECIAL
                break
            if typed != kernel.ANONYMOUS_GTID:
                if gtids == len(gtid_position):
                    code = kernel.FULL
                    state[kernel.NEED] = 0
                    break
                found = source_of(data, start, mariadb, sources, state[kernel.SOURCES], source)
                if found < 0:
                    code = kernel.SPECIAL
                    break
                number = little_int64_at(data, body if mariadb else body + 17)
                if number < 0:
                    code = kernel.MALFORMED
                    break
                source = found
                gtid_position[gtids] = file | event_start
                gtid_number[gtids] = number
                gtid_source[gtids] = found
                gtids += 1
            in_group = 1
            group_start = record_position = file | event_start
            next_ordinal = 0
            held = 0
            standalone = 1 if mariadb and data[body + 12] & 1 else 0
            begun = 1 if mariadb and not standalone else 0
            group_ts = commit_ts_of(data, start, body_end, mariadb)
        elif typed == kernel.XID:
            if not in_group:
                code = kernel.OUTSIDE
                break
            if held:
                code = kernel.SPECIAL
                break
            in_group = 0
        elif typed == kernel.QUERY:
            if body + 13 > body_end:
                code = kernel.MALFORMED
                break
            text = body + 13 + little_uint16_at(data, body + 11) + data[body + 8] + 1
            if text > body_end:
                code = kernel.MALFORMED
                break
            bare = not begun and not standalone and not held
            if bare and is_word(data, text, body_end, b"BEGIN"):
                if not in_group:
                    in_group = 1
                    group_start = record_position = file | event_start
                    next_ordinal = 0
                    group_ts = little_uint32_at(data, start) * 1_000_000
                begun = 1
            elif in_group and begun and not held and is_word(data, text, body_end, b"COMMIT"):
                in_group = 0
            else:
                code = kernel.SPECIAL
                break
        elif typed in (
            kernel.ROWS_QUERY,
            kernel.ANNOTATE,
            kernel.CHECKPOINT,
            kernel.STOP,
            kernel.CONTEXT,
            kernel.VIEW_CHANGE,
        ):
            pass
        elif typed in (kernel.INTVAR, kernel.RAND, kernel.USER_VAR):
            if not in_group:
                in_group = 1
                group_start = record_position = file | event_start
                next_ordinal = 0
                held = standalone = begun = 0
                group_ts = little_uint32_at(data, start) * 1_000_000
        else:
            code = kernel.SPECIAL
            break
        if not in_group:
            begun = standalone = held = 0
        if mode != kernel.INNER:
            offset = event_end
        i += 1

    state[kernel.OFFSET] = offset
    state[kernel.IN_GROUP] = in_group
    state[kernel.GROUP_START] = group_start
    state[kernel.RECORD_POSITION] = record_position
    state[kernel.COMMIT_TS] = group_ts
    state[kernel.NEXT_ORDINAL] = next_ordinal
    state[kernel.BEGUN] = begun
    state[kernel.STANDALONE] = standalone
    state[kernel.HELD] = held
    state[kernel.LAST_POSITION] = last_position
    state[kernel.LAST_ORDINAL] = last_ordinal
    state[kernel.SOURCE] = source
    state[kernel.ROW_AT] = row_at
    state[kernel.CURSOR] = i
    state[kernel.RECORDS] = record
    state[kernel.PAYLOAD_BYTES] = used
    state[kernel.GTIDS] = gtids
    state[kernel.EVENT_START] = event_start
    state[kernel.EVENT_END] = event_end
    return code
