"""Runs the demo: a workload, a dump, ``kill -9`` during it, the recovery, and the verdict."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from threading import Lock
from typing import Any, Generic, Literal, TypeVar

from tidelog import Config, app
from tidelog.app.overview.build import overview
from tidelog.app.overview.remote_control import chunks_of
from tidelog.capture.session.start import INITIAL_DUMP
from tidelog.commands import StartDump
from tidelog.demo.servers.embedded import Watcher
from tidelog.demo.shop import TABLES, Shop, Sizes
from tidelog.demo.workload import Workload, create_shop, open_shop
from tidelog.errors import TidelogError, UsageError
from tidelog.results import Verification
from tidelog.system.download_progress import Download
from tidelog.system.processes import unix_ms

Kind = Literal["ok", "info", "critical"]
LAGS_KEPT = 60
RATE_OVER_S = 3.0


@dataclass(frozen=True, slots=True)
class StoryEvent:
    """An event of the demo."""

    at_s: float
    kind: Kind
    text: str


class Story:
    """Calls ``on_status`` with one document repeatedly. Thread-safe.

    It has ``at_s``, ``source`` (its name), ``step``, the events so far as ``story``, and, if known:
    ``fetching``, ``tables``, ``transactions``, ``capture``, ``dump``, ``lags``, ``lake``.
    """

    def __init__(
        self, source: str, shop_rows: int, on_status: Callable[[dict[str, Any]], None]
    ) -> None:
        """``source``: its name; ``shop_rows``: the rows at the start."""
        self._shop_rows = shop_rows
        self._on_status = on_status
        self._lock = Lock()
        self._started_at = time.monotonic()
        self._state: dict[str, Any] = {"source": source, "step": ""}
        self._lags: deque[float] = deque(maxlen=LAGS_KEPT)
        self._records: deque[tuple[float, int]] = deque(maxlen=LAGS_KEPT)
        self._lag_at = 0
        self.moments: list[StoryEvent] = []

    @property
    def at_s(self) -> float:
        return round(time.monotonic() - self._started_at, 1)

    def set_step(self, step: str) -> None:
        """Set the current step."""
        self.publish(step=step)

    def add_event(self, kind: Kind, text: str) -> None:
        with self._lock:
            self.moments.append(StoryEvent(self.at_s, kind, text))
        self.publish()

    def set_download(self, now: Download) -> None:
        self.publish(fetching=None if now.done else {**asdict(now), "share": now.share})

    def set_row_counts(self, source: Mapping[str, int], lake: Mapping[str, int]) -> None:
        """Set the numbers of rows on both sides."""
        if source:
            self._shop_rows = sum(source.values())
            rows = [
                {"table": table, "source": source[table], "lake": lake.get(table, 0)}
                for table in TABLES
            ]
            self._set(tables=rows)

    def set_capture(self, state: str, pid: int, lag_s: float | None, records: int) -> None:
        """Set the ``state`` (``starts``, ``leads``, ``killed``), and all captures' ``records``."""
        now = time.monotonic()
        if lag_s is not None and int(now) != self._lag_at:
            self._lag_at = int(now)
            self._lags.append(lag_s)
        self._records.append((now, records))
        then, before = next(e for e in self._records if e[0] >= now - RATE_OVER_S)
        rate = (records - before) / (now - then) if now > then else 0.0
        capture = {
            "state": state, "process": pid, "records": records, "records_per_s": round(rate),
            "lag_s": lag_s,
        }  # fmt: skip
        self._set(capture=capture, lags=list(self._lags))

    def set_status(self, status: Mapping[str, Any]) -> None:
        """Set the status document of capture and pipeline."""
        dumps = status.get("dumps") or ()
        if dumps:
            newest = dumps[-1]
            tables = newest["tables"]
            dump = {
                "dump_id": newest["dump_id"],
                "status": newest["status"],
                "rows": sum(table["rows_read"] for table in tables),
                "of_rows": self._shop_rows,
                "superseded": sum(table["rows_superseded"] for table in tables),
            }
            self._set(dump=dump)
        outputs = overview(status, unix_ms()).outputs
        self._set(lake=asdict(outputs[0]) if outputs else None)

    def _set(self, **changes: Any) -> None:
        with self._lock:
            self._state.update(changes)

    def publish(self, **changes: Any) -> None:
        """Update the state, and publish it."""
        with self._lock:
            self._state.update(changes)
            document = {
                "at_s": self.at_s,
                **{name: value for name, value in self._state.items() if value is not None},
                "story": [asdict(moment) for moment in self.moments],
            }
            self._on_status(document)


