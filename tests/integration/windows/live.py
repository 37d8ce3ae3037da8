"""A whole capture inside the test, a source whose commits can hang, and an oracle over both.

Nothing of Tidelog is replaced but sizes and intervals: tests control it from the source's side, and
by acting at its named failpoints (`tidelog.system.failpoints`).
"""

from __future__ import annotations

import itertools
import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg
import pytest
from tests.integration.postgres.conftest import UNCHANGED, tuple_values
from tests.support.oracle.images import hexadecimal, is_row_image, parse_row_images
from tests.support.oracle.values import UNCHANGED as ABSENT
from tests.support.postgres_parts import publication_sql

from tidelog import app
from tidelog.capture.catalogue_watch import SHAPES_KEY
from tidelog.capture.dumps.automatic import UNLOGGED_KEY
from tidelog.capture.session import session
from tidelog.capture.unsupported_tables import REFUSED_KEY
from tidelog.config import parse_config
from tidelog.control.commands import StartDump
from tidelog.errors import TidelogError
from tidelog.eventlog.reader import EventLog
from tidelog.model.records import RecordKind
from tidelog.model.schema import TableSchema
from tidelog.sources.postgres.catalogue.publication import Publications
from tidelog.state.sqlite import SqliteState
from tidelog.system import failpoints

Key = tuple[str | None, ...]
Row = dict[str, str | None]
Connection = psycopg.Connection[Any]

PATIENCE_S = 120.0
"""For what must come: however busy the machine is. A wait ends as soon as it has."""

# The test's own sessions must not wait for the standby that never answers.
LOCALLY = "-c synchronous_commit=local"


@dataclass(frozen=True)
class Event:
    """A record of the event log, decoded the slow and obvious way."""

    offset: int
    op: str  # I U D T, r (dump row), a (absent), c (control)
    table: str = ""
    xid: int = 0
    schema_id: int = 0
    key: Key = ()
    row: Row | None = None
    old_key: Key | None = None
    control: dict[str, Any] | None = None

    @property
    def partial(self) -> bool:
        return self.row is not None and UNCHANGED in self.row.values()

    @property
    def n(self) -> int:
        assert self.row is not None
        return int(self.row["n"] or 0)


@dataclass
class Hung:
    """A transaction that is committed in the log, and waits for its standby: no one can see it."""

    connection: Connection
    xid: int
    thread: threading.Thread

    def release(self) -> None:
        """Let it become visible: the wait is given up, the commit stands."""
        if self.thread.is_alive():
            self.connection.cancel()
            self.thread.join(PATIENCE_S)
        self.connection.close()


