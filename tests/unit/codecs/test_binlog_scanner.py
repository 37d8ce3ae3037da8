"""The scanner over binlogs built by hand: layouts of servers that tests can't run, and faults."""

from __future__ import annotations

import random
import struct
from collections.abc import Iterable
from uuid import UUID

import numpy as np
import pytest
from tests.support import binlog_events as build
from tests.support.binlog_events import BinlogBytes

from tidelog.codecs.mysql.binlog import scan_state
from tidelog.codecs.mysql.binlog import scanner as module
from tidelog.codecs.mysql.binlog.items import (
    FormatSeen,
    GtidsSeen,
    GtidStateSeen,
    QuerySeen,
    RolledBackSeen,
    RotateSeen,
    RowsNoticed,
    RowsOfPreparedTransaction,
    TableMapSeen,
    WatchedBinlogRow,
    XaSeen,
    XaState,
    pack_position,
)
from tidelog.codecs.mysql.binlog.scanner import BinlogScanner
from tidelog.codecs.mysql.flavor import Flavor
from tidelog.errors import DecodeError, GapError
from tidelog.model.records import LogBatch, Resume
from tidelog.sources.mysql.stream.log_parts import LogPart
from tidelog.sources.mysql.stream.prepared_transactions import prepared_groups

TYPES = bytes([3, 15])  # int, varchar(20)
METAS = struct.pack("<H", 80)
PACKED = pack_position(1, 0)


def row(number: int, text: bytes | None) -> bytes:
    if text is None:
        return b"\xfe" + struct.pack("<i", number)  # unused bits are ones
    return b"\xfc" + struct.pack("<i", number) + bytes([len(text)]) + text


def payload(flags: int, *images: bytes, bitmap: bytes = b"\x03") -> bytes:
    return bytes([1, flags, 2, 0]) + b"".join(bitmap + image for image in images)


def scanner(flavor: Flavor = Flavor.MYSQL, **options) -> BinlogScanner:
    options = {"checksum": True, "file_number": 1, "offset": 4} | options
    return BinlogScanner(flavor, options.pop("resume", None), **options)


def scan(log: BinlogBytes, scan: BinlogScanner | None = None, step: int = 0, **bindings):
    """Everything the scanner yields; tables are bound to schema 7, or as ``bindings`` say."""
    scan = scan or scanner(checksum=log.checksum)
    items = []
    step = step or max(1, len(log.events))
    for first in range(0, len(log.events), step):
        for item in scan.feed(*log.arrays(first, first + step)):
            if isinstance(item, TableMapSeen):
                schema = bindings.get(item.table, 7)
                watch = schema == "watch"
                scan.bind(item.table_id, 0 if watch else schema, watch=watch)
            items.append(item)
    return items, scan


def rows_of(items: Iterable[object]) -> list[tuple]:
    """(kind, schema, position, ordinal, commit timestamp, payload) of each record."""
    found = []
    for batch in items:
        if not isinstance(batch, LogBatch):
            continue
        assert (batch.xid == batch.position).all()
        for i in range(len(batch)):
            start, end = batch.payload_offsets[i : i + 2]
            found.append(
                (
                    chr(batch.kind[i]),
                    int(batch.schema_id[i]),
                    int(batch.position[i]),
                    int(batch.ordinal[i]),
                    int(batch.commit_ts[i]),
                    batch.payload[start:end].tobytes(),
                )
            )
    return found


def of(items: Iterable[object], kind: type) -> list:
    return [item for item in items if isinstance(item, kind)]


def one_transaction(log: BinlogBytes, *numbers: int, table_id: int = 5) -> int:
    begin = log.gtid(len(log.events) + 1, commit_us=1_700_000_000_000_001)
    log.query("BEGIN")
    log.table_map(table_id, TYPES, METAS)
    log.rows(30, table_id, 2, b"".join(row(number, b"x") for number in numbers))
    log.xid()
    return begin | PACKED


@pytest.mark.parametrize("checksum", [True, False])
@pytest.mark.parametrize("step", [1, 2, 100])
def test_rows_of_a_transaction_bear_its_beginning_and_count_from_zero(checksum, step):
    log = BinlogBytes(checksum=checksum)
    log.format_description("8.0.40")
    first = one_transaction(log, 1, 2)
    second = log.gtid(2, commit_us=55) | PACKED
    log.query("BEGIN")
    log.table_map(5, TYPES, METAS)
    log.rows(31, 5, 2, row(1, b"x") + row(1, None) + row(2, b"x") + row(9, b"yy"), flags=0)
    log.rows(32, 5, 2, row(1, None), extra=b"\1\2\3")
    log.xid()
    items, scanned = scan(log, step=step)
    us = 1_700_000_000_000_001
    assert rows_of(items) == [
        ("I", 7, first, 0, us, payload(2, row(1, b"x"))),
        ("I", 7, first, 1, us, payload(2, row(2, b"x"))),
        ("U", 7, second, 0, 55, payload(3, row(1, b"x"), row(1, None))),
        ("U", 7, second, 1, 55, payload(3, row(2, b"x"), row(9, b"yy"))),
        ("D", 7, second, 2, 55, payload(1, row(1, None))),
    ]
    assert not scanned.in_transaction
    assert scanned.resume == Resume(log.offset | PACKED, second, 2)
    assert len(of(items, TableMapSeen)) == 1  # the second map is the same
    assert [seen.text(i) for seen in of(items, GtidsSeen) for i in range(len(seen))] == [
        f"{UUID(int=7)}:2",
        f"{UUID(int=7)}:2",
    ]


