"""HOT PATH. One pass over a batch of pgoutput messages; measured by ``benchmarks/bench_scan.py``.

The kernel frames transactions, counts ordinals, drops what is not captured and copies the rest.
It looks at the first bytes of a message only; rows are decoded by executors.
Formats: PostgreSQL manual, "Logical Replication Message Formats" (protocol version 1).
"""

from __future__ import annotations

from numba import njit

from tidelog.codecs.bigendian import int64_at, uint32_at
from tidelog.model.records import Int32s, Int64s, UInt8s

# Slots of the state array, which carries everything from one call to the next.
IN_TRANSACTION = 0
FINAL_LSN = 1  # of the open transaction: its commit record, as announced by Begin
COMMIT_TS = 2  # microseconds since 1970
XID = 3  # widened to 64 bits
NEXT_ORDINAL = 4
COMMIT_END = 5  # end of the last complete transaction of this stream, 0 before
LAST_POSITION = 6  # (position, ordinal) of the last record counted, or what to resume after
LAST_ORDINAL = 7
NEXT_XID = 8  # the highest transaction id seen, 64 bits: what xids are widened by
CURSOR = 9  # out: index of the message that stopped the kernel
RECORDS = 10  # out: records written
PAYLOAD_BYTES = 11  # out: payload bytes written
STATE_SLOTS = 12

# Why the kernel stopped at message CURSOR. From MALFORMED up the message is an error.
END = 0
SPECIAL = 1  # not counted yet: a relation, type, logical message, truncate, watched row
MALFORMED = 2
OUTSIDE_TRANSACTION = 3
NESTED_BEGIN = 4
COMMIT_MISMATCH = 5
OUT_OF_ORDER = 6
UNBOUND_RELATION = 7
UNKNOWN_MESSAGE = 8
INSIDE_TRANSACTION = 9

# schema_id of a bound relation whose rows stop the kernel.
WATCHED = -1

POSTGRES_EPOCH_US = 946_684_800_000_000  # 2000-01-01 in microseconds since 1970

_B, _C, _I, _U, _D, _O = ord("B"), ord("C"), ord("I"), ord("U"), ord("D"), ord("O")
_R, _Y, _M, _T, _A = ord("R"), ord("Y"), ord("M"), ord("T"), ord("A")
_K, _N = ord("K"), ord("N")
_BEGIN_BYTES = 21  # tag, final LSN, commit timestamp, xid
_COMMIT_BYTES = 26  # tag, flags, commit LSN, end LSN, commit timestamp
_MIN_ROW_BYTES = 8  # tag, relation, tuple tag, column count
_MIN_ORIGIN_BYTES = 10  # tag, LSN, empty name
_STREAM_ABORT_BYTES = 9  # tag, xid of the transaction, xid of the subtransaction


