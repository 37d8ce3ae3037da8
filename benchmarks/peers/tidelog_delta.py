"""Tidelog as it is shipped: capture and pipeline in one command, into Delta.

Java's classes come from an archive, as for each pipeline that has run for a minute before.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.peers.peer import lines_in_delta, reached_in_delta
from benchmarks.peers.source import Mark, Source
from tidelog.spark.sessions.class_archive import ClassArchive

_ARCHIVE_S = 300.0


class TidelogDelta:
    title = "Tidelog → Delta"
    slot = "tidelog"

    def __init__(self, source: Source, directory: Path) -> None:
        archive = ClassArchive({})
        archive.make()
        deadline = time.monotonic() + _ARCHIVE_S
        while not archive.java_options() and time.monotonic() < deadline:
            time.sleep(1.0)
        self.directory = directory
        self._source = source
        self._table = directory / "lake" / "public" / "orders"
        (directory / "tidelog.yaml").write_text(
            f"source: {{kind: postgres, url: '{source.dsn}', tables: [public.orders]}}\n"
            "log: {path: log}\nstate: {url: 'sqlite:///state.db'}\n"
            "pipeline: {checkpoint: checkpoint, master: 'local[2]'}\n"
            "outputs: [{kind: delta, path: lake}]\n"
        )

    def commands(self) -> Sequence[Sequence[str]]:
        return [[sys.executable, "-m", "tidelog", "run", "tidelog.yaml"]]

    def reached(self, mark: Mark) -> bool:
        return reached_in_delta(self._table, mark, self._source.rows)

    def lines(self) -> Iterator[bytes]:
        return lines_in_delta(self._table)