def test_every_place_to_resume_from_gives_the_rest_exactly():
    log = BinlogBytes()
    log.format_description()
    one_transaction(log, *range(5))
    one_transaction(log, *range(3))
    whole = rows_of(scan(log)[0])
    for position, ordinal in [(record[2], record[3]) for record in whole]:
        items, _ = scan(log, scanner(resume=Resume(4, position, ordinal)))
        assert rows_of(items) == [r for r in whole if (r[2], r[3]) > (position, ordinal)]


def test_batch_in_the_middle_of_a_transaction_resumes_before_it():
    log = BinlogBytes()
    log.format_description()
    begin = one_transaction(log, 1, 2)
    scanned = scanner()
    (batch,) = of(list(feed_bound(scanned, log.arrays(0, len(log.events) - 1))), LogBatch)
    assert scanned.in_transaction
    assert batch.resume == Resume(begin, begin, 1)


def feed_bound(scanned: BinlogScanner, arrays):
    for item in scanned.feed(*arrays):
        if isinstance(item, TableMapSeen):
            scanned.bind(item.table_id, 7)
        yield item


def test_dropped_tables_count_ordinals_and_watched_ones_come_row_by_row():
    log = BinlogBytes()
    log.format_description()
    begin = log.anonymous() | PACKED
    log.query("BEGIN")
    for table_id, table in ((1, "dropped"), (2, "watched"), (3, "orders")):
        log.table_map(table_id, TYPES, METAS, table=table)
    log.rows(30, 1, 2, row(1, b"") * 3)
    log.rows(30, 2, 2, row(2, b"a") + row(3, b"b"))
    log.rows(23, 3, 2, row(4, b"c"))
    log.xid()
    items, _ = scan(log, dropped=0, watched="watch")
    assert [
        (r.ordinal, r.payload, r.table_id, r.position) for r in of(items, WatchedBinlogRow)
    ] == [
        (3, payload(2, row(2, b"a")), 2, begin),
        (4, payload(2, row(3, b"b")), 2, begin),
    ]
    assert [(r[3], r[4]) for r in rows_of(items)] == [(5, 1_700_000_000_000_000)]
    assert of(items, GtidsSeen) == []


def test_minimal_images_keep_their_bitmaps():
    log = BinlogBytes()
    log.format_description()
    log.gtid(1)
    log.query("BEGIN")
    log.table_map(5, TYPES, METAS)
    key, text = b"\xfe" + struct.pack("<i", 1), b"\xfe\x01z"
    log.rows(31, 5, 2, (key + text) * 2, before=b"\x01", after=b"\x02")
    log.xid()
    found = [r[5] for r in rows_of(scan(log)[0])]
    assert found == [b"\x01\x03\x02\x00\x01" + key + b"\x02" + text] * 2


def test_partial_json_keeps_value_options_and_partial_bits():
    log = BinlogBytes()
    log.format_description()
    log.gtid(1)
    log.query("BEGIN")
    log.table_map(5, bytes([3, 245]), b"\4")
    before = b"\xfc" + struct.pack("<iI", 1, 2) + b"\0\0"
    after = b"\x01\x01\xfc" + struct.pack("<iI", 1, 3) + b"abc"
    full = b"\x00\xfc" + struct.pack("<iI", 1, 1) + b"d"
    log.rows(39, 5, 2, before + after + before + full)
    log.xid()
    found = [r[5] for r in rows_of(scan(log)[0])]
    assert found == [payload(7, before, after), payload(7, before, full)]


def test_tagged_gtids_of_newer_servers():
    log = BinlogBytes()
    log.format_description("9.1.0")
    begin = log.tagged_gtid(70_000, "blue", commit_us=1_700_000_000_123_456) | PACKED
    log.query("BEGIN")
    log.table_map(5, TYPES, METAS)
    log.rows(30, 5, 2, row(1, b"x"))
    log.xid()
    log.tagged_gtid(70_001, "blue")
    log.query("DROP TABLE gone")
    items, _ = scan(log)
    texts = [seen.text(0) for seen in of(items, GtidsSeen)]
    assert texts == [f"{UUID(int=7)}:blue:70000", f"{UUID(int=7)}:blue:70001"]
    ((_, _, position, _, commit_ts, _),) = rows_of(items)
    assert (position, commit_ts) == (begin, 1_700_000_000_123_456)
    (query,) = of(items, QuerySeen)
    assert (query.keyword, query.alone) == ("DROP", True)


def test_tagged_gtid_of_a_uuid_with_high_bytes():
    uuid = UUID("ff6e7882-80fe-91ef-ab88-c2222d34d47f")
    log = BinlogBytes()
    log.format_description("8.3.0")
    log.tagged_gtid((1 << 63) - 1, "t" * 32, uuid)
    log.query("DROP TABLE gone")
    (seen,) = of(scan(log)[0], GtidsSeen)
    assert seen.text(0) == f"{uuid}:{'t' * 32}:{(1 << 63) - 1}"


