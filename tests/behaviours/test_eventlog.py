"""What the event log promises its writers and readers, over every storage."""

from __future__ import annotations

import json
import os
import pickle
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from tests.support.object_stores import EMULATED
from tests.unit.eventlog.records import SOURCE, batch, chunk, payloads, register

from tidelog.errors import (
    AppendRaceLostError,
    ConsumerFileCorruptError,
    EventLogError,
    ForeignSegmentError,
    LeaseLostError,
    OffsetGoneError,
    SegmentCorruptError,
    SourceChangedError,
    StorageError,
)
from tidelog.eventlog.consumers import Consumers
from tidelog.eventlog.maintenance import EventLogMaintenance
from tidelog.eventlog.reader import EventLog
from tidelog.eventlog.segments import RECORD_SCHEMA, encode_segment, to_record_batches
from tidelog.eventlog.storage import storage_at
from tidelog.eventlog.writer import EventLogWriter
from tidelog.model.records import RecordKind, Resume, ranges_of
from tidelog.ports import SourceId
from tidelog.system import failpoints
from tidelog.system.processes import unix_ms

_numbers = count(1)


@dataclass(frozen=True)
class Root:
    """Where logs are made, and the directory that holds their files in the end."""

    place: str
    directory: Path | None
    """Of its files; None: what they are is the store's own business."""

    @property
    def files(self) -> Path:
        if self.directory is None:
            pytest.skip("this looks at the files, or damages them")
        return self.directory

    @property
    def on_disk(self) -> bool:
        return self.place == str(self.directory)


@pytest.fixture(params=["local", pytest.param("s3", marks=pytest.mark.integration), *EMULATED])
def root(request, tmp_path) -> Root:
    if request.param == "local":
        return Root(str(tmp_path), tmp_path)
    server = request.getfixturevalue(request.param)
    name = f"behaviours-{next(_numbers)}"
    return Root(server.url(name), server.files(name) if request.param == "s3" else None)


@pytest.fixture
def place(root) -> str:
    return f"{root.place}/log"


@pytest.fixture
def path(root) -> Path:
    return root.files / "log"


@pytest.fixture
def writer(place) -> EventLogWriter:
    writer = EventLogWriter.create(place, SOURCE, 1)
    register(place, "orders", "items")
    return writer


@pytest.fixture
def log(writer, place) -> EventLog:
    return EventLog.open(place)


@pytest.fixture
def on_disk(root) -> None:
    """For what only a local disk does."""
    if not root.on_disk:
        pytest.skip("only a local disk has this")


def small(place, target_bytes=64 << 20, **options):
    return EventLogMaintenance(place).rollup(
        target_bytes=target_bytes, min_age_s=-10, min_segments=2, **options
    )


# ---------------------------------------------------------------- appending


def test_what_was_appended_is_read_back_in_order_with_growing_offsets(writer, log):
    first = writer.append_log([batch([b"one", b"", b"three"], 10), batch([b"4"], 20)])
    second = writer.append_log([batch([b"five"], 30)])
    # offset 0 is the fence; an empty payload advances by one
    assert payloads(log) == [(1, b"one"), (4, b""), (5, b"three"), (10, b"4"), (11, b"five")]
    assert (first.first, first.next, second.first, second.next) == (1, 11, 11, 15)
    assert log.latest_offset() == 15
    assert log.tail == second


def test_columns_are_stored_as_they_came(writer, log):
    one = batch([b"a", b"b"], 10, schema_id=[1, 2], kind=RecordKind.UPDATE, xid=7, ordinal=3)
    writer.append_log([one])
    (ref,) = log.segments(0)
    table = log.read(ref)
    assert table.schema.equals(RECORD_SCHEMA)
    for name in ("kind", "schema_id", "position", "ordinal", "xid", "commit_ts"):
        assert table[name].to_pylist() == getattr(one, name).tolist(), name


