"""State documents and elections in one SQLite file."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import secrets
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from copy import copy
from pathlib import Path
from typing import IO, Any, Final

from tidelog.errors import ConfigError, LeaseLostError, StateConflictError, StateError
from tidelog.ports import Document, Lease
from tidelog.system.private_files import create_file
from tidelog.system.version import check_format

_URL: Final = "sqlite:///"
BUSY_TIMEOUT_S: Final = 15.0


def database_path(url: str | Path) -> Path:
    """Return the file of ``sqlite:///relative/path``, ``sqlite:////absolute/path`` or a path."""
    text = str(url)
    if text.startswith(_URL):
        text = text.removeprefix(_URL)
    elif "://" in text:
        raise ConfigError(f"state url {text.split('://')[0]}://…: expected sqlite:///PATH")
    if not text:
        raise ConfigError("state url sqlite:/// names no file: use sqlite:///PATH")
    return Path(text)


def connect(path: Path) -> sqlite3.Connection:
    """Open the file: autocommit, WAL, every commit durable. Threads share it under a lock."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # SQLite gives its other files the mode of this one. An existing file is not opened: to
        # close it again would end the locks of this process (sqlite.org/howtocorrupt.html, §2.2).
        if not path.exists():
            with suppress(FileExistsError):
                os.close(create_file(path, os.O_RDWR | os.O_EXCL))
        connection = sqlite3.connect(
            path, timeout=BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False
        )
        _retry_locked(connection, "PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=FULL")
        _check_format(connection, path)
    except (FileExistsError, FileNotFoundError, NotADirectoryError) as error:
        raise ConfigError(
            f"the state database {path} can't be created: {error.strerror}; name another file "
            "(state.url)"
        ) from error
    except (sqlite3.Error, OSError) as error:
        raise StateError(f"cannot open state database {path}: {error}") from error
    return connection


def _check_format(connection: sqlite3.Connection, path: Path) -> None:
    """Raise NewerFormatError if a newer version wrote to the file; it sets ``user_version``."""
    found = connection.execute("PRAGMA user_version").fetchone()[0]
    check_format(found if found > 0 else None, f"the state database {path}")


def _retry_locked(connection: sqlite3.Connection, sql: str) -> None:
    """Retry: changing the journal mode ignores the busy timeout (sqlite.org/wal.html, §9)."""
    deadline = time.monotonic() + BUSY_TIMEOUT_S
    while True:
        try:
            connection.execute(sql)
            return
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() > deadline:
                raise
            time.sleep(0.01)


@contextmanager
def transaction(
    connection: sqlite3.Connection, lock: threading.Lock, path: Path
) -> Iterator[sqlite3.Connection]:
    """Run one writing transaction, serialised with those of other threads and processes."""
    with lock:
        try:
            # IMMEDIATE: a deferred transaction that starts with a read may fail to upgrade under
            # WAL (SQLITE_BUSY).
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield connection
                connection.execute("COMMIT")
            except BaseException:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                raise
        except sqlite3.Error as error:
            raise StateError(
                f"state database {path}: {error}. Check free space and permissions."
            ) from error


class SqliteState:
    """A `tidelog.ports.StateStore` in a SQLite file, for processes of one host."""

    def __init__(self, url: str | Path) -> None:
        self._lease_epoch: tuple[str, int] | None = None  # the lease, and its epoch
        self.path = database_path(url)
        self._lock = threading.Lock()
        self._connection = connect(self.path)
        with transaction(self._connection, self._lock, self.path) as db:
            db.execute(
                "CREATE TABLE IF NOT EXISTS document "
                "(key TEXT PRIMARY KEY, value TEXT NOT NULL, version INTEGER NOT NULL)"
            )

    def fenced(self, name: str, epoch: int) -> SqliteState:
        """See `tidelog.ports.FencedStore`."""
        fenced = copy(self)
        fenced._lease_epoch = (name, epoch)
        return fenced

    def get(self, key: str) -> Document | None:
        rows = self._query("SELECT value, version FROM document WHERE key = ?", key)
        return Document(json.loads(rows[0][0]), rows[0][1]) if rows else None

    def put(self, key: str, value: Any, expected_version: int | None) -> int:
        text = json.dumps(value, separators=(",", ":"))
        with transaction(self._connection, self._lock, self.path) as db:
            self._check_epoch(db)
            row = db.execute("SELECT version FROM document WHERE key = ?", (key,)).fetchone()
            version = row[0] if row else 0
            if expected_version is not None and expected_version != version:
                raise StateConflictError(
                    f"state {key!r} has version {version}, expected {expected_version}: another "
                    "process changed it. Read it again and repeat."
                )
            db.execute(
                "INSERT INTO document VALUES (?, ?, ?) ON CONFLICT (key) DO UPDATE "
                "SET value = excluded.value, version = excluded.version",
                (key, text, version + 1),
            )
        return int(version + 1)

    def delete(self, key: str) -> None:
        with transaction(self._connection, self._lock, self.path) as db:
            self._check_epoch(db)
            db.execute("DELETE FROM document WHERE key = ?", (key,))

    def keys(self, prefix: str) -> list[str]:
        rows = self._query(
            "SELECT key FROM document WHERE substr(key, 1, length(?1)) = ?1 ORDER BY key", prefix
        )
        return [row[0] for row in rows]

    def close(self) -> None:
        with self._lock:
            self._connection.close()

    def _check_epoch(self, db: sqlite3.Connection) -> None:
        if self._lease_epoch is None:
            return
        name, epoch = self._lease_epoch
        row = db.execute("SELECT epoch FROM lease WHERE name = ?", (name,)).fetchone()
        if row is not None and row[0] > epoch:
            raise LeaseLostError(
                f"the state belongs to the leader of epoch {row[0]}: the one of epoch {epoch} "
                "can't change it any more"
            )

    def _query(self, sql: str, *parameters: str) -> list[tuple[Any, ...]]:
        with self._lock:
            try:
                return self._connection.execute(sql, parameters).fetchall()
            except sqlite3.Error as error:
                raise StateError(f"state database {self.path}: {error}") from error


# The holder stops acting this share of the ttl before others may take over.
_MARGIN: Final = 0.2


def _boot_id() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


class SqliteElection:
    """A `tidelog.ports.Election` in a SQLite file.

    The expiry is stored twice: on the wall clock, and on the monotonic clock with its boot id.
    Processes of the same boot share that clock, so a step of the wall clock neither ends a lease
    early nor prolongs it; after a reboot the wall clock decides.

    If a holder is killed, another process takes over at once: the holder keeps a file locked
    (`flock`), and the kernel unlocks it when the process ends for any reason. A frozen process
    keeps its lock, and its lease expires. The lock only shortens the wait; the lease keeps two
    leaders apart.
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
        """Open the database and create the lease's row if there is none.

        Args:
            url: the state database; ``sqlite:///PATH`` or a path.
            name: the name of the lease, e.g. the source's name.
            holder: a name for people; instances with equal holders still exclude each other.
            ttl_s: how long a lease lasts without renewal; the holder acts for four fifths of it.
            first_epoch: the smallest epoch to use; set it above the event log's tail if the state
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
            _check_format(db, self.path)  # a newer version may have led since this was opened
            row = db.execute(
                "SELECT epoch, instance, wall_expiry, boot, monotonic_expiry FROM lease "
                "WHERE name = ?",
                (self.name,),
            ).fetchone()
            # After BEGIN IMMEDIATE, which may have waited long for the lock.
            is_held = row is not None and row[1] is not None
            if is_held and not self._expired(*row[2:]) and not self._has_ended(row[1]):
                return None
            self._lock_alive_file()
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
                f"the lease {self.name!r} of epoch {lease.epoch} is lost: it expired "
                f"and {self.leader() or 'another'} took over. Restart from the event log's tail."
            )
        return self._lease(lease.epoch, monotonic)

    def release(self, lease: Lease) -> None:
        """Release the lease, so that others can take over at once; the epoch is kept. Does nothing
        if the lease is lost.
        """
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

    def _lock_alive_file(self) -> None:
        """Lock this instance's file for as long as this process lives."""
        if self._alive is None:
            path = self._alive_file(self._instance)
            try:
                file = os.fdopen(create_file(path, os.O_WRONLY), "wb")
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                self._alive = file
            except OSError:  # a file system without locks: leases expire
                # an unlocked file would mean that this process has ended
                with contextlib.suppress(OSError):
                    path.unlink(missing_ok=True)

    def _has_ended(self, instance: str) -> bool:
        """Return whether the instance's process has ended; False if that can't be known."""
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
    """The `tidelog.ports.StateBackend` of ``sqlite:///PATH``."""

    def normalize_url(self, url: str, base: Path) -> str:
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