@pytest.mark.parametrize("tagged", [False, True])
def test_previous_gtids_in_both_formats(tagged):
    uuid = UUID(int=9)
    intervals = struct.pack("<QQQQQ", 2, 1, 5, 8, 9)
    if tagged:
        head = bytes([1, 2, 0, 0, 0, 0, 0, 1])
        body = head + uuid.bytes + b"\0" + intervals + uuid.bytes + b"\x06red" + intervals
        expected = f"{uuid}:1-4:8:red:1-4:8"
    else:
        body, expected = struct.pack("<Q", 1) + uuid.bytes + intervals, f"{uuid}:1-4:8"
    log = BinlogBytes()
    log.format_description("8.4.0")
    log.add(35, body)
    assert of(scan(log)[0], GtidStateSeen) == [GtidStateSeen(expected)]


@pytest.mark.parametrize("compressed", [True, False])
@pytest.mark.parametrize("slice_bytes", [64, 4 << 20])
def test_compressed_transaction_bears_the_outer_position(compressed, slice_bytes, monkeypatch):
    monkeypatch.setattr(module, "SLICE_BYTES", slice_bytes)
    inner = BinlogBytes(checksum=False)
    inner.query("BEGIN")
    inner.table_map(5, TYPES, METAS)
    for number in range(20):
        inner.rows(30, 5, 2, row(number, b"x" * 10) * 3)
    inner.xid()
    log = BinlogBytes()
    log.format_description("8.0.40")
    begin = log.gtid(1) | PACKED
    log.payload(
        [event[:13] + b"\0\0\0\0" + event[17:] for event in inner.events], compressed=compressed
    )
    after = one_transaction(log, 1, table_id=6)
    items, scanned = scan(log)
    found = rows_of(items)
    assert [r[2:4] for r in found] == [*((begin, i) for i in range(60)), (after, 0)]
    assert scanned.resume.acknowledge == log.offset | PACKED


def test_torn_compressed_transaction_is_an_error():
    log = BinlogBytes()
    log.format_description()
    log.gtid(1)
    log.add(40, b"\x02\x01\x00\x01\x01\x05\x00abcde")
    with pytest.raises(DecodeError, match=r"TRANSACTION_PAYLOAD event .* \(at 000001:"):
        scan(log)


def test_mariadb_groups_compressed_rows_and_statements():
    log = BinlogBytes()
    log.format_description("11.4.5-MariaDB-log")
    log.add(163, struct.pack("<IIIQ", 1, 0, 3, 44))
    ddl = log.mariadb_gtid(45, domain=2, server_id=3, flags=1) | PACKED
    log.add(165, build.query_body("", "shop") + build.deflated(b"ALTER TABLE orders ADD x int"))
    begin = log.mariadb_gtid(46, flags=2, more=struct.pack("<Q", 12)) | PACKED
    log.add(160, b"INSERT INTO orders VALUES (1)")
    log.table_map(5, TYPES, METAS)
    images = row(1, b"x" * 20) * 4
    log.add(166, build.rows_body(23, 5, 2, b"") + build.deflated(images))
    log.add(167, build.rows_body(24, 5, 2, b"") + build.deflated(images))
    log.add(168, build.rows_body(25, 5, 2, b"") + build.deflated(images))
    log.xid()
    items, scanned = scan(log, scanner(Flavor.MARIADB))
    (query,) = of(items, QuerySeen)
    assert (query.sql, query.position, query.alone) == (
        "ALTER TABLE orders ADD x int", ddl, True
    )  # fmt: skip
    assert of(items, GtidStateSeen) == [GtidStateSeen("0-3-44")]
    texts = [seen.text(i) for seen in of(items, GtidsSeen) for i in range(len(seen))]
    assert texts == ["2-3-45", "0-1-46"]
    found = rows_of(items)
    assert [(r[0], r[2], r[3]) for r in found] == [
        *(("I", begin, i) for i in range(4)),
        *(("U", begin, i) for i in (4, 5)),
        *(("D", begin, i) for i in range(6, 10)),
    ]
    assert found[5][5] == payload(3, row(1, b"x" * 20), row(1, b"x" * 20))
    assert (scanned.position, scanned.in_transaction) == (log.offset | PACKED, False)


@pytest.mark.parametrize("phase", ["start", "commit", "rollback"])
def test_alter_in_two_phases_says_which_it_is(phase):
    flags = {"start": b"\x02", "commit": b"\x04" + bytes(8), "rollback": b"\x08" + bytes(8)}[phase]
    log = BinlogBytes()
    log.format_description("10.11.19-MariaDB")
    log.mariadb_gtid(1, flags=33)
    log.query("ALTER TABLE orders ADD x int", status=b"\x04\x2d\0\x2d\0\x2d\0\x82" + flags)
    (query,) = of(scan(log, scanner(Flavor.MARIADB))[0], QuerySeen)
    assert query.alter is not None
    assert query.alter.value == phase


def xa_log(decision: str | None, *, one_phase: bool = False) -> tuple[BinlogBytes, int, int]:
    log = BinlogBytes()
    log.format_description()
    prepared = log.gtid(1) | PACKED
    log.query("XA START X'6131',X'',1")
    log.table_map(5, TYPES, METAS)
    log.rows(30, 5, 2, row(1, b"x") * 2)
    log.query("XA END X'6131',X'',1")
    log.xa_prepare(b"a1", one_phase=one_phase)
    other = one_transaction(log, 9)
    if decision:
        log.gtid(3, commit_us=77)
        log.query(f"XA {decision} X'6131',X'',1")
    return log, prepared, other