def test_metadata_tells_what_is_inside(writer):
    meta = writer.append_log(
        [
            batch([b"a", b"b", b"c"], 10, schema_id=[1, 2, 1], xid=900),
            batch([b"d"], 20, xid=850),
        ]
    )
    assert meta.rows == 4
    assert meta.rows_by_table == {"public.orders": 3, "public.items": 1}
    assert meta.rows_by_schema == {1: 3, 2: 1}
    assert (meta.min_xid, meta.max_xid) == (850, 900)
    assert (meta.first_position, meta.last_position) == (10, 20)
    assert meta.payload_bytes == 4
    assert meta.resume == Resume(20, 20, 0)
    assert meta.pred.name == "00000000000000000000.arrow"


def test_a_chunks_rows_advance_by_one_and_stand_at_the_given_position(writer, log):
    writer.append_log([batch([b"log"], 10, xid=5)])
    rows = batch([b"row one", b"row two"], 0, kind=RecordKind.DUMP_ROW)
    meta = writer.append_chunk(rows, chunk("c1"), position=77)
    assert (meta.first, meta.next) == (4, 6)
    assert meta.resume == Resume(10, 10, 0), "a chunk does not move the source's position"
    assert meta.min_xid is None
    table = log.read(log.segments(meta.first)[0])
    assert table["position"].to_pylist() == [77, 77]
    assert [(m.first, c.chunk_id) for m, c in log.chunks()] == [(4, "c1")]
    with pytest.raises(ValueError, match="dump rows"):
        writer.append_chunk(batch([b"x"], 0), chunk(), position=1)


def test_positions_and_control_records(writer, log):
    writer.append_position(Resume(50, 50, 0))
    meta = writer.append_control({"dump": "1", "event": "completed"})
    assert writer.resume == Resume(50, 50, 0)
    (ref,) = log.segments(0)
    (record,) = log.read(ref).to_pylist()
    assert json.loads(record["payload"]) == {"dump": "1", "event": "completed"}
    assert (record["kind"], record["schema_id"], record["position"]) == (RecordKind.CONTROL, 0, 50)
    assert meta.rows_by_schema == {0: 1}


def test_control_records_of_one_segment(writer, log):
    meta, offsets = writer.append_controls([{"n": 1}, {"n": 2}])
    (ref,) = log.segments(meta.first)
    records = log.read(ref).to_pylist()
    assert [json.loads(each["payload"])["n"] for each in records] == [1, 2]
    assert [each["offset"] for each in records] == offsets


def test_a_new_writer_resumes_from_the_tail(writer, place):
    writer.append_log([batch([b"a"], 10)], Resume(8, 10, 3))
    again = EventLogWriter.open(place, SOURCE, 2)
    assert again.resume == Resume(8, 10, 3)
    assert (again.tail.kind, again.tail.epoch, again.next_offset) == ("fence", 2, 3)


def test_the_log_never_moves_backward(writer):
    """Invariant 1: a record that is durable already is refused."""
    writer.append_log([batch([b"a", b"b"], 10)])
    with pytest.raises(ValueError, match="durable already"):
        writer.append_log([batch([b"b"], 10, ordinal=1)])
    with pytest.raises(ValueError, match="backward"):
        writer.append_position(Resume(9, 9, 0))
    writer.append_log([batch([b"c"], 10, ordinal=2)])


def test_unknown_schemas_are_refused(writer, log):
    with pytest.raises(EventLogError, match="no schema 9"):
        writer.append_log([batch([b"a"], 10, schema_id=9)])
    assert payloads(log) == []


# ---------------------------------------------------------------- one writer


def test_a_new_leaders_fence_shuts_the_old_writer_out(writer, log, place):
    """Invariant 7."""
    leader = EventLogWriter.open(place, SOURCE, 2)
    for _ in range(2):
        with pytest.raises(AppendRaceLostError, match="another writer appended at offset 1"):
            writer.append_log([batch([b"late"], 10)])
    assert writer.closed
    leader.append_log([batch([b"new"], 10)])
    assert [p for _, p in payloads(log)] == [b"new"]


def test_a_writer_under_an_older_epoch_cannot_open(writer, place):
    EventLogWriter.open(place, SOURCE, 7)
    with pytest.raises(LeaseLostError, match="above epoch 7"):
        EventLogWriter.open(place, SOURCE, 6)
    EventLogWriter.open(place, SOURCE, 7)


