"""HOT PATH. One pass over whole binlog events; measured by ``benchmarks/bench_binlog_scan.py``.

The kernel frames transactions, verifies checksums, counts ordinals and cuts rows events into the
event log's payloads, one a row. It looks at lengths only; rows are decoded by executors.
Formats: `tidelog.codecs.mysql.binlog.events`. Little-endian throughout.

Everything that comes from the stream is checked against the event's end before it is read.
"""

from __future__ import annotations

from numba import njit

from tidelog.codecs.littleendian import int64_at, uint16_at, uint24_at, uint32_at, uint48_at
from tidelog.codecs.mysql.binlog.events.header import HEADER_BYTES
from tidelog.codecs.mysql.binlog.kernels.events import crc32
from tidelog.codecs.mysql.binlog.kernels.images import image_end, present_count, rekeyed
from tidelog.codecs.mysql.binlog.kernels.slots import (
    BAD_CHECKSUM,
    BEGUN,
    CHANGED_BY,
    CHECKSUM,
    COLUMN_COUNT,
    COLUMNS,
    COMMIT_TS,
    CURSOR,
    DELETED,
    END,
    EVENT_END,
    EVENT_START,
    FILE,
    FULL,
    GROUP_START,
    GTIDS,
    HELD,
    IN_GROUP,
    INFLATED,
    INNER,
    JSON_COLUMNS,
    LAST_ORDINAL,
    LAST_POSITION,
    LOOSE,
    MALFORMED,
    MAP_END,
    MAP_START,
    MODE,
    NEED,
    NESTED,
    NEXT_ORDINAL,
    NOTICE,
    NOTICED,
    OFFSET,
    OUT_OF_ORDER,
    OUTSIDE,
    PAYLOAD_BYTES,
    RECORD_POSITION,
    RECORDS,
    REKEYED,
    ROW_AT,
    SCHEMA,
    SOURCE,
    SOURCES,
    SPECIAL,
    STANDALONE,
    TORN_ROW,
    UNMAPPED,
    WATCHED,
    WATCHED_ROW,
    WHOLE,
)
from tidelog.model.records import Int32s, Int64s, UInt8s

_QUERY, _STOP, _ROTATE, _INTVAR, _RAND, _USER_VAR = 2, 3, 4, 5, 13, 14
_FORMAT, _XID, _TABLE_MAP, _HEARTBEAT, _HEARTBEAT_V2 = 15, 16, 19, 27, 41
_WRITE_V1, _UPDATE_V1, _DELETE_V1, _WRITE, _UPDATE, _DELETE = 23, 24, 25, 30, 31, 32
_PARTIAL_UPDATE, _GTID, _ANONYMOUS_GTID, _MARIADB_GTID = 39, 33, 34, 162
_ROWS_QUERY, _CONTEXT, _VIEW_CHANGE, _ANNOTATE, _CHECKPOINT = 29, 36, 37, 160, 161
_NO_TABLE = 0xFFFFFF  # in a rows event that only ends a statement
_STATEMENT_END = 1
_ARTIFICIAL = 0x20
_I, _U, _D = ord("I"), ord("U"), ord("D")
_BEFORE, _AFTER, _PARTIAL = 1, 2, 4
_MASK32 = 0xFFFFFFFF


@njit(inline="always")
def _copy_few(source: UInt8s, start: int, size: int, target: UInt8s, at: int) -> None:
    for i in range(size):
        target[at + i] = source[start + i]


@njit(inline="always")
def _find(table_id: int, ids: Int64s, numbers: Int64s) -> int:
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


