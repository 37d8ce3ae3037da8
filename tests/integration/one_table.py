"""A capture inside the test over one table, whose dumps take a while."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg

from tidelog import app
from tidelog.config import Config, parse_config

ROWS = 60_000


@contextmanager
def capturing(database: str, directory: Path, dump: str) -> Iterator[Config]:
    """The table ``t`` of ``ROWS`` rows; ``dump``: options of that section of the configuration."""
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("CREATE TABLE t (id bigint PRIMARY KEY, note text)")
        connection.execute(
            f"INSERT INTO t SELECT n, 'note ' || n FROM generate_series(1, {ROWS}) n"
        )
        connection.execute("ANALYZE t")
    text = (
        f"source: {{kind: postgres, url: {json.dumps(database)}, snapshot: no_data}}\n"
        "log: {path: ./log}\nstate: {url: 'sqlite:///state.db'}\n"
        f"dump: {{{dump}}}\n"
    )
    config = parse_config(text, "tidelog.yaml", directory, {})
    stop = threading.Event()
    capture = threading.Thread(target=lambda: app.run_capture(config, stop_event=stop))
    capture.start()
    try:
        yield config
    finally:
        stop.set()
        capture.join(60)
