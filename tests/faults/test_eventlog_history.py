"""Invariants 1, 7 and 8 on the event log: random appends, frozen writers, roll-ups, crashes.

Whatever happens, readers see one gap-free, append-only history that holds all that appends
returned, in order, and nothing that nobody appended.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import threading
from itertools import count
from pathlib import Path

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from tests.support.s3 import S3Server
from tests.unit.eventlog.records import SOURCE, batch, payloads, register

from tidelog.errors import AppendRaceLostError, LeaseLostError, OffsetGoneError, StorageError
from tidelog.eventlog.maintenance import EventLogMaintenance
from tidelog.eventlog.reader import EventLog
from tidelog.eventlog.writer import EventLogWriter
from tidelog.system import failpoints

_numbers = count(1)
EXAMPLES = int(os.environ.get("TIDELOG_HISTORY_EXAMPLES", "60"))
FAST_DISK = Path("/dev/shm") if Path("/dev/shm").is_dir() else Path(tempfile.gettempdir())
PUT_POINTS = ["put.before_write", "put.after_write", "put.before_link", "put.after_link"]
MAINTENANCE_POINTS = [
    "rollup.before_replace",
    "replace.before_rename",
    "replace.after_rename",
    "rollup.after_replace",
    "rollup.after_delete",
    "retention.after_head",
    "retention.after_delete",
    "sweep.after_file",
]
POINTS = sorted({*PUT_POINTS, *MAINTENANCE_POINTS})


class Frozen(threading.Thread):
    """Runs ``work`` until it reaches the failpoint ``at``; `thaw` lets it go on."""

    def __init__(self, work, at):
        super().__init__(daemon=True)
        self.work, self.at = work, at
        self.standing, self.released = threading.Event(), threading.Event()
        self.result = self.error = None

    def run(self):
        try:
            self.result = self.work()
        except (AppendRaceLostError, LeaseLostError, StorageError) as error:
            self.error = error
        except BaseException as error:
            self.error = error
            raise
        finally:
            self.standing.set()

    def reached(self):
        self.standing.set()
        assert self.released.wait(30)

    def thaw(self):
        self.released.set()
        self.join(30)
        assert not self.is_alive()


def _at(name):
    def act():
        thread = threading.current_thread()
        if isinstance(thread, Frozen) and thread.at == name and not thread.released.is_set():
            thread.reached()
        elif CRASHING.get(name):
            raise OSError(5, "failpoint")

    return act


CRASHING: dict[str, bool] = {}


class EventLogHistory(RuleBasedStateMachine):
    def __init__(self):
        super().__init__()
        self.place = self.new_place()
        self.points = failpoints.arm({name: _at(name) for name in POINTS})
        self.points.__enter__()
        self.epoch, self.tokens = 1, 0
        self.leader = EventLogWriter.create(self.place, SOURCE, 1, start_offset=100)
        register(self.place)
        self.maintenance = EventLogMaintenance(self.place)
        self.zombies: list[EventLogWriter] = []
        self.frozen: list[tuple[Frozen, dict]] = []
        self.frozen_maintenance: list[Frozen] = []
        self.appended: dict[int, bytes] = {}  # offset → payload of what returned success
        self.attempted: set[bytes] = set()
        self.seen: list[tuple[int, bytes]] = []
        self.readers = [EventLog.open(self.place), EventLog.open(self.place)]
        self.refs = []

    def new_place(self):
        return tempfile.mkdtemp(prefix="tidelog-history-", dir=FAST_DISK)

    def remove(self):
        shutil.rmtree(self.place)

    def teardown(self):
        for thread, _ in self.frozen:
            thread.thaw()
        for thread in self.frozen_maintenance:
            thread.thaw()
        self.points.__exit__(None, None, None)
        CRASHING.clear()
        self.remove()

    def _append(self, writer, rows):
        tokens = []
        for _ in range(rows):
            self.tokens += 1
            tokens.append(b"%06d" % self.tokens)
        self.attempted.update(tokens)
        meta = writer.append_log([batch(tokens, position=1000 + self.tokens)])
        return meta.first, tokens

    def _succeeded(self, first, tokens):
        for token in tokens:
            self.appended[first] = token
            first += len(token)

    def _lost(self):
        self.zombies.append(self.leader)
        self.leader = None

    @precondition(lambda self: self.leader)
    @rule(rows=st.integers(1, 3))
    def append(self, rows):
        try:
            self._succeeded(*self._append(self.leader, rows))
        except (AppendRaceLostError, StorageError):
            # Only a late append of a frozen predecessor that came before the fence may do this.
            raise AssertionError("the leader lost a race that nobody ran") from None

    @precondition(lambda self: self.leader)
    @rule(point=st.sampled_from(PUT_POINTS))
    def append_fails(self, point):
        CRASHING[point] = True
        try:
            self._succeeded(*self._append(self.leader, 1))
        except StorageError:
            assert point != "put.after_link"
        finally:
            CRASHING.clear()

    @rule()
    def take_over(self):
        if self.leader:
            self._lost()
        self.epoch += 1
        self.leader = EventLogWriter.open(self.place, SOURCE, self.epoch)

    @precondition(lambda self: self.zombies)
    @rule(index=st.integers(0, 5))
    def zombie_appends(self, index):
        writer = self.zombies[index % len(self.zombies)]
        try:
            appended = self._append(writer, 1)
        except AppendRaceLostError:
            return
        # Nobody has taken over yet.
        assert self.leader is None
        self._succeeded(*appended)

    @precondition(lambda self: self.leader and len(self.frozen) < 3)
    @rule(point=st.sampled_from(PUT_POINTS))
    def freeze(self, point):
        writer = self.leader
        thread = Frozen(lambda: self._append(writer, 1), point)
        thread.start()
        assert thread.standing.wait(30)
        self.leader = None
        self.frozen.append((thread, writer))

    @precondition(lambda self: self.frozen)
    @rule(index=st.integers(0, 5))
    def thaw(self, index):
        thread, writer = self.frozen.pop(index % len(self.frozen))
        thread.thaw()
        if thread.error is None:
            self._succeeded(*thread.result)
        else:
            assert isinstance(thread.error, AppendRaceLostError | StorageError), thread.error
        self.zombies.append(writer)

    def _maintain(self, action, keep, size=60, maintenance=None):
        maintenance = maintenance or EventLogMaintenance(self.place)
        if action == "rollup":
            return maintenance.rollup(min_age_s=-10, min_segments=2, target_bytes=size)
        if action == "retain":
            tail = EventLog.open(self.place).tail
            kept = sum(s.payload_bytes for s in EventLog.open(self.place).chain().segments)
            return tail and maintenance.retain(1e9, hard_cap_bytes=kept * keep // 4)
        return maintenance.quarantine_strays()

    @rule(
        action=st.sampled_from(["rollup", "rollup", "retain", "quarantine"]),
        keep=st.integers(1, 4),
        size=st.sampled_from([60, 20]),
    )
    def maintain(self, action, keep, size):
        # The leader keeps one and goes on with what it remembers.
        self._maintain(action, keep, size, self.maintenance if keep % 2 else None)

    @rule(
        action=st.sampled_from(["rollup", "retain", "quarantine"]),
        point=st.sampled_from(MAINTENANCE_POINTS),
        keep=st.integers(1, 4),
    )
    def maintenance_crashes(self, action, point, keep):
        CRASHING[point] = True
        try:
            self._maintain(action, keep)
        except (OSError, StorageError):
            pass
        finally:
            CRASHING.clear()

    @precondition(lambda self: not self.frozen_maintenance)
    @rule(point=st.sampled_from(MAINTENANCE_POINTS), action=st.sampled_from(["rollup", "retain"]))
    def freeze_maintenance(self, point, action):
        thread = Frozen(lambda: self._maintain(action, 3), point)
        thread.start()
        assert thread.standing.wait(30)
        self.frozen_maintenance.append(thread)

    @precondition(lambda self: self.frozen_maintenance)
    @rule()
    def thaw_maintenance(self):
        thread = self.frozen_maintenance.pop()
        thread.thaw()
        assert thread.error is None or isinstance(thread.error, StorageError)

    @precondition(lambda self: len(self.refs) < 20)
    @rule(reader=st.integers(0, 1))
    def plan(self, reader):
        log = self.readers[reader]
        for ref in log.segments(log.head_offset)[-3:]:
            expected = [record for record in payloads(log) if ref.start <= record[0] < ref.end]
            self.refs.append((log, ref, expected))

    @precondition(lambda self: self.refs)
    @rule(index=st.integers(0, 50))
    def read_planned(self, index):
        log, ref, expected = self.refs.pop(index % len(self.refs))
        try:
            table = log.read(ref, ["offset", "payload"])
        except OffsetGoneError:
            assert ref.start < log.head_offset
            return
        read = list(zip(table["offset"].to_pylist(), table["payload"].to_pylist(), strict=True))
        assert read == expected

    @rule(reader=st.integers(0, 1))
    def poll(self, reader):
        self._check(self.readers[reader])

    @invariant()
    def one_history(self):
        self._check(EventLog.open(self.place))

    def _check(self, log):
        chain = log.chain()
        head = chain.head
        for before, after in zip(chain.segments, chain.segments[1:], strict=False):
            assert before.next == after.first
            assert after.pred == before.tail
        history = payloads(log, head)
        offsets = [offset for offset, _ in history]
        assert offsets == sorted(set(offsets))
        assert all(payload in self.attempted for _, payload in history)
        assert len({payload for _, payload in history}) == len(history)
        missing = {o: p for o, p in self.appended.items() if o >= head}.items() - set(history)
        assert not missing, "an append returned success and is not in the log"
        still = [record for record in self.seen if record[0] >= head]
        assert history[: len(still)] == still, "history changed"
        if len(history) >= len(still):
            self.seen = history
        assert log.latest_offset() == log.chain().next


TestEventLogHistory = EventLogHistory.TestCase
TestEventLogHistory.settings = settings(
    max_examples=EXAMPLES,
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    print_blob=True,
)


class EventLogHistoryOnS3(EventLogHistory):
    """Without a lock: maintenance that was frozen wakes up amid what its successor has done."""

    server: S3Server

    def new_place(self):
        return self.server.url(f"history-{next(_numbers)}")

    def remove(self):
        shutil.rmtree(self.server.files(self.place.rpartition("/")[2]))


@pytest.mark.integration
def test_one_history_on_an_object_store(s3):
    EventLogHistoryOnS3.server = s3
    run_state_machine_as_test(
        EventLogHistoryOnS3,
        settings=settings(TestEventLogHistory.settings, max_examples=max(1, EXAMPLES // 8)),
    )


def test_a_frozen_writers_late_link_after_roll_up_is_not_read(tmp_path):
    _late_link(tmp_path, lambda m: m.rollup(target_bytes=64 << 20, min_age_s=-10, min_segments=2))


def test_a_frozen_writers_late_link_after_retention_is_not_read(tmp_path):
    _late_link(tmp_path, lambda m: m.retain(-10))


def _late_link(path, free_names):
    """Invariant 7: the name that a frozen writer waits for is freed; its link succeeds."""
    frozen_writer = EventLogWriter.create(path, SOURCE, 1)
    register(path)
    frozen_writer.append_log([batch([b"first"], 10)])
    log = EventLog.open(path)
    log.chain()  # a reader whose cached tail is the frozen writer's
    with failpoints.arm({"put.before_write": _at("put.before_write")}):
        thread = Frozen(
            lambda: frozen_writer.append_log([batch([b"stray"], 20)]), "put.before_write"
        )
        thread.start()
        assert thread.standing.wait(10)
        leader = EventLogWriter.open(path, SOURCE, 2)
        fence = leader.tail.name
        for position in (30, 40, 50):
            leader.append_log([batch([b"after"], position)])
        maintenance = EventLogMaintenance(path)
        free_names(maintenance)
        assert not (path / fence).exists()
        head = EventLog.open(path).head_offset
        expected = payloads(EventLog.open(path))
        thread.thaw()
    assert (path / fence).exists(), "the late link did not happen; the test proves nothing"
    assert isinstance(thread.error, AppendRaceLostError)
    assert frozen_writer.closed
    assert payloads(EventLog.open(path)) == expected
    assert payloads(log, head) == expected
    swept = maintenance.quarantine_strays()
    assert len(swept.quarantined) == 1
    assert not (path / fence).exists()
    assert payloads(EventLog.open(path)) == expected
    leader.append_log([batch([b"more"], 60)])
    assert [p for _, p in payloads(log, head)] == [*(p for _, p in expected), b"more"]


def test_a_frozen_roll_up_cannot_overwrite_its_successors(tmp_path):
    writer = EventLogWriter.create(tmp_path, SOURCE, 1)
    register(tmp_path)
    for position in range(10, 60, 10):
        writer.append_log([batch([b"row"], position)])
    expected = payloads(EventLog.open(tmp_path))

    def work():
        return EventLogMaintenance(tmp_path).rollup(
            target_bytes=64 << 20, min_age_s=-10, min_segments=2
        )

    with failpoints.arm({"replace.before_rename": _at("replace.before_rename")}):
        # The first rename is chain.json's, the freeze falls on it: nothing was freed yet.
        thread = Frozen(work, "replace.before_rename")
        thread.start()
        assert thread.standing.wait(10)
        assert work() == 0, "a second roll-up ran beside a frozen one"
        thread.thaw()
    assert thread.error is None
    assert payloads(EventLog.open(tmp_path)) == expected


@pytest.mark.integration
@pytest.mark.parametrize("hit", [1, 2])
def test_a_frozen_roll_up_without_a_lock_spoils_nothing(s3, hit):
    """It freezes before it replaces chain.json, or the first of its segments; its successor, which
    is configured otherwise, rolls up others.
    """
    place = s3.url(f"frozen-{hit}")
    writer = EventLogWriter.create(place, SOURCE, 1)
    register(place)
    writer.append_log([batch([b"a large first one, as it were"], 10)])
    for position in range(20, 70, 10):
        writer.append_log([batch([b"row"], position)])
    hits = count(1)

    def freeze():
        thread = threading.current_thread()
        if isinstance(thread, Frozen) and next(hits) == hit:
            thread.reached()

    with failpoints.arm({"replace.before_rename": freeze}):
        thread = Frozen(
            lambda: EventLogMaintenance(place).rollup(
                target_bytes=64 << 20, min_age_s=-10, min_segments=2
            ),
            "anywhere",
        )
        thread.start()
        assert thread.standing.wait(30)
        for position in range(70, 100, 10):
            writer.append_log([batch([b"new"], position)])
        expected = payloads(EventLog.open(place))
        successor = EventLogMaintenance(place)
        successor.rollup(min_age_s=-10, min_segments=2, target_bytes=40)
        assert payloads(EventLog.open(place)) == expected
        thread.thaw()
    # Or its successor has finished what it had begun, to the same bytes.
    assert thread.error is None or isinstance(thread.error, StorageError)
    assert payloads(EventLog.open(place)) == expected
    successor.rollup(target_bytes=64 << 20, min_age_s=-10, min_segments=2)
    successor.quarantine_strays()
    assert payloads(EventLog.open(place)) == expected


@pytest.fixture(autouse=True)
def _no_crash_left():
    CRASHING.clear()
    yield
    CRASHING.clear()
