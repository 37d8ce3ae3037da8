"""The program of the history oracle that has an engine: it applies events to a store of its own, an
SQLite database beside the configuration, and keeps a journal of what it did there.

Forms: ``once`` stores the offset with the data; ``batches``, ``single``, ``key`` and ``any`` are
the engine's modes, with the offset where the engine keeps it.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sqlite3
import threading
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from tidelog.app.async_engine.engine import AsyncEngine
from tidelog.app.async_engine.log_task import StoredOffset
from tidelog.engine.events import Event, Events
from tidelog.engine.ports import Committer
from tidelog.errors import EngineStateError

FORMS = ("once", "batches", "single", "key", "any")
STORE = "program.db"
NAME = "engine"
SLOW_S = 0.004
_TABLES = """
CREATE TABLE IF NOT EXISTS rows (tbl TEXT, key TEXT, seq INTEGER, PRIMARY KEY (tbl, key));
CREATE TABLE IF NOT EXISTS journal (n INTEGER PRIMARY KEY AUTOINCREMENT, life TEXT,
    version INTEGER, op TEXT, tbl TEXT, key TEXT, seq INTEGER);
CREATE TABLE IF NOT EXISTS progress (task TEXT PRIMARY KEY, generation TEXT, reached INTEGER);
"""


class Store:
    """Thread-safe. A kill loses nothing that was committed: only the machine's death would."""

    def __init__(self, path: Path) -> None:
        self._connection = sqlite3.connect(path, check_same_thread=False, timeout=60)
        self._connection.executescript(
            f"PRAGMA journal_mode=WAL; PRAGMA synchronous=OFF; {_TABLES}"
        )
        self._lock = threading.Lock()
        self._life = f"{os.getpid()} {time.monotonic()}"

    def apply(
        self, events: Iterable[Event], stored: tuple[str, StoredOffset] | None = None
    ) -> None:
        """In one transaction."""
        with self._lock, self._connection as transaction:
            for event in events:
                self._apply(transaction, event)
            if stored is not None:
                task, offset = stored
                transaction.execute(
                    "REPLACE INTO progress VALUES (?, ?, ?)",
                    (task, offset.generation, offset.offset),
                )

    def _apply(self, transaction: sqlite3.Connection, event: Event) -> None:
        table = str(event.table)
        key = None if event.key is None else json.dumps([str(part) for part in event.key.values()])
        after = event.after
        seq = None if after is None else after["seq"]
        if event.op == "t":
            transaction.execute("DELETE FROM rows WHERE tbl = ?", (table,))
        elif after is None:
            transaction.execute("DELETE FROM rows WHERE tbl = ? AND key = ?", (table, key))
        else:
            transaction.execute("REPLACE INTO rows VALUES (?, ?, ?)", (table, key, seq))
        transaction.execute(
            "INSERT INTO journal (life, version, op, tbl, key, seq) VALUES (?, ?, ?, ?, ?, ?)",
            (self._life, event.version, event.op, table, key, seq),
        )

    # ------------------------------------------------------------ tidelog.OffsetStore

    def read(self, task: str) -> StoredOffset | None:
        with self._lock:
            found = self._connection.execute(
                "SELECT generation, reached FROM progress WHERE task = ?", (task,)
            ).fetchone()
        return None if found is None else StoredOffset(*found)

    def write(self, task: str, stored: StoredOffset) -> None:
        known = self.read(task)
        if known is None or known.offset < stored.offset:
            self.apply((), (task, stored))


def run(config: str, form: str) -> None:
    """Until SIGTERM."""
    store = Store(Path(config).parent / STORE)

    def slow() -> None:
        if random.random() < 0.02:
            time.sleep(random.random() * SLOW_S)

    def transform(event: Event) -> Event:
        slow()
        return event

    def take_one(event: Event) -> None:
        slow()
        store.apply([event])

    def take_batch(events: Events, committer: Committer) -> None:
        slow()
        store.apply(events)
        slow()
        committer.mark_processed(events)
        committer.mark_batch_finished()

    def take_once(events: Events, committer: Committer) -> None:
        store.apply(events, (NAME, StoredOffset(events.generation, events.end)))
        slow()
        committer.mark_processed(events)
        committer.mark_batch_finished()

    given: dict[str, Any] = {
        "once": {"change_consumer": take_once, "offsets": store},
        "batches": {"change_consumer": take_batch, "transforms": [transform]},
        "single": {"consumer": take_one, "transforms": [transform]},
        "key": {"consumer": take_one, "consume_records_async": True, "order": "key"},
        "any": {"consumer": take_one, "consume_records_async": True},
    }[form]
    engine = AsyncEngine(
        config, name=NAME, record_processing_threads=4, batch_size=random.choice((7, 2048)), **given
    )

    def close(*_signal: Any) -> None:
        threading.Thread(target=engine.close, daemon=True).start()

    signal.signal(signal.SIGTERM, close)
    with suppress(EngineStateError):  # told to end before it began
        engine.run()