EVERY_S = 1.0


class DeltaRows:
    """Counts the rows of a Delta table from its log, without a Spark job.

    Each commit adds and removes data files, and has the number of rows in each. Reads commits
    alone, not checkpoints: for a table so young that it has all of them.
    """

    def __init__(self, table: Path) -> None:
        self._log = table / "_delta_log"
        self._next = 0
        self._rows_of: dict[str, int] = {}

    def count(self) -> int:
        """Return the rows as of the newest commit; 0 without a table."""
        while True:
            try:
                text = (self._log / f"{self._next:020}.json").read_text()
            except FileNotFoundError:
                return sum(self._rows_of.values())
            self._apply([json.loads(line) for line in text.splitlines()])
            self._next += 1

    def _apply(self, actions: list[dict[str, Any]]) -> None:
        """Apply a commit, removals first: a file with newly deleted rows is added again."""
        for removed in (action["remove"] for action in actions if "remove" in action):
            self._rows_of.pop(removed["path"], None)
        for added in (action["add"] for action in actions if "add" in action):
            deleted = (added.get("deletionVector") or {}).get("cardinality", 0)
            stats = json.loads(added.get("stats") or "{}")
            self._rows_of[added["path"]] = stats.get("numRecords", 0) - deleted


class RowCounts:
    """Counts both sides repeatedly in its own thread. A context manager.

    Args:
        open_shop: opens a connection for this thread.
        lake: the directory of the shop's Delta tables.
    """

    def __init__(self, open_shop: Callable[[], Shop], lake: Path) -> None:
        self._open_shop = open_shop
        self._copies = {table: DeltaRows(lake / table) for table in TABLES}
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="demo-counts", daemon=True)
        self.source: dict[str, int] = {}
        self.lake: dict[str, int] = {}

    def __enter__(self) -> RowCounts:
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._ended.set()
        self._thread.join(10)

    def _run(self) -> None:
        # Without the server, which ends first if the demo is interrupted, this ends as well.
        with suppress(Exception), self._open_shop() as shop:
            while not self._ended.wait(EVERY_S):
                self.count(shop)

    def count(self, shop: Shop) -> None:
        """Count now."""
        with shop.transaction(commit=False):
            self.source = {table: shop.count(table) for table in TABLES}
        self.lake = {table: copy.count() for table, copy in self._copies.items()}


_END_S = 30.0
_LOG_LINES = 5


class CaptureProcess:
    """A capture process, which always ends with this one.

    Args:
        config_file: its configuration.
        log_file: the file for its stderr.
    """

    def __init__(self, config_file: Path, log_file: Path) -> None:
        self._config_file = config_file
        self._log_file = log_file
        self._process: subprocess.Popen[bytes] | None = None
        self._watcher: Watcher | None = None

    def start(self) -> None:
        """Start it and return at once: it leads some seconds later."""
        command = [sys.executable, "-m", "tidelog", "capture", str(self._config_file), "--json"]
        # An uninstalled checkout is on the path of this process alone.
        path = os.pathsep.join(filter(None, sys.path))
        with self._log_file.open("ab") as log:
            self._process = subprocess.Popen(  # noqa: S603
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=log,
                env=os.environ | {"PYTHONPATH": path},
                # Ctrl-C at a terminal must reach us alone: we stop it in order.
                start_new_session=True,
            )
        self._watcher = Watcher(self._process.pid, "KILL")

    @property
    def pid(self) -> int:
        if self._process is None:
            raise UsageError("capture is not started")
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def kill(self) -> None:
        """Kill it with SIGKILL."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        self._ended()

    def stop(self) -> None:
        """Stop it in order; kill it if that takes too long."""
        if self._process is not None and self.running:
            self._process.terminate()
            try:
                self._process.wait(_END_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        self._ended()

    def log_tail(self) -> str:
        """Return the last lines of its stderr."""
        try:
            lines = self._log_file.read_text(errors="replace").splitlines()
        except FileNotFoundError:
            lines = []
        return "\n".join(lines[-_LOG_LINES:]) or "it logged nothing"

    def _ended(self) -> None:
        watcher, self._watcher = self._watcher, None
        if watcher is not None:
            watcher.close()


T = TypeVar("T")


class BackgroundCall(Generic[T]):
    """Calls a function in a daemon thread; `result` waits for it."""

    def __init__(self, call: Callable[[], T]) -> None:
        self._call = call
        self._value: list[T] = []
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._value.append(self._call())
        except BaseException as failure:  # noqa: BLE001 - raised by result
            self._failure = failure

    @property
    def running(self) -> bool:
        return self._thread.is_alive()

    def wait(self, timeout_s: float) -> bool:
        """Wait; return whether it has ended. Raises nothing."""
        self._thread.join(timeout_s)
        return not self.running

    def result(self) -> T:
        """Wait; return its value or raise its error."""
        self._thread.join()
        if self._failure is not None:
            raise self._failure
        return self._value[0]


TRANSACTIONS_PER_S = 200
KILL_AT = 0.35
"""The share of the first dump that is read when capture is killed."""
SECOND_DUMP = "once-more"
DEAD_S = 2.0
"""Seconds without a capture, so that the user can see it."""
BEAT_S = 0.2
POLL_EVERY_S = 0.5
PATIENCE_S = 300.0
"""The longest wait for steps that take seconds on an idle machine."""
END_S = 15.0


@dataclass(frozen=True, slots=True)
class DurableDump:
    """A dump's part of the event log: the number of each chunk, by table and low key."""

    chunks: Counter[tuple[str, tuple[str | None, ...]]]
    rows: int