@njit(inline="always")
def _is_word(data: UInt8s, start: int, end: int, word: bytes) -> bool:
    if end - start != len(word):
        return False
    for i in range(len(word)):  # noqa: SIM110 (numba)
        if data[start + i] != word[i]:
            return False
    return True


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
    """Scan events from ``first`` on until the end, lack of room, or one that Python must see.

    Args:
        data: the events.
        offsets: int64[n + 1]; event ``i`` is ``data[offsets[i]:offsets[i + 1]]``. The caller has
            checked the first and the last.
        first: the event to begin at (after ``state[ROW_AT]`` bytes of it).
        ids: sorted table ids.
        numbers: which row of ``tables`` each has.
        tables: int64[k, TABLE_SLOTS].
        walks: int32[..., 3], for each column the bytes of its length prefix (0: none), the length
            of values without one, and 1 if an update of it is to be noticed.
        steps: int32[..., 2], for a row without NULLs: bytes to pass, then the length prefix of a
            column of variable length.
        maps: the tables' maps, back to back.
        sources: uint8[..., 16], who numbers transactions: a uuid, or domain and server id.
        state: int64[STATE_SLOTS], read and written.
        kind: uint8[r], out, as all that follow: the columns of `LogBatch`, written from 0 on.
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
    offset = state[OFFSET]
    file = state[FILE]
    in_group = state[IN_GROUP]
    group_start = state[GROUP_START]
    record_position = state[RECORD_POSITION]
    group_ts = state[COMMIT_TS]
    next_ordinal = state[NEXT_ORDINAL]
    begun = state[BEGUN]
    standalone = state[STANDALONE]
    held = state[HELD]
    last_position = state[LAST_POSITION]
    last_ordinal = state[LAST_ORDINAL]
    checksum = state[CHECKSUM]
    mode = state[MODE]
    source = state[SOURCE]
    row_at = state[ROW_AT]

    count = len(offsets) - 1
    begin_of_all = offsets[0]
    end_of_all = offsets[count]
    record = 0
    used = 0
    gtids = 0
    payload_offsets[0] = 0
    event_start = event_end = offset
    code = END
    i = first
    while i < count:
        start = offsets[i]
        end = offsets[i + 1]
        length = end - start
        if start < begin_of_all or length < HEADER_BYTES or end > end_of_all:
            code = MALFORMED
            break
        typed = data[start + 4]
        told_length = uint32_at(data, start + 9)
        if mode != INFLATED and told_length != length:
            code = MALFORMED
            break
        body = start + HEADER_BYTES
        body_end = end
        if (
            checksum
            and mode == WHOLE
            and typed not in (_FORMAT, _ROTATE, _HEARTBEAT, _HEARTBEAT_V2)
        ):
            body_end = end - 4
            if body_end < body:
                code = MALFORMED
                break
            if row_at == 0 and crc32(data, start, body_end) != uint32_at(data, body_end):
                code = BAD_CHECKSUM
                break
        flags = uint16_at(data, start + 17)
        if mode == INNER:
            event_start = state[EVENT_START]
            event_end = state[EVENT_END]
        else:
            log_pos = uint32_at(data, start + 13)
            if log_pos == 0 or flags & _ARTIFICIAL:
                event_start = event_end = offset
            else:
                # The header has the low 32 bits of where the event ends.
                distance = (log_pos - offset) & _MASK32
                event_end = offset + distance
                event_start = event_end - told_length
                if typed in (_ROTATE, _FORMAT, _HEARTBEAT, _HEARTBEAT_V2):
                    # They may be sent again, out of their place.
                    if distance >= 1 << 31 or event_start < offset:
                        event_start = event_end = offset
                elif distance >= 1 << 31 or event_start < offset:
                    code = OUT_OF_ORDER
                    break

        if typed in (
            _WRITE,
            _UPDATE,
            _DELETE,
            _WRITE_V1,
            _UPDATE_V1,
            _DELETE_V1,
            _PARTIAL_UPDATE,
        ):
            if not in_group:
                code = OUTSIDE
                break
            if body + 8 > body_end:
                code = MALFORMED
                break
            rows_flags = uint16_at(data, body + 6)
            if not held:
                table_id = uint48_at(data, body)
                at = body + 8
                if typed not in (_WRITE_V1, _UPDATE_V1, _DELETE_V1):
                    if at + 2 > body_end or uint16_at(data, at) < 2:
                        code = MALFORMED
                        break
                    at += uint16_at(data, at)  # extra data
                if at + 1 > body_end:
                    code = MALFORMED
                    break
                columns = int(data[at])
                at += 1
                if columns == 252:
                    if at + 2 > body_end:
                        code = MALFORMED
                        break
                    columns = uint16_at(data, at)
                    at += 2
                elif columns > 252 or columns == 251:
                    code = MALFORMED
                    break
                number = _find(table_id, ids, numbers)
                if number < 0:
                    if table_id != _NO_TABLE:
                        code = UNMAPPED
                        break
                    at = body_end
                elif tables[number, COLUMNS] < 0:
                    # What counts rows elsewhere counts events, and any change may be the noticed.
                    table = tables[number]
                    if record_position > last_position or (
                        record_position == last_position and next_ordinal > last_ordinal
                    ):
                        if typed in (_DELETE, _DELETE_V1):
                            table[NOTICED] |= table[NOTICE] & DELETED
                        elif typed not in (_WRITE, _WRITE_V1):
                            table[NOTICED] |= table[NOTICE] & REKEYED
                        last_position = record_position
                        last_ordinal = next_ordinal
                    next_ordinal += 1
                else:
                    table = tables[number]
                    if table[COLUMNS] != columns:
                        code = COLUMN_COUNT
                        break
                    width = (columns + 7) >> 3
                    updates = typed in (_UPDATE, _UPDATE_V1, _PARTIAL_UPDATE)
                    partial = typed == _PARTIAL_UPDATE
                    first_bits = at
                    second_bits = at + width
                    at += width * 2 if updates else width
                    if at > body_end:
                        code = MALFORMED
                        break
                    first_present = present_count(data, first_bits, columns)
                    second_present = present_count(data, second_bits, columns) if updates else 0
                    schema = table[SCHEMA]
                    head = 4 + (width * 2 if updates else width)
                    if updates:
                        row_kind = _U
                        row_flags = _BEFORE | _AFTER | (_PARTIAL if partial else 0)
                    elif typed in (_WRITE, _WRITE_V1):
                        row_kind = _I
                        row_flags = _AFTER
                    else:
                        row_kind = _D
                        row_flags = _BEFORE
                    one_without_bytes = at == body_end and first_present == 0
                    if schema != 0:
                        table[CHANGED_BY] = group_start
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
                                if at + 1 > body_end or data[at] > 250:
                                    code = TORN_ROW
                                    break
                                options = data[at]
                                at += 1
                                if options & 1:
                                    at += (table[JSON_COLUMNS] + 7) >> 3
                            after_at = at
                            at = image_end(
                                data,
                                at,
                                body_end,
                                second_bits,
                                second_present,
                                table,
                                walks,
                                steps,
                            )
                        if at > body_end and schema == 0 and table[LOOSE]:
                            if record_position > last_position or (
                                record_position == last_position and next_ordinal > last_ordinal
                            ):
                                last_position = record_position
                                last_ordinal = next_ordinal
                            next_ordinal += 1
                            break
                        if at > body_end or (at == row and not one_without_bytes):
                            code = TORN_ROW
                            break
                        one_without_bytes = False
                        if record_position > last_position or (
                            record_position == last_position and next_ordinal > last_ordinal
                        ):
                            if schema != 0:
                                need = head + at - row
                                if (
                                    record == len(kind)
                                    or used + need > len(payload)
                                    or (schema == WATCHED and record > 0)
                                ):
                                    row_at = row - start
                                    state[NEED] = need
                                    code = FULL
                                    break
                                payload[used] = 1
                                payload[used + 1] = row_flags
                                payload[used + 2] = columns & 0xFF
                                payload[used + 3] = columns >> 8
                                used += 4
                                _copy_few(data, first_bits, width, payload, used)
                                used += width
                                payload[used : used + middle - row] = data[row:middle]
                                used += middle - row
                                if updates:
                                    _copy_few(data, second_bits, width, payload, used)
                                    used += width
                                    payload[used : used + at - middle] = data[middle:at]
                                    used += at - middle
                                kind[record] = row_kind
                                schema_id[record] = schema
                                position[record] = record_position
                                ordinal[record] = next_ordinal
                                commit_ts[record] = group_ts
                                record += 1
                                payload_offsets[record] = used
                            if table[NOTICE] & ~table[NOTICED]:
                                if row_kind == _D:
                                    table[NOTICED] |= table[NOTICE] & DELETED
                                elif (
                                    updates
                                    and table[NOTICE] & REKEYED
                                    and rekeyed(
                                        data,
                                        row,
                                        first_bits,
                                        first_present,
                                        after_at,
                                        second_bits,
                                        second_present,
                                        at,
                                        table,
                                        walks,
                                    )
                                ):
                                    table[NOTICED] |= REKEYED
                            last_position = record_position
                            last_ordinal = next_ordinal
                            if schema == WATCHED:
                                next_ordinal += 1
                                row_at = at - start
                                code = WATCHED_ROW
                                break
                        next_ordinal += 1
                    if code != END:
                        break
            row_at = 0
            if standalone and rows_flags & _STATEMENT_END:
                in_group = 0
        elif typed == _TABLE_MAP:
            if not in_group:
                code = OUTSIDE
                break
            if body + 8 > body_end:
                code = MALFORMED
                break
            if not held:
                number = _find(uint48_at(data, body), ids, numbers)
                if number < 0:
                    code = SPECIAL
                    break
                known = tables[number, MAP_START]
                same = tables[number, MAP_END] - known == body_end - body
                if same:
                    for j in range(body_end - body):
                        if data[body + j] != maps[known + j]:
                            same = False
                            break
                if not same:
                    code = SPECIAL
                    break
        elif typed in (_GTID, _ANONYMOUS_GTID, _MARIADB_GTID):
            mariadb = typed == _MARIADB_GTID
            if in_group:
                code = NESTED
                break
            if mode == INNER or body + (13 if mariadb else 25) > body_end:
                code = MALFORMED
                break
            if mariadb and data[body + 12] & 0xC0:  # XA
                code = SPECIAL
                break
            if typed != _ANONYMOUS_GTID:
                if gtids == len(gtid_position):
                    code = FULL
                    state[NEED] = 0
                    break
                found = -1
                for k in range(-1, state[SOURCES]):
                    candidate = source if k < 0 else k
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
                        found = candidate
                        break
                if found < 0:
                    code = SPECIAL
                    break
                number = int64_at(data, body if mariadb else body + 17)
                if number < 0:
                    code = MALFORMED
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
            group_ts = uint32_at(data, start) * 1_000_000
            if not mariadb and body + 49 <= body_end and data[body + 25] == 2:
                # When it was committed on this server, microseconds in 55 bits.
                told_ts = uint32_at(data, body + 42) | uint24_at(data, body + 46) << 32
                told_ts &= (1 << 55) - 1
                if told_ts:
                    group_ts = told_ts
        elif typed == _XID:
            if not in_group:
                code = OUTSIDE
                break
            if held:
                code = SPECIAL
                break
            in_group = 0
        elif typed == _QUERY:
            if body + 13 > body_end:
                code = MALFORMED
                break
            text = body + 13 + uint16_at(data, body + 11) + data[body + 8] + 1
            if text > body_end:
                code = MALFORMED
                break
            if (
                not begun
                and not standalone
                and not held
                and _is_word(data, text, body_end, b"BEGIN")
            ):
                if not in_group:
                    in_group = 1
                    group_start = record_position = file | event_start
                    next_ordinal = 0
                    group_ts = uint32_at(data, start) * 1_000_000
                begun = 1
            elif in_group and begun and not held and _is_word(data, text, body_end, b"COMMIT"):
                in_group = 0
            else:
                code = SPECIAL
                break
        elif typed in (_ROWS_QUERY, _ANNOTATE, _CHECKPOINT, _STOP, _CONTEXT, _VIEW_CHANGE):
            pass
        elif typed in (_INTVAR, _RAND, _USER_VAR):
            if not in_group:
                in_group = 1
                group_start = record_position = file | event_start
                next_ordinal = 0
                held = standalone = begun = 0
                group_ts = uint32_at(data, start) * 1_000_000
        else:
            code = SPECIAL
            break
        if not in_group:
            begun = standalone = held = 0
        if mode != INNER:
            offset = event_end
        i += 1

    state[OFFSET] = offset
    state[IN_GROUP] = in_group
    state[GROUP_START] = group_start
    state[RECORD_POSITION] = record_position
    state[COMMIT_TS] = group_ts
    state[NEXT_ORDINAL] = next_ordinal
    state[BEGUN] = begun
    state[STANDALONE] = standalone
    state[HELD] = held
    state[LAST_POSITION] = last_position
    state[LAST_ORDINAL] = last_ordinal
    state[SOURCE] = source
    state[ROW_AT] = row_at
    state[CURSOR] = i
    state[RECORDS] = record
    state[PAYLOAD_BYTES] = used
    state[GTIDS] = gtids
    state[EVENT_START] = event_start
    state[EVENT_END] = event_end
    return code