def test_prepared_rows_are_held_and_the_resume_waits_for_the_decision():
    log, prepared, other = xa_log(None)
    items, scanned = scan(log)
    assert [r[2] for r in rows_of(items)] == [other]
    (seen,) = of(items, XaSeen)
    assert (seen.xid, seen.state, seen.begin) == (b"X'6131',X'',1", XaState.PREPARED, prepared)
    assert scanned.oldest_prepared == scanned.resume.acknowledge == prepared
    assert scanned.resume.position == other


def test_committed_xa_rows_are_given_as_of_the_commit():
    log, prepared, _ = xa_log("COMMIT")
    items, scanned = scan(log)
    first, second = of(items, XaSeen)
    assert (second.state, second.xid, second.commit_ts) == (XaState.COMMITTED, first.xid, 77)
    assert scanned.oldest_prepared is None
    assert scanned.resume.acknowledge == scanned.position == second.end
    again = scanner(
        offset=first.begin & (1 << 39) - 1,
        as_of=RowsOfPreparedTransaction(second.begin, second.commit_ts),
        resume=Resume(prepared, second.begin, 0),
    )
    group = BinlogBytes()
    group.events = log.events[1:7]
    items, _ = scan(group, again)
    assert [r[:5] for r in rows_of(items)] == [("I", 7, second.begin, 1, 77)]
    assert of(items, XaSeen) == []
    assert items[-1].resume.acknowledge == prepared


def test_xa_rolled_back_or_in_one_phase():
    items, scanned = scan(xa_log("ROLLBACK")[0])
    assert [s.state for s in of(items, XaSeen)] == [XaState.PREPARED, XaState.ROLLED_BACK]
    assert scanned.oldest_prepared is None
    items, scanned = scan(xa_log(None, one_phase=True)[0])
    assert [s.state for s in of(items, XaSeen)] == [XaState.ONE_PHASE]
    assert scanned.oldest_prepared is None


@pytest.mark.parametrize("one_phase", [False, True])
def test_xa_inside_a_compressed_transaction(one_phase):
    """Held, found again for the restart's sake, and read when it is decided."""
    inner = BinlogBytes(checksum=False)
    inner.query("XA START X'6131',X'',1")
    inner.table_map(5, TYPES, METAS)
    inner.rows(30, 5, 2, row(1, b"x") * 2)
    inner.query("XA END X'6131',X'',1")
    inner.xa_prepare(b"a1", one_phase=one_phase)
    log = BinlogBytes()
    log.format_description("8.0.40")
    begin = log.gtid(1) | PACKED
    log.payload([event[:13] + b"\0\0\0\0" + event[17:] for event in inner.events])
    end = log.offset | PACKED
    other = one_transaction(log, 9)
    log.gtid(3, commit_us=77)
    log.query("XA COMMIT X'6131',X'',1")
    items, _ = scan(log)
    assert [r[2] for r in rows_of(items)] == [other]
    seen = of(items, XaSeen)
    assert (seen[0].begin, seen[0].end) == (begin, end)
    states = [XaState.ONE_PHASE] if one_phase else [XaState.PREPARED, XaState.COMMITTED]
    assert [each.state for each in seen][: len(states)] == states
    data, offsets = log.arrays()
    ends = np.array([_end(data, offsets, i) for i in range(len(offsets) - 1)], np.int64)
    found = list(prepared_groups([LogPart(data, offsets, ends, True)]))
    assert found == ([] if one_phase else [(begin, end, seen[0].xid)])
    again = scanner(offset=begin & ~PACKED, as_of=RowsOfPreparedTransaction(123 | PACKED, 55))
    group = BinlogBytes()
    group.events = log.events[1:3]
    items, _ = scan(group, again)
    assert [r[2:5] for r in rows_of(items)] == [(123 | PACKED, 0, 55), (123 | PACKED, 1, 55)]


def _end(data, offsets, index):
    at = int(offsets[index]) + 13
    return int.from_bytes(data[at : at + 4].tobytes(), "little") | PACKED


def test_xa_of_mariadb_stands_in_the_gtid():
    log = BinlogBytes()
    log.format_description("11.4.5-MariaDB")
    log.mariadb_gtid(1, flags=64, more=struct.pack("<iBB", 1, 2, 0) + b"a1")
    log.table_map(5, TYPES, METAS)
    log.add(166, build.rows_body(23, 5, 2, b"") + build.deflated(row(1, b"x") * 9))
    log.query("XA END X'6131',X'',1")
    log.xa_prepare(b"a1")
    log.mariadb_gtid(2, flags=128 | 1, more=struct.pack("<iBB", 1, 2, 0) + b"a1")
    log.query("XA COMMIT X'6131',X'',1")
    items, scanned = scan(log, scanner(Flavor.MARIADB))
    assert [s.state for s in of(items, XaSeen)] == [XaState.PREPARED, XaState.COMMITTED]
    assert rows_of(items) == []
    assert not scanned.in_transaction


