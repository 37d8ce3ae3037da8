"""A history that a pipeline brings into Delta and PostgreSQL at once, whose processes are killed:
both copies never go back, and are the source when all is at rest.
"""

from __future__ import annotations

import json
import signal
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import duckdb
import psycopg
from tests.e2e.history_processes import Collector
from tests.e2e.history_run import LEASE_S, SETTLE_S, Run
from tests.support.delta_readers import by_duckdb
from tests.support.oracle.history import HistoryError, SourceHistory
from tests.support.oracle.values import Key, Row
from tests.support.oracle.workload import Table
from tests.support.pipeline_process import Delivering

from tidelog.config import Config
from tidelog.eventlog.consumers import Consumers
from tidelog.eventlog.reader import EventLog

NAME: Final = "history"
KILL: Final = "kill pipeline"
POINTS: Final = {
    "lake.table.write": 4,
    "delta.commit.before": 12,
    "delta.commit.after": 12,
    "lake.rewrite.commit": 2,
}
"""Where drivers die by themselves, and at which hit at most."""
BEGIN_S: Final = 300.0
"""A loaded machine is no failure."""
LOOK_EVERY_S: Final = 0.3


class PipelineRun(Run):
    """See `Run`. One of ``spec.faults`` may be `KILL`. ``copy_url``: of an empty database."""

    killed = 0
    """Pipelines, by us or at a point."""

    def __init__(self, *made_from: Any, copy_url: str) -> None:
        super().__init__(*made_from)
        self._copy_url = copy_url
        self._pipelines: list[tuple[Delivering, str]] = []
        self._readers: dict[str, Callable[[str], list[Row]]] = {
            "Delta": self._in_delta, "PostgreSQL": self._in_postgres
        }  # fmt: skip

    def __call__(self) -> SourceHistory:
        try:
            return super().__call__()
        finally:
            for process, _ in self._pipelines:
                process.close()

    def _write_config(self) -> Path:
        path = super()._write_config()
        text = path.read_text()
        path.write_text(text.replace(f"lease_ms: {int(LEASE_S * 1000)}", "lease_ms: 10000"))
        small = {"spark.sql.shuffle.partitions": 2, "spark.ui.enabled": False}
        pipeline = {"name": NAME, "trigger_ms": 100, "master": "local[2]", "conf": small}
        outputs = [
            {"kind": "delta", "path": str(self.directory / "lake")},
            {"kind": "postgres", "url": self._copy_url},
        ]
        with path.open("a") as config:
            config.write(f"pipeline: {json.dumps(pipeline)}\noutputs: {json.dumps(outputs)}\n")
        return path

    # ------------------------------------------------------------ processes

    def _disturb(self) -> None:
        self._begin_pipeline()
        with _Witness(self._readers, [*self.source.tables.values()]) as witness:
            self._witness = witness
            super()._disturb()
            while KILL in self.spec.faults and self.killed < self.spec.kills_amid:
                self._strike(KILL)

    def _strike(self, fault: str) -> None:
        """A kill waits until the pipeline has delivered something, if it does not die before."""
        if fault != KILL:
            super()._strike(fault)
            return
        process, point = self._pipelines[-1]
        before, deadline = self._delivered(), time.monotonic() + BEGIN_S
        while process.code is None and self._delivered() <= before:
            if time.monotonic() > deadline:
                raise HistoryError(f"the pipeline delivers nothing\n{process.said}")
            time.sleep(0.05)
            self.commander.turn()
            self._watch_processes()
        if process.code is None:
            point = "any place"
        process.close()
        self.killed += 1
        self._note(f"pipeline killed at {point}")
        self._begin_pipeline(self.rng.choice(sorted(POINTS)))

    def _begin_pipeline(self, point: str = "") -> None:
        armed = f"{point}:kill:{self.rng.randint(1, POINTS[point])}" if point else ""
        log_file = self.directory / f"pipeline-{len(self._pipelines)}.log"
        self._pipelines.append((Delivering(self.config_file, log_file, armed), armed))

    def _watch_pipeline(self) -> None:
        """Another in place of one that died at its point; any other death is a bug."""
        process, point = self._pipelines[-1]
        if process.code is None:
            return
        if process.code != -signal.SIGKILL or not point:
            raise HistoryError(f"the pipeline ended with {process.code}\n{process.said}")
        process.close()
        self.killed += 1
        self._note(f"pipeline killed at {point}")
        self._begin_pipeline()

    def _delivered(self) -> int:
        """Below which offset of the log."""
        log = self.directory / "log"
        found = Consumers(EventLog.open(str(log)).storage).find(NAME) if log.exists() else None
        return 0 if found is None else found.offset

    # ------------------------------------------------------------ the copies

    def _in_delta(self, table: str) -> list[Row]:
        try:
            rows = by_duckdb(str(self.directory / "lake" / table.replace(".", "/")), "ALL")
        except duckdb.Error:
            return []  # it is not there yet
        return [{name: _text(value) for name, value in row.items()} for row in rows.to_pylist()]

    def _in_postgres(self, table: str) -> list[Row]:
        namespace, _, name = table.partition(".")
        with psycopg.connect(self._copy_url) as connection:
            try:
                cursor = connection.execute(f'SELECT * FROM {namespace}."{name}"'.encode())
            except (psycopg.errors.UndefinedTable, psycopg.errors.InvalidSchemaName):
                return []
            names = [column.name for column in cursor.description or ()]
            return [
                {column: _text(value) for column, value in zip(names, row, strict=True)}
                for row in cursor
            ]

    def _lacking(self) -> str:
        """How a copy differs from the source; nothing: none does."""
        for table in self.source.tables.values():
            wanted = self.source.rows(table)
            columns = [*next(iter(wanted.values()), {})]
            for title, read in self._readers.items():
                rows = {_key(table, row): row for row in read(table.name)}
                if len(rows) != len(wanted):
                    return f"{title}'s {table.name} has {len(rows)} rows of {len(wanted)}"
                for key, row in wanted.items():
                    found = rows.get(key, {})
                    wrong = [name for name in columns if found.get(name, "") != row[name]]
                    if wrong:
                        return f"{title}'s {table.name} has {found}, not {row}: {wrong}"
        return ""

    # ------------------------------------------------------------ the end of a history

    def _settle(self, config: Config, collector: Collector) -> None:
        super()._settle(config, collector)
        deadline = time.monotonic() + SETTLE_S
        while lacking := self._lacking():
            if time.monotonic() > deadline:
                raise HistoryError(f"{lacking[:2000]}\n{self._pipelines[-1][0].said[-4000:]}")
            time.sleep(0.5)
            self._watch_processes()
            self._watch_pipeline()
        self._witness.check()
        process, _ = self._pipelines[-1]
        process.send(signal.SIGTERM)
        if code := process.wait():
            raise HistoryError(f"the pipeline ended with {code}\n{process.said}")
        self._note(f"copies are equal, {self._witness.looks} looks, {self.killed} pipelines killed")