class DemoRun:
    """Runs the demo from start to verdict; nothing is left running after it.

    Args:
        config_file: the file for capture and pipeline.
        config: its configuration.
        url: the URL of the shop's database, which is empty.
        lake: the directory of the shop's tables in the lake.
        sizes: the sizes of the shop.
        story: receives the events.
        stop_event: ends the demo with KeyboardInterrupt.
    """

    def __init__(
        self,
        config_file: Path,
        config: Config,
        url: str,
        lake: Path,
        sizes: Sizes,
        story: Story,
        stop_event: threading.Event,
    ) -> None:
        self._config = config
        self._url = url
        self._sizes = sizes
        self._story = story
        self._stop_event = stop_event
        self._capture = CaptureProcess(config_file, config_file.with_name("capture.log"))
        self._workload = Workload(url, sizes, per_second=TRANSACTIONS_PER_S)
        self._counts = RowCounts(lambda: open_shop(url), lake)
        self._ended = threading.Event()
        self._pipeline: BackgroundCall[None] | None = None
        self._feed: app.StatusFeed | None = None
        self._status: dict[str, Any] = {}
        self._poll_at = 0.0
        self._started_ms = 0  # of the capture that runs or starts
        self._killed_at: float | None = None
        self._records_before = 0

    def run(self, seconds: int) -> dict[str, Any]:
        """Return the report; ``seconds``: the shortest time of the workload."""
        with ExitStack() as opened:
            opened.callback(self._end)
            self._make_shop()
            end_at = time.monotonic() + seconds
            self._begin(opened)
            self._wait_until(self._leads, "capture to lead")
            self._wait_until(
                lambda: self._rows(INITIAL_DUMP) >= KILL_AT * self._sizes.rows, "the dump"
            )
            killed = self._kill()
            down_s = self._recover()
            twice = self._complete(killed)
            self._dump_once_more()
            self._story.set_step("everything runs")
            self._wait_until(lambda: time.monotonic() >= end_at, "")
            self._workload.stop()
            self._story.add_event(
                "info",
                f"The application stops after {self._workload.transactions:,} transactions; the "
                "lake takes in the rest, then every row is compared.",
            )
            self._wait_for_lake()
            comparison = self._compare()
        return self._report(comparison, killed, twice, down_s)

    # ------------------------------------------------------------------ steps

    def _make_shop(self) -> None:
        story = self._story
        story.set_step("a shop is made")
        self._wait_for(BackgroundCall(lambda: create_shop(self._url, self._sizes)))
        story.add_event(
            "ok", f"A shop of {self._sizes.rows:,} rows in {len(TABLES)} tables exists."
        )

    def _begin(self, opened: ExitStack) -> None:
        self._workload.start()
        opened.enter_context(self._counts)
        self._start_capture()
        self._pipeline = BackgroundCall(
            lambda: app.run_pipeline(self._config, stop_event=self._ended)
        )
        self._feed = opened.enter_context(app.StatusFeed(self._config))
        self._story.set_step("capture reads the log while it dumps all tables")
        self._story.add_event(
            "ok",
            f"An application writes {TRANSACTIONS_PER_S} transactions a second. Capture reads "
            "the log while it dumps all tables.",
        )

    def _kill(self) -> DurableDump:
        pid = self._capture.pid
        self._records_before = self._records()
        self._capture.kill()
        self._killed_at = time.monotonic()
        durable = self._durable(INITIAL_DUMP)
        share = 100 * durable.rows // self._sizes.rows
        self._story.set_step("nobody captures; the application keeps writing")
        self._story.add_event(
            "critical",
            f"kill -9 of capture, process {pid}, during the dump: {durable.rows:,} rows "
            f"({share}%) are durable in the event log.",
        )
        return durable

    def _recover(self) -> float:
        assert self._killed_at is not None
        before, killed_at = self._workload.transactions, self._killed_at
        self._wait_until(lambda: time.monotonic() >= killed_at + DEAD_S, "")
        self._start_capture()
        self._story.set_step("capture starts again")
        self._wait_until(self._leads, "capture to lead again")
        down_s = time.monotonic() - killed_at
        self._killed_at = None
        missed = self._workload.transactions - before
        self._story.set_step("capture resumes where the event log ends")
        self._story.add_event(
            "ok",
            f"Capture leads again after {down_s:.1f} s, as process {self._capture.pid}. The "
            f"database kept its log: the {missed:,} transactions since then are read now.",
        )
        return down_s

    def _complete(self, killed: DurableDump) -> int:
        self._wait_until(lambda: self._is_finished(INITIAL_DUMP), "the dump")
        durable = self._durable(INITIAL_DUMP)
        twice = sum(durable.chunks[each] > 1 for each in killed.chunks)
        chunks = sum(killed.chunks.values())
        again = "none was read twice" if not twice else f"{twice} were read twice"
        self._story.add_event(
            "ok" if not twice else "critical",
            f"The dump is complete. Of the {chunks} chunks of before the kill {again}: only the "
            f"other {durable.rows - killed.rows:,} rows were read.",
        )
        return twice

    def _dump_once_more(self) -> None:
        self._story.set_step("every table is dumped once more, while everything runs")
        command = StartDump(dump_id=SECOND_DUMP)
        answer = self._wait_for(
            BackgroundCall(lambda: app.send_command(self._config, command, timeout_s=PATIENCE_S))
        )
        if answer.error is not None:
            raise TidelogError(answer.error)
        self._wait_until(lambda: self._is_finished(SECOND_DUMP), "the second dump")
        rows = self._rows(SECOND_DUMP)
        self._story.add_event(
            "ok", f"Every table was dumped once more, while everything ran: {rows:,} rows."
        )

    def _wait_for_lake(self) -> None:
        """Wait until the lake has everything, however long, while it makes progress. A comparison
        during that time would take the cores from it.
        """
        self._story.set_step("the lake takes in the rest")
        settled_at = time.monotonic() + 4 * POLL_EVERY_S  # capture may not have read all yet

        def output() -> dict[str, Any]:
            outputs = self._status.get("outputs") or [{}]
            return dict(outputs[0])

        self._wait_until(
            lambda: time.monotonic() > settled_at and output().get("behind_records") == 0,
            "the lake",
            moves=lambda: output().get("offset"),
        )

    def _compare(self) -> Verification:
        def on_progress(progress: dict[str, Any]) -> None:
            if "number" in progress:
                about = (
                    f"comparing table {progress['number']} of {progress['of']}: {progress['table']}"
                )
                self._story.set_step(
                    "; ".join([about, *([progress["stage"]] if "stage" in progress else [])])
                )

        comparison = self._wait_for(
            BackgroundCall(lambda: app.verify(self._config, on_progress=on_progress))
        )
        with open_shop(self._url) as shop:
            self._counts.count(shop)
        self._publish()
        return comparison

    def _report(
        self, comparison: Verification, killed: DurableDump, twice: int, down_s: float
    ) -> dict[str, Any]:
        names = ("table", "rows", "equal", "missing", "surplus", "different", "note")
        tables = [{name: getattr(each, name) for name in names} for each in comparison.tables]
        equal = comparison.equal and len(tables) == len(TABLES)
        total = sum(table["rows"] for table in tables)
        verdict = "every table equals" if equal else "NOT every table equals"
        summary = f"{len(tables)} tables, {total:,} rows compared: {verdict} its Delta copy."
        self._story.add_event("ok" if equal else "critical", summary)
        return {
            "equal": equal,
            "summary": summary,
            "transactions": self._workload.transactions,
            "records": self._records(),
            "dumped_rows": self._durable(INITIAL_DUMP).rows + self._durable(SECOND_DUMP).rows,
            "rows_before_kill": killed.rows,
            "chunks_before_kill": sum(killed.chunks.values()),
            "chunks_read_twice": twice,
            "down_s": round(down_s, 1),
            "tables": tables,
            "story": [asdict(moment) for moment in self._story.moments],
        }

    # ------------------------------------------------------------------ status

    def _leads(self) -> bool:
        return bool(self._status.get("updated_ms", 0) > self._started_ms)

    def _records(self) -> int:
        """Return the records of all captures so far."""
        its = self._status["capture"]["records"] if self._leads() else 0
        return self._records_before + int(its)

    def _dump(self, dump_id: str) -> dict[str, Any] | None:
        """Return the dump from the leader's status; None if it has none."""
        dumps = self._status.get("dumps") or () if self._leads() else ()
        return next((dump for dump in dumps if dump["dump_id"] == dump_id), None)

    def _rows(self, dump_id: str) -> int:
        dump = self._dump(dump_id)
        return sum(table["rows_read"] for table in dump["tables"]) if dump else 0

    def _is_finished(self, dump_id: str) -> bool:
        dump = self._dump(dump_id)
        if dump is not None and dump["status"] == "aborted":
            raise TidelogError(f"dump {dump_id} failed")
        return dump is not None and dump["status"] == "completed"

    def _durable(self, dump_id: str) -> DurableDump:
        chunks = list(chunks_of(self._config, dump_id))
        ranges = Counter((chunk.table, tuple(chunk.low_key or ())) for chunk in chunks)
        return DurableDump(ranges, sum(chunk.rows_read for chunk in chunks))

    # ------------------------------------------------------------------ waiting

    def _start_capture(self) -> None:
        self._started_ms = unix_ms()
        self._capture.start()

    def _wait_for(self, work: BackgroundCall[T]) -> T:
        self._wait_until(lambda: not work.running, "")
        return work.result()

    def _wait_until(
        self, met: Callable[[], bool], what: str, moves: Callable[[], object] = lambda: None
    ) -> None:
        """Wait until ``met``. Raises TidelogError and KeyboardInterrupt. TidelogError: it took too
        long since ``moves`` changed; never without ``what``, for work that has its own end.
        """
        deadline, last = time.monotonic() + PATIENCE_S, moves()
        while not met():
            if self._stop_event.wait(BEAT_S):
                raise KeyboardInterrupt
            self._poll()
            self._publish()
            if moves() != last:
                deadline, last = time.monotonic() + PATIENCE_S, moves()
            if what and time.monotonic() > deadline:
                raise TidelogError(f"waited for {what} in vain, for {PATIENCE_S:g} s")

    def _poll(self) -> None:
        if self._pipeline is None:
            return
        if not self._pipeline.running:
            self._pipeline.result()
            raise TidelogError("the pipeline ended early")
        if self._killed_at is None and not self._capture.running:
            raise TidelogError(f"capture ended early:\n{self._capture.log_tail()}")
        if self._feed is not None and time.monotonic() >= self._poll_at:
            self._poll_at = time.monotonic() + POLL_EVERY_S
            with suppress(TidelogError, OSError):  # busy: keep the last status
                self._status = self._feed.latest()

    def _publish(self) -> None:
        if self._pipeline is None:
            self._story.publish()
            return
        lag_s, state = None, "starts"
        if self._killed_at is not None:
            lag_s = time.monotonic() - self._killed_at
            state = "starts" if self._capture.running else "killed"
        elif self._leads():
            lag_s, state = (self._status.get("source") or {}).get("lag_s"), "leads"
        if self._status.get("updated_ms"):
            self._story.set_status(self._status)
        self._story.set_capture(state, self._capture.pid, lag_s, self._records())
        self._story.set_row_counts(self._counts.source, self._counts.lake)
        self._story.publish(transactions=self._workload.transactions)

    def _end(self) -> None:
        """Stop everything; after an interrupt, don't wait for the last batch."""
        interrupted = self._stop_event.is_set()
        if interrupted:
            self._story.set_step("ends, because it was interrupted")
        self._ended.set()
        with suppress(Exception):  # it was raised before, if it came before the end
            self._workload.stop()
        if not interrupted:
            self._capture.stop()
            if self._pipeline is not None:
                self._pipeline.wait(4 * END_S)
            return
        self._capture.kill()
        deadline = time.monotonic() + END_S
        while time.monotonic() < deadline:
            with suppress(Exception):  # Py4J's, of a Java process that is gone
                app.cancel_spark_jobs()
            if self._pipeline is None or self._pipeline.wait(1.0):
                break