def test_file_beyond_4_gib_keeps_its_64_bit_offsets():
    begin = (1 << 32) - 300
    log = BinlogBytes(offset=begin)
    positions = [one_transaction(log, number) for number in range(6)]
    assert log.offset > 1 << 32
    items, scanned = scan(log, scanner(offset=begin))
    assert [r[2] for r in rows_of(items)] == positions
    assert scanned.position == log.offset | PACKED


def test_rotation_real_and_made_up():
    log = BinlogBytes()
    log.rotate("binlog.000001", made_up=True)
    log.format_description()
    first = one_transaction(log, 1)
    log.rotate("binlog.000002")
    log.checksum = False  # the next file has none, and the made-up rotate of it neither
    log.rotate("binlog.000002", made_up=True)
    log.format_description(started=False)
    second = one_transaction(log, 2) - PACKED + pack_position(2, 0)
    items, scanned = scan(log)
    assert [r[2] for r in rows_of(items)] == [first, second]
    assert [(r.name, r.offset, r.artificial) for r in of(items, RotateSeen)] == [
        ("binlog.000001", 4, True),
        ("binlog.000002", 4, False),
        ("binlog.000002", 4, True),
    ]
    assert [f.checksum for f in of(items, FormatSeen)] == [True, False]
    assert scanned.resume.acknowledge == pack_position(2, log.offset)


def test_group_that_a_crash_cut_off_ends_with_its_file():
    """MariaDB leaves it in the file; it was never committed, though its rows were given."""
    log = BinlogBytes()
    log.format_description()
    begin = one_transaction(log, 1)
    log.events.pop()  # the XID
    log.rotate("binlog.000002", made_up=True)
    log.format_description()
    after = one_transaction(log, 2) - PACKED + pack_position(2, 0)
    items, scanned = scan(log)
    assert [r[2] for r in rows_of(items)] == [begin, after]
    assert of(items, RolledBackSeen) == [RolledBackSeen(begin, 1, (("shop", "orders"),), False)]
    assert scanned.resume.acknowledge == pack_position(2, log.offset)


def test_heartbeats_move_the_position_between_transactions():
    log = BinlogBytes()
    log.format_description()
    scanned = scanner()
    scan(log, scanned)
    beats = BinlogBytes()
    beats.events = [
        build.event(27, b"binlog.000001", 0, 1, 5_000, 0, checksum=True),
        build.event(27, b"binlog.000009", 0, 1, 9_000, 0, checksum=True),
    ]
    scan(beats, scanned)
    assert scanned.position == PACKED | 5_000
    exact = 6 << 32
    fields = b"\x01\x0dbinlog.000001\x02\x09" + build.packed_integer(exact) + b"\0"
    beats.events = [build.event(41, fields, 0, 1, 0, 0, checksum=True)]
    scan(beats, scanned)
    assert scanned.position == scanned.resume.acknowledge == PACKED | exact


def test_a_heartbeat_of_mariadb_tells_offsets_beyond_4_gib():
    log = BinlogBytes()
    log.format_description()
    scanned = scanner(Flavor.MARIADB)
    scan(log, scanned)
    exact = 5_000_000_000  # no text in UTF-8
    beats = BinlogBytes()
    body = struct.pack("<Q", exact) + b"binlog.000001"
    beats.events = [build.event(27, body, 0, 1, 0, 0, checksum=True)]
    scan(beats, scanned)
    assert scanned.position == PACKED | exact


@pytest.mark.parametrize(
    ("sql", "keyword", "changes"),
    [
        ("INSERT INTO orders VALUES (1)", "INSERT", True),
        ("/* app */ -- note\n REPLACE INTO orders VALUES (1)", "REPLACE", True),
        ("(SELECT f())", "SELECT", True),
        ("/*!80000 CREATE */ TABLE x (a int)", "CREATE", False),
        ("/*M!100100 UPDATE orders SET a = 1 */", "UPDATE", True),
        ("SET STATEMENT a=' for ', b=1 FOR /* c */ DELETE FROM x WHERE a = 1", "DELETE", True),
        ("ANALYZE FORMAT=JSON UPDATE orders SET a = 1", "ANALYZE", True),
        ("ANALYZE LOCAL TABLE orders", "ANALYZE", False),
    ],
)
def test_statements_that_change_rows_are_reported(sql, keyword, changes):
    log = BinlogBytes()
    log.format_description()
    begin = log.gtid(1) | PACKED
    log.query("BEGIN")
    log.add(5, b"\2" + bytes(8))
    log.query("SAVEPOINT a")
    log.query(sql, status=b"\x0c\x01shop\0")
    log.query("COMMIT")
    items, scanned = scan(log)
    (query,) = of(items, QuerySeen)
    assert (query.keyword, query.changes_rows, query.alone) == (keyword, changes, False)
    assert (query.position, query.databases, query.durable) == (begin, ("shop",), False)
    assert not scanned.in_transaction


def test_load_data_in_statement_form_is_reported():
    log = BinlogBytes()
    log.format_description()
    log.gtid(1)
    log.query("BEGIN")
    log.add(17, struct.pack("<I", 1) + b"1\n2\n")
    plain = build.query_body("LOAD DATA INFILE 'x' INTO TABLE orders")
    log.add(18, plain[:13] + bytes(13) + plain[13:])
    log.xid()
    (query,) = of(scan(log)[0], QuerySeen)
    assert query.changes_rows
    assert query.sql.startswith("LOAD DATA")