@njit(cache=True, nogil=True)
def scan(
    data: UInt8s,
    offsets: Int64s,
    first: int,
    relations: Int64s,
    relation_schemas: Int32s,
    state: Int64s,
    kind: UInt8s,
    schema_id: Int32s,
    position: Int64s,
    ordinal: Int64s,
    xid: Int64s,
    commit_ts: Int64s,
    payload_offsets: Int32s,
    payload: UInt8s,
) -> int:
    """Scan messages from ``first`` on until the end or one that Python must see.

    Args:
        data: the messages.
        offsets: int64[n + 1]; message ``i`` is ``data[offsets[i]:offsets[i + 1]]``. The caller has
            checked the first and the last.
        first: the message to begin at. Records are written from index ``first`` of the columns
            on and payload from ``offsets[first] - offsets[0]`` on, so that consecutive calls on one
            set of columns never overlap.
        relations: sorted relation ids.
        relation_schemas: their schema ids (0: drop the rows, WATCHED: stop at them).
        state: int64[STATE_SLOTS], read and written.
        kind: uint8[n], out, as all that follow: the columns of `LogBatch`.
        schema_id: int32[n].
        position: int64[n].
        ordinal: int64[n].
        xid: int64[n].
        commit_ts: int64[n].
        payload_offsets: int32[n + 1].
        payload: uint8[offsets[n] - offsets[0]].

    Returns:
        END, SPECIAL or an error code; CURSOR, RECORDS and PAYLOAD_BYTES are in ``state``.
    """
    in_transaction = state[IN_TRANSACTION]
    final_lsn = state[FINAL_LSN]
    transaction_ts = state[COMMIT_TS]
    transaction_xid = state[XID]
    next_ordinal = state[NEXT_ORDINAL]
    commit_end = state[COMMIT_END]
    last_position = state[LAST_POSITION]
    last_ordinal = state[LAST_ORDINAL]
    next_xid = state[NEXT_XID]

    count = len(offsets) - 1
    begin_of_all = offsets[0]
    end_of_all = offsets[count]
    column = first  # where the next record goes
    payload_base = offsets[first] - begin_of_all
    used = 0
    run_start = run_end = offsets[first]  # captured bytes not copied yet
    known_relation = -1
    known_schema = 0
    payload_offsets[first] = 0
    code = END
    i = first
    while i < count:
        start = offsets[i]
        end = offsets[i + 1]
        length = end - start
        if start < begin_of_all or length < 1 or end > end_of_all:
            code = MALFORMED
            break
        tag = data[start]
        if tag in (_I, _U, _D):
            if not in_transaction:
                code = OUTSIDE_TRANSACTION
                break
            if length < _MIN_ROW_BYTES:
                code = MALFORMED
                break
            image = data[start + 5]
            new_image = image == _N
            old_image = image in (_K, _O)
            if (tag == _I and not new_image) or (tag == _D and not old_image):
                code = MALFORMED
                break
            if tag == _U and not new_image and not old_image:
                code = MALFORMED
                break
            relation = uint32_at(data, start + 1)
            if relation != known_relation:
                low = 0
                high = len(relations)
                while low < high:
                    middle = (low + high) >> 1
                    if relations[middle] < relation:
                        low = middle + 1
                    else:
                        high = middle
                if low == len(relations) or relations[low] != relation:
                    code = UNBOUND_RELATION
                    break
                known_relation = relation
                known_schema = relation_schemas[low]
            if final_lsn > last_position or (
                final_lsn == last_position and next_ordinal > last_ordinal
            ):
                if known_schema == WATCHED:
                    code = SPECIAL
                    break
                last_position = final_lsn
                last_ordinal = next_ordinal
                if known_schema > 0:
                    if start != run_end:
                        size = run_end - run_start
                        to = payload_base + used
                        payload[to : to + size] = data[run_start:run_end]
                        used += size
                        run_start = start
                    run_end = end
                    kind[column] = tag
                    schema_id[column] = known_schema
                    position[column] = final_lsn
                    ordinal[column] = next_ordinal
                    xid[column] = transaction_xid
                    commit_ts[column] = transaction_ts
                    column += 1
                    payload_offsets[column] = used + run_end - run_start
            next_ordinal += 1
        elif tag == _B:
            if length != _BEGIN_BYTES:
                code = MALFORMED
                break
            if in_transaction:
                code = NESTED_BEGIN
                break
            final_lsn = int64_at(data, start + 1)
            # Transactions arrive in the order of their commits; a commit may begin where the
            # previous one ended.
            if final_lsn < commit_end:
                code = OUT_OF_ORDER
                break
            transaction_ts = int64_at(data, start + 9) + POSTGRES_EPOCH_US
            # The 64-bit id nearest to the newest one known: live ids span less than 2^31.
            low_xid = uint32_at(data, start + 17)
            distance = (low_xid - next_xid) & 0xFFFFFFFF
            if distance >= 1 << 31:
                distance -= 1 << 32
            transaction_xid = next_xid + distance
            if transaction_xid < 0:
                transaction_xid += 1 << 32
            if transaction_xid > next_xid:
                next_xid = transaction_xid
            next_ordinal = 0
            in_transaction = 1
        elif tag == _C:
            if length != _COMMIT_BYTES:
                code = MALFORMED
                break
            if not in_transaction:
                code = OUTSIDE_TRANSACTION
                break
            end_lsn = int64_at(data, start + 10)
            if int64_at(data, start + 2) != final_lsn or end_lsn < final_lsn:
                code = COMMIT_MISMATCH
                break
            commit_end = max(commit_end, end_lsn)
            in_transaction = 0
        elif tag in (_R, _Y, _M, _T):
            code = SPECIAL
            break
        elif tag == _O:
            if length < _MIN_ORIGIN_BYTES:
                code = MALFORMED
                break
        elif tag == _A:
            # PostgreSQL 18 announces some aborts although streaming is off and nothing of the
            # transaction was sent: reorderbuffer.c finds a large transaction aborted before it is
            # spilled (ReorderBufferCheckAndTruncateAbortedTXN) and marks its subtransactions as
            # streamed, so that their abort calls stream_abort. It stands where the abort record
            # was decoded, hence between transactions; it is no record and moves nothing.
            if length != _STREAM_ABORT_BYTES:
                code = MALFORMED
                break
            if in_transaction:
                code = INSIDE_TRANSACTION
                break
        else:
            code = UNKNOWN_MESSAGE
            break
        i += 1

    size = run_end - run_start
    to = payload_base + used
    payload[to : to + size] = data[run_start:run_end]
    used += size

    state[IN_TRANSACTION] = in_transaction
    state[FINAL_LSN] = final_lsn
    state[COMMIT_TS] = transaction_ts
    state[XID] = transaction_xid
    state[NEXT_ORDINAL] = next_ordinal
    state[COMMIT_END] = commit_end
    state[LAST_POSITION] = last_position
    state[LAST_ORDINAL] = last_ordinal
    state[NEXT_XID] = next_xid
    state[CURSOR] = i
    state[RECORDS] = column - first
    state[PAYLOAD_BYTES] = used
    return code
