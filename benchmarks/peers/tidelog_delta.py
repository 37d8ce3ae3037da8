"""Tidelog as it is shipped: capture and pipeline in one command, into Delta."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.peers.peer import lines_in_delta, reached_in_delta
from benchmarks.peers.source import Mark, Source


class TidelogDelta:
    title = "Tidelog → Delta"
    slot = "tidelog"

    def __init__(self, source: Source, directory: Path) -> None:
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
