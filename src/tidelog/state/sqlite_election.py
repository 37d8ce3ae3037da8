"""A lease in a SQLite file: one leader among the processes of one host."""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import sqlite3
import threading
import time
from contextlib import AbstractContextManager
from pathlib import Path
from typing import IO, Final

from tidelog.errors import LeaseLostError
from tidelog.ports import Lease
from tidelog.state.sqlite import SqliteState, connect, database_path, transaction
from tidelog.system.private_files import create_file

# The holder stops this share of the ttl before others may take over.
_MARGIN: Final = 0.2


def _boot_id() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


class SqliteElection:
    """`tidelog.ports.Election` in a SQLite file.

    Expiry is stored twice: on the wall clock, and on the monotonic clock with the boot it belongs
    to. Processes of the same boot share that clock, so a step of the wall clock neither ends a
    lease early nor prolongs it; after a reboot the wall clock decides.

    A holder that was killed is succeeded at once: it keeps a file locked (`flock`), and the kernel
    unlocks it when a process ends, however it does. One that is frozen keeps its lock, and its
    lease runs out. The lock only shortens the wait; what keeps two leaders apart is the lease.
    """

    def __init__(
        self,
        url: str | Path,
        name: str,
        holder: str,
        ttl_s: float,
        *,
        first_epoch: int = 1,
    ) -> None:
        """Args:
        url: the state database; ``sqlite:///PATH`` or a path.
        name: what is led, e.g. the source's name.
        holder: for people; instances with equal holders still exclude each other.
        ttl_s: how long a lease lasts without renewal; the holder acts for four fifths of it.
        first_epoch: epochs start here or above; set it above the event log's tail if the state
            database was lost.
        """
        self.path = database_path(url)
        self.name = name
        self.holder = holder
        self.ttl_s = ttl_s
        self.first_epoch = first_epoch
        self._instance = secrets.token_hex(8)
        self._boot = _boot_id()
        self._lock = threading.Lock()
        self._connection = connect(self.path)
        self._alive: IO[bytes] | None = None
        with self._transaction() as db:
            db.execute(
                "CREATE TABLE IF NOT EXISTS lease (name TEXT PRIMARY KEY, holder TEXT, "
                "instance TEXT, epoch INTEGER NOT NULL, wall_expiry REAL NOT NULL, "
                "boot TEXT NOT NULL, monotonic_expiry REAL NOT NULL)"
            )

    def acquire(self) -> Lease | None:
        with self._transaction() as db:
            row = db.execute(
                "SELECT epoch, instance, wall_expiry, boot, monotonic_expiry FROM lease "
                "WHERE name = ?",
                (self.name,),
            ).fetchone()
            # After BEGIN IMMEDIATE, which may have waited long for the lock.
            held = row is not None and row[1] is not None
            if held and not self._expired(*row[2:]) and not self._died(row[1]):
                return None
            self._stay_alive()
            epoch = max((row[0] if row else 0) + 1, self.first_epoch)
            monotonic = time.monotonic()
            db.execute(
                "INSERT INTO lease VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT (name) DO UPDATE SET "
                "holder = excluded.holder, instance = excluded.instance, epoch = excluded.epoch, "
                "wall_expiry = excluded.wall_expiry, boot = excluded.boot, "
                "monotonic_expiry = excluded.monotonic_expiry",
                (
                    self.name,
                    self.holder,
                    self._instance,
                    epoch,
                    time.time() + self.ttl_s,
                    self._boot,
                    monotonic + self.ttl_s,
                ),
            )
        return self._lease(epoch, monotonic)

    def renew(self, lease: Lease) -> Lease:
        with self._transaction() as db:
            monotonic = time.monotonic()
            changed = db.execute(
                "UPDATE lease SET wall_expiry = ?, boot = ?, monotonic_expiry = ? "
                "WHERE name = ? AND epoch = ? AND instance = ?",
                (
                    time.time() + self.ttl_s,
                    self._boot,
                    monotonic + self.ttl_s,
                    self.name,
                    lease.epoch,
                    self._instance,
                ),
            ).rowcount
        if not changed:
            raise LeaseLostError(
                f"the lease {self.name!r} of epoch {lease.epoch} is not ours any more: it expired "
                f"and {self.leader() or 'another'} took over. Restart from the event log's tail."
            )
        return self._lease(lease.epoch, monotonic)

    def release(self, lease: Lease) -> None:
        """Let others take over at once; the epoch is kept. Does nothing if the lease is lost."""
        with self._transaction() as db:
            db.execute(
                "UPDATE lease SET holder = NULL, instance = NULL "
                "WHERE name = ? AND epoch = ? AND instance = ?",
                (self.name, lease.epoch, self._instance),
            )

    def leader(self) -> str | None:
        with self._transaction() as db:
            row = db.execute(
                "SELECT holder, wall_expiry, boot, monotonic_expiry FROM lease WHERE name = ?",
                (self.name,),
            ).fetchone()
        if row is None or row[0] is None or self._expired(*row[1:]):
            return None
        return str(row[0])

    def close(self) -> None:
        if self._alive is not None:
            self._alive_file(self._instance).unlink(missing_ok=True)
            self._alive.close()
            self._alive = None
        with self._lock:
            self._connection.close()

    def _alive_file(self, instance: str) -> Path:
        return self.path.with_name(f"{self.path.name}.{self.name}-{instance}.alive")

    def _stay_alive(self) -> None:
        """Lock our file for as long as this process lives."""
        if self._alive is None:
            path = self._alive_file(self._instance)
            try:
                file = os.fdopen(create_file(path, os.O_WRONLY), "wb")
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                self._alive = file
            except OSError:  # a file system without locks: leases run out
                with contextlib.suppress(OSError):  # left unlocked it would say that we died
                    path.unlink(missing_ok=True)

    def _died(self, instance: str) -> bool:
        """Has the process of the instance ended? False if that can't be known."""
        path = self._alive_file(instance)
        try:
            with path.open("rb") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                path.unlink(missing_ok=True)
                return True
        except OSError:
            return False

    def _transaction(self) -> AbstractContextManager[sqlite3.Connection]:
        return transaction(self._connection, self._lock, self.path)

    def _lease(self, epoch: int, monotonic: float) -> Lease:
        return Lease(self.holder, epoch, monotonic + self.ttl_s * (1 - _MARGIN))

    def _expired(self, wall_expiry: float, boot: str, monotonic_expiry: float) -> bool:
        if boot and boot == self._boot:
            return time.monotonic() >= monotonic_expiry
        return time.time() >= wall_expiry


class SqliteBackend:
    """`tidelog.ports.StateBackend` of ``sqlite:///PATH``."""

    def checked(self, url: str, base: Path) -> str:
        scheme, _, path = url.partition("///")
        if scheme != "sqlite:" or not path:
            raise ValueError("expected sqlite:///path/to/state.db")
        if "?" in path:
            raise ValueError("sqlite:///path/to/state.db takes no options")
        return f"sqlite:///{(base / path).resolve()}"

    def path(self, url: str) -> Path:
        return database_path(url)

    def exists(self, url: str) -> bool:
        return database_path(url).exists()

    def store(self, url: str) -> SqliteState:
        return SqliteState(url)

    def election(
        self, url: str, name: str, holder: str, ttl_s: float, *, first_epoch: int = 1
    ) -> SqliteElection:
        return SqliteElection(url, name, holder, ttl_s, first_epoch=first_epoch)


BACKEND = SqliteBackend()
