"""A source that is captured and dumped inside the test, and an oracle that knows every change.

What differs between kinds of sources is in `tests.behaviours.dumps.sources`. Triggers note in the
source what is done to its tables. So the oracle knows which change records the event log must hold,
once each and in which order for each key; which dump rows may be missing, because a record says
more; and that a dump gives no row twice.
"""

from __future__ import annotations

import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from tests.behaviours.dumps.ledger import Change
from tests.behaviours.dumps.sources import Source, series
from tests.integration.windows.live import PATIENCE_S, Event, Key, Live, Row, _event

from tidelog import app
from tidelog.capture.notifications import Notification
from tidelog.capture.session import session
from tidelog.config import parse_config
from tidelog.control.commands import Command, StartDump
from tidelog.eventlog.reader import EventLog
from tidelog.model.records import ChunkMeta
from tidelog.system import failpoints

Make = Callable[..., "Dumped"]
PLAIN = "id int PRIMARY KEY, n bigint NOT NULL"
ENDED = ("completed", "aborted")


@dataclass
class Dumped(Live):
    """See `Live`. More of the configuration, notifications, and a stronger `check`.

    Args:
        on: the source.
        tables: patterns of the captured tables.
        source, dump_options, control: further lines of these sections of the configuration.
    """

    on: Source = field(kw_only=True)
    chunk_rows: int = 5
    tables: Sequence[str] = ("public.*",)
    source_lines: str = ""
    dump_lines: str = ""
    control_lines: str = ""
    lease: str = "2s"
    notices: list[Notification] = field(default_factory=list)
    seen: dict[str, Any] = field(default_factory=dict)  # the newest status
    ledgers: dict[str, tuple[str, ...]] = field(default_factory=dict)
    _known: list[Event] = field(default_factory=list)
    _known_to: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self.on.lay_out(self.sql)

    def connect(self, *, autocommit: bool = True, options: str = "") -> Any:
        return self.on.connect(autocommit=autocommit)

    @property
    def reads_only(self) -> bool:
        """Nothing is written to the source: a window ends right behind its snapshot."""
        return self.watermarks in ("snapshot", "gtid")

    # ------------------------------------------------------------ source

    def table(
        self,
        name: str = "t",
        columns: str = PLAIN,
        rows: int | str = 20,
        *,
        key: tuple[str, ...] = ("id",),
    ) -> None:
        """Create a table with rows 1 to ``rows``, or those of a SELECT; later changes are noted."""
        self.sql.execute(f"CREATE TABLE {name} ({columns})".encode())
        if isinstance(rows, int):
            rows = series(rows)
        self.sql.execute(f"INSERT INTO {name} {rows}".encode())
        self.note(name, key)

    def note(self, name: str, key: tuple[str, ...] = ("id",)) -> None:
        """Note from now on what is done to the table; what is done so far is in no log."""
        self.on.note(self.sql, name, key)
        self.ledgers[name if "." in name else f"public.{name}"] = key

    def do(self, *statements: str) -> None:
        """One transaction, on a connection of its own: several threads write."""
        with self.connect(autocommit=False) as connection:
            for statement in statements:
                connection.execute(statement.encode())

    def source(self, table: str, key: Sequence[str]) -> dict[Key, Row]:
        """The table's rows as texts."""
        columns, rows = self.on.texts(self.sql, table)
        found = [dict(zip(columns, row, strict=True)) for row in rows]
        return {tuple(row[name] for name in key): row for row in found}

    def chunk_reader_waits(self) -> bool:
        return self.on.reader_waits(self.sql)

    def kill_chunk_reader(self) -> None:
        self.on.end_readers(self.sql)

    def is_captured(self, table: str) -> bool:
        """Is what is done to the table from now on in the log?"""
        return self.on.is_captured(self.sql, table)

    # ------------------------------------------------------------ capture

    def start(self, *, wait: bool = True) -> None:
        self.patch.setattr(session, "POLL_EVERY_S", self.poll_interval_s)
        self.patch.setattr(session, "POLL_SHARE", 1.0)
        signals = "public.signals" if "signal_table" in self.source_lines else None
        self.on.publish(self.sql, self.tables, self.watermarks, signals)
        patterns = ", ".join(f'"{pattern}"' for pattern in self.tables)
        text = f"""
source:
  {self.on.section()}
  tables: [{patterns}]
  snapshot: {self.snapshot}
  watermarks: {self.watermarks}
  {self.source_lines}
log: {{path: {self.directory}/log}}
state: {{url: "sqlite:///{self.directory}/state.db"}}
capture: {{flush_ms: 10, lease_ms: {self.lease}}}
dump:
  chunk_rows: {self.chunk_rows}
  parallelism: {self.parallelism}
  {self.dump_lines}
control:
  notifications: [eventlog]
  {self.control_lines}
"""
        self.config = parse_config(text, "test", self.directory, {})
        self.failure, self._stop, self.seen = None, threading.Event(), {}
        stop = self._stop

        def on_status(status: dict[str, Any]) -> None:
            if "capture" in status and self._stop is stop:
                self.seen = status

        capture = app.Capture(self.config, on_notification=self.notices.append, on_status=on_status)

        def run() -> None:
            try:
                capture._run(stop)
            except BaseException as failure:  # noqa: BLE001 - shown by wait_for
                self.failure = failure

        self._thread = threading.Thread(target=run, daemon=True)
        self._thread.start()
        if wait:
            self.wait_for(lambda: self.seen, "capture leads", PATIENCE_S)

    def ended(self) -> BaseException | None:
        """Wait until capture has ended by itself; its failure."""
        assert self._thread is not None
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive(), "capture does not end"
        self._thread = None
        return self.failure

    def send(self, command: Command) -> dict[str, Any]:
        """What came of a command."""
        outcome = app.send_command(self.config, command, timeout_s=PATIENCE_S).to_dict()
        assert outcome["error"] is None, outcome
        result: dict[str, Any] = outcome["details"]
        return result

    def dump(self, *tables: str, **scope: Any) -> str:  # type: ignore[override]
        """Ask for a dump of ``tables`` (``public.t``); its id."""
        dump_id = f"dump-{next(self._dumps)}"
        self.send(StartDump(dump_id=dump_id, tables=tables or ("public.t",), **scope))
        return dump_id

    def reach(self, held: Gate) -> None:
        """Wait until someone is held up there."""
        self.wait_for(held.reached.is_set, "the failpoint is reached")

    def state(self, dump_id: str) -> dict[str, Any]:
        """The dump as the newest status shows it."""
        unknown: dict[str, Any] = {"status": "unknown", "tables": []}
        return next((d for d in self.seen.get("dumps", ()) if d["dump_id"] == dump_id), unknown)

    def progress(self, dump_id: str, table: str = "public.t") -> dict[str, Any]:
        """One table of the dump."""
        tables: list[dict[str, Any]] = self.state(dump_id)["tables"]
        return next((t for t in tables if t["table"] == table), {"status": "unknown", "chunks": 0})

    def dumped(self, dump_id: str, status: str = "completed") -> dict[str, Any]:
        """Wait until the dump has ended so; its summary."""
        self.wait_for(lambda: self.state(dump_id)["status"] in ENDED, f"{dump_id} ends")
        assert self.state(dump_id)["status"] == status, self.state(dump_id)
        return self.state(dump_id)

    def passed(self, dump_id: str, chunks: int, table: str = "public.t") -> None:
        """Wait until so many chunks of the table are durable."""
        self.wait_for(
            lambda: self.progress(dump_id, table)["chunks"] >= chunks, f"{chunks} chunks of {table}"
        )

    def notifications(self, dump_id: str) -> list[tuple[str, str]]:
        """Types of the dump's notifications, and the table and status of those that have one; not
        IN_PROGRESS, which depends on time. They come on a thread of their own: if the dump has
        ended, wait for the last one.
        """
        if self.state(dump_id)["status"] in ENDED:
            self.wait_for(
                lambda: any(
                    n.dump_id == dump_id and str(n.type).lower() in ENDED for n in self.notices
                ),
                f"the notification of the end of {dump_id}",
            )
        return [
            (str(n.type), f"{n.data['scanned_collection']} {n.data['status']}")
            if "scanned_collection" in n.data
            else (str(n.type), "")
            for n in self.notices
            if n.dump_id == dump_id and n.type != "IN_PROGRESS"
        ]

    # ------------------------------------------------------------ event log

    def events(self, table: str | None = None) -> list[Event]:
        if EventLog.exists(self.directory / "log"):
            log = EventLog.open(self.directory / "log")
            start = log.head_offset if self._known_to is None else self._known_to
            for ref in log.segments(start):
                for batch in log.batches(ref):
                    self._known += [_event(r, log.schemas.get) for r in batch.to_pylist()]
                self._known_to = ref.end
        return [
            e
            for e in self._known
            if table is None or table in (e.table, (e.control or {}).get("table"))
        ]

    def chunks(self, table: str = "public.t") -> list[tuple[ChunkMeta, list[Event]]]:
        """The table's chunks, each with its rows."""
        chunks = list(EventLog.open(self.directory / "log").chunks())
        events = self.events(table)  # after: a dump of its own may have begun
        return [
            (chunk, [e for e in events if meta.first <= e.offset < meta.next])
            for meta, chunk in chunks
            if chunk.table == table
        ]

    def rows_of(self, dump_id: str, table: str = "public.t") -> list[Key]:
        """Keys of the rows that the dump brought, in the log's order."""
        return [
            e.key
            for chunk, events in self.chunks(table)
            if chunk.dump_id == dump_id
            for e in events
            if e.op == "r"
        ]

    # ------------------------------------------------------------ oracle

    def check(self, table: str = "public.t", key: Sequence[str] = ("id",)) -> list[Event]:
        """Invariants 1 to 3 of docs/INVARIANTS.md, and that a dump gives each row once or not at
        all because a record says more. The source must be quiet.
        """
        events = super().check(table, key)
        if table in self.ledgers:
            self._check_changes(table, events)
        self._check_chunks(table)
        self._check_complete(table, key, events)
        return events

    def _check_changes(self, table: str, events: Sequence[Event]) -> None:
        """Every noted change is in the log once, and those of each key stand in their order."""
        wanted: dict[Key, list[Change]] = defaultdict(list)
        for change in self.on.noted(self.sql, table):
            wanted[change.key].append(change)
        found: dict[Key, list[Change]] = defaultdict(list)
        for e in events:
            if e.op in ("I", "U", "D"):
                xid = e.xid if self.on.kind == "postgres" else 0  # triggers there can't tell it
                found[e.key].append(Change(xid, e.op, e.key, e.old_key))
        assert found == wanted, "changes in the event log are not those of the source: " + str(
            {k for k in {*found, *wanted} if found.get(k) != wanted.get(k)}
        )

    def _check_chunks(self, table: str) -> None:
        given: dict[str, Counter[Key]] = defaultdict(Counter)
        counts: Counter[str] = Counter()
        told = {d["dump_id"]: self.progress(d["dump_id"], table) for d in self.seen["dumps"]}
        for chunk, events in self.chunks(table):  # after: a dump of its own may be under way
            versions = {e.schema_id for e in events}
            assert len(versions) == 1, f"a chunk of versions {versions} of the schema: {chunk}"
            rows = [e.key for e in events if e.op == "r"]
            absent = len(events) - len(rows)
            kept = chunk.rows_read - chunk.rows_superseded
            # Of given keys, those that are absent count as read, and may be listed elsewhere.
            assert len(events) == kept or (chunk.keys_requested and len(events) < kept), chunk
            assert len(rows) == len(set(rows)), "a row stands twice in a chunk"
            given[chunk.dump_id].update(rows)
            counts[chunk.dump_id] += len(rows) + absent
        for dump_id, keys in given.items():
            twice = {key for key, times in keys.items() if times > 1}
            assert dump_id == "reread" or not twice, f"{dump_id} gives {twice} twice"
        for dump_id, count in counts.items():
            progress = told.get(dump_id, {"status": "unknown"})
            if progress["status"] == "done" and not progress["keys_absent"]:
                rows = progress["rows_read"] - progress["rows_superseded"]
                assert rows == count, f"{dump_id} tells of {rows} rows, and gave {count}"

    def _check_complete(self, table: str, key: Sequence[str], events: Sequence[Event]) -> None:
        """A row that a whole dump did not bring has a record that says more."""
        last = max((e.offset for e in events), default=0)
        for done in self.completions(table):
            assert done.control is not None
            # A dump of its own may have ended since the events were read.
            if not done.control["delete_absent"] or done.offset > last:
                continue
            later = {e.key for e in events if e.offset >= done.control["first_offset"]}
            lost = {k for k in self.source(table, key) if k not in later}
            assert not lost, f"neither dumped nor superseded: {lost}"


class Gate:
    """Holds up who comes to a failpoint for the ``hit``-th time, until opened."""

    def __init__(self, hit: int) -> None:
        self._hits, self._hit, self._lock = 0, hit, threading.Lock()
        self._open = threading.Event()
        self.reached = threading.Event()

    def __call__(self) -> None:
        with self._lock:
            self._hits += 1
            mine = self._hits == self._hit
        if mine:
            self.reached.set()
            self._open.wait()

    def open(self) -> None:
        self._open.set()


@contextmanager
def gate(point: str, hit: int = 1) -> Iterator[Gate]:
    """A gate at a failpoint; open at the end at the latest."""
    made = Gate(hit)
    try:
        with failpoints.arm({point: made}):
            yield made
    finally:
        made.open()


def quietly(dumped: Dumped, connection: Any, statement: str) -> bool:
    """Execute what may meet another's lock or key; did it work?"""
    try:
        with connection.transaction():
            connection.execute(statement.encode())
    except dumped.on.refused:
        return False
    return True
