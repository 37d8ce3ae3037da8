"""Tidelog as it is shipped: capture and pipeline in one command, into Delta or Iceberg.

Java's classes come from an archive, as for each pipeline that has run for a minute before.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.support.iceberg_readers import query

from benchmarks.peers.peer import lines_in_delta, lines_of, reached_in_delta
from benchmarks.peers.source import COLUMNS, Mark, Source
from tidelog.spark.sessions.class_archive import ClassArchive

_ARCHIVE_S = 300.0


class Tidelog:
    def __init__(self, lake: str, output: str, source: Source, directory: Path) -> None:
        self.title, self.slot = f"Tidelog → {lake}", f"tidelog_{lake.lower()}"
        archive = ClassArchive({})
        archive.make()
        deadline = time.monotonic() + _ARCHIVE_S
        while not archive.java_options() and time.monotonic() < deadline:
            time.sleep(1.0)
        self.directory = directory
        self._source = source
        self._table = directory / "lake" / "public" / "orders"
        (directory / "tidelog.yaml").write_text(
            f"source: {{kind: postgres, url: '{source.dsn}', tables: [public.orders], "
            f"slot: {self.slot}}}\n"
            "log: {path: log}\nstate: {url: 'sqlite:///state.db'}\n"
            "pipeline: {checkpoint: checkpoint, master: 'local[2]'}\n"
            f"outputs: [{output}]\n"
        )

    def commands(self) -> Sequence[Sequence[str]]:
        return [[sys.executable, "-m", "tidelog", "run", "tidelog.yaml"]]

    def reached(self, mark: Mark) -> bool:
        return reached_in_delta(self._table, mark, self._source.rows)

    def lines(self) -> Iterator[bytes]:
        return lines_in_delta(self._table)


class TidelogDelta(Tidelog):
    def __init__(self, source: Source, directory: Path) -> None:
        super().__init__("Delta", "{kind: delta, path: lake}", source, directory)


class TidelogIceberg(Tidelog):
    def __init__(self, source: Source, directory: Path) -> None:
        output = "{kind: iceberg, path: lake}"
        super().__init__("Iceberg", output, source, directory)

    def reached(self, mark: Mark) -> bool:
        metadata = self._metadata()
        if metadata is None:
            return False
        marked = "max((id = 0)::int * customer)"
        asked = f"count(*) = {self._source.rows} AND {marked} >= {mark.number} AS reached"
        return bool(query(metadata, asked).column("reached")[0].as_py())

    def lines(self) -> Iterator[bytes]:
        metadata = self._metadata()
        assert metadata is not None
        return lines_of(query(metadata, ", ".join(COLUMNS)))

    def _metadata(self) -> str | None:
        """Of the table's newest version: ``v7.metadata.json``."""
        found = (self._table / "metadata").glob("v*.metadata.json")
        newest = max(found, key=lambda file: int(file.name.split(".")[0][1:]), default=None)
        return None if newest is None else str(newest)
