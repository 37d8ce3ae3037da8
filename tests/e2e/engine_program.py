"""The program of the history oracle that has an engine: it applies events to a store of its own, an
SQLite database beside the configuration, and keeps a journal of what it did there.

Forms: ``once`` stores the offset with the data; ``batches``, ``single``, ``key`` and ``any`` are
the engine's modes, with the offset where the engine keeps it. With ``-processes`` transforms, and
the consumer of ``key`` and ``any``, are in processes.
"""

from __future__ import annotations

import functools
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

MODES = ("batches", "single", "key", "any")
PROCESSES = "-processes"
FORMS = ("once", *MODES, *(mode + PROCESSES for mode in MODES))
BATCH_SIZES = (7, 2048)
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
    """Thread-safe. A kill loses nothing that was committed: only the machine's death would.

    ``life``: of the engine, in its journal.
    """

    def __init__(self, path: str, life: str) -> None:
        self._connection = sqlite3.connect(path, check_same_thread=False, timeout=60)
        self._connection.executescript(
            f"PRAGMA journal_mode=WAL; PRAGMA synchronous=OFF; {_TABLES}"
        )
        self._lock = threading.Lock()
        self._life = life

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

    # ------------------------------------------------------------ tidelog.ext.OffsetStore

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


_store = functools.cache(Store)
"""One for each process."""


def _slow() -> None:
    if random.random() < 0.02:
        time.sleep(random.random() * SLOW_S)


def _transform(event: Event) -> Event:
    _slow()
    return event


def _take_one(path: str, life: str, event: Event) -> None:
    _slow()
    _store(path, life).apply([event])


def run(config: str, form: str) -> None:
    """Until SIGTERM."""
    batch_size = random.choice(BATCH_SIZES)
    path = str(Path(config).parent / STORE)
    life = f"{os.getpid()} {time.monotonic()} {batch_size}"
    store = _store(path, life)
    take_one = functools.partial(_take_one, path, life)

    def take_batch(events: Events, committer: Committer) -> None:
        _slow()
        store.apply(events)
        _slow()
        committer.mark_processed(events)
        committer.mark_batch_finished()

    def take_once(events: Events, committer: Committer) -> None:
        store.apply(events, (NAME, StoredOffset(events.generation, events.end)))
        _slow()
        committer.mark_processed(events)
        committer.mark_batch_finished()

    mode = form.removesuffix(PROCESSES)
    given: dict[str, Any] = {
        "once": {"change_consumer": take_once, "offsets": store},
        "batches": {"change_consumer": take_batch, "transforms": [_transform]},
        "single": {"consumer": take_one, "transforms": [_transform]},
        "key": {"consumer": take_one, "consume_records_async": True, "order": "key"},
        "any": {"consumer": take_one, "consume_records_async": True},
    }[mode]
    if form.endswith(PROCESSES):
        given |= {"record_processing_on": "processes", "record_processing_threads": 2}
    else:
        given["record_processing_threads"] = 4
    engine = AsyncEngine(config, name=NAME, batch_size=batch_size, **given)

    def close(*_signal: Any) -> None:
        threading.Thread(target=engine.close, daemon=True).start()

    signal.signal(signal.SIGTERM, close)
    with suppress(EngineStateError):  # told to end before it began
        engine.run()