def test_nothing_is_appended_once_the_lease_is_in_doubt(path, place):
    doubtful = []

    def check_lease():
        if doubtful:
            raise LeaseLostError("in doubt")

    writer = EventLogWriter.create(place, SOURCE, 1, check_lease=check_lease)
    register(place)
    writer.append_log([batch([b"a"], 10)])
    doubtful.append(True)
    with pytest.raises(LeaseLostError):
        writer.append_log([batch([b"b"], 20)])
    assert [p for _, p in payloads(EventLog.open(place))] == [b"a"]
    assert not list(path.glob(".tmp*"))
    doubtful.clear()
    with pytest.raises(LeaseLostError):
        writer.append_log([batch([b"b"], 20)])


def test_an_old_leaders_append_between_our_look_and_our_fence_counts(writer, place):
    late = []

    def before_fence():
        if not late:
            late.append(writer.append_log([batch([b"late"], 10)]))

    with failpoints.arm({"writer.before_fence": before_fence}):
        leader = EventLogWriter.open(place, SOURCE, 2)
    assert leader.resume == late[0].resume
    assert leader.tail.pred.name == late[0].name


def test_another_source_is_refused(writer, place):
    for other in [
        SourceId("postgres", "1", "shop"),
        SourceId("postgres", SOURCE.system, "other"),
        SourceId("mysql", SOURCE.system, "shop"),
    ]:
        with pytest.raises(SourceChangedError, match=f"system {other.system}"):
            EventLogWriter.open(place, other, 2)
    promoted = SourceId("postgres", SOURCE.system, "shop", timeline=2)
    assert EventLogWriter.open(place, promoted, 2).tail.source.timeline == 2


def test_a_put_that_failed_after_it_happened_is_recognised(writer, log):
    """An ambiguous put is read back and its nonce compared before the writer decides."""

    def fail():
        raise OSError(5, "injected")

    with failpoints.arm({"put.after_link": fail}):
        writer.append_log([batch([b"a"], 10)])
    writer.append_log([batch([b"b"], 20)])
    assert [p for _, p in payloads(log)] == [b"a", b"b"]


def test_if_durability_stays_unknown_the_writer_closes(writer, monkeypatch, place, on_disk):
    def fail(*_):
        raise OSError(5, "injected")

    monkeypatch.setattr("tidelog.eventlog.storage.fsync_directory", fail)
    with pytest.raises(AppendRaceLostError, match="durable is unknown"):
        writer.append_log([batch([b"a"], 10)])
    monkeypatch.undo()
    with pytest.raises(AppendRaceLostError):
        writer.append_log([batch([b"a"], 10)])
    assert EventLogWriter.open(place, SOURCE, 1).resume == Resume(10, 10, 0)


@pytest.mark.parametrize("point", ["put.before_write", "put.after_write", "put.before_link"])
def test_a_put_that_failed_leaves_nothing_and_may_be_repeated(writer, path, log, point, root):
    if not root.on_disk and point != "put.before_link":
        pytest.skip("only a local disk has this")

    def fail():
        raise OSError(28, "No space left on device")

    with failpoints.arm({point: fail}), pytest.raises(StorageError, match="No space left"):
        writer.append_log([batch([b"a"], 10)])
    assert not list(path.glob(".tmp*"))
    assert payloads(log) == []
    writer.append_log([batch([b"a"], 10)])
    assert [p for _, p in payloads(log)] == [b"a"]


def test_temporary_files_of_dead_writers_are_removed_at_open(writer, path, place, on_disk):
    (path / ".tmp-1234-00000000000000000001.arrow").write_bytes(b"half")
    EventLogWriter.open(place, SOURCE, 2)
    assert not list(path.glob(".tmp*"))


# ---------------------------------------------------------------- the log as a whole


def test_a_recreated_log_starts_above_and_has_another_generation(root):
    first = EventLogWriter.create(f"{root.place}/a", SOURCE, 1)
    second = EventLogWriter.create(f"{root.place}/b", SOURCE, 1, start_offset=1_000_000)
    assert first.generation != second.generation
    assert EventLog.open(f"{root.place}/b").head_offset == 1_000_000
    assert second.next_offset == 1_000_001
    # created already: the start is what it was
    again = EventLogWriter.create(f"{root.place}/b", SOURCE, 2, start_offset=5)
    assert again.generation == second.generation
    assert again.next_offset == 1_000_002


