"""A history that a pipeline brings into Delta and PostgreSQL at once, whose processes are killed:
copies never go back and are the source whenever all is at rest, and a table of changes is the
source's history.
"""

from __future__ import annotations

import json
import signal
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime, timedelta
from itertools import zip_longest
from pathlib import Path
from typing import Any, Final

import duckdb
import psycopg
from tests.e2e.history_processes import Collector
from tests.e2e.history_run import LEASE_S, SETTLE_S, Run
from tests.support.delta_readers import by_duckdb
from tests.support.oracle.history import HistoryError, SourceHistory
from tests.support.oracle.values import UNCHANGED, Change, Key, Row
from tests.support.oracle.workload import Table
from tests.support.pipeline_process import Delivering

from tidelog.config import Config
from tidelog.eventlog.consumers import Consumers
from tidelog.eventlog.reader import EventLog

NAME: Final = "history"
KILL: Final = "kill pipeline"
WRITTEN: Final = "output.changes.written"
POINTS: Final = {
    "lake.table.write": 4,
    "delta.commit.before": 40,
    "delta.commit.after": 40,
    "lake.rewrite.commit": 2,
    WRITTEN: 6,
}
"""Where drivers die by themselves, and at which hit at most."""
BEGIN_S: Final = 300.0
"""A loaded machine is no failure."""
LOOK_EVERY_S: Final = 0.2
_OPS: Final = {"c": "I", "u": "U", "d": "D", "t": "T", "r": "r", "s": "c"}
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)

Reader = Callable[[Table], list[Row]]


