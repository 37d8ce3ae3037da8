"""Splits the packets of a replication connection into events, in a compiled loop.

Hot path: a row costs a few nanoseconds here. Manual of the protocol: "MySQL Packets" (3 bytes of
length, 1 of sequence; a payload of 2^24 - 1 bytes continues in the next packet) and "Binlog Network
Stream" (each event's first packet begins with 0x00; 0xff is an error, 0xfe the end).
"""

from __future__ import annotations

import numba
import numpy as np

from tidelog.model.records import Int64s, UInt8s

HEADER_BYTES = 4
LONGEST_PAYLOAD = (1 << 24) - 1

# What `deframe` returns.
DRAINED = 0  # all bytes are processed except an incomplete header
FULL = 1  # no room for another event, or for more bytes
GROW = 2  # one event is larger than the buffer
FAILED = -1  # an error packet: once whole, it is the unfinished event in the buffer
ENDED = -2  # the server has nothing more (a dump that does not wait)
DISORDER = -3  # a packet with the wrong sequence number

# Indexes of the int64 state vector that `deframe` and its caller share.
EVENTS = 0  # whole events in the buffer
USED = 1  # bytes in the buffer, including an unfinished event
REMAINING = 2  # bytes of the current packet that have not arrived
GOES_ON = 3  # 1: the current packet is full, so the next one continues its event
SEQUENCE = 4  # the next packet's number
KIND = 5  # first byte of the event's first packet; -1 before it arrived
INSIDE = 6  # 1: an event has begun and is not complete
CONSUMED = 7  # bytes of the input that were processed
STATE_SIZE = 8

_EVENT, _END, _ERROR = 0x00, 0xFE, 0xFF


def new_state(sequence: int) -> Int64s:
    """The state before the first packet; ``sequence`` is that packet's number."""
    state = np.zeros(STATE_SIZE, dtype=np.int64)
    state[SEQUENCE] = sequence
    return state


def prepare() -> None:
    """Compile or load the kernel in advance."""
    nothing = np.empty(0, dtype=np.uint8)
    deframe(nothing, 0, nothing, np.zeros(2, dtype=np.int64), new_state(1))


@numba.njit(cache=True, nogil=True)
def deframe(received: UInt8s, length: int, data: UInt8s, offsets: Int64s, state: Int64s) -> int:
    """Move events from ``received[CONSUMED:length]`` to ``data``, back to back.

    Args:
        received: bytes of the connection.
        length: their number.
        data: events; the last one may be unfinished.
        offsets: int64[m + 1]; ``offsets[i + 1]`` becomes event i's end. It must begin with 0.
        state: see above; EVENTS and USED describe what ``data`` holds already.

    Returns DRAINED, FULL and so on. After FAILED ``data[offsets[EVENTS]:USED]`` is the error packet
    after its first byte.
    """
    at = state[CONSUMED]
    while True:
        remaining = state[REMAINING]
        if remaining == 0 and state[INSIDE] == 0 and state[EVENTS] == len(offsets) - 1:
            state[CONSUMED] = at
            return FULL
        if remaining == 0:
            if length - at < HEADER_BYTES + 1 - (1 if state[INSIDE] else 0):
                state[CONSUMED] = at
                return DRAINED
            size = (
                np.int64(received[at])
                | np.int64(received[at + 1]) << 8
                | np.int64(received[at + 2]) << 16
            )
            number = np.int64(received[at + 3])
            kind = state[KIND]
            first = state[INSIDE] == 0
            if first:
                if size == 0:
                    state[CONSUMED] = at
                    return DISORDER
                kind = np.int64(received[at + 4])
            if number != state[SEQUENCE] and kind != _ERROR:
                state[CONSUMED] = at
                return DISORDER
            state[SEQUENCE] = (number + 1) & 0xFF
            state[GOES_ON] = 1 if size == LONGEST_PAYLOAD else 0
            at += HEADER_BYTES
            if first:
                state[KIND] = kind
                state[INSIDE] = 1
                at += 1
                size -= 1
            remaining = size
            state[REMAINING] = size
        used = state[USED]
        take = min(remaining, length - at, len(data) - used)
        if take > 0:
            data[used : used + take] = received[at : at + take]
            at += take
            used += take
            state[USED] = used
            remaining -= take
            state[REMAINING] = remaining
        if remaining > 0:
            state[CONSUMED] = at
            if used == len(data):
                return FULL if state[EVENTS] > 0 else GROW
            return DRAINED
        if state[GOES_ON] == 1:
            continue
        state[INSIDE] = 0
        if state[KIND] != _EVENT:
            state[CONSUMED] = at
            return ENDED if state[KIND] == _END else FAILED
        state[EVENTS] += 1
        offsets[state[EVENTS]] = used


def rewind(data: UInt8s, offsets: Int64s, state: Int64s) -> None:
    """Drop the whole events; an unfinished one moves to the beginning."""
    begin, used = int(offsets[state[EVENTS]]), int(state[USED])
    if begin:
        data[: used - begin] = data[begin:used].copy()
    state[USED] = used - begin
    state[EVENTS] = 0