@dataclass
class Live:
    """One source database, its capture and the event log.

    Args:
        dsn: of the source, or of its primary where ``url`` leads to a standby.
        directory: for event log and state.
        patch: undone after the test.
        chunk_rows: rows of a chunk.
        snapshot, watermarks, parallelism: as in the configuration.
        url: what capture connects to if not ``dsn``.
    """

    dsn: str
    directory: Path
    patch: pytest.MonkeyPatch
    chunk_rows: int = 100
    snapshot: str = "no_data"
    watermarks: str = "table"
    parallelism: int = 1
    url: str | None = None
    poll_interval_s: float = 0.2
    patience_s: float = PATIENCE_S
    sql: Connection = field(init=False)
    failure: BaseException | None = None
    hung: list[Hung] = field(default_factory=list)
    _thread: threading.Thread | None = None
    _stop: threading.Event = field(default_factory=threading.Event)
    _ticks: Iterator[int] = field(default_factory=lambda: itertools.count(1))
    _dumps: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    def __post_init__(self) -> None:
        self.sql = self.connect()
        self.sql.execute("CREATE TABLE tick (id int PRIMARY KEY)")
        self.patch.setattr(session, "STATUS_EVERY_S", 0.1)

    def connect(self, *, autocommit: bool = True, options: str = LOCALLY) -> Connection:
        return psycopg.connect(self.dsn, autocommit=autocommit, options=options)

    # ------------------------------------------------------------ source

    def hang(self, *statements: str) -> Hung:
        """Commit ``statements`` as one transaction that hangs until it is released."""
        connection = self.connect(autocommit=False, options="-c synchronous_commit=on")
        for statement in statements:
            connection.execute(statement.encode())
        row = connection.execute("SELECT pg_current_xact_id()::text, pg_backend_pid()").fetchone()
        assert row is not None
        thread = threading.Thread(target=connection.commit, daemon=True)
        thread.start()
        hung = Hung(connection, int(row[0]), thread)
        self.hung.append(hung)
        self.wait_for(
            lambda: (
                self.one("SELECT wait_event FROM pg_stat_activity WHERE pid = %s", row[1])
                == "SyncRep"
            ),
            "the transaction hangs",
        )
        return hung

    def hang_emitted(self, *statements: str) -> Hung:
        """The same, and its records are in the event log already."""
        hung = self.hang(*statements)
        self.wait_for(lambda: any(e.xid == hung.xid for e in self.events()), "it is emitted")
        return hung

    def one(self, query: str, *values: Any) -> Any:
        row = self.sql.execute(query.encode(), values).fetchone()
        return None if row is None else row[0]

    def source(self, table: str, key: Sequence[str]) -> dict[Key, Row]:
        """The table's rows as texts."""
        columns = [
            row[0]
            for row in self.sql.execute(
                "SELECT attname FROM pg_attribute WHERE attrelid = %s::regclass AND attnum > 0 "
                "AND NOT attisdropped",
                (table,),
            )
        ]
        listed = ", ".join(f'"{name}"::text' for name in columns)
        rows = self.sql.execute(f"SELECT {listed} FROM {table}".encode())
        found = [dict(zip(columns, row, strict=True)) for row in rows]
        return {tuple(row[name] for name in key): row for row in found}

    def chunk_reader_waits(self) -> bool:
        """For a lock that another session holds."""
        return bool(
            self.one(
                "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'tidelog-chunks' "
                "AND datname = current_database() AND wait_event_type = 'Lock'"
            )
        )

    def published(self) -> set[str]:
        rows = self.sql.execute(
            "SELECT n.nspname || '.' || c.relname FROM pg_publication_rel r "
            "JOIN pg_class c ON c.oid = r.prrelid JOIN pg_namespace n ON n.oid = c.relnamespace"
        )
        return {row[0] for row in rows}

    def kill_chunk_reader(self) -> None:
        """The connection that holds the chunk's lock dies, as in a network fault."""
        self.sql.execute(
            "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity "
            "WHERE application_name = 'tidelog-chunks' AND datname = current_database()"
        )

    # ------------------------------------------------------------ capture

    def start(self) -> None:
        self.patch.setattr(session, "POLL_EVERY_S", self.poll_interval_s)
        self.patch.setattr(session, "POLL_SHARE", 1.0)
        if self.watermarks == "snapshot":
            slot = self.dsn.rsplit("/", 1)[1]
            publications = Publications("tidelog", ["public.*"], strategy="snapshot", slot=slot)
            for statement in publication_sql(publications, self.sql):
                self.sql.execute(statement.encode())
        text = f"""
source: {{kind: postgres, url: "{self.url or self.dsn}", tables: ["public.*"],
          snapshot: {self.snapshot}, watermarks: {self.watermarks},
          slot: {self.dsn.rsplit("/", 1)[1]}, publication: tidelog}}
log: {{path: {self.directory}/log}}
state: {{url: "sqlite:///{self.directory}/state.db"}}
capture: {{flush_ms: 10}}
dump: {{chunk_rows: {self.chunk_rows}, parallelism: {self.parallelism}}}
"""
        self.config = parse_config(text, "test", self.directory, {})
        self.failure, self._stop = None, threading.Event()
        ready = threading.Event()

        def on_status(status: dict[str, Any]) -> None:
            if "capture" in status:
                ready.set()

        def run() -> None:
            try:
                app.run_capture(self.config, stop_event=self._stop, on_status=on_status)
            except BaseException as failure:  # noqa: BLE001 - shown by wait_for
                self.failure = failure

        self._thread = threading.Thread(target=run, daemon=True)
        self._thread.start()
        self.wait_for(ready.is_set, "capture leads", PATIENCE_S)

    def stop(self) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join(PATIENCE_S)
            assert not self._thread.is_alive(), "capture does not stop"
            self._thread = None

    def restart(self) -> None:
        self.stop()
        self.start()

    def crashes(self) -> None:
        """Wait for the failure that a failpoint was armed with."""
        assert self._thread is not None
        self._thread.join(self.patience_s)
        assert isinstance(self.failure, Crash), self.failure
        self._thread = None

    def close(self) -> None:
        for hung in self.hung:
            hung.release()
        try:
            self.stop()
        finally:
            self.sql.close()

    def dump(
        self,
        table: str = "public.t",
        keys: list[Key] | None = None,
        columns: Key | None = None,
        mode: str = "incremental",
    ) -> str:
        """Ask for a dump; its id."""
        dump_id = f"dump-{next(self._dumps)}"
        command = StartDump(
            dump_id=dump_id,
            tables=(table,),
            keys=keys,  # type: ignore[arg-type]
            key_columns=columns,
            mode=mode,  # type: ignore[arg-type]
        )
        outcome = app.send_command(self.config, command, timeout_s=PATIENCE_S).to_dict()
        assert outcome["error"] is None, outcome
        return dump_id

    def dumped(self, dump_id: str) -> dict[str, Any]:
        """Wait until the dump is done; its summary."""

        def state() -> dict[str, Any]:
            dumps = app.status(self.config).document.get("dumps", ())
            return next((d for d in dumps if d["dump_id"] == dump_id), {"status": "unknown"})

        self.wait_for(lambda: state()["status"] in ("completed", "aborted"), f"{dump_id} ends")
        assert state()["status"] == "completed", state()
        return state()

    @property
    def voided(self) -> dict[str, int]:
        time.sleep(0.25)  # the status is written every 0.1 s
        found: dict[str, int] = app.status(self.config).document["dump_counters"]["voided"]
        return found

    def wait_for(
        self, condition: Callable[[], Any], what: str, patience_s: float | None = None
    ) -> None:
        patience_s = patience_s or self.patience_s
        deadline = time.monotonic() + patience_s
        while not condition():
            if self.failure is not None:
                assert not isinstance(self.failure, TidelogError), f"ended: {self.failure}"
                raise self.failure
            if time.monotonic() > deadline:
                waited = f"not within {patience_s} s: {what}"
                raise AssertionError(f"{waited}; {self.situation()}")
            time.sleep(0.05)  # each look at the status costs some CPU

    def situation(self) -> str:
        """What capture does, and what its housekeeping waits for; no values."""
        found = app.status(self.config).document
        state = SqliteState(self.config.state.url)
        try:
            stored = {key: state.get(key) for key in (SHAPES_KEY, UNLOGGED_KEY, REFUSED_KEY)}
        finally:
            state.close()
        kept = {key: None if one is None else one.value for key, one in stored.items()}
        told = found.get("dumps"), found.get("chunks_unanswered")
        return f"dumps and their errors {told}, kept {kept}"

    # ------------------------------------------------------------ event log

    def events(self, table: str | None = None) -> list[Event]:
        log = EventLog.open(self.directory / "log")
        found = []
        for ref in log.segments(log.head_offset):
            for batch in log.batches(ref):
                for record in batch.to_pylist():
                    found.append(_event(record, log.schemas.get))
        return [
            e for e in found if table is None or table in (e.table, (e.control or {}).get("table"))
        ]

    def catch_up(self) -> list[Event]:
        """Everything that is committed by now is in the event log; all records."""
        tick = str(next(self._ticks))
        self.sql.execute(f"INSERT INTO tick VALUES ({tick})".encode())
        self.wait_for(
            lambda: any(e.table == "public.tick" and e.key == (tick,) for e in self.events()),
            "the event log has caught up",
        )
        return self.events()

    def completions(self, table: str = "public.t") -> list[Event]:
        return [
            e
            for e in self.events()
            if e.control and e.control["type"] == "dump-completed" and e.control["table"] == table
        ]

    # ------------------------------------------------------------ oracle

    def check(self, table: str = "public.t", key: Sequence[str] = ("id",)) -> list[Event]:
        """Invariants 2 and 3 of docs/INVARIANTS.md on what was emitted; the table's records.

        Every write must give its key a greater ``n``.
        """
        self.catch_up()
        completions = self.completions(table)  # before: a further dump may complete meanwhile
        events = self.events(table)
        check_no_time_travel(events)
        now = self.source(table, key)
        whole = False
        for done in completions:
            assert done.control is not None
            replayed = replay([e for e in events if e.offset >= done.control["first_offset"]])
            if done.control["delete_absent"]:
                whole = True
                assert replayed == now, f"replay of the dump: {_differ(replayed, now)}"
            else:
                wrong = {k for k, row in replayed.items() if now.get(k) != row}
                assert not wrong, f"replay of keys {wrong}"
        if whole:
            replayed = replay(events)
            assert replayed == now, f"replay of everything: {_differ(replayed, now)}"
        return events