def test_a_log_recreated_under_an_open_reader_is_noticed(writer, log, path, place):
    log.chain()
    for file in path.glob("*.*"):
        if file.is_file():
            file.unlink()
    EventLogWriter.create(place, SOURCE, 1, start_offset=100)
    with pytest.raises(ForeignSegmentError, match="recreated"):
        log.latest_offset()


def test_no_log_at_the_path_is_said(place):
    assert not EventLog.exists(place)
    with pytest.raises(EventLogError, match=r"no log\.json"):
        EventLog.open(place)
    with pytest.raises(EventLogError, match=r"no log\.json"):
        EventLogWriter.open(place, SOURCE, 1)


def test_segments_without_a_log_file_are_not_adopted(writer, path, place):
    (path / "log.json").unlink()
    with pytest.raises(ForeignSegmentError, match="not an empty place"):
        EventLogWriter.create(place, SOURCE, 1)


# ---------------------------------------------------------------- reading


def test_ranges_columns_and_tables_are_pruned(writer, log):
    writer.append_log([batch([b"o1", b"i1", b"o2"], 10, schema_id=[1, 2, 1])])
    writer.append_log([batch([b"i2"], 20, schema_id=2)])
    control = writer.append_control({})
    assert len(log.segments(0)) == 3, "fences have no records"
    orders = log.segments(0, tables=["public.orders"])
    assert [ref.start for ref in orders] == [1, control.first]
    table = log.read(orders[0], ["payload", "offset"], tables=["public.orders"])
    assert table.column_names == ["payload", "offset"]
    assert table["payload"].to_pylist() == [b"o1", b"o2"]
    both = log.read(orders[0], ["payload"], start=3, end=7)
    assert both["payload"].to_pylist() == [b"i1", b"o2"]
    assert log.read(orders[0], schema_ids=[2])["payload"].to_pylist() == [b"i1"]
    assert log.read(orders[1], schema_ids=[0]).num_rows == 1
    assert log.read(orders[1], tables=["public.orders"]).num_rows == 0
    (part,) = log.segments(3, 4)
    assert (part.start, part.end) == (3, 4)
    assert log.read(part)["payload"].to_pylist() == [b"i1"]


def test_references_travel(writer, log, place):
    writer.append_log([batch([b"a"], 10)])
    refs = pickle.loads(pickle.dumps(log.segments(0)))
    assert EventLog.open(place).read(refs[0])["payload"].to_pylist() == [b"a"]


def test_a_long_lived_reader_follows_without_listing(writer, log, monkeypatch):
    log.chain()
    monkeypatch.setattr(type(log.storage), "names", None)
    monkeypatch.setattr(type(log.storage), "tags", None)
    writer.append_log([batch([b"a"], 10)])
    assert payloads(log) == [(1, b"a")]


def test_what_was_read_ahead_is_the_log_as_well(writer, log, place):
    fill(writer)
    refs = log.segments(0)
    expected = [log.read(ref) for ref in refs]
    log.read_ahead(refs)
    small(place)
    assert [log.read(ref) for ref in refs] == expected
    log.read_ahead(refs)
    EventLogMaintenance(place).retain(-10)
    with pytest.raises(OffsetGoneError):
        log.read(refs[1])
    log.read_ahead(refs[-1:])
    assert log.read(refs[-1]) == expected[-1]


def test_beyond_the_end_is_an_error_not_an_empty_answer(writer, log):
    with pytest.raises(EventLogError, match=r"offset 99, .* ends at 1"):
        log.segments(0, 99)
    with pytest.raises(EventLogError, match="ends at 1"):
        log.segments(99)
    assert log.segments(1) == []


