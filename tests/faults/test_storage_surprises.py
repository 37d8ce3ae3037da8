"""The event log on a storage that answers late, in part, with something old, or not at all."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable, Collection
from itertools import count
from pathlib import Path
from typing import Any, NoReturn
from unittest.mock import Mock

import obstore
import pyarrow as pa
import pytest
from obstore import exceptions as refusals
from tests.unit.eventlog.records import SOURCE, batch, payloads, register, table_schema

from tidelog.capture.session import loop as loop_module
from tidelog.capture.session.loop import CaptureLoop, CaptureOptions
from tidelog.errors import (
    AppendRaceLostError,
    EventLogError,
    ForeignSegmentError,
    LeaseLostError,
    OffsetGoneError,
    SegmentCorruptError,
    StorageError,
)
from tidelog.eventlog.log_files import CHAIN_FILE, LOG_FILE
from tidelog.eventlog.maintenance import EventLogMaintenance
from tidelog.eventlog.object_storage import ObjectStorage
from tidelog.eventlog.reader import EmittedTransactions, EventLog, SegmentRef
from tidelog.eventlog.schemas import SchemaStore
from tidelog.eventlog.segments import SegmentFile, is_segment_name
from tidelog.eventlog.storage import LocalStorage
from tidelog.eventlog.storage_port import Tag
from tidelog.eventlog.writer import EventLogWriter
from tidelog.model.records import Resume, ranges_of
from tidelog.model.schema import TableName
from tidelog.system import failpoints

ORDERS = TableName("public", "orders")
XID = 7
_numbers = count(1)


@pytest.fixture
def writer(tmp_path: Path) -> EventLogWriter:
    writer = EventLogWriter.create(tmp_path, SOURCE, 1)
    register(tmp_path)
    return writer


@pytest.fixture
def bucket() -> str:
    """A place in memory that does what an object store does."""
    return f"memory:///surprises-{next(_numbers)}"


def fill(writer: EventLogWriter, segments: int = 6) -> list[str]:
    """The names of as many new segments."""
    start = 10 if writer.resume is None else writer.resume.position + 10
    positions = range(start, start + 10 * segments, 10)
    return [writer.append_log([batch([b"row"], at, xid=XID)]).name for at in positions]


def values(place: Path) -> list[bytes]:
    return [payload for _, payload in payloads(EventLog.open(place))]


# ---------------------------------------------------------------- appends


class Unanswering(LocalStorage):
    """Says nothing about the files in ``silent``."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.silent: set[str] = set()

    def tag(self, name: str) -> Tag | None:
        if name in self.silent:
            raise StorageError(f"no answer about {name}")
        return super().tag(name)


@pytest.mark.usefixtures("writer")
def test_an_append_whose_place_on_the_chain_stays_unknown_closes_the_writer(tmp_path: Path) -> None:
    storage = Unanswering(tmp_path)
    leader = EventLogWriter(storage, SOURCE, 1)
    first, second = batch([b"first"], 10), batch([b"second"], 20)
    storage.silent.add(CHAIN_FILE)
    with pytest.raises(AppendRaceLostError, match="is unknown"):
        leader.append_log([first])
    storage.silent.clear()
    # Repeated together with what came meanwhile, it would find its own segment and count as done.
    with pytest.raises(AppendRaceLostError):
        leader.append_log([first, second])
    assert leader.closed
    successor = EventLogWriter.open(tmp_path, SOURCE, 2)
    assert successor.resume == first.resume
    successor.append_log([second])
    assert values(tmp_path) == [b"first", b"second"]