def test_truncate_counts_one_and_is_skipped_once_durable():
    log = BinlogBytes()
    log.format_description()
    begin = log.gtid(1) | PACKED
    log.query("TRUNCATE TABLE orders")
    for resume in (None, Resume(4, begin, 0)):
        scanned = scanner(resume=resume)
        for item in scanned.feed(*log.arrays()):
            if isinstance(item, QuerySeen):
                batch = scanned.truncate(3)
                assert item.durable == (resume is not None)
        if resume:
            assert batch is None
        else:
            assert rows_of([batch])[0][:4] == ("T", 3, begin, 0)
            assert batch.resume.acknowledge == begin
    assert scanned.resume == Resume(log.offset | PACKED, begin, 0)


def test_statements_that_are_acknowledged_are_durable():
    """The stream begins with the last row's transaction, however long ago that was."""
    log = BinlogBytes()
    log.format_description()
    begin = one_transaction(log, 1)
    ends = []
    for number in (2, 3):
        log.gtid(number)
        log.query("ALTER TABLE orders ADD c INT DEFAULT 1")
        ends.append(log.offset | PACKED)
    items, _ = scan(log, scanner(resume=Resume(ends[0], begin, 0)))
    assert [item.durable for item in of(items, QuerySeen)] == [True, False]


def test_create_table_select_of_newer_servers_is_one_transaction():
    for begins in (True, False):
        log = BinlogBytes()
        log.format_description("8.4.0")
        begin = log.gtid(1) | PACKED
        if begins:
            log.query("BEGIN")
        log.query("CREATE TABLE `t` (`a` int) START TRANSACTION")
        log.table_map(5, TYPES, METAS)
        log.rows(30, 5, 2, row(1, b"x"))
        log.xid()
        items, scanned = scan(log)
        assert [r[2] for r in rows_of(items)] == [begin]
        assert not of(items, QuerySeen)[0].alone
        assert not scanned.in_transaction


@pytest.mark.parametrize("end", ["ROLLBACK", "ROLLBACK TO `a`", "restart"])
def test_rolled_back_rows_name_the_tables_to_dump(end):
    log = BinlogBytes()
    log.format_description()
    begin = log.gtid(1) | PACKED
    log.query("BEGIN")
    log.table_map(5, TYPES, METAS)
    log.table_map(6, TYPES, METAS, table="dropped")
    log.rows(30, 5, 2, row(1, b"x"))
    log.rows(30, 6, 2, row(1, b"x"))
    if end == "restart":
        log.format_description()
    else:
        log.query(end)
    if " TO " in end:
        log.query("COMMIT")
    items, scanned = scan(log, dropped=0)
    assert of(items, RolledBackSeen) == [RolledBackSeen(begin, 2, (("shop", "orders"),), False)]
    assert not scanned.in_transaction


def noticing(log: BinlogBytes, columns=(), *, resume=None, schema=0, step=0):
    """What is noticed of table ``orders``: (deleted, rekeyed), each with the rows that follow."""
    scan = scanner(checksum=log.checksum, resume=resume)
    found = []
    step = step or len(log.events)
    for first in range(0, len(log.events), step):
        for item in scan.feed(*log.arrays(first, first + step)):
            if isinstance(item, TableMapSeen):
                scan.bind(item.table_id, schema)
                if item.table == "orders":
                    scan.notice(item.table_id, deletes=True, columns=columns)
            elif isinstance(item, RowsNoticed):
                assert (item.database, item.table) == ("shop", "orders")
                found.append((item.deleted, item.rekeyed))
            elif isinstance(item, LogBatch):
                found.append([row[0] for row in rows_of([item])])
    return found


def changes(kind: int, rows: bytes, **more) -> BinlogBytes:
    """A transaction of one rows event."""
    log = BinlogBytes()
    log.format_description("8.0.40")
    log.gtid(1)
    log.query("BEGIN")
    log.table_map(5, TYPES, METAS)
    log.table_map(6, TYPES, METAS, table="others")
    log.rows(32, 6, 2, row(1, b"x"))
    log.rows(kind, 5, 2, rows, **more)
    log.xid()
    return log


@pytest.mark.parametrize("schema", [0, 7])
def test_deletes_and_updates_of_some_columns_are_noticed_before_their_rows(schema):
    def found(kind, rows, columns=(0,), **more):
        items = noticing(changes(kind, rows, **more), columns, schema=schema)
        batches = [item for item in items if isinstance(item, list)]
        assert bool(batches) == bool(schema)
        assert not batches or items[-1] is batches[-1]
        return [item for item in items if not isinstance(item, list)]

    assert found(30, row(1, b"x")) == []
    assert found(32, row(1, b"x") + row(2, b"x")) == [(True, False)]
    assert found(31, row(1, b"x") + row(1, b"y")) == []
    assert found(31, row(1, b"x") + row(1, b"x"), (1,)) == []
    assert found(31, row(1, b"x") + row(2, b"x")) == [(False, True)]
    assert found(31, row(1, b"x") + row(1, b"y") + row(3, b"") + row(4, b"")) == [(False, True)]
    assert found(31, row(1, b"x") + row(1, None), (1,)) == [(False, True)]
    assert found(31, row(1, None) + row(1, b"x"), (1,)) == [(False, True)]
    assert found(31, row(1, None) + row(1, b""), (1,)) == [(False, True)]
    assert found(31, row(1, None) + row(1, None), (0, 1)) == []
    assert found(31, row(1, b"x") + row(2, b"x"), ()) == []
    # Images of some columns (binlog_row_image = MINIMAL): key before, what changed after.
    key, text = b"\xfe" + struct.pack("<i", 1), b"\xfe\x01y"
    assert found(31, key + text, (0,), before=b"\x01", after=b"\x02") == []
    assert found(31, key + text, (1,), before=b"\x01", after=b"\x02") == [(False, True)]