def test_latest_offset_is_durable_before_it_is_reported(writer, log, monkeypatch):
    synced = []
    storage = type(log.storage)
    original = storage.make_durable
    monkeypatch.setattr(storage, "make_durable", lambda s, n: synced.append(n) or original(s, n))
    writer.append_log([batch([b"a"], 10)])
    assert log.latest_offset(durable=False) == 2
    assert synced == []
    assert log.latest_offset() == log.latest_offset() == 2
    assert synced == [log.tail.name], "once for each new tail"


def test_emitted_transactions_are_found_by_xid(writer, log, place):
    for position, xid in [(10, 735), (20, 740), (30, 738), (40, 735)]:
        writer.append_log([batch([b"a", b"b"], position, schema_id=[1, 1 + xid % 2], xid=xid)])
    expected = {735: frozenset({1, 2}), 740: frozenset({1})}
    assert log.records_with_xids(ranges_of([735, 740, 736, 999])) == expected
    assert small(place)
    assert log.records_with_xids(ranges_of([735, 740, 736, 999])) == expected
    assert log.records_with_xids(ranges_of([])) == {}
    assert log.records_with_xids(ranges_of([735]), down_to=log.tail.next) == {}


# ---------------------------------------------------------------- roll-up and retention


def fill(writer, segments=6):
    for index in range(segments):
        writer.append_log([batch([b"%04d" % index], 10 + index, xid=100 + index)])


def test_roll_up_changes_files_not_records(writer, log, path, place):
    fill(writer)
    writer.append_chunk(batch([b"r"], 0, kind=RecordKind.DUMP_ROW), chunk("c"), 20)
    writer.append_position(Resume(90, 90, 0))
    before, refs, tail = payloads(log), log.segments(0), log.tail
    tables = [log.read(ref) for ref in refs]
    assert small(place) == 7
    assert len(list(path.glob("*.arrow"))) == 2, "never the tail"
    assert payloads(log) == payloads(EventLog.open(place)) == before
    assert log.tail == tail
    merged = log.chain().segments[0]
    assert merged.rows == 7
    assert (merged.min_xid, merged.max_xid) == (100, 105)
    assert [c.chunk_id for _, c in log.chunks()] == ["c"]
    # references planned before still read the same records, here and in another process
    for reader in (log, EventLog.open(place)):
        assert [reader.read(ref) for ref in refs] == tables
    writer.append_log([batch([b"next"], 100)])
    assert payloads(log)[-1][1] == b"next"
    assert small(place) == 1, "rolled-up segments are rolled up again"
    assert payloads(log)[:-1] == before


def test_roll_up_leaves_young_large_and_few_segments(writer, place):
    fill(writer)
    maintenance = EventLogMaintenance(place)
    assert maintenance.rollup(target_bytes=64 << 20, min_age_s=3600) == 0
    assert maintenance.rollup(target_bytes=64 << 20, min_age_s=-10, min_segments=50) == 0
    assert maintenance.rollup(min_age_s=-10, target_bytes=7) == 0
    assert maintenance.rollup(min_age_s=-10, target_bytes=8) > 0


def test_retention_removes_old_segments_and_readers_are_notified(writer, log, place):
    fill(writer)
    refs = log.segments(0)
    kept = payloads(log)[-1:]
    head = EventLogMaintenance(place).retain(-10)
    assert log.head_offset == head == refs[-1].start
    assert payloads(log) == payloads(EventLog.open(place)) == kept
    message = f"offset 0 was asked for, but retention removed everything before {head}"
    with pytest.raises(OffsetGoneError, match=message):
        log.segments(0)
    with pytest.raises(OffsetGoneError, match="retention removed"):
        log.read(refs[0])


def test_retention_goes_by_age(writer, log, place):
    fill(writer)
    now_ms = unix_ms()
    maintenance = EventLogMaintenance(place)
    assert maintenance.retain(3600, now_ms=now_ms) == 0
    assert maintenance.retain(3600, now_ms=now_ms + 3_700_000) == log.tail.first


