"""HOT PATH. Copies records without the cells of excluded columns; see `tidelog.codecs.key_kernel`
for the format. ``benchmarks/bench_scan.py`` measures it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from numba import njit

from tidelog.errors import DecodeError
from tidelog.model.records import Int32s, LogBatch, UInt8s, readonly

_I, _U, _D = ord("I"), ord("U"), ord("D")
_TEXT, _BINARY, _NULL, _UNCHANGED = ord("t"), ord("b"), ord("n"), ord("u")
_RELATION_BYTES = 5  # tag, relation


@njit(cache=True, nogil=True)
def copy_without(
    data: UInt8s,
    offsets: Int32s,
    schema_id: Int32s,
    schemas: Int32s,
    firsts: Int32s,
    places: Int32s,
    out: UInt8s,
    out_offsets: Int32s,
) -> int:
    """Copy messages without the excluded cells; returns the number of messages, or -1 - the one at
    fault.

    Args:
        data: the messages, back to back.
        offsets: int32[n + 1].
        schema_id: int32[n].
        schemas: int32[k], sorted schema ids with excluded columns.
        firsts: int32[k + 1]; the excluded columns of schema ``i`` are
            ``places[firsts[i]:firsts[i + 1]]``, ascending.
        places: int32[...], indexes of columns.
        out: uint8[len(data)].
        out_offsets: int32[n + 1].
    """
    to = np.int64(0)
    out_offsets[0] = 0
    for i in range(len(schema_id)):
        at = np.int64(offsets[i])
        end = np.int64(offsets[i + 1])
        found = -1
        if at < end and (data[at] == _I or data[at] == _U or data[at] == _D):
            low = 0
            high = len(schemas)
            while low < high:
                middle = (low + high) >> 1
                if schemas[middle] < schema_id[i]:
                    low = middle + 1
                else:
                    high = middle
            if low < len(schemas) and schemas[low] == schema_id[i]:
                found = low
        run = at  # what is kept and not copied yet begins here
        if found >= 0:
            at += _RELATION_BYTES
            first = firsts[found]
            last = firsts[found + 1]
            while at < end:
                if at + 3 > end:
                    return -1 - i
                columns = (np.int64(data[at + 1]) << 8) | np.int64(data[at + 2])
                if columns <= places[last - 1]:
                    return -1 - i
                kept = columns - (last - first)
                out[to : to + at + 1 - run] = data[run : at + 1]
                to += at + 1 - run
                out[to] = kept >> 8
                out[to + 1] = kept & 0xFF
                to += 2
                at += 3
                run = at
                place = first
                for column in range(columns):
                    cell = at
                    if at >= end:
                        return -1 - i
                    tag = data[at]
                    at += 1
                    if tag in (_TEXT, _BINARY):
                        if at + 4 > end:
                            return -1 - i
                        size = (
                            (np.int64(data[at]) << 24)
                            | (np.int64(data[at + 1]) << 16)
                            | (np.int64(data[at + 2]) << 8)
                            | np.int64(data[at + 3])
                        )
                        at += 4 + size
                        if at > end:
                            return -1 - i
                    elif tag != _NULL and tag != _UNCHANGED:
                        return -1 - i
                    if place < last and places[place] == column:
                        place += 1
                        out[to : to + cell - run] = data[run:cell]
                        to += cell - run
                        run = at
        out[to : to + end - run] = data[run:end]
        to += end - run
        out_offsets[i + 1] = to
    return len(schema_id)


class ExcludedCells:
    """The excluded columns of the schemas in a stream."""

    def __init__(self) -> None:
        self._places: dict[int, tuple[int, ...]] = {}
        self._index()

    def set(self, schema_id: int, places: Sequence[int]) -> None:
        """Exclude the columns with these indexes from records of the schema."""
        found = tuple(sorted(places))
        if self._places.get(schema_id, ()) != found:
            self._places[schema_id] = found
            self._index()

    def remove(self, batch: LogBatch) -> LogBatch:
        """Return the batch without the excluded cells; itself if it has none. Raises DecodeError if
        a message is not well-formed: nothing passes unchanged then.
        """
        if not len(self._schemas) or not np.isin(batch.schema_id, self._schemas).any():
            return batch
        out = np.empty(len(batch.payload), np.uint8)
        out_offsets = np.empty(len(batch) + 1, np.int32)
        copied = copy_without(
            readonly(batch.payload, np.uint8),
            readonly(batch.payload_offsets, np.int32),
            readonly(batch.schema_id, np.int32),
            self._schemas,
            self._firsts,
            self._flat,
            out,
            out_offsets,
        )
        if copied < 0:
            at = -1 - copied
            raise DecodeError(
                f"pgoutput: a row of schema {int(batch.schema_id[at])} is malformed (position "
                f"{int(batch.position[at])}, record {int(batch.ordinal[at])})"
            )
        payload = out[: out_offsets[-1]]
        # A batch that is a small part of the input must not keep all of its memory.
        if 2 * len(payload) < len(out):
            payload = payload.copy()
        return replace(batch, payload_offsets=out_offsets, payload=payload)

    def _index(self) -> None:
        some: Mapping[int, tuple[int, ...]] = {
            schema: places for schema, places in sorted(self._places.items()) if places
        }
        self._schemas = readonly(np.array(list(some), np.int32), np.int32)
        ends = np.cumsum([0, *map(len, some.values())])
        self._firsts = readonly(ends.astype(np.int32), np.int32)
        flat = [place for places in some.values() for place in places]
        self._flat = readonly(np.array(flat, np.int32), np.int32)