def ten_rows(live: Live) -> Live:
    """With a table ``t`` of the keys 1 to 10, started."""
    live.sql.execute("CREATE TABLE t (id int PRIMARY KEY, n int NOT NULL)")
    live.sql.execute("INSERT INTO t SELECT i, 1 FROM generate_series(1, 10) i")
    live.start()
    return live


def times_dumped(live: Live) -> set[int]:
    """How often rows of ``t`` came by dumps."""
    return set(Counter(e.key for e in live.events("public.t") if e.op == "r").values())


class Crash(Exception):  # noqa: N818 - not an error of ours
    """Not Tidelog's: ends the capture where it is raised."""


@contextmanager
def at(point: str, act: Callable[[], Any], hit: int = 1) -> Iterator[threading.Event]:
    """Act when the failpoint is hit for the ``hit``-th time; an event that tells it was."""
    hits = itertools.count(1)
    done = threading.Event()

    def acting() -> None:
        if next(hits) == hit:
            try:
                act()
            finally:
                done.set()

    with failpoints.arm({point: acting}):
        yield done


def crash() -> None:
    raise Crash


def _event(record: dict[str, Any], schema_of: Callable[[int], TableSchema]) -> Event:
    kind, payload, offset = RecordKind(record["kind"]), record["payload"], record["offset"]
    if kind is RecordKind.CONTROL:
        return Event(offset, "c", control=json.loads(payload))
    schema = schema_of(record["schema_id"])
    images = _images(payload, schema) if kind is not RecordKind.TRUNCATE else {}
    new, old = images.get("N"), images.get("K") or images.get("O")
    if new is not None and "O" in images:
        new = {c: images["O"][c] if value == UNCHANGED else value for c, value in new.items()}

    def key_of(image: Row | None) -> Key:
        return () if image is None else tuple(image[name] for name in schema.match_key)

    if new is not None and old is not None:  # an unchanged TOASTed key
        new |= {c: old[c] for c in schema.match_key if new[c] == UNCHANGED}
    moved = new is not None and old is not None and key_of(new) != key_of(old)
    return Event(
        offset,
        chr(kind),
        str(schema.table),
        record["xid"],
        record["schema_id"],
        key_of(new or old),
        new,
        key_of(old) if moved else None,
    )