def test_retention_keeps_what_a_registered_consumer_needs_unless_capped(writer, log, place):
    fill(writer)
    consumers = Consumers(storage_at(place))
    consumers.register("lake", 10)
    consumers.register("search.index-1", 15)
    maintenance = EventLogMaintenance(place)
    assert maintenance.retain(-10) == 9, "the segment that holds offset 10 stays"
    consumers.register("lake", 15)
    assert maintenance.retain(-10) == 13
    consumers.forget("search.index-1")
    assert [c.name for c in consumers.all()] == ["lake"]
    assert maintenance.retain(-10, hard_cap_bytes=1 << 30) == 13
    assert maintenance.retain(-10, hard_cap_bytes=5) == log.tail.first
    with pytest.raises(Exception, match="consumer name"):
        consumers.register("../x", 1)


def test_a_damaged_consumer_file_stops_retention(writer, path, place):
    fill(writer)
    Consumers(storage_at(place)).register("lake", 100)
    (path / "consumers" / "lake.json").write_text("{")
    with pytest.raises(ConsumerFileCorruptError, match=r"lake\.json"):
        EventLogMaintenance(place).retain(-10)


def test_only_one_process_maintains(writer, place, on_disk):
    fill(writer)
    with storage_at(place).exclusive("maintenance") as held:
        assert held
        assert small(place) == 0
        assert EventLogMaintenance(place).retain(-10) == 0
    assert small(place) > 0


def test_maintenance_stops_when_the_lease_is_in_doubt(writer, log, place):
    fill(writer)
    before = payloads(log)

    def check_lease():
        raise LeaseLostError("in doubt")

    with pytest.raises(LeaseLostError):
        EventLogMaintenance(place, check_lease).rollup(
            target_bytes=64 << 20, min_age_s=-10, min_segments=2
        )
    with pytest.raises(LeaseLostError):
        EventLogMaintenance(place, check_lease).retain(-10)
    assert payloads(log) == before


# ---------------------------------------------------------------- damage


def truncate(file, keep=0.5):
    os.truncate(file, int(file.stat().st_size * keep))


def zero_page(file):
    data = bytearray(file.read_bytes())
    at = len(data) // 2
    data[at : at + 512] = bytes(512)
    file.write_bytes(data)


@pytest.mark.parametrize("keep", [0, 0.3, 0.99])
@pytest.mark.parametrize("which", [1, -1])
def test_a_truncated_segment_is_named_not_skipped(writer, path, keep, which, place):
    fill(writer)
    file = sorted(path.glob("*.arrow"))[which]
    truncate(file, keep)
    with pytest.raises(SegmentCorruptError, match=file.name):
        payloads(EventLog.open(place))
    if which == -1:
        with pytest.raises(SegmentCorruptError, match=file.name):
            EventLogWriter.open(place, SOURCE, 2)


def test_a_torn_page_inside_a_segment_is_found(writer, path, place):
    rng = np.random.default_rng(7)
    rows = [rng.bytes(40) + b"abcd" * 40 for _ in range(500)]
    meta = writer.append_log([batch(rows, 10)])
    zero_page(path / meta.name)
    with pytest.raises(SegmentCorruptError, match=meta.name):
        payloads(EventLog.open(place))


def test_a_flipped_bit_in_a_payload_is_found(writer, path, place):
    """LZ4 stores incompressible bytes as they are: only the checksum can tell."""
    rows = [np.random.default_rng(7).bytes(5000)]
    meta = writer.append_log([batch(rows, 10)])
    data = bytearray((path / meta.name).read_bytes())
    data[data.find(rows[0][2000:2100])] ^= 4
    (path / meta.name).write_bytes(data)
    with pytest.raises(SegmentCorruptError, match="checksum"):
        payloads(EventLog.open(place))


def test_a_missing_segment_is_named(writer, path, place):
    fill(writer)
    file = sorted(path.glob("*.arrow"))[2]
    file.unlink()
    with pytest.raises(SegmentCorruptError, match=f"missing: {file.name}"):
        payloads(EventLog.open(place))


def test_a_segment_deleted_at_the_head_is_not_taken_for_retention(writer, path, place):
    fill(writer)
    sorted(path.glob("*.arrow"))[0].unlink()
    with pytest.raises(SegmentCorruptError, match="missing"):
        payloads(EventLog.open(place))