class PipelineRun(Run):
    """See `Run`. One of ``spec.faults`` may be `KILL`. Between each two of ``spec.rounds`` all
    comes to rest. ``copy_url``: of an empty database.
    """

    most = 0
    killed = 0
    """Pipelines, by us or at a point."""

    def __init__(self, *made_from: Any, copy_url: str) -> None:
        super().__init__(*made_from)
        self._copy_url = copy_url
        self._pipelines: list[tuple[Delivering, str]] = []
        self._copies: dict[str, Reader] = {
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
        lakes = [
            {
                "kind": "delta",
                "name": name,
                "path": str(self.directory / name),
                "holds": {"*.*": name},
            }
            for name in ("copy", "changes")
        ]
        outputs = [*lakes, {"kind": "postgres", "url": self._copy_url}]
        with path.open("a") as config:
            config.write(f"pipeline: {json.dumps(pipeline)}\noutputs: {json.dumps(outputs)}\n")
        return path

    # ------------------------------------------------------------ processes

    def _disturb(self) -> None:
        self._begin_pipeline()
        with _Witness(self._copies, self._changes_below, [*self.source.tables.values()]) as witness:
            self._witness = witness
            self._await_equal()  # or one batch would have the first dump and all changes
            for number in range(1, self.spec.rounds + 1):
                self.workload.most += self.spec.transactions
                super()._disturb()
                while self.killed < number * self.spec.kills_amid:
                    self._strike(KILL)
                if number < self.spec.rounds:
                    with self.workload.still():
                        self.commander.resume()
                        self._await_equal()

    def _strike(self, fault: str) -> None:
        """A kill waits until the pipeline has delivered something, if it does not die before."""
        if fault != KILL:
            super()._strike(fault)
            return
        process, _ = self._pipelines[-1]
        before, deadline = self._delivered(), time.monotonic() + BEGIN_S
        self.workload.most += self.spec.transactions
        while self._delivered() <= before:
            if time.monotonic() > deadline:
                raise HistoryError(f"the pipeline delivers nothing\n{process.said}")
            time.sleep(0.05)
            self._watch_processes()
            if process is not self._pipelines[-1][0]:
                return  # it died at its point
        process.close()
        self.killed += 1
        self._note("pipeline killed at any place")
        self._begin_pipeline()

    def _begin_pipeline(self) -> None:
        """One that dies by itself, until enough did. The first does when a batch is in the tables
        of changes and its offset is not stored: the next pipeline is given this batch again.
        """
        armed = ""
        if not self._pipelines:
            armed = f"{WRITTEN}:kill:{self.rng.randint(1, 3)}"
        elif self.killed < self.spec.kills_amid * self.spec.rounds:
            point = self.rng.choice(sorted(POINTS))
            armed = f"{point}:kill:{self.rng.randint(1, POINTS[point])}"
        log_file = self.directory / f"pipeline-{len(self._pipelines)}.log"
        self._pipelines.append((Delivering(self.config_file, log_file, armed), armed))

    def _watch_processes(self) -> None:
        """Another pipeline in place of one that died at its point; any other death is a bug."""
        super()._watch_processes()
        process, point = self._pipelines[-1] if self._pipelines else (None, "")
        if process is None or process.code is None:
            return
        if process.code != -signal.SIGKILL or not point:
            raise HistoryError(f"the pipeline ended with {process.code}\n{process.said}")
        process.close()
        self.killed += 1
        self._note(f"pipeline died at {point}")
        self._begin_pipeline()

    def _delivered(self) -> int:
        """Below which offset of the log."""
        log = self.directory / "log"
        found = Consumers(EventLog.open(str(log)).storage).find(NAME) if log.exists() else None
        return 0 if found is None else found.offset

    # ------------------------------------------------------------ what readers see

    def _lake(self, holds: str, table: Table) -> str:
        return str(self.directory / holds / table.name.replace(".", "/"))

    def _in_delta(self, table: Table) -> list[Row]:
        try:
            rows = by_duckdb(self._lake("copy", table), "ALL").to_pylist()
        except duckdb.Error:
            return []  # it is not there yet
        return [self._texts(row) or {} for row in rows]

    def _in_postgres(self, table: Table) -> list[Row]:
        namespace, _, name = table.name.partition(".")
        with psycopg.connect(self._copy_url) as connection:
            try:
                cursor = connection.execute(f'SELECT * FROM {namespace}."{name}"'.encode())
            except (psycopg.errors.UndefinedTable, psycopg.errors.InvalidSchemaName):
                return []
            names = [column.name for column in cursor.description or ()]
            return [self._texts(dict(zip(names, row, strict=True))) or {} for row in cursor]

    def _texts(self, row: Mapping[str, Any] | None) -> Row | None:
        """A row of an output as the source has it."""
        if row is None:
            return None
        text = self.source.text
        return {name: None if value is None else text(name, value) for name, value in row.items()}

    def _changes_below(self, table: Table, version: int) -> tuple[int, ...]:
        """Where the table of changes ends, how many it has, and how many below a version."""
        what = f"coalesce(max(version) + 1, 0), count(*), count(*) FILTER (version < {version})"
        try:
            found = by_duckdb(self._lake("changes", table), what=what, where="op <> 's'")
        except duckdb.Error:
            return 0, 0, 0
        return tuple(found.to_pylist()[0].values())

    def _changes(self, tables: Iterable[Table]) -> list[Change]:
        """The rows of tables of changes as the event log's records, ends of dumps behind all."""
        found = [
            _change(table, row, self._texts)
            for table in tables
            for row in by_duckdb(self._lake("changes", table), "version, op").to_pylist()
        ]
        return sorted(found, key=lambda change: (change.op == "c", change.offset))

    def _lacking(self) -> str:
        """How an output differs from the source; nothing: none does."""
        for table in self.source.tables.values():
            wanted = self.source.rows(table)
            for title, read in self._copies.items():
                rows = {_key(table, row): row for row in read(table)}
                if differs := _difference(rows, wanted):
                    return f"{title}'s {table.name} {differs}"
            try:
                changes = SourceHistory([], self._changes([table]), 0, _same)
            except duckdb.Error:
                return f"there are no changes of {table.name}"
            if differs := _difference(changes.replay(table.name, 0), wanted):
                return f"the replay of the changes of {table.name} {differs}"
        return ""

    # ------------------------------------------------------------ all is at rest

    @property
    def batches(self) -> int:
        """Of rows, that came to the table which had the fewest."""
        folders = [
            Path(self._lake(holds, table)) / "_delta_log"
            for holds in ("copy", "changes")
            for table in self.source.tables.values()
        ]
        return min(len([*folder.glob("*.json")]) for folder in folders) - 1

    def _await_delivery(self) -> None:
        """Wait until all outputs have what the log holds now."""
        deadline = time.monotonic() + BEGIN_S
        end = EventLog.open(str(self.directory / "log")).latest_offset()
        while self._delivered() < end:
            if time.monotonic() > deadline:
                raise HistoryError(f"not all is delivered\n{self._pipelines[-1][0].said[-4000:]}")
            time.sleep(0.2)
            self._watch_processes()

    def _await_equal(self) -> None:
        self._await_delivery()
        deadline = time.monotonic() + SETTLE_S
        while lacking := self._lacking():
            if time.monotonic() > deadline:
                raise HistoryError(f"{lacking[:2000]}\n{self._pipelines[-1][0].said[-4000:]}")
            time.sleep(0.5)
            self._watch_processes()
        self._witness.check()
        self._note(
            f"outputs are equal, {self._witness.looks} looks, {self.killed} pipelines killed"
        )

    def _settle(self, config: Config, collector: Collector) -> None:
        super()._settle(config, collector)
        self._await_equal()
        process, _ = self._pipelines[-1]
        process.send(signal.SIGTERM)
        if code := process.wait():
            raise HistoryError(f"the pipeline ended with {code}\n{process.said}")

    def _check(self, config: Config, collector: Collector) -> SourceHistory:
        history = super()._check(config, collector)
        records = self._changes(self.source.tables.values())
        _check_once(records, history.records)
        assert collector.begin is not None
        changes = [record for record in records if record.op != "c"]
        SourceHistory(history.truth, changes, collector.begin, _same).check_order()
        self._note(f"{len(records)} rows of tables of changes are the source's history")
        return history


class _Witness(threading.Thread):
    """Looks at the outputs while they are written: the number of a key never goes back in a copy,
    and a table of changes grows behind its end alone. Use it as a context manager.
    """

    def __init__(
        self,
        copies: Mapping[str, Reader],
        changes_below: Callable[[Table, int], tuple[int, ...]],
        tables: list[Table],
    ) -> None:
        super().__init__(daemon=True)
        self._copies, self._changes_below, self._tables = copies, changes_below, tables
        self._newest: dict[tuple[str, str, Any], int] = {}
        self._ends: dict[str, tuple[int, int]] = {}
        self._turn = threading.Lock()
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
                    if self._stopping.wait(LOOK_EVERY_S):
                        return
                    self._look(table)
        except BaseException as failure:  # noqa: BLE001 - raised by check
            self._failure = failure

    def check(self) -> None:
        """Once more at all. Raises HistoryError."""
        if self._failure is not None:
            raise self._failure
        for table in self._tables:
            self._look(table)

    def _look(self, table: Table) -> None:
        with self._turn:
            for title, read in self._copies.items():
                self._look_at_copy(title, table, read(table))
            end, count = self._ends.get(table.name, (0, 0))
            now, all_, below = self._changes_below(table, end)
            if now < end or below != count:
                raise HistoryError(
                    f"the changes of {table.name} below {end} were {count} rows, and are {below}"
                )
            self._ends[table.name] = now, all_
            self.looks += 1

    def _look_at_copy(self, title: str, table: Table, rows: list[Row]) -> None:
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


# ---------------------------------------------------------------- tables of changes


def _change(
    table: Table, row: dict[str, Any], texts: Callable[[Mapping[str, Any] | None], Row | None]
) -> Change:
    """A row of a table of changes as a record of the event log. The end of a dump, which stands at
    its begin, says which rows are gone.
    """
    source, op, payload = row["source"], _OPS[row["op"]], b""
    if op == "c":
        end = {"type": "dump-completed", "table": table.name, "first_offset": row["version"]}
        payload = json.dumps({**end, "delete_absent": True}).encode()
    elif op == "D" and source["origin"] == "dump":
        op = "a"
    new = texts(row["after"])
    if new is not None:
        new |= dict.fromkeys(row["missing"] or (), UNCHANGED)
    at = source["commit_ts"]
    return Change(
        op,
        table.name,
        payload,
        source["position"] or 0,
        source["xid"] or 0,
        0 if at is None else (at - _EPOCH) // timedelta(microseconds=1),
        new,
        texts(row["before"]),
        table.key,
        row["version"],
    )


def _same(change: Change, row: Change) -> bool:
    """Does a row of a table of changes say what the source committed? Columns that the table had
    before or gets later are NULL, and in ``before`` those that the source did not log.
    """
    old = change.old and {name: v for name, v in change.old.items() if v != UNCHANGED}
    return (
        (row.op, row.table, row.position, row.commit_us)
        == (change.op, change.table, change.position, change.commit_us)
        and change.xid in (row.xid, row.xid & 0xFFFFFFFF)  # PostgreSQL logs 32 bits
        and _holds(row.new, change.new)
        and _holds(row.old, old)
    )


def _holds(found: Row | None, wanted: Row | None) -> bool:
    if found is None or wanted is None:
        return found is wanted
    return found == {**dict.fromkeys(found), **wanted}


def _check_once(changes: Iterable[Change], records: Iterable[Change]) -> None:
    """Has each record of the event log its one row, and each row its record?"""
    wanted = list[tuple[int, str, str]]()
    for record in records:
        if record.op == "c":
            control = json.loads(record.payload)
            if control["type"] == "dump-completed" and control["delete_absent"]:
                wanted.append((control["first_offset"], "c", control["table"]))
        elif record.op != "M":
            wanted.append((record.offset, record.op, record.table))
    found = sorted((change.offset, change.op, change.table) for change in changes)
    for one, other in zip_longest(found, sorted(wanted)):
        if one != other:
            raise HistoryError(f"tables of changes have {one} where the event log has {other}")


def _difference(rows: Mapping[Key, Row], wanted: Mapping[Key, Row]) -> str:
    """Of what an output has and the source's rows; nothing: none."""
    if rows.keys() != wanted.keys():
        lacks, more = sorted(wanted.keys() - rows.keys()), sorted(rows.keys() - wanted.keys())
        return f"has {len(rows)} rows of {len(wanted)}; lacks {lacks[:3]}, has {more[:3]} too"
    for key, row in wanted.items():
        found = rows[key]
        wrong = [name for name, value in row.items() if found.get(name, "") != value]
        if wrong:
            return f"differs at {key} in {wrong}: {_brief(found)}, not {_brief(row)}"
    return ""


def _brief(row: Row) -> Row:
    return {name: value and value[:24] for name, value in row.items()}


def _key(table: Table, row: Row) -> Key:
    return tuple(row[name] for name in table.key)
