"""Packets of any sizes, cut anywhere, give the events that were put in."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tidelog.sources.mysql import packets


def framed(events: list[bytes], sequence: int) -> bytes:
    out = b""
    for event in events:
        payload = b"\0" + event
        out += len(payload).to_bytes(3, "little") + bytes([sequence % 256]) + payload
        sequence += 1
    return out


@settings(deadline=None)  # the kernel is compiled first
@given(
    st.lists(st.binary(min_size=0, max_size=60), max_size=30),
    st.integers(1, 40),
    st.integers(1, 8),
    st.integers(5, 40),
)
def test_events_come_out_whole(
    events: list[bytes], buffer_bytes: int, buffer_events: int, piece: int
) -> None:
    stream = framed(events, 250)
    data = np.empty(buffer_bytes, np.uint8)
    offsets = np.zeros(buffer_events + 1, np.int64)
    state = packets.new_state(250)
    found: list[bytes] = []
    rest = b""
    at = 0
    while True:
        received = np.frombuffer(rest + stream[at : at + piece], np.uint8).copy()
        at += piece
        state[packets.CONSUMED] = 0
        while True:
            outcome = packets.deframe(received, len(received), data, offsets, state)
            if outcome == packets.GROW:
                grown = np.empty(2 * len(data), np.uint8)
                grown[: len(data)] = data
                data = grown
                continue
            for i in range(state[packets.EVENTS]):
                found.append(data[offsets[i] : offsets[i + 1]].tobytes())
            packets.rewind(data, offsets, state)
            if outcome != packets.FULL:
                break
        assert outcome == packets.DRAINED
        rest = received[state[packets.CONSUMED] :].tobytes()
        assert len(rest) < 5
        if at >= len(stream):
            break
    assert found == events


def test_an_event_of_several_packets() -> None:
    event = bytes(packets.LONGEST_PAYLOAD - 1) + b"rest"
    first = b"\xff\xff\xff\x01\0" + event[:-4]
    received = np.frombuffer(first + b"\x04\0\0\x02rest", np.uint8).copy()
    data = np.empty(len(event), np.uint8)
    offsets = np.zeros(3, np.int64)
    state = packets.new_state(1)
    assert packets.deframe(received, len(received), data, offsets, state) == packets.DRAINED
    assert state[packets.EVENTS] == 1
    assert data[: offsets[1]].tobytes() == event


def test_errors_ends_and_disorder() -> None:
    for stream, outcome in (
        (b"\x03\0\0\x01\xff\x01\x02", packets.FAILED),
        (b"\x05\0\0\x01\xfe\0\0\0\0", packets.ENDED),
        (b"\x02\0\0\x05\0x", packets.DISORDER),
    ):
        received = np.frombuffer(stream, np.uint8).copy()
        state = packets.new_state(1)
        data, offsets = np.empty(9, np.uint8), np.zeros(3, np.int64)
        assert packets.deframe(received, len(received), data, offsets, state) == outcome