@pytest.mark.parametrize("metas", [b"", b"\x01\x02\x03"])
def test_types_that_are_not_known_end_nothing_where_they_are_not_asked_for(metas):
    """Of nobody knows how much metadata and which values. Each of the events counts one."""
    log = BinlogBytes()
    log.format_description("9.9.0")
    begin = log.gtid(1) | PACKED
    log.query("BEGIN")
    log.table_map(5, TYPES, METAS)
    log.table_map(6, bytes([3, 200, 15]), metas + METAS, table="new", optional=b"\1\1\x80")
    log.rows(30, 6, 3, b"what" * 20)
    log.rows(30, 5, 2, row(1, b"x"))
    log.rows(31, 6, 3, b"ever" * 20)
    log.rows(30, 5, 2, row(2, b"x"))
    log.xid()
    items, _ = scan(log, new=0)
    assert [r[2:4] for r in rows_of(items)] == [(begin, 1), (begin, 3)]
    assert [seen.unknown for seen in of(items, TableMapSeen)] == [None, 200]
    items, _ = scan(log, scanner(resume=Resume(4, begin, 1)), new=0)
    assert [r[2:4] for r in rows_of(items)] == [(begin, 3)]
    with pytest.raises(DecodeError, match=r"shop\.new .* 200"):
        scan(log, new=7)


@pytest.mark.parametrize(
    ("kind", "noticed"), [(30, []), (31, [(False, True)]), (32, [(True, False)])]
)
def test_of_types_that_are_not_known_any_change_is_noticed(kind, noticed):
    log = BinlogBytes()
    log.format_description("9.9.0")
    log.gtid(1)
    log.query("BEGIN")
    log.table_map(5, bytes([3, 200]), b"\x01\x02\x03")
    log.rows(kind, 5, 2, b"whatever")
    log.xid()
    assert noticing(log, (0,)) == noticed
    assert noticing(log, (0,), step=1) == noticed


def test_what_is_durable_and_what_is_not_asked_for_is_not_noticed():
    log = changes(32, row(1, b"x") + row(2, b"x"))
    assert noticing(log) == [(True, False)]
    assert noticing(log, step=1) == [(True, False)]
    (begin,) = {r[2] for r in rows_of(scan(log)[0])}
    assert noticing(log, resume=Resume(0, begin, 1)) == [(True, False)]
    assert noticing(log, resume=Resume(0, begin, 2)) == []


def test_unknown_events_pass_only_if_ignorable():
    log = BinlogBytes()
    log.format_description()
    log.add(99, b"whatever", flags=build.IGNORABLE)
    scan(log)
    log.add(99, b"whatever")
    with pytest.raises(DecodeError, match=r"type 99 is unknown .*000001:"):
        scan(log)


def test_incident_is_a_gap():
    log = BinlogBytes()
    log.format_description()
    log.add(26, b"\1\0\0")
    with pytest.raises(GapError, match="000001:"):
        scan(log)


def test_wrong_checksum_names_the_position():
    log = BinlogBytes()
    log.format_description()
    at = log.offset
    one_transaction(log, 1)
    log.events[1] = log.events[1][:-1] + bytes([log.events[1][-1] ^ 1])
    with pytest.raises(DecodeError, match=rf"GTID event does not match its checksum .*000001:{at}"):
        scan(log)


def test_same_table_id_with_another_shape_is_asked_for_again():
    log = BinlogBytes()
    log.format_description()
    one_transaction(log, 1)
    log.gtid(2)
    log.query("BEGIN")
    log.table_map(5, bytes([3, 3]))
    log.rows(30, 5, 2, b"\xfc" + struct.pack("<ii", 1, 2))
    log.xid()
    one_transaction(log, 1)
    log.format_description()  # a start of the server: table ids begin anew
    one_transaction(log, 1)
    items, _ = scan(log)
    assert [seen.types for seen in of(items, TableMapSeen)] == [
        TYPES, bytes([3, 3]), TYPES, TYPES
    ]  # fmt: skip