def _images(payload: bytes, schema: TableSchema) -> dict[str, Row]:
    """Of a row: ``N`` the new one; of the old one ``K`` what is known of it, or ``O`` all of it."""
    images: dict[str, Row] = {}
    if is_row_image(payload):
        old, new = parse_row_images(payload, schema.columns)
        for tag, image in (("K", old), ("N", new)):
            if image is not None:
                cells = image.items()
                images[tag] = {c: UNCHANGED if v == ABSENT else v for c, v in cells}
        return images
    at_byte = 5
    while at_byte < len(payload):
        tag = payload[at_byte : at_byte + 1].decode()
        values, at_byte = tuple_values(payload, at_byte + 1)
        found = dict(zip(schema.column_names, values, strict=True))
        images[tag] = hexadecimal(found, schema.columns) or found
    return images


def check_no_time_travel(events: Sequence[Event]) -> None:
    """No dump row stands behind a newer state of its key, from the log or another chunk."""
    newest: dict[Key, int] = {}
    gone: set[Key] = set()
    cleared = -1  # rows up to this n were truncated
    for event in events:
        if event.op == "T":
            cleared = max([cleared, *newest.values()])
        elif event.op in "IU":
            newest[event.key] = event.n
            gone.discard(event.key)
            if event.old_key is not None:
                newest[event.old_key] = max(newest.get(event.old_key, 0), event.n - 1)
                gone.add(event.old_key)
        elif event.op == "D":
            gone.add(event.key)
        elif event.op == "r":
            known = newest.get(event.key, 0)
            stale = event.n < known or event.n <= cleared
            stale |= event.key in gone and event.n <= known
            assert not stale, f"key {event.key} went back in time: {event.n} after {known}"
            newest[event.key] = event.n


def _differ(replayed: dict[Key, Row], now: dict[Key, Row]) -> str:
    differing = sorted(k for k in {*replayed, *now} if replayed.get(k) != now.get(k))
    return f"keys {differing} differ, {len(now)} rows in the source"


def replay(events: Sequence[Event]) -> dict[Key, Row]:
    """The table that the records give, as an output makes it."""
    state: dict[Key, tuple[Row, int]] = {}
    for event in events:
        if event.control is not None:
            if event.control["type"] == "dump-completed" and event.control["delete_absent"]:
                first = event.control["first_offset"]
                state = {k: held for k, held in state.items() if held[1] >= first}
        elif event.op == "T":
            state.clear()
        elif event.row is None:
            state.pop(event.key, None)
        else:
            before = state.get(event.key)
            if event.old_key is not None:
                state.pop(event.old_key, None)
                before = None
            if not event.partial:
                state[event.key] = (event.row, event.offset)
            elif before is not None:
                present = {c: v for c, v in event.row.items() if v != UNCHANGED}
                state[event.key] = (before[0] | present, event.offset)
    return {key: row for key, (row, _offset) in state.items()}