def test_a_device_that_fails_amid_a_put_closes_the_writer(
    writer: EventLogWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> NoReturn:
        raise OSError(errno.EIO, "I/O error")

    with monkeypatch.context() as device:

        def break_down() -> None:
            device.setattr(os, "stat", fail)
            fail()

        with (
            failpoints.arm({"put.before_link": break_down}),
            pytest.raises(AppendRaceLostError, match="is unknown"),
        ):
            fill(writer, 1)
    assert writer.closed


def test_a_log_whose_directory_vanished_takes_no_append(tmp_path: Path) -> None:
    place = tmp_path / "log"
    writer = EventLogWriter.create(place, SOURCE, 1)
    register(place)
    fill(writer)
    shutil.rmtree(place)
    with pytest.raises(EventLogError, match="is gone"):
        fill(writer, 1)
    assert not place.exists()


def _lease_is_gone() -> None:
    raise LeaseLostError("the lease is gone")


@pytest.mark.parametrize(
    ("epoch", "check_lease"), [(1, None), (3, _lease_is_gone)], ids=["older epoch", "lease gone"]
)
def test_a_late_opening_without_the_lead_leaves_the_leaders_put_alone(
    tmp_path: Path, epoch: int, check_lease: Callable[[], None] | None
) -> None:
    leader = EventLogWriter.create(tmp_path, SOURCE, 2)
    register(tmp_path)

    def open_late() -> None:
        with pytest.raises(LeaseLostError):
            EventLogWriter.open(tmp_path, SOURCE, epoch, check_lease=check_lease)

    with failpoints.arm({"put.before_link": open_late}):
        leader.append_log([batch([b"ours"], 10)])
    assert values(tmp_path) == [b"ours"]


# ---------------------------------------------------------------- reading


class CountingStorage(ObjectStorage):
    """Counts looks at single objects, and reads of footers."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.looks = self.footers = 0

    def tag(self, name: str) -> Tag | None:
        self.looks += 1
        return super().tag(name)

    def open(self, name: str, *, footer: bool = False) -> pa.NativeFile:
        self.footers += footer
        return super().open(name, footer=footer)


def test_a_reader_far_behind_does_not_probe_segment_by_segment(bucket: str) -> None:
    writer = EventLogWriter.create(bucket, SOURCE, 1)
    register(bucket)
    storage = CountingStorage(bucket)
    log = EventLog(storage)
    log.chain()
    missed = 50
    fill(writer, missed)
    storage.looks = storage.footers = 0
    assert log.chain().next == writer.next_offset
    assert storage.looks < missed // 2
    assert storage.footers == missed, "each is read once"


class LaggingListing(LocalStorage):
    """Lists the newest segment, and not the one before it, whose place it had passed already."""

    def names(self, folder: str = "") -> list[str]:
        found = super().names(folder)
        segments = [name for name in found if is_segment_name(name)]
        return [name for name in found if name not in segments[-2:-1]]


def test_a_listing_without_the_newest_segment_but_one_is_no_damage(
    writer: EventLogWriter, tmp_path: Path
) -> None:
    fill(writer)
    assert payloads(EventLog(LaggingListing(tmp_path))) == payloads(EventLog.open(tmp_path))


def test_a_footer_is_never_taken_from_what_was_fetched_ahead(
    bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fetched ahead, before the file was replaced: it would be cached under the new file's tag."""
    storage = ObjectStorage(bucket)
    storage.replace("file", b"old")
    storage.fetch_ahead(["file"])
    storage._ahead["file"].result()
    storage.replace("file", b"new")
    get = obstore.get

    def get_without_ranges(store: Any, path: str, *, options: Any = None) -> Any:
        if options:
            raise refusals.GenericError("503 Service Unavailable")
        return get(store, path)

    monkeypatch.setattr(obstore, "get", get_without_ranges)
    assert storage.open("file", footer=True).read() == b"new"


def test_a_place_below_a_regular_file_is_an_error_of_ours(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(StorageError, match=f"cannot check {file}"):
        LocalStorage(file).tag(LOG_FILE)
    with pytest.raises(StorageError):
        EventLog.exists(file)


class ListedStorage(LocalStorage):
    """Remembers which folders were listed."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.listed: list[str] = []

    def names(self, folder: str = "") -> list[str]:
        self.listed.append(folder)
        return super().names(folder)


def test_records_of_tables_are_read_without_listing_schemas(
    writer: EventLogWriter, tmp_path: Path
) -> None:
    fill(writer)
    storage = ListedStorage(tmp_path)
    log = EventLog(storage)
    refs = log.segments(0)
    storage.listed.clear()
    assert sum(log.read(ref, tables=[str(ORDERS)]).num_rows for ref in refs) == 6
    assert not any(log.read(ref, tables=["public.items"]).num_rows for ref in refs)
    assert storage.listed == []


# ---------------------------------------------------------------- damage


@pytest.mark.parametrize("content", ["null", "[]", "1", '"text"'])
def test_a_chain_file_that_holds_no_object_is_named(
    writer: EventLogWriter, tmp_path: Path, content: str
) -> None:
    fill(writer)
    (tmp_path / CHAIN_FILE).write_text(content)
    with pytest.raises(SegmentCorruptError, match=r"chain\.json is torn or was altered"):
        values(tmp_path)


class FlippedBits(LocalStorage):
    """Every file's content is ``content``."""

    content = b""

    def open(self, name: str, *, footer: bool = False) -> pa.NativeFile:
        return pa.BufferReader(self.content)


@pytest.mark.parametrize("bit", range(8))
def test_a_flipped_bit_never_shows_as_an_error_of_arrow(
    writer: EventLogWriter, tmp_path: Path, bit: int
) -> None:
    """Nor as other values, or another place in the log. Some make types, or compressions, which
    Arrow does not implement.
    """
    name = fill(writer, 1)[0]
    content = (tmp_path / name).read_bytes()
    file = SegmentFile(LocalStorage(tmp_path), name)
    [whole] = file.batches()
    storage = FlippedBits(tmp_path)
    unimplemented = 0
    for at in range(len(content)):
        flipped = bytearray(content)
        flipped[at] ^= 1 << bit
        storage.content = bytes(flipped)
        try:
            found = SegmentFile(storage, name)
            assert found.meta == file.meta
            [records] = found.batches()
            assert records.equals(whole)
        except SegmentCorruptError as error:
            unimplemented += isinstance(error.__cause__, pa.ArrowNotImplementedError)
        except ForeignSegmentError:
            pass  # its metadata can't be read any more
    assert unimplemented, "no flip made what Arrow does not implement; the test proves nothing"


# ---------------------------------------------------------------- schemas and temporary files


class SyncedStorage(LocalStorage):
    """Remembers which files were made durable after the fact."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.synced: list[str] = []

    def make_durable(self, name: str) -> None:
        super().make_durable(name)
        self.synced.append(name)


def test_a_schema_that_is_only_visible_is_made_durable_by_who_uses_it(tmp_path: Path) -> None:
    with (
        failpoints.arm({"put.after_link": failpoints.ACTIONS["error"]}),
        pytest.raises(StorageError),
    ):
        register(tmp_path)
    storage = SyncedStorage(tmp_path)
    store = SchemaStore(storage)
    for _ in range(2):
        assert store.register(table_schema()).schema_id == 1
    assert storage.synced == ["schemas/00000001.json"], "once"


@pytest.mark.usefixtures("writer")
def test_a_new_leader_removes_what_dead_ones_left_below_schemas(tmp_path: Path) -> None:
    (tmp_path / "schemas" / ".tmp-1234-00000002.json").write_bytes(b"half")
    EventLogWriter.open(tmp_path, SOURCE, 2)
    assert not list(tmp_path.rglob(".tmp-*"))
    assert len(SchemaStore(tmp_path).tables()) == 1


# ---------------------------------------------------------------- maintenance


class FadingStorage(LocalStorage):
    """Opens each file once; from then on it can't be read."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.opened: set[str] = set()

    def open(self, name: str, *, footer: bool = False) -> pa.NativeFile:
        if name in self.opened:
            raise StorageError(f"no answer about {name}")
        self.opened.add(name)
        return super().open(name, footer=footer)


def test_a_sweep_that_cannot_read_a_segment_does_not_judge_it(
    writer: EventLogWriter, tmp_path: Path
) -> None:
    leftover = tmp_path / fill(writer)[2]
    content = leftover.read_bytes()
    assert EventLogMaintenance(tmp_path).rollup(
        target_bytes=64 << 20, min_age_s=-10, min_segments=2
    )
    leftover.write_bytes(content)  # as if the roll-up had been killed before it deleted this one
    with pytest.raises(StorageError, match="no answer"):
        EventLogMaintenance(FadingStorage(tmp_path)).quarantine_strays()
    swept = EventLogMaintenance(tmp_path).quarantine_strays()
    assert (swept.deleted, swept.quarantined) == ([leftover.name], [])


class PrecededStorage(LocalStorage):
    """Another process puts the same files into quarantine, a moment earlier."""

    def quarantine(self, name: str) -> str:
        super().quarantine(name)
        return super().quarantine(name)


def test_two_sweeps_at_once_quarantine_a_stray_once(writer: EventLogWriter, tmp_path: Path) -> None:
    stray = tmp_path / fill(writer)[2]
    assert EventLogMaintenance(tmp_path).rollup(
        target_bytes=64 << 20, min_age_s=-10, min_segments=2
    )
    stray.write_bytes(b"of a late writer")
    swept = EventLogMaintenance(PrecededStorage(tmp_path)).quarantine_strays()
    assert (swept.deleted, swept.quarantined) == ([], [])
    assert [kept.read_bytes() for kept in (tmp_path / "quarantine").iterdir()] == [
        b"of a late writer"
    ]
    assert not stray.exists()


# ---------------------------------------------------------------- retention beside capture


class RetainedMeanwhile(EventLog):
    """Retention removes all but the newest segment when the first is about to be read."""

    def segments(
        self, start: int, end: int | None = None, *, tables: Collection[str] | None = None
    ) -> list[SegmentRef]:
        EventLogMaintenance(self.storage).retain(-10)
        return super().segments(start, end, tables=tables)


@pytest.fixture
def emitted(writer: EventLogWriter, tmp_path: Path) -> EmittedTransactions:
    fill(writer)
    return EmittedTransactions(RetainedMeanwhile(LocalStorage(tmp_path)))


def test_the_first_record_of_a_transaction_is_the_first_that_retention_left(
    emitted: EmittedTransactions, writer: EventLogWriter
) -> None:
    assert emitted.first_offset_of(ranges_of([XID]), ORDERS) == writer.tail.first


def test_records_that_retention_took_are_not_left_out_silently(
    emitted: EmittedTransactions,
) -> None:
    with pytest.raises(OffsetGoneError):
        list(emitted.records_of(ranges_of([XID]), ORDERS))


def test_capture_holds_no_keys_of_a_transaction_that_retention_took(
    emitted: EmittedTransactions,
) -> None:
    windows = Mock()
    windows.keys_of.side_effect = list
    loop = CaptureLoop(
        reader=Mock(),
        windows=windows,
        coordinator=Mock(),
        log=Mock(),
        emitted=emitted,
        resume=Resume(0, 0, -1),
        options=CaptureOptions(4 << 20, 0.05, 32 << 20, None),
        on_signals=Mock(),
    )
    loop.resolve_keys(ORDERS, [XID])
    windows.seed_keys.assert_not_called()


def test_capture_holds_no_keys_of_what_is_not_durable_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    """It could not be read back, and a row older than it would be taken for the newest."""
    monkeypatch.setattr(loop_module, "DURABLE_WAIT_S", 0.05)
    windows, emitted = Mock(), Mock()
    windows.due.return_value = None
    windows.on_batch.return_value = []
    emitted.records_of.return_value = []
    loop = CaptureLoop(
        reader=Mock(),
        windows=windows,
        coordinator=Mock(),
        log=Mock(),
        emitted=emitted,
        resume=Resume(0, 0, -1),
        options=CaptureOptions(4 << 20, 0.05, 32 << 20, None),
        on_signals=Mock(),
    )
    loop._handle(batch([b"x"], 10, xid=XID))
    loop.resolve_keys(ORDERS, [XID])
    emitted.records_of.assert_not_called()
    windows.seed_keys.assert_not_called()
    loop._writer.durable = Resume(10, 10, 0)
    loop.resolve_keys(ORDERS, [XID])
    windows.seed_keys.assert_called_once()