def test_full_metadata_of_a_table():
    optional = b"".join(
        bytes([kind]) + build.packed_integer(len(value)) + value
        for kind, value in (
            (1, b"\x80"),
            (2, b"\xfc\xff\x00"),
            (11, b"\x2d\x2e"),
            (4, b"\x02id\x04name\x01e\x01s\x01g"),
            (5, b"\x01\x01p"),
            (6, b"\x02\x01x\x02yy"),
            (7, b"\x01"),
            (9, b"\x00\x00\x01\x02"),
            (12, b"\xb8"),
            (200, b"unknown"),
        )
    )
    metas = struct.pack("<H", 80) + b"\xf7\x01" + b"\xf8\x01" + b"\x04"
    log = BinlogBytes()
    log.format_description("8.4.0")
    log.gtid(1)
    log.query("BEGIN")
    log.table_map(5, bytes([3, 15, 254, 254, 255]), metas, optional=optional)
    (seen,) = of(scan(log)[0], TableMapSeen)
    told = seen.metadata
    assert told.unsigned == (True, False, False, False, False)
    assert told.collations == (None, 255, 45, 46, None)
    assert told.names == ("id", "name", "e", "s", "g")
    assert told.labels == (None, None, (b"x", b"yy"), (b"p",), None)
    assert told.geometry_types == (None, None, None, None, 1)
    assert told.primary_key == ((0, 0), (1, 2))
    assert told.visible == (True, False, True, True, True)
    assert seen.metas == (0, 80, 0xF701, 0xF801, 4)


def test_row_larger_than_a_batch(monkeypatch):
    monkeypatch.setattr(scan_state, "BATCH_BYTES", 1000)
    monkeypatch.setattr(scan_state, "BATCH_RECORDS", 3)
    log = BinlogBytes()
    log.format_description()
    log.gtid(1)
    log.query("BEGIN")
    log.table_map(5, bytes([3, 252]), b"\4")
    images = [
        b"\xfc" + struct.pack("<iI", i, size) + b"z" * size
        for i, size in enumerate([10, 5000, 1, 2, 3, 4, 990, 7])
    ]
    log.rows(30, 5, 2, b"".join(images))
    log.xid()
    items, _ = scan(log)
    found = rows_of(items)
    assert [r[5] for r in found] == [payload(2, image) for image in images]
    assert [r[3] for r in found] == list(range(8))
    assert max(map(len, of(items, LogBatch))) == 3


def fuzz_log(flavor: Flavor) -> BinlogBytes:
    log = BinlogBytes(checksum=False)
    log.format_description("11.4.5-MariaDB" if flavor is Flavor.MARIADB else "9.1.0")
    if flavor is Flavor.MARIADB:
        log.mariadb_gtid(1, flags=64, more=struct.pack("<iBB", 1, 2, 0) + b"a1")
        log.xa_prepare(b"a1")
        log.mariadb_gtid(46)
    else:
        log.tagged_gtid(1, "blue")
        log.query("TRUNCATE orders", status=b"\x04\x2d\0\x2d\0\x2d\0\x0c\x01shop\0")
        inner = BinlogBytes(checksum=False)
        inner.query("BEGIN")
        inner.table_map(4, TYPES, METAS)
        inner.rows(30, 4, 2, row(1, b"abc") * 3)
        inner.xid()
        log.gtid(1, commit_us=5)
        log.payload(inner.events)
        log.gtid(2)
        log.query("BEGIN")
    log.table_map(
        5,
        bytes([3, 15, 246, 252, 254]),
        METAS + b"\x0a\x02\x02\xfe\x50",
        optional=b"\x01\x01\x80\x04\x0a\1a\1b\1c\1d\1e",
    )
    image = b"\xe0" + struct.pack("<i", 1) + b"\x03abc" + b"12345" + b"\x02\0zz" + b"\x01q"
    log.rows(23, 5, 5, image * 3)
    log.rows(24, 5, 5, image * 4)
    if flavor is Flavor.MARIADB:
        log.add(166, build.rows_body(23, 5, 5, b"") + build.deflated(image * 4))
    else:
        log.rows(31, 5, 5, image * 4, extra=b"xyz")
    log.xid()
    log.rotate("binlog.000002")
    return log


@pytest.mark.parametrize("flavor", list(Flavor))
def test_mutated_streams_end_in_a_decode_error_or_in_order(flavor):
    seed = random.randrange(1 << 30)
    print("seed", seed)
    chance = random.Random(seed)
    log = fuzz_log(flavor)
    scan(log, scanner(flavor, checksum=False))
    original = list(log.events)
    for round_number in range(400):
        mutated = list(original)
        for _ in range(chance.randrange(1, 4)):
            which = chance.randrange(len(mutated))
            data = bytearray(mutated[which])
            choice = chance.randrange(3)
            if choice == 0:
                data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
            elif choice == 1:
                data[chance.randrange(19, len(data) + 1) - 1] = chance.choice(
                    [0, 251, 252, 254, 255]
                )
            else:
                del data[chance.randrange(19, len(data) + 1) :]
                data[9:13] = struct.pack("<I", len(data))
            mutated[which] = bytes(data)
        log.events = mutated
        try:
            items, _ = scan(log, scanner(flavor, checksum=False))
        except (DecodeError, GapError):
            pass
        else:
            places = [(r[2], r[3]) for r in rows_of(items)]
            assert places == sorted(set(places)), (seed, round_number)


def test_offsets_that_do_not_fit_are_refused():
    log = BinlogBytes()
    log.format_description()
    data, _ = log.arrays()
    for wrong in ([0, len(data) + 1], [5, 3], [], [-1, 4], [0, 10]):
        with pytest.raises(DecodeError):
            list(scanner().feed(data, np.array(wrong, dtype=np.int64)))