def test_a_foreign_file_at_the_tail_is_named(writer, path, tmp_path, place):
    other = EventLogWriter.create(tmp_path / "other", SOURCE, 1)
    newest = path / "00000000000000000900.arrow"
    newest.write_bytes((tmp_path / "other" / other.tail.name).read_bytes())
    with pytest.raises(ForeignSegmentError, match="was renamed"):
        EventLog.open(place).latest_offset()
    moved = EventLogWriter.create(tmp_path / "third", SOURCE, 1, start_offset=900)
    newest.write_bytes((tmp_path / "third" / moved.tail.name).read_bytes())
    with pytest.raises(ForeignSegmentError, match=f"generation {moved.generation}"):
        EventLog.open(place).latest_offset()
    pa.ipc.new_file(str(newest), pa.schema([("a", pa.int64())])).close()
    with pytest.raises(ForeignSegmentError, match="not written by Tidelog"):
        EventLogWriter.open(place, SOURCE, 2)


def test_strays_are_ignored_and_quarantined_with_their_content(writer, path, log, place):
    fill(writer)
    small(place)
    expected = payloads(log)
    stray = path / "00000000000000000005.arrow"
    stray.write_bytes(b"whatever a late writer left")
    assert payloads(EventLog.open(place)) == expected
    swept = EventLogMaintenance(place).quarantine_strays()
    assert [name.split("/")[0] for name in swept.quarantined] == ["quarantine"]
    assert (path / swept.quarantined[0]).read_bytes() == b"whatever a late writer left"
    assert not stray.exists()
    assert payloads(log) == expected


def forge(path, meta, **changes):
    """A segment at ``meta``'s name as a late writer of this log would leave it."""
    records, _ = to_record_batches([batch([b"forged"] * meta.rows, 10)], meta.first)
    forged = replace(meta, nonce="another", **changes)
    (path / meta.name).write_bytes(encode_segment(forged, records))


def test_a_stray_under_a_name_planned_before_is_not_read(writer, path, log, place):
    fill(writer)
    chain, refs = log.chain(), log.segments(0)
    expected = [log.read(ref) for ref in refs]
    small(place)
    forge(path, chain.segments[3])
    assert [log.read(ref) for ref in refs] == expected


def test_a_segment_that_does_not_follow_the_tail_is_not_read(writer, path, log, place):
    fill(writer)
    before = log.tail
    meta = writer.append_log([batch([b"right"], 100)])
    forge(path, meta, pred=replace(before.identity, nonce="another"))
    for reader in (log, EventLog.open(place)):
        with pytest.raises(SegmentCorruptError, match=f"before {meta.name} is missing"):
            payloads(reader)


def test_what_is_appended_during_a_sweep_is_no_stray(writer, log, place):
    fill(writer)
    maintenance = EventLogMaintenance(place)
    walk = maintenance._reader.walk

    def walk_then_append():
        chain = walk()
        for position in (100, 101):
            writer.append_log([batch([b"x"], position)])
        return chain

    maintenance._reader.walk = walk_then_append
    assert maintenance.quarantine_strays().quarantined == []
    assert len(payloads(log)) == 8


@pytest.mark.parametrize("file", ["log.json", "chain.json"])
def test_damaged_state_files_are_named(writer, path, file, place):
    fill(writer)
    small(place)
    whole = (path / file).read_text()
    last_digit = "2".join(whole.rsplit("1", 1))
    for damaged in (whole[:-9], "", "{", "[]", last_digit, whole.replace("0", "1")):
        (path / file).write_text(damaged)
        with pytest.raises(SegmentCorruptError, match=f"{file} is torn or was altered"):
            payloads(EventLog.open(place))
    (path / file).write_text(whole)
    assert payloads(EventLog.open(place))


@pytest.mark.parametrize("file", ["log.json", "chain.json"])
def test_state_files_of_earlier_versions_are_read(writer, path, file, place):
    """Those had no checksum; and people write them as an error message says."""
    fill(writer)
    small(place)
    before = payloads(EventLog.open(place))
    document = json.loads((path / file).read_text())
    assert document.pop("crc32")
    (path / file).write_text(json.dumps(document, indent=2))
    assert payloads(EventLog.open(place)) == before
