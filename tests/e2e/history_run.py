"""Runs capture as processes against a real server while a workload writes and faults strike, and
holds the event log against the truth afterwards; shrinks what fails.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import psycopg

from tidelog import runtime
from tidelog.capture.catalogue_watch import SHAPES_KEY
from tidelog.config import Config, load_config
from tidelog.control.commands import ExecuteSnapshot, SetDumpOptions
from tidelog.errors import OffsetGoneError, TidelogError
from tidelog.eventlog.reader import EventLog
from tidelog.model.records import ChunkMeta
from tidelog.sources.postgres.catalogue import PostgresCatalogue
from tidelog.state.sqlite import SqliteState
from tidelog.testing import oracle_workload as workload
from tidelog.testing.history import History, HistoryError, TableDump, check_audit, check_chunks
from tidelog.testing.oracle_wire import Change, parse_stream, read_event_log
from tidelog.testing.oracle_workload import TABLES, Mix, Workload
from tidelog.testing.postgres import PostgresServer

ROOT = Path(__file__).parents[2]
LEASE_S = 1.0

# A place and at which hit of it, so that the process does some work before it dies.
FAILPOINTS = (
    ("put.before_link", 60),
    ("put.after_link", 60),
    ("put.after_fsync", 60),
    ("replace.before_rename", 1),
    ("replace.after_rename", 1),
    ("replace.after_fsync", 1),
    ("writer.before_fence", 1),
    ("chunk.after_low", 4),
    ("chunk.after_read", 4),
    ("chunk.after_high", 4),
    ("window.closed", 4),
    ("chunk.durable_before_progress", 4),
    ("capture.before_acknowledge", 30),
    ("rollup.before_replace", 2),
    ("rollup.after_replace", 2),
    ("rollup.after_delete", 2),
    ("retention.after_head", 1),
    ("retention.after_delete", 1),
    ("sweep.after_file", 1),
)
SETTINGS = {
    "deadlock_timeout": "50ms",
    "max_wal_size": "1GB",
    "logical_decoding_work_mem": "64kB",  # transactions spill, as large ones do
    "track_commit_timestamp": "on",
}


@dataclass(frozen=True)
class Spec:
    """A run, repeatable as far as threads and processes are."""

    seed: int
    seconds: float = 6.0
    writers: int = 3
    mix: Mix = field(default_factory=Mix)
    dumps: bool = True
    faults: tuple[str, ...] = ("kill", "failpoint", "freeze", "terminate", "restart")
    fault_every_s: float = 2.0
    maintenance: bool = False  # roll-up and retention with tiny limits
    failpoints: tuple[str, ...] = tuple(name for name, _ in FAILPOINTS)


class Collector(threading.Thread):
    """Reads the log as a consumer does, while it is written: what it saw must stay true."""

    def __init__(self, path: Path) -> None:
        super().__init__(daemon=True)
        self._path = path
        self._stopping = threading.Event()
        self.records: list[Change] = []
        self.xids: set[int] = set()
        self.reread: list[tuple[int, int]] = []
        self.chunks: dict[str, ChunkMeta] = {}
        self.next: int | None = None
        self.begin: int | None = None
        self.failure: BaseException | None = None

    def run(self) -> None:
        try:
            while not self._stopping.is_set() and not EventLog.exists(self._path):
                time.sleep(0.01)
            if self._stopping.is_set():
                return
            log = EventLog.open(self._path)
            while not self._stopping.wait(0.03):
                self.read(log)
        except BaseException as failure:  # noqa: BLE001 - raised by stop
            self.failure = failure

    def read(self, log: EventLog) -> None:
        chain = log.chain()
        if self.begin is None:
            resumes = [meta.resume for meta in chain.segments if meta.resume is not None]
            if not resumes:
                return
            self.begin, self.next = resumes[0].acknowledge, chain.head
        assert self.next is not None
        end = log.latest_offset()
        if end > self.next:
            for meta, chunk in log.chunks(self.next):
                self.chunks[chunk.chunk_id] = chunk
                if chunk.dump_id == "reread":
                    self.reread.append((meta.first, meta.next))
            records = read_event_log(log, self.next, end)
            self.records += records
            self.xids.update(record.xid for record in records)
            self.next = end

    def stop(self) -> None:
        self._stopping.set()
        self.join(30)
        if self.failure is not None:
            raise self.failure


class CaptureProcess:
    """One `tidelog capture`, in a process of its own."""

    def __init__(self, config: Path, log_file: Path, failpoint: str = "") -> None:
        environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}", "TIDELOG_DEBUG": "1"}
        environment["TIDELOG_FAILPOINT"] = failpoint
        self.failpoint = failpoint
        self.log_file = log_file
        with log_file.open("ab") as out:
            out.write(f"--- start {failpoint}\n".encode())
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.e2e.capture_process", str(config)],
                cwd=ROOT,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=out,
            )
        self.frozen = False

    def send(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(number)
        self.frozen = number is signal.SIGSTOP

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(30)

    def stop(self) -> int:
        if self.frozen:
            self.send(signal.SIGCONT)
        if self.process.poll() is None:
            self.process.terminate()
        try:
            return self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.kill()
            return -signal.SIGKILL

    @property
    def died(self) -> bool:
        return self.process.poll() is not None


class Run:
    """One history: build it, then check it."""

    def __init__(self, spec: Spec, server: PostgresServer, directory: Path) -> None:
        self.spec = spec
        self.server = server
        self.directory = directory
        self.rng = random.Random(f"faults {spec.seed}")
        self.name = f"history_{spec.seed}_{directory.name[-6:]}".lower().replace("-", "_")
        self.dsn = ""
        self.captures: list[CaptureProcess] = []
        self.requested: list[ExecuteSnapshot] = []
        self.events: list[str] = []
        self._started = time.monotonic()

    # ------------------------------------------------------------ building a history

    def __call__(self) -> History:
        """Raises HistoryError if the event log is not a true history."""
        self.dsn = self.server.create_database(self.name)
        try:
            return self._run()
        finally:
            for capture in self.captures:
                if not capture.died:
                    capture.kill()
            with contextlib.suppress(psycopg.Error):
                self.server.drop_database(self.name)

    def _run(self) -> History:
        spec = self.spec
        workload.create(self.dsn, spec.seed)
        self.config_file = self._write_config()
        config = load_config(self.config_file, {})
        collector = Collector(config.log.path)
        collector.start()
        writers = Workload(self.dsn, spec.seed, spec.mix, writers=spec.writers)
        writers.start()
        self._launch()
        try:
            self._await_capture(collector)
            self._disturb(config)
        finally:
            writers.stop()
        self._note(f"{writers.committed} transactions")
        self._settle(config, collector)
        collector.stop()
        for capture in self.captures:
            if not capture.died and capture.stop() != 0:
                raise HistoryError(f"capture ended with an error\n{self.tail(capture)}")
        collector.read(EventLog.open(config.log.path))
        return self._check(config, collector)

    def _write_config(self) -> Path:
        log = "{path: ./log, rollup_bytes: 0}"
        if self.spec.maintenance:
            log = "{path: ./log, rollup_bytes: 200KiB, retention: 4s}"
        path = self.directory / "tidelog.yaml"
        slot = f"slot_{self.name}"[:63]
        path.write_text(
            f"source: {{kind: postgres, url: '{self.dsn}', tables: ['app.*'], slot: {slot}}}\n"
            f"log: {log}\n"
            f"state: {{url: 'sqlite:///{self.directory}/state.db'}}\n"
            f"capture: {{flush_bytes: 16KiB, flush_ms: 20, buffer_bytes: 128KiB, "
            f"lease_ms: {int(LEASE_S * 1000)}}}\n"
            f"dump: {{chunk_rows: {self.rng.choice((7, 23, 200))}, "
            f"delay_ms: {self.rng.choice((0, 5, 60))}}}\n"
        )
        return path

    def _launch(self, failpoint: str = "") -> CaptureProcess:
        log_file = self.directory / f"capture-{len(self.captures)}.log"
        capture = CaptureProcess(self.config_file, log_file, failpoint)
        self.captures.append(capture)
        return capture

    def _note(self, what: str) -> None:
        self.events.append(f"{time.monotonic() - self._started:7.2f} s {what}")

    def _await_capture(self, collector: Collector) -> None:
        deadline = time.monotonic() + 60
        while collector.begin is None and time.monotonic() < deadline:
            time.sleep(0.02)
            self._watch_processes()
        self._note("capture leads")

    # ------------------------------------------------------------ faults and dumps

    def _disturb(self, config: Config) -> None:
        spec, rng = self.spec, self.rng
        end = time.monotonic() + spec.seconds
        fault_at = time.monotonic() + rng.random() * spec.fault_every_s
        dump_at = time.monotonic() + 0.3
        while time.monotonic() < end:
            time.sleep(0.05)
            self._watch_processes()
            if spec.dumps and time.monotonic() >= dump_at:
                dump_at = time.monotonic() + 0.3 + rng.random() * 1.5
                self._request_dump(config)
            if spec.faults and time.monotonic() >= fault_at:
                self._strike(rng.choice(spec.faults))
                fault_at = time.monotonic() + rng.random() * 2 * spec.fault_every_s
        for capture in self.captures:
            if capture.frozen:
                capture.send(signal.SIGCONT)

    def _watch_processes(self) -> None:
        """Replace captures that died of a failpoint; any other death is a bug."""
        for capture in [c for c in self.captures if c.died]:
            if capture.process.returncode == -signal.SIGKILL and capture.failpoint:
                self._note(f"died at {capture.failpoint}")
                self.captures.remove(capture)
            else:
                raise HistoryError(
                    f"capture ended by itself with {capture.process.returncode}\n"
                    f"{self.tail(capture)}"
                )
        if not self.captures:
            self._launch()

    def tail(self, capture: CaptureProcess) -> str:
        return capture.log_file.read_text()[-6000:]

    def _strike(self, fault: str) -> None:
        rng = self.rng
        self._note(f"fault {fault}")
        if fault == "kill":
            victim = rng.choice(self.captures)
            victim.kill()
            self.captures.remove(victim)
            self._launch()
        elif fault == "failpoint":
            names = [(n, hits) for n, hits in FAILPOINTS if n in self.spec.failpoints]
            name, most = rng.choice(names)
            for capture in self.captures:
                capture.kill()
            self.captures.clear()
            self._launch(f"{name}:kill:{rng.randint(1, most)}")
        elif fault == "freeze":
            self._launch()
            time.sleep(1.5)  # it stands by
            victim = self.captures[0]
            victim.send(signal.SIGSTOP)
            time.sleep(LEASE_S * (1.3 + rng.random()))
            victim.send(signal.SIGCONT)
            time.sleep(0.5)
            self._watch_processes()
            if len(self.captures) > 2 or rng.random() < 0.5:
                victim = self.captures.pop(0)
                victim.kill()
        elif fault == "terminate":
            who = rng.choice(("backend_type = 'walsender'", "application_name LIKE 'tidelog%'"))
            with contextlib.suppress(psycopg.Error):
                self.server.execute(
                    f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE {who} "
                    f"AND datname = '{self.name}'"
                )
        elif fault == "restart":
            self.server.restart(mode="immediate")

    def _request_dump(self, config: Config) -> None:
        rng = self.rng
        dump_id = f"d{len(self.requested)}"
        table = TABLES[rng.choice(self.spec.mix.tables)]
        choice = rng.random()
        if choice < 0.3:
            command = ExecuteSnapshot(dump_id=dump_id)
        elif choice < 0.6:
            command = ExecuteSnapshot(dump_id=dump_id, tables=(table.name,))
        elif choice < 0.7 and "app.ints" in self.spec.mix.tables:
            command = ExecuteSnapshot(dump_id=dump_id, tables=("app.ints",), where="id % 2 = 0")
        else:
            keys = {tuple(str(part) for part in table.random_key(rng)) for _ in range(20)}
            command = ExecuteSnapshot(
                dump_id=dump_id,
                tables=(table.name,),
                keys=tuple(sorted(keys)),
                key_columns=table.key,
            )
        self.requested.append(command)
        with contextlib.suppress(TidelogError):
            runtime.send_command(config, command, timeout_s=0.0)

    # ------------------------------------------------------------ the end of a history

    def _settle(self, config: Config, collector: Collector) -> None:
        """Wait until all is captured, every change of a table's shape was noticed, and no dump is
        under way.
        """
        xid = self._last_transaction()
        with contextlib.suppress(TidelogError):
            runtime.send_command(config, SetDumpOptions(chunk_rows=500, delay_ms=0), timeout_s=0.0)
        deadline = time.monotonic() + 90
        calm = 0
        state = SqliteState(config.state.url)
        catalogue = PostgresCatalogue(self.dsn)
        try:
            while calm < 4:
                time.sleep(0.25)
                self._watch_processes()
                if collector.failure is not None:
                    collector.stop()
                seen = xid in collector.xids
                dumps = [state.get(key).value for key in state.keys("dump/")]  # type: ignore[union-attr]
                waiting = state.keys("commands/")
                busy = [d["dump_id"] for d in dumps if d["status"] not in ("completed", "aborted")]
                reread = state.get("dump-reread")
                same = self._shapes_are_known(state, catalogue, config)
                idle = not busy and not waiting and not (reread and reread.value) and same
                calm = calm + 1 if seen and idle else 0
                if time.monotonic() > deadline:
                    raise HistoryError(
                        f"capture does not come to rest: last transaction seen: {seen}, dumps "
                        f"{busy}, commands {waiting}, shapes known: {same}, rereads "
                        f"{[len(entry['keys']) for entry in reread.value] if reread else 0}\n"
                        + "\n".join(self.tail(c) for c in self.captures)
                        + f"\n{[t for d in dumps if d['dump_id'] in busy for t in d['tables']]}"[
                            :2000
                        ]
                    )
            self.dumps = dumps
        finally:
            catalogue.close()
            state.close()

    def _last_transaction(self) -> int:
        """Write to every table once more, so that the log shows each table's last shape."""
        with psycopg.connect(self.dsn) as connection:
            writer = workload.Writer(connection, self.rng)
            for table in TABLES.values():
                writer.put(table, table.random_key(self.rng))
            return int(writer.one("SELECT pg_current_xact_id()::text::int8"))

    def _shapes_are_known(
        self, state: SqliteState, catalogue: PostgresCatalogue, config: Config
    ) -> bool:
        stored = state.get(SHAPES_KEY)
        for table in catalogue.tables(config.source.tables):
            shape = catalogue.shape(table)
            assert shape is not None
            found = f"{shape.storage} {','.join(shape.schema.match_key)}"
            if stored is None or stored.value.get(str(table)) != found:
                return False
        return True

    # ------------------------------------------------------------ checking

    def _check(self, config: Config, collector: Collector) -> History:
        keys = {table.name: table.key for table in TABLES.values()}
        truth = parse_stream(workload.truth_messages(self.dsn), keys, workload.AUDIT)
        check_audit(truth)
        assert collector.begin is not None
        history = History(truth, collector.records, collector.begin)
        history.reread = collector.reread
        history.check_order()
        self._check_stable(config, collector)
        source = {t.name: workload.source_rows(self.dsn, t) for t in TABLES.values()}
        checked = 0
        for dump in self._completed():
            history.check_replay(dump, source[dump.table])
            checked += 1
        chunks = check_chunks(collector.chunks.values(), _sort_key)
        self._note(f"{len(truth)} transactions, {len(collector.records)} records, {chunks} chunks")
        self._note(f"{checked} dumped tables replayed")
        if not checked:
            raise HistoryError("no dump was completed: the run shows nothing")
        return history

    def _completed(self) -> Iterator[TableDump]:
        requests = {command.dump_id: command for command in self.requested}
        for dump in self.dumps:
            for progress in dump["tables"]:
                if progress["status"] == "failed":
                    raise HistoryError(f"dump {dump['dump_id']} failed: {progress['reason']}")
                if progress["status"] != "done":
                    continue
                wanted: Callable[[Any], bool] | None = None
                request = requests.get(dump["dump_id"])
                if request is not None and request.keys is not None:
                    # a dump by keys finds numbers however they are spelled
                    asked = {_value(progress["table"], key) for key in request.keys}
                    wanted = _asked(progress["table"], asked)
                elif request is not None and request.where is not None:
                    wanted = _even
                yield TableDump(
                    dump["dump_id"], progress["table"], progress["first_offset"], wanted
                )

    def _check_stable(self, config: Config, collector: Collector) -> None:
        """What was read while it was written is what the log holds: offsets never change hands."""
        log = EventLog.open(config.log.path)
        try:
            head = log.head_offset
            again = read_event_log(log, head, log.latest_offset())
        except OffsetGoneError:
            return
        seen = [record for record in collector.records if record.offset >= head]
        if [(r.offset, r.payload) for r in again] != [(r.offset, r.payload) for r in seen]:
            raise HistoryError(
                f"the log from {head} on holds {len(again)} records, a reader saw {len(seen)}"
            )


