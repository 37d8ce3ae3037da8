"""Packets of any sizes, cut anywhere, give the events that were put in; those of a file's
beginning are thrown away where the protocol can't say the offset.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.binlog_events import BinlogBytes

from tidelog.codecs.mysql.binlog.items import pack_position
from tidelog.codecs.mysql.binlog.scanner import BinlogScanner
from tidelog.codecs.mysql.flavor import Flavor
from tidelog.sources.mysql.stream import replication
from tidelog.sources.mysql.stream.replication import OffsetSeeker


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
    state = replication.new_packet_state(250)
    found: list[bytes] = []
    rest = b""
    at = 0
    while True:
        received = np.frombuffer(rest + stream[at : at + piece], np.uint8).copy()
        at += piece
        state[replication.CONSUMED] = 0
        while True:
            outcome = replication.deframe(received, len(received), data, offsets, state)
            if outcome == replication.GROW:
                grown = np.empty(2 * len(data), np.uint8)
                grown[: len(data)] = data
                data = grown
                continue
            for i in range(state[replication.EVENTS]):
                found.append(data[offsets[i] : offsets[i + 1]].tobytes())
            replication.rewind_events(data, offsets, state)
            if outcome != replication.FULL:
                break
        assert outcome == replication.DRAINED
        rest = received[state[replication.CONSUMED] :].tobytes()
        assert len(rest) < 5
        if at >= len(stream):
            break
    assert found == events


def test_an_event_of_several_packets() -> None:
    event = bytes(replication.LONGEST_PAYLOAD - 1) + b"rest"
    first = b"\xff\xff\xff\x01\0" + event[:-4]
    received = np.frombuffer(first + b"\x04\0\0\x02rest", np.uint8).copy()
    data = np.empty(len(event), np.uint8)
    offsets = np.zeros(3, np.int64)
    state = replication.new_packet_state(1)
    assert replication.deframe(received, len(received), data, offsets, state) == replication.DRAINED
    assert state[replication.EVENTS] == 1
    assert data[: offsets[1]].tobytes() == event


def test_errors_ends_and_disorder() -> None:
    for stream, outcome in (
        (b"\x03\0\0\x01\xff\x01\x02", replication.FAILED),
        (b"\x05\0\0\x01\xfe\0\0\0\0", replication.ENDED),
        (b"\x02\0\0\x05\0x", replication.DISORDER),
    ):
        received = np.frombuffer(stream, np.uint8).copy()
        state = replication.new_packet_state(1)
        data, offsets = np.empty(9, np.uint8), np.zeros(3, np.int64)
        assert replication.deframe(received, len(received), data, offsets, state) == outcome


@pytest.mark.parametrize("ahead", [0, 3 << 30, 5 << 30])
def test_an_offset_is_found_whatever_32_bits_say_of_it(ahead: int) -> None:
    log = BinlogBytes()
    log.rotate("binlog.000007", made_up=True)
    log.format_description()
    for _ in range(2):  # as far apart as events may be
        log.gtid(1)
        log.query("DROP TABLE before")
        log.offset += ahead // 2
    offset = log.offset
    log.gtid(2)
    log.query("DROP TABLE behind")
    seeking = OffsetSeeker(offset)
    scanner = BinlogScanner(Flavor.MYSQL, checksum=True, file_number=7, offset=offset)
    found: list[object] = []
    for index in range(len(log.events)):
        arrays = log.arrays(index, index + 1)
        if not seeking.done:
            arrays = seeking.take(*arrays)
        found += [(type(i).__name__, place_of(i)) for i in scanner.feed(*arrays)]
    assert found == [
        ("RotateSeen", offset),
        ("FormatSeen", False),
        ("GtidsSeen", pack_position(7, offset)),
        ("QuerySeen", pack_position(7, offset)),
    ]
    assert scanner.position == pack_position(7, log.offset)


def place_of(item: object) -> object:
    """Where it stands; of a format whether the server started with it."""
    for name in ("offset", "server_start"):
        if hasattr(item, name):
            return getattr(item, name)
    place = item.position  # type: ignore[attr-defined]
    return place if isinstance(place, int) else int(place[0])


def test_a_file_that_ends_before_the_offset_is_reported() -> None:
    log = BinlogBytes()
    log.rotate("binlog.000007", made_up=True)
    log.format_description()
    log.rotate("binlog.000008")
    with pytest.raises(EOFError):
        OffsetSeeker(1 << 33).take(*log.arrays())
