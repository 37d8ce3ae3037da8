"""A history that a pipeline brings into Delta, Iceberg and PostgreSQL at once, whose processes are
killed while users of the lakes commit to their tables: copies never go back and are the source
whenever all is at rest, and tables of changes and of history are the source's history.
"""

from __future__ import annotations

import json
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import product, zip_longest
from pathlib import Path
from typing import Any, Final

import psycopg
from tests.e2e.history_lakes import (
    DeltaLake,
    IcebergLake,
    Lake,
    Users,
    is_conflict,
    users_session,
)
from tests.e2e.history_processes import Collector
from tests.e2e.history_run import LEASE_S, SETTLE_S, Run
from tests.support.oracle.history import HistoryError, SourceHistory, lasts
from tests.support.oracle.states import State, check_states, check_times, states_of, unknown_states
from tests.support.oracle.values import UNCHANGED, Change, Key, Row
from tests.support.oracle.workload import PARTS, Table
from tests.support.pipeline_process import Delivering
from tests.support.postgres_jdbc import postgres_jdbc_jar

from tidelog.config import Config
from tidelog.eventlog.consumers import Consumers
from tidelog.eventlog.reader import EventLog

NAME: Final = "history"
KILL: Final = "kill pipeline"
WRITTEN: Final = ("output.delta.written", "output.iceberg.written")
POINTS: Final = {
    "lake.table.write": 4,
    "delta.commit.before": 40,
    "delta.commit.after": 40,
    "iceberg.written": 40,
    "iceberg.published": 40,
    "lake.rewrite.commit": 2,
    **dict.fromkeys(WRITTEN, 6),
}
"""Where drivers die by themselves, and at which hit at most."""
BEGIN_S: Final = 900.0
"""A loaded machine is no failure."""
LOOK_EVERY_S: Final = 0.2
_OPS: Final = {"c": "I", "u": "U", "d": "D", "t": "T", "r": "r", "s": "c"}
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)

Reader = Callable[[Table], list[Row]]
Growth = Callable[[Table, int], tuple[int, ...]]


