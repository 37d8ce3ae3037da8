"""State documents in one SQLite file."""

from __future__ import annotations

import json
import os
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from copy import copy
from pathlib import Path
from typing import Any, Final

from tidelog.errors import ConfigError, LeaseLostError, StateConflictError, StateError
from tidelog.ports import Document
from tidelog.system.private_files import create_file

_URL: Final = "sqlite:///"
BUSY_TIMEOUT_S: Final = 15.0


def database_path(url: str | Path) -> Path:
    """The file behind ``sqlite:///relative/path``, ``sqlite:////absolute/path`` or a plain path."""
    text = str(url)
    if text.startswith(_URL):
        text = text.removeprefix(_URL)
    elif "://" in text:
        raise ConfigError(f"state url {text.split('://')[0]}://…: expected sqlite:///PATH")
    if not text:
        raise ConfigError("state url sqlite:/// names no file: use sqlite:///PATH")
    return Path(text)


def connect(path: Path) -> sqlite3.Connection:
    """Autocommit, WAL, every commit durable. Shared by threads under a lock of the caller."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # SQLite gives its other files the mode of this one. One that is there is not opened: to
        # close it again would end the locks of this process (sqlite.org/howtocorrupt.html, §2.2).
        if not path.exists():
            with suppress(FileExistsError):
                os.close(create_file(path, os.O_RDWR | os.O_EXCL))
        connection = sqlite3.connect(
            path, timeout=BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False
        )
        _retry_locked(connection, "PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=FULL")
    except (sqlite3.Error, OSError) as error:
        raise StateError(f"cannot open state database {path}: {error}") from error
    return connection


def _retry_locked(connection: sqlite3.Connection, sql: str) -> None:
    """Changing the journal mode ignores the busy timeout (sqlite.org/wal.html, §9)."""
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
    """One writing transaction, serialised with those of other threads and processes."""
    with lock:
        try:
            # IMMEDIATE: a deferred one that starts reading may not upgrade under WAL (SQLITE_BUSY).
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
    """`tidelog.ports.StateStore` in a SQLite file, for processes of one host."""

    def __init__(self, url: str | Path) -> None:
        self._led: tuple[str, int] | None = None  # the lease, and its epoch
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
        fenced._led = (name, epoch)
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
        if self._led is None:
            return
        name, epoch = self._led
        row = db.execute("SELECT epoch FROM lease WHERE name = ?", (name,)).fetchone()
        if row is not None and row[0] > epoch:
            raise LeaseLostError(
                f"the state is of the leader of epoch {row[0]}: one of epoch {epoch} changes it no "
                "more"
            )

    def _query(self, sql: str, *parameters: str) -> list[tuple[Any, ...]]:
        with self._lock:
            try:
                return self._connection.execute(sql, parameters).fetchall()
            except sqlite3.Error as error:
                raise StateError(f"state database {self.path}: {error}") from error
