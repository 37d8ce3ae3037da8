"""What every `tidelog.ports.Election` does. A new one is listed in
tests/support/state_stores.py."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time

import pytest
from tests.support.state_stores import ANY_STORE, STORES, any_store

from tidelog.errors import LeaseLostError, Policy, StateConflictError, StateError
from tidelog.ports import Document
from tidelog.state import sqlite
from tidelog.state.documents import LeaseElection
from tidelog.state.sqlite import SqliteElection


@pytest.fixture(params=ANY_STORE)
def candidate(request, tmp_path):
    """``candidate(holder, ttl_s)``: one more process that wants to lead."""
    opened = []
    backend, url = any_store(request.param, request, tmp_path)

    def open_one(holder, ttl_s=30.0, first_epoch=1):
        opened.append(backend.election(url, "capture", holder, ttl_s, first_epoch=first_epoch))
        return opened[-1]

    yield open_one
    for election in opened:
        election.close()


def test_one_leads_while_the_other_stands_by(candidate):
    a, b = candidate("a"), candidate("b")
    assert a.leader() is None
    lease = a.acquire()
    assert (lease.holder, lease.epoch) == ("a", 1)
    assert b.acquire() is None
    assert a.leader() == b.leader() == "a"


def test_instances_of_one_name_exclude_each_other(candidate):
    assert candidate("a").acquire()
    assert candidate("a").acquire() is None


def test_the_holder_stops_before_others_can_take_over(candidate):
    """Invariant 7: the deadline that the holder goes by always ends first."""
    a, b = candidate("a", 0.5), candidate("b", 0.5)
    lease = a.acquire()
    assert time.monotonic() < lease.deadline < time.monotonic() + 0.5
    while (taken := b.acquire()) is None:
        time.sleep(0.002)
    assert time.monotonic() > lease.deadline
    assert taken.epoch == lease.epoch + 1
    with pytest.raises(LeaseLostError, match="b took over") as caught:
        a.renew(lease)
    assert caught.value.policy is Policy.RESTART
    assert b.leader() == "b"


def test_renewing_keeps_the_epoch_and_the_lead(candidate):
    a, b = candidate("a", 0.6), candidate("b", 0.6)
    lease = a.acquire()
    end = time.monotonic() + 1.2
    while time.monotonic() < end:
        renewed = a.renew(lease)
        assert renewed.epoch == lease.epoch
        assert renewed.deadline >= lease.deadline
        lease = renewed
        assert b.acquire() is None
        time.sleep(0.1)


def test_release_lets_another_lead_at_once_under_a_new_epoch(candidate):
    a, b = candidate("a"), candidate("b")
    first = a.acquire()
    a.release(first)
    assert a.leader() is None
    second = b.acquire()
    assert second.epoch == first.epoch + 1
    a.release(first)  # no longer ours: nothing happens
    assert b.leader() == "b"
    with pytest.raises(LeaseLostError):
        a.renew(first)


def test_epochs_start_at_the_given_one_and_continue_above_what_was_seen(candidate):
    a, b = candidate("a", first_epoch=58), candidate("b")
    lease = a.acquire()
    assert lease.epoch == 58
    a.release(lease)
    assert b.acquire().epoch == 59


@pytest.mark.parametrize("name", sorted(STORES.keys() - {"folder"}))
def test_a_killed_holder_is_succeeded_at_once_and_a_frozen_one_is_not(request, tmp_path, name):
    backend, url = any_store(name, request, tmp_path)
    program = (
        "import sys, time; from tidelog.state.opening import open_election\n"
        "election = open_election(sys.argv[1], 'x', 'first', 60)\n"
        "assert election.acquire()\n"
        "print('leads', flush=True); time.sleep(60)"
    )
    first = subprocess.Popen([sys.executable, "-c", program, url], stdout=subprocess.PIPE)
    second = backend.election(url, "x", "second", 60)
    try:
        assert first.stdout is not None
        assert first.stdout.readline() == b"leads\n"
        first.send_signal(signal.SIGSTOP)
        assert second.acquire() is None
        assert second.leader() == "first"
        first.kill()
        first.wait()
        lease = second.acquire()
        assert lease is not None
        assert lease.epoch == 2
        assert second.leader() == "second"
        if name == "sqlite":
            assert [path.name for path in tmp_path.rglob("*.alive")] != []
    finally:
        first.kill()
        second.close()
    assert not list(tmp_path.rglob("*.alive"))


def test_of_many_that_try_together_one_wins(candidate):
    candidates = [candidate(str(i)) for i in range(6)]
    leases = [None] * 6
    barrier = threading.Barrier(6)

    def run(index):
        barrier.wait()
        leases[index] = candidates[index].acquire()

    threads = [threading.Thread(target=run, args=(i,)) for i in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(lease is not None for lease in leases) == 1


# ---------------------------------------------------------------- SQLite alone


def test_a_step_of_the_wall_clock_neither_ends_nor_prolongs_a_lease(tmp_path, monkeypatch):
    a = SqliteElection(tmp_path / "s.db", "capture", "a", 0.5)
    b = SqliteElection(tmp_path / "s.db", "capture", "b", 0.5)
    assert a.acquire()
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + 3600)
    assert b.acquire() is None
    monkeypatch.setattr(time, "time", lambda: now - 3600)
    time.sleep(0.55)
    assert b.acquire()
    a.close()
    b.close()


def test_after_a_reboot_the_wall_clock_decides(tmp_path):
    a = SqliteElection(tmp_path / "s.db", "capture", "a", 0.3)
    b = SqliteElection(tmp_path / "s.db", "capture", "b", 0.3)
    b._boot = "another boot"
    assert a.acquire()
    assert b.acquire() is None
    time.sleep(0.35)
    assert b.acquire()
    a.close()
    b.close()


@pytest.mark.parametrize("candidate", ["sqlite"], indirect=True)
def test_one_that_got_no_lock_is_not_taken_for_dead(candidate, monkeypatch):
    def refuse(_file, _operation):
        raise OSError("no locks available")

    a, b = candidate("a"), candidate("b")
    with monkeypatch.context() as patch:
        patch.setattr(sqlite.fcntl, "flock", refuse)
        assert a.acquire()
    assert b.acquire() is None


# ---------------------------------------------------------------- leases in documents


class Forgetful:
    """Documents in memory, to see what an election does when a store loses or delays them."""

    def __init__(self):
        self.documents = {}
        self.silent = 0
        self.delayed = 0
        self.late = []

    def get(self, key):
        return self.documents.get(key)

    def put(self, key, value, expected_version):
        if self.delayed:
            self.delayed -= 1
            self.late.append((key, value, expected_version))
            raise StateError("no answer")
        while self.late:
            self.put(*self.late.pop())
        version = self.documents[key].version if key in self.documents else 0
        if version != expected_version:
            raise StateConflictError("another version")
        self.documents[key] = Document(value, version + 1)
        if self.silent:
            self.silent -= 1
            raise StateError("no answer")
        return version + 1

    def close(self):
        pass


def test_a_lease_of_a_store_that_was_wiped_is_lost_and_epochs_continue():
    store = Forgetful()
    a = LeaseElection(store, "capture", "a", 30)
    a.release(a.acquire())
    lease = a.acquire()
    store.documents.clear()
    with pytest.raises(LeaseLostError, match="the state store no longer has it"):
        a.renew(lease)
    assert (lease.epoch, a.acquire().epoch) == (2, 3)


def test_a_lease_whose_answer_was_lost_is_asked_for_again_under_a_new_epoch():
    store = Forgetful()
    a = LeaseElection(store, "capture", "a", 30)
    store.silent = 1
    with pytest.raises(StateError, match="no answer"):
        a.acquire()
    assert a.acquire().epoch == 2
    assert a.acquire() is None


def test_an_attempt_that_comes_late_and_meets_our_next_one_is_not_taken_for_anothers():
    store = Forgetful()
    a = LeaseElection(store, "capture", "a", 30)
    store.delayed = 1
    with pytest.raises(StateError, match="no answer"):
        a.acquire()
    assert a.acquire() is None
    assert a.leader() == "a"
    assert a.acquire().epoch == 2
    assert a.acquire() is None


def test_a_renewal_whose_answer_was_lost_loses_no_lease():
    store = Forgetful()
    a = LeaseElection(store, "capture", "a", 30)
    lease = a.acquire()
    store.silent = 1
    with pytest.raises(StateError, match="no answer"):
        a.renew(lease)
    assert a.renew(lease).deadline > lease.deadline


def test_a_lease_is_given_back_without_another_look_and_an_earlier_one_of_ours_is_not():
    store = Forgetful()
    a, b = (LeaseElection(store, "capture", name, 30) for name in "ab")
    first = a.acquire()
    a.release(first)
    second = a.acquire()
    a.release(first)
    assert a.leader() == "a"
    store.silent = 1
    with pytest.raises(StateError, match="no answer"):
        a.renew(second)  # it was made: the lease has another version than was heard of
    a.release(second)
    assert b.acquire().epoch == second.epoch + 1
    a.release(second)
    assert b.leader() == "b"


def test_a_step_of_the_wall_clock_changes_nothing_for_a_lease_in_a_document(monkeypatch):
    store = Forgetful()
    a = LeaseElection(store, "capture", "a", 0.4)
    b = LeaseElection(store, "capture", "b", 0.4)
    assert a.acquire()
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + 3600)
    assert b.acquire() is None
    monkeypatch.setattr(time, "time", lambda: now - 3600)
    time.sleep(0.45)
    assert b.acquire()


def test_the_length_that_counts_is_the_holders():
    store = Forgetful()
    long, short = (
        LeaseElection(store, "capture", "long", 30),
        LeaseElection(store, "capture", "short", 0.05),
    )
    assert long.acquire()
    assert short.acquire() is None
    time.sleep(0.2)
    assert short.acquire() is None


def test_how_long_a_lease_may_run_that_was_found_is_known():
    store = Forgetful()
    long = LeaseElection(store, "capture", "long", 40)
    looking = LeaseElection(store, "capture", "looking", 10, poll_interval_s=1)
    lease = long.acquire()
    assert looking.acquire() is None
    assert looking.max_wait_s == 40 + 3 + 2
    long.renew(lease)
    looking._poll_at = 0.0
    assert looking.acquire() is None
    assert looking.max_wait_s == 0


class Counted(Forgetful):
    """Counts what is asked."""

    def __init__(self):
        super().__init__()
        self.looks = 0

    def get(self, key):
        self.looks += 1
        return super().get(key)


def test_a_lease_that_is_renewed_is_looked_at_seldom_and_its_end_is_seen_soon():
    """Where looks are paid for. Nobody says when the holder began, nor that it is gone."""
    store, ttl_s, late_s = Counted(), 3.0, 0.06
    a = LeaseElection(store, "led", "a", ttl_s)
    lease = a.acquire()
    time.sleep(0.7)
    b = LeaseElection(store, "led", "b", ttl_s, poll_interval_s=0.18 * ttl_s)
    begun, renewals, looks = time.monotonic(), 0, 0
    while renewals < 6:
        if renewals == 3:
            looks, store.looks = store.looks, 0
        renew_at = time.monotonic() + ttl_s / 2
        while time.monotonic() < renew_at + late_s / 10:  # a request takes its time
            assert b.acquire() is None
            time.sleep(0.005)
        lease, renewed_at = a.renew(lease), time.monotonic()
        renewals += 1
    # 3 in each of these periods; another one where it was a little early.
    assert store.looks <= 11, f"{store.looks} looks, after {looks} in the first half"
    while (taken := b.acquire()) is None:
        time.sleep(0.005)
    assert taken.epoch == lease.epoch + 1
    assert ttl_s < time.monotonic() - renewed_at < ttl_s * 1.05 + late_s
    assert time.monotonic() - begun > 6 * ttl_s / 2


def test_a_lease_that_is_about_to_be_given_back_is_watched():
    """Where looks are paid for, one that stands by looks seldom; but not if it is to take over."""
    store = Forgetful()
    a, b = (LeaseElection(store, "led", holder, 30.0, poll_interval_s=0.5) for holder in "ab")
    lease = a.acquire()
    assert b.acquire() is None
    assert not b.release_announced
    on_watch_at = time.monotonic() + a.announce(lease)
    assert a.renew(lease).epoch == lease.epoch, "it leads meanwhile"
    while time.monotonic() < on_watch_at:
        assert b.acquire() is None
        time.sleep(0.01)
    assert b.release_announced
    b._poll_at += 0.05  # it looked just now
    a.release(lease)
    released = time.monotonic()
    while (taken := b.acquire()) is None:
        time.sleep(0.01)
    assert taken.epoch == lease.epoch + 1
    assert time.monotonic() - released < 0.35
    assert a.acquire() is None
    assert not a.release_announced, "what is said of one lease is not of the next"
    # Back to a, and from a once more, long after b watched for a's first lease.
    b.release(taken)
    a._poll_at = 0.0
    again = a.acquire()
    assert again is not None
    b._release = (b._release[0], 0.0)
    a.announce(again)
    b._poll_at = 0.0
    assert b.acquire() is None
    assert b.release_announced