class PipelineRun(Run):
    """See `Run`. One of ``spec.faults`` may be `KILL`. Between each two of ``spec.rounds`` all
    comes to rest. ``copy_url``: of an empty database, which Iceberg's catalog is in, too.
    """

    most = 0
    killed = 0
    """Pipelines, by us or at a point."""
    batches = 0
    """Of rows, that came to the table which had the fewest."""

    def __init__(self, *made_from: Any, copy_url: str) -> None:
        super().__init__(*made_from)
        self._copy_url = copy_url
        self._pipelines: list[tuple[Delivering, str]] = []
        tables = self.source.tables.values()
        self._delta = DeltaLake(self.directory, tables, self.rng)
        self._iceberg = IcebergLake(self.directory, tables, self.rng, copy_url)
        self._lakes: tuple[Lake, ...] = (self._delta, self._iceberg)
        self._users_spark = users_session(self._iceberg)

    def __call__(self) -> SourceHistory:
        try:
            return super().__call__()
        finally:
            for process, _ in self._pipelines:
                process.close()
            self._iceberg.close()
            if self._users_spark is not None:
                self._users_spark.stop()

    def _write_config(self) -> Path:
        path = super()._write_config()
        text = path.read_text()
        path.write_text(text.replace(f"lease_ms: {int(LEASE_S * 1000)}", "lease_ms: 10000"))
        conf = {
            "spark.sql.shuffle.partitions": 2,
            "spark.ui.enabled": False,
            "spark.jars": str(postgres_jdbc_jar()),
        }
        pipeline = {
            "name": NAME,
            "trigger_ms": 100,
            "master": "local[2]",
            "small_batch_bytes": self.rng.choice([0, 10_000, 2 << 20]),
            "conf": conf,
        }
        lakes = [lake.section() for lake in self._lakes]
        outputs = [*lakes, {"kind": "postgres", "url": self._copy_url}]
        with path.open("a") as config:
            config.write(f"pipeline: {json.dumps(pipeline)}\noutputs: {json.dumps(outputs)}\n")
        return path

    # ------------------------------------------------------------ processes

    def _disturb(self) -> None:
        self._begin_pipeline()
        tables = [*self.source.tables.values()]
        copies = {(title, table): read for table in tables for title, read in self._copies(table)}
        changes = {
            (lake.name, table): partial(self._changes_below, lake)
            for table in tables
            for lake in self._lakes_of(table, "changes")
        }
        with (
            _Witness(copies, changes) as self._witness,
            Users(self._lakes, tables, self.spec.seed, self._users_spark) as self._users,
        ):
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
                        self._restore_tables()

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

    def _restore_tables(self) -> None:
        """Users with Spark put tables back: what is missing then comes by the next start."""
        if self._users_spark is None:
            return
        with self._witness.forgetting(*(lake.name for lake in self._lakes)):
            self._pipelines[-1][0].close()
            for lake, table in product(self._lakes, self.source.tables.values()):
                if self.rng.random() < 0.5:
                    self._restore(lake, table)
            self._begin_pipeline()
            self._await_lacking_nothing()

    def _restore(self, lake: Lake, table: Table) -> None:
        try:
            to = lake.restore(table, self._users_spark, self.rng)
        except Exception as error:
            if not is_conflict(error):
                raise
            self._restore(lake, table)
        else:
            self._note(f"{lake.name}'s {table.name} put back to {to}")

    def _begin_pipeline(self) -> None:
        """One that dies by itself, until enough did. The first does when a batch is in the tables
        of changes and its offset is not stored: the next pipeline is given this batch again.
        """
        armed = ""
        if not self._pipelines:
            armed = f"{self.rng.choice(WRITTEN)}:kill:1"  # it has the rows of the first dump
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

    def _lakes_of(self, table: Table, *forms: str) -> list[Lake]:
        """Those that hold the table so."""
        return [lake for lake in self._lakes if lake.holds[table.name] in forms]

    def _copies(self, table: Table) -> list[tuple[str, Reader]]:
        """What has the table's rows of now."""
        lakes = self._lakes_of(table, "copy", "history")
        found: list[tuple[str, Reader]] = [(each.name, partial(self._rows, each)) for each in lakes]
        return [*found, ("PostgreSQL", self._in_postgres)]

    def _rows(self, lake: Lake, table: Table) -> list[Row]:
        where = "_current" if lake.holds[table.name] == "history" else "true"
        return [self._texts(row) or {} for row in lake.query(table, where=where)]

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

    def _changes_below(self, lake: Lake, table: Table, version: int) -> tuple[int, ...]:
        """Where a table of changes ends, how many it has, and how many below a version."""
        what = f"coalesce(max(version) + 1, 0), count(*), count(*) FILTER (version < {version})"
        found = lake.query(table, what, "op <> 's'")
        return tuple(found[0].values()) if found else (0, 0, 0)

    def _changes(self, lake: Lake, table: Table) -> list[Change]:
        """The rows of a table of changes as the event log's records, ends of dumps behind all."""
        found = [_change(table, row, self._texts) for row in lake.query(table)]
        return sorted(found, key=lambda change: (change.op == "c", change.offset))

    def _lacking(self) -> str:
        """How an output differs from the source; nothing: none does."""
        for table in self.source.tables.values():
            wanted = self.source.rows(table)
            for title, read in self._copies(table):
                rows = {_key(table, row): row for row in read(table)}
                if differs := _difference(rows, wanted):
                    return f"{title}'s {table.name} {differs}"
            for lake in self._lakes_of(table, "changes"):
                changes = SourceHistory([], self._changes(lake, table), 0, _same)
                if differs := _difference(changes.replay(table.name, 0), wanted):
                    return f"the replay of {lake.name}'s changes of {table.name} {differs}"
        return ""

    # ------------------------------------------------------------ all is at rest

    def _await_delivery(self) -> None:
        """Wait until all outputs have what the log holds now."""
        end = EventLog.open(str(self.directory / "log")).latest_offset()
        before, deadline = (0, 0), 0.0
        while (delivered := self._delivered()) < end:
            now = len(self._pipelines), delivered
            if now != before:
                before, deadline = now, time.monotonic() + BEGIN_S
            if time.monotonic() > deadline:
                raise HistoryError(f"not all is delivered\n{self._pipelines[-1][0].said[-4000:]}")
            time.sleep(0.2)
            self._watch_processes()

    def _await_equal(self) -> None:
        self._await_delivery()
        self._await_lacking_nothing()
        self._witness.check()
        self._users.check()
        self._note(
            f"outputs are equal, {self._witness.looks} looks, {self.killed} pipelines killed"
        )

    def _await_lacking_nothing(self) -> None:
        deadline = time.monotonic() + SETTLE_S
        while lacking := self._lacking():
            if time.monotonic() > deadline:
                raise HistoryError(f"{lacking[:2000]}\n{self._pipelines[-1][0].said[-4000:]}")
            time.sleep(0.5)
            self._watch_processes()

    def _settle(self, config: Config, collector: Collector) -> None:
        super()._settle(config, collector)
        self._await_equal()
        process, _ = self._pipelines[-1]
        process.send(signal.SIGTERM)
        if code := process.wait():
            raise HistoryError(f"the pipeline ended with {code}\n{process.said}")

    def _check(self, config: Config, collector: Collector) -> SourceHistory:
        history = super()._check(config, collector)
        for table in self.source.tables.values():
            for lake in self._lakes_of(table, "changes"):
                self._check_changes(lake, table, history, collector)
            for lake in self._lakes_of(table, "history"):
                self._check_states(lake, table, history)
        tables = [*self.source.tables.values()]
        self.batches = min(lake.commits(table) for lake in self._lakes for table in tables) - 1
        done, lost = (dict(sorted(each.items())) for each in (self._users.done, self._users.lost))
        self._note(f"users committed {done}, others were first to {lost}")
        for lake in self._lakes:
            lake.check_kept()
            titles = lake.check_readers(tables, self._users_spark)
            self._note(f"{lake.name}: {', '.join(titles)} and DuckDB find the same; {lake.layout}")
        return history

    def _check_changes(
        self, lake: Lake, table: Table, history: SourceHistory, collector: Collector
    ) -> None:
        rows = self._changes(lake, table)
        _check_once(rows, history.records, table)
        assert collector.begin is not None
        changes = [row for row in rows if row.op != "c"]
        truth = [
            replace(each, changes=[one for one in each.changes if one.table == table.name])
            for each in history.truth
        ]
        SourceHistory(truth, changes, collector.begin, _same).check_order()
        self._note(f"{lake.name}: {len(rows)} changes of {table.name} are the source's")

    def _check_states(self, lake: Lake, table: Table, history: SourceHistory) -> None:
        rows = [(row, self._texts(row) or {}) for row in lake.query(table)]
        found = [_state(table, row, texts) for row, texts in rows]
        known = states_of(history.records, table.name)
        check_states(found, known)
        dumped = [
            record.commit_us
            for record in history.records
            if record.op == "c" and '"dump-completed"' in record.payload.decode()
            and f'"{table.name}"' in record.payload.decode()
        ]  # fmt: skip
        gone = history.truncated_leaves(table.name) | ({"n", "s"} if table.name == PARTS else set())
        unknown = unknown_states(history.records, table.name, known)
        times = check_times(found, table.name, history.truth, min(dumped), gone, unknown)
        self._note(
            f"{lake.name}: {len(found)} states of {table.name} are the source's, "
            f"as of {times} times"
        )


