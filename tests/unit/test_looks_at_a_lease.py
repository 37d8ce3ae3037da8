"""How often one that stands by asks for a lease where each request is paid for, and how late it is
then.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tidelog.ports import Lease
from tidelog.state.documents import Documents
from tidelog.state.lease import RHYTHM, LeaseElection

TTL_S = 4.0
LOOK_S = TTL_S / 10
TURN_S = 0.02


class CountedFile:
    """`tidelog.state.documents.Register` in an SQLite file."""

    def __init__(self, path: Path) -> None:
        self._sql = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        self._sql.execute(
            "CREATE TABLE IF NOT EXISTS t (name TEXT PRIMARY KEY, text BLOB, tag INT)"
        )
        self.reads = 0

    def read(self, name: str) -> tuple[bytes, Any] | None:
        self.reads += 1
        found: tuple[bytes, Any] | None = self._sql.execute(
            "SELECT text, tag FROM t WHERE name = ?", (name,)
        ).fetchone()
        return found

    def swap(self, name: str, text: bytes, tag: Any) -> Any:
        if tag is None:
            done = self._sql.execute("INSERT OR IGNORE INTO t VALUES (?, ?, 1)", (name, text))
        else:
            done = self._sql.execute(
                "UPDATE t SET text = ?, tag = tag + 1 WHERE name = ? AND tag = ?", (text, name, tag)
            )
        return (tag or 0) + 1 if done.rowcount else None

    def remove(self, name: str) -> None:
        self._sql.execute("DELETE FROM t WHERE name = ?", (name,))

    def names(self) -> list[str]:
        return [row[0] for row in self._sql.execute("SELECT name FROM t")]

    def close(self) -> None:
        self._sql.close()


class Standby:
    """Asks for the lease as `tidelog.capture.leadership.lead` does."""

    def __init__(self, path: Path) -> None:
        self.file = CountedFile(path)
        self.election = election(self.file, "b")

    def ask(self, for_s: float) -> Lease | None:
        until = time.monotonic() + for_s
        while time.monotonic() < until:
            if (lease := self.election.acquire()) is not None:
                return lease
            time.sleep(TURN_S)
        return None


def election(file: CountedFile, holder: str) -> LeaseElection:
    made = LeaseElection(Documents(file), "capture", holder, TTL_S, look_every_s=LOOK_S)
    made._process = {}  # of another host, for all that one can see
    return made


@pytest.fixture
def leader(tmp_path: Path) -> Iterator[LeaseElection]:
    with closing(election(CountedFile(tmp_path / "leases"), "a")) as made:
        yield made


@pytest.fixture
def standby(tmp_path: Path, leader: LeaseElection) -> Iterator[Standby]:
    made = Standby(tmp_path / "leases")
    with closing(made.election):
        yield made


def led(leader: LeaseElection, standby: Standby, rounds: int) -> tuple[Lease, float]:
    """Renewed so many times; the lease, and when it was renewed last."""
    lease, at = leader.acquire(), time.monotonic()
    for _ in range(rounds):
        assert lease is not None
        assert standby.ask(TTL_S * RHYTHM) is None
        lease, at = leader.renew(lease), time.monotonic()
    assert lease is not None
    return lease, at


def test_a_lease_is_looked_at_about_once_for_each_renewal(
    leader: LeaseElection, standby: Standby
) -> None:
    led(leader, standby, 2)  # by now it knows when
    before = standby.file.reads
    led_on = 5
    lease = Lease("a", 1, 0.0)
    for _ in range(led_on):
        assert standby.ask(TTL_S * RHYTHM) is None
        assert standby.election.leader() == "a"  # from what was seen
        lease = leader.renew(lease)
    assert standby.file.reads - before <= 2 * led_on


def test_a_holder_that_is_gone_is_succeeded_a_look_behind_the_end_of_its_lease(
    leader: LeaseElection, standby: Standby
) -> None:
    _, renewed_at = led(leader, standby, 3)
    lease = standby.ask(3 * TTL_S)
    took_s = time.monotonic() - renewed_at
    assert lease is not None
    assert lease.epoch == 2
    assert TTL_S <= took_s <= TTL_S + LOOK_S + 0.5


def test_all_are_on_the_watch_once_it_was_announced(
    leader: LeaseElection, standby: Standby
) -> None:
    lease, _ = led(leader, standby, 3)
    assert standby.ask(LOOK_S) is None  # a renewal was just seen: the next look is far
    assert not standby.election.on_watch
    wait_s = leader.announce(lease)
    assert standby.ask(wait_s) is None
    assert standby.election.on_watch
    leader.release(lease)
    given_at = time.monotonic()
    assert standby.ask(TTL_S) is not None
    assert time.monotonic() - given_at < 0.5