def _even(key: Any) -> bool:
    return int(key[0]) % 2 == 0


def _value(table: str, key: Sequence[str]) -> tuple[Any, ...]:
    return (Decimal(key[0]),) if table == "app.nums" else tuple(key)


def _asked(table: str, keys: set[tuple[Any, ...]]) -> Callable[[Any], bool]:
    return lambda key: _value(table, key) in keys


def _sort_key(table: str, key: Sequence[str | None]) -> Any:
    """Dumps go by the key that rows are matched by; the server's collation is C."""
    parts = [str(part) for part in key]
    if table == "app.nums":
        return (Decimal(parts[0]),)
    if table == "app.coded":
        return (parts[0].encode(),)
    if table in ("app.pairs", "app.parts"):
        return (parts[0].encode(), int(parts[1]))
    return (int(parts[0]),)


# ---------------------------------------------------------------- running and shrinking


def run(spec: Spec, server: PostgresServer, directory: Path) -> Run:
    """Run and check; on failure the error tells seed and events."""
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    this = Run(spec, server, directory)
    try:
        this()
    except HistoryError as error:
        logs = "\n".join(this.events)
        raise HistoryError(f"{spec}\n{logs}\n{error}") from None
    return this


def shrunk(
    spec: Spec, error: HistoryError, attempt: Callable[[Spec], None], budget_s: float
) -> str:
    """Try smaller runs while they fail, for ``budget_s``; the smallest failure's text.

    Threads make a run not wholly repeatable, so each smaller one is tried twice.
    """
    deadline = time.monotonic() + budget_s
    smaller: list[Callable[[Spec], Spec]] = [
        lambda s: replace(s, faults=()),
        *[lambda s, f=f: replace(s, faults=(f,)) for f in spec.faults],
        lambda s: replace(s, mix=replace(s.mix, ddl=False)),
        lambda s: replace(s, mix=replace(s.mix, bulk=False)),
        lambda s: replace(s, mix=replace(s.mix, truncate=False)),
        lambda s: replace(s, maintenance=False),
        lambda s: replace(s, dumps=False),
        *[lambda s, t=t: replace(s, mix=replace(s.mix, tables=(t,))) for t in spec.mix.tables],
        lambda s: replace(s, writers=1),
        lambda s: replace(s, seconds=s.seconds / 2),
    ]
    text = str(error)
    for change in smaller:
        candidate = change(spec)
        if candidate == spec:
            continue
        for _ in range(2):
            if time.monotonic() > deadline:
                return text
            try:
                attempt(candidate)
            except HistoryError as found:
                spec, text = candidate, str(found)
                break
    return text