class _Witness(threading.Thread):
    """Looks at the outputs while they are written: the number of a key never goes back in a copy,
    and a table of changes grows behind its end alone. Use it as a context manager.
    """

    def __init__(
        self,
        copies: Mapping[tuple[str, Table], Reader],
        changes_below: Mapping[tuple[str, Table], Growth],
    ) -> None:
        super().__init__(daemon=True)
        self._copies, self._changes_below = copies, changes_below
        self._newest: dict[tuple[str, str, Any], int] = {}
        self._ends: dict[tuple[str, Table], tuple[int, int]] = {}
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
                for look in self._all():
                    if self._stopping.wait(LOOK_EVERY_S):
                        return
                    look()
        except BaseException as failure:  # noqa: BLE001 - raised by check
            self._failure = failure

    def check(self) -> None:
        """Once more at all. Raises HistoryError."""
        if self._failure is not None:
            raise self._failure
        for look in self._all():
            look()

    @contextmanager
    def forgetting(self, *titles: str) -> Iterator[None]:
        """Looks at nothing meanwhile, and forgets how far these outputs were."""
        with self._turn:
            yield
            self._newest = {key: at for key, at in self._newest.items() if key[0] not in titles}
            self._ends = {key: at for key, at in self._ends.items() if key[0] not in titles}

    def _all(self) -> list[Callable[[], None]]:
        copies = [partial(self._look_at_copy, *each) for each in self._copies]
        return [*copies, *(partial(self._look_at_changes, *each) for each in self._changes_below)]

    def _look_at_changes(self, title: str, table: Table) -> None:
        with self._turn:
            end, count = self._ends.get((title, table), (0, 0))
            now, all_, below = self._changes_below[title, table](table, end)
            if now < end or below != count:
                raise HistoryError(
                    f"{title}'s changes of {table.name} below {end} were {count} rows, and are "
                    f"{below}"
                )
            self._ends[title, table] = now, all_
            self.looks += 1

    def _look_at_copy(self, title: str, table: Table) -> None:
        with self._turn:
            self._compare(title, table, self._copies[title, table](table))
            self.looks += 1

    def _compare(self, title: str, table: Table, rows: list[Row]) -> None:
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


def _check_once(changes: Iterable[Change], records: Iterable[Change], table: Table) -> None:
    """Has each record of a table in the event log its one row, and each row its record?"""
    wanted = list[tuple[int, str, str]]()
    for record in records:
        if record.op == "c":
            control = json.loads(record.payload)
            is_end = control["type"] == "dump-completed" and control["delete_absent"]
            if is_end and control["table"] == table.name:
                wanted.append((control["first_offset"], "c", control["table"]))
        elif record.op != "M" and record.table == table.name:
            wanted.append((record.offset, record.op, record.table))
    found = sorted((change.offset, change.op, change.table) for change in changes)
    for one, other in zip_longest(found, sorted(wanted)):
        if one != other:
            raise HistoryError(f"a table of changes has {one} where the event log has {other}")


# ---------------------------------------------------------------- tables of history


def _state(table: Table, row: Mapping[str, Any], texts: Row) -> State:
    """A row of a table of history. ``texts``: the same as the source has it."""
    since_us, until_us = (
        None if row[name] is None else (row[name] - _EPOCH) // timedelta(microseconds=1)
        for name in ("_valid_from", "_valid_to")
    )
    until = row["_valid_to_version"]
    if row["_current"] != (until is None) or (until is None) != (until_us is None):
        raise HistoryError(f"{table.name} has a state of {_key(table, texts)} that half ended")
    assert since_us is not None
    columns = {name: texts[name] for name in texts if not name.startswith("_") and lasts(name)}
    return State(_key(table, texts), columns, row["_valid_from_version"], since_us, until, until_us)


# ---------------------------------------------------------------- copies


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