class _Witness(threading.Thread):
    """Looks at the copies while they are written: the number of a key never goes back. Use it as a
    context manager.
    """

    def __init__(
        self, readers: Mapping[str, Callable[[str], list[Row]]], tables: list[Table]
    ) -> None:
        super().__init__(daemon=True)
        self._readers, self._tables = readers, tables
        self._newest: dict[tuple[str, str, Any], int] = {}
        self._stopping = threading.Event()
        self._failure: BaseException | None = None
        self.looks = 0

    def __enter__(self) -> _Witness:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self.join(60)

    def run(self) -> None:
        try:
            while True:
                for table in self._tables:
                    for title in self._readers:
                        if self._stopping.wait(LOOK_EVERY_S):
                            return
                        self._look(title, table)
        except BaseException as failure:  # noqa: BLE001 - raised by check
            self._failure = failure

    def check(self) -> None:
        """Once more at all. Raises HistoryError."""
        if self._failure is not None:
            raise self._failure
        for title in self._readers:
            for table in self._tables:
                self._look(title, table)

    def _look(self, title: str, table: Table) -> None:
        rows = self._readers[title](table.name)
        seen = set[Key]()
        for row in rows:
            key, number = _key(table, row), int(row["seq"] or 0)
            place = title, table.name, table.place([str(part) for part in key])
            if key in seen:
                raise HistoryError(f"{title}'s {table.name} has the key {key} twice")
            seen.add(key)
            before = self._newest.get(place, 0)
            if number < before:
                raise HistoryError(
                    f"{title}'s {table.name} went back from {before} to {number} at {key}"
                )
            self._newest[place] = number
        self.looks += 1


def _key(table: Table, row: Row) -> Key:
    return tuple(row[name] for name in table.key)


def _text(value: Any) -> str | None:
    return None if value is None else str(value)
