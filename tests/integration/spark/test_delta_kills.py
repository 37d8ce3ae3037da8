"""A pipeline into Delta is killed between each two steps: the copy is the source all the same."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import deltalake
import pytest
from tests.integration.event_messages import wait_for as wait_for_log
from tests.integration.spark.test_failover import Pipeline
from tests.support.build_log import BuiltLog
from tests.support.delta_readers import by_delta_rs, by_duckdb, by_spark, rows_of
from tests.support.mysql import MySqlServer
from tests.support.pgoutput_messages import UNCHANGED
from tests.support.pipeline_process import Delivering

import tidelog
from tidelog.config import load_config
from tidelog.outputs.lake.delta.options import DeltaOptions
from tidelog.outputs.lake.delta.table import DeltaTable, path_of
from tidelog.outputs.lake.delta_log.table_state import LAST_CHECKPOINT, PREVIOUS, commit_digest
from tidelog.outputs.lake.table import application_of
from tidelog.state.opening import open_state

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

DRIVER = (
    "delta.commit.before",  # of the table
    "delta.commit.after",
    "lake.table.write:2",
    "delta.commit.before:3",
    "delta.commit.after:2",
    "lake.rewrite.commit",
    "delta.checkpoint.written",
)
CHANGES = {"holds": {"*.*": "changes"}}
HISTORY = {"holds": {"*.*": "history"}}
CHANGES_ON_S3 = {**CHANGES, "on_s3": True}
COPIES = [
    {"deletes": deletes, "deletion_vectors": vectors, **where}
    for where in ({}, {"on_s3": True})
    for deletes in ("hard", "soft")
    for vectors in (True, False)
]
DIED = ("was killed or ended by itself", "small files were not compacted")
CLEAN_UP = ("output.delete:1", "output.delete:2", "delta.vacuum.deleted:1")
"""Of the log, and then of the data: a store of objects deletes all in one request."""
TIMES = ("timestamp", "inCommitTimestamp", "deletionTimestamp", "modificationTime")
TASKS = ("output.task.open", "output.task.written", "output.task.committed", "lake.task.rewrite")


class KilledPipeline:
    """A pipeline into a lake, its changes, and what the copy is to be."""

    def __init__(
        self, built: BuiltLog, path: Path, output: dict[str, Any], **conf: dict[str, str]
    ) -> None:
        self.pipeline = Pipeline(built, path)
        self.pipeline.configure(output, **conf)
        self.built, self.table = built, self.pipeline.table
        self.rows: dict[int, str] = {}
        self.told: set[tuple[int, str]] = set()
        self.turn = self.end = 0

    def change(self, *, touches_old: bool = True) -> None:
        """New rows, and of the others some deleted, some updated, of which one wholly."""
        self.turn += 1
        for key in range(4):
            self._insert(self.turn * 10 + key)
        if touches_old:
            self._change_old()
        self.end = self.built.flush().next

    def _change_old(self) -> None:
        for key in (self.turn * 10 - 10, self.turn * 10 - 19):
            if self.rows.pop(key, None):
                self.built.delete(self.table, str(key))
        if (key := self.turn * 10 - 8) in self.rows:
            self.rows[key] = f"again {self.turn}"
            self.told.add((key, self.rows[key]))
            self.built.update(self.table, str(key), self.rows[key])
        if (key := self.turn * 10 - 7) in self.rows:
            self.built.update(self.table, str(key), UNCHANGED)
        if self.turn > 2:
            self._insert(self.turn * 10 - 20)  # which was deleted

    def _insert(self, key: int) -> None:
        self.rows[key] = f"v{self.turn}"
        self.told.add((key, self.rows[key]))
        self.built.insert(self.table, str(key), self.rows[key])

    def is_delivered(self) -> bool:
        raise NotImplementedError

    def check(self) -> None:
        """Is the copy the source?"""
        raise NotImplementedError

    def run_until_killed(self, armed: str) -> None:
        """Batch after batch."""
        process = self.pipeline.start(armed)
        # Where files are written anew, small ones gather only while batches leave them alone.
        touches_old = not armed.startswith("lake.rewrite.commit")
        for _ in range(25):
            self.change(touches_old=touches_old)
            self.wait(process)
            if process.code is not None:
                assert process.code == -9, process.said
                return
        pytest.fail(f"{armed} was never reached: {process.said}")

    def wait(self, process: Delivering, deaths: int = 0) -> None:
        """Until all is delivered, or it or more than so many of its workers died."""
        deadline = time.monotonic() + 240
        while not self.is_delivered() and process.code is None:
            if _count_of_deaths(process) > deaths:
                return
            assert time.monotonic() < deadline, process.said
            time.sleep(0.05)

    def finish(self) -> None:
        process = self.pipeline.start()
        self.change()
        self.wait(process)
        assert process.code is None, process.said
        self.check()


class Killed(KilledPipeline):
    """Into Delta. ``files``: the directory of the lake's files."""

    def __init__(self, built: BuiltLog, path: Path, lake: str, files: Path, **section: Any) -> None:
        super().__init__(built, path, {"kind": "delta", "path": lake, **section})
        self.on_s3 = "://" in lake
        place = path_of(lake, self.table.table, str(self.table.table))
        self.files = path_of(str(files), self.table.table, str(self.table.table))
        options = DeltaOptions(holds=section.get("holds", {}))
        self.copy = DeltaTable(place, options.layout_of(self.table.table), lambda works: [])

    def is_delivered(self) -> bool:
        application = application_of(self.built.log.generation, "delta")
        return self.copy.exists() and self.copy.committed(application) == self.end

    def check(self) -> None:
        if self.copy.layout.holds == "changes":
            self._check_changes()
            return
        if self.copy.layout.holds == "history":
            self._check_history()
            return
        found = by_duckdb(self.files).to_pylist()
        kept = [row for row in found if not row.get("_deleted")]
        assert [(row["id"], row["v"]) for row in kept] == sorted(self.rows.items())
        assert len({row["id"] for row in found}) == len(found)

    def _check_history(self) -> None:
        """Each state is there, once from each time on, and those that are current are the table."""
        found = by_duckdb(self.files, "id, _valid_from").to_pylist()
        assert {(row["id"], row["v"]) for row in found} == self.told
        assert len({(row["id"], row["_valid_from"]) for row in found}) == len(found)
        current = [(row["id"], row["v"]) for row in found if row["_current"]]
        assert current == sorted(self.rows.items())

    def _check_changes(self) -> None:
        """Each record of the log is a row, and together they are the table."""
        found, rows = by_duckdb(self.files, "version").to_pylist(), {}
        assert len({row["version"] for row in found}) == len(found)
        log, name = self.built.log, str(self.table.table)
        records = [each.rows_by_table.get(name, 0) for each in log.chain().between(0, self.end)]
        assert len(found) == sum(records)
        for change in found:
            key = change["key"]["id"]
            before = rows.pop(key, None)
            if change["op"] != "d":
                rows[key] = before if change["missing"] else change["after"]["v"]
        assert rows == self.rows

    def age(self, days: int) -> None:
        """All of the table is that old, and its vacuum is due."""
        log, digest, shift_ms = Path(self.files) / "_delta_log", "", days * 24 * 3_600_000
        for file in [*log.glob("*.checkpoint.parquet"), Path(self.files) / LAST_CHECKPOINT]:
            file.unlink(missing_ok=True)
        commits = sorted(log.glob("*.json"))
        for commit in commits:
            lines = [json.loads(line) for line in commit.read_text().splitlines()]
            for action in (body for line in lines for body in line.values()):
                action |= {name: action[name] - shift_ms for name in TIMES if name in action}
                action |= {name: digest for name in (PREVIOUS,) if name in action}
            commit.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
            digest = commit_digest(commit.read_bytes())
        for version in range(2, len(commits), 3):
            deltalake.DeltaTable(self.files, version=version).create_checkpoint()
        for file in Path(self.files).rglob("*.*"):
            os.utime(file, (time.time() - shift_ms / 1000,) * 2)
        with closing(open_state(self.pipeline.config.state.location)) as state:
            for key in state.keys("vacuum/"):
                found = state.get(key)
                assert found is not None
                state.put(key, dict.fromkeys(found.value, 0.0), None)


@pytest.fixture
def killed(built: BuiltLog, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Killed]:
    section, files = dict(request.param), tmp_path / "lake"
    lake = str(files)
    if section.pop("on_s3", False):
        s3 = request.getfixturevalue("s3")
        lake, files = s3.url(tmp_path.name), s3.files(tmp_path.name)
    made = Killed(built, tmp_path, lake, files, **section)
    yield made
    made.pipeline.close()


def armed_for(point: str) -> str:
    name, _, hit = point.partition(":")
    return f"{name}:kill:{hit or 1}"


@pytest.mark.parametrize(
    "killed",
    [
        pytest.param({"deletes": "hard"}, marks=pytest.mark.thorough),
        {"deletes": "hard", "on_s3": True},
        pytest.param(CHANGES_ON_S3, marks=pytest.mark.thorough),
    ],
    indirect=True,
    ids=str,
)
def test_a_driver_killed_behind_its_commit_brings_no_row_twice(killed: Killed) -> None:
    killed.change()
    killed.run_until_killed("delta.commit.after:kill:3")
    killed.finish()


@pytest.mark.thorough
@pytest.mark.parametrize(
    "killed",
    [*COPIES, CHANGES, CHANGES_ON_S3, HISTORY, {**HISTORY, "on_s3": True}],
    indirect=True,
    ids=str,
)
def test_a_driver_killed_between_any_two_steps_loses_and_repeats_nothing(killed: Killed) -> None:
    for point in DRIVER:
        if "checkpoint" in point:
            assert killed.copy.exists()
            killed.copy.set_property("delta.checkpointInterval", "5")
        killed.run_until_killed(armed_for(point))
    killed.finish()


@pytest.mark.parametrize(
    "killed",
    [
        pytest.param({"vacuum_after": "7d", **where, **how}, marks=marks)
        for where in ({}, {"on_s3": True})
        for how in ({"deletion_vectors": False}, {"deletion_vectors": True}, CHANGES)
        for marks in ([] if where and how == {"deletion_vectors": False} else pytest.mark.thorough,)
    ],
    indirect=True,
    ids=str,
)
def test_a_driver_killed_amid_a_clean_up_leaves_a_table_and_the_rest_to_the_next(
    killed: Killed, spark: Any
) -> None:
    process = killed.pipeline.start()
    for _ in range(9):
        killed.change()
        killed.wait(process)
    process.close()
    assert killed.copy.exists()
    killed.copy.set_property("delta.checkpointInterval", "1")
    killed.age(40)
    root = Path(killed.files)
    needed = {file.rpartition("/")[2] for file in deltalake.DeltaTable(root).file_uris()}
    old = [file for file in root.glob("*.parquet") if file.name not in needed]
    assert old
    newest = max((root / "_delta_log").glob("*.checkpoint.parquet"))
    first, second, last = CLEAN_UP
    again = 1 if killed.on_s3 else min(14, 8 + len(old))  # a file each time
    order = "version" if killed.copy.layout.holds == "changes" else "_version"
    for point in (first, *[second] * again, last):
        process = killed.pipeline.start(armed_for(point))
        killed.change()
        assert process.wait() == -9, process.said
        killed.check()
        rows = rows_of(by_duckdb(killed.files, order))
        assert rows_of(by_delta_rs(killed.files, order)) == rows
        assert rows_of(by_spark(spark, killed.files, order)) == rows
    killed.finish()
    killed.pipeline.wait_for(lambda: not any(file.exists() for file in old))
    assert min((root / "_delta_log").glob("*.json")).stem == newest.name.partition(".")[0]


@pytest.mark.thorough
@pytest.mark.parametrize(
    "killed",
    [*COPIES, CHANGES, CHANGES_ON_S3, HISTORY, {**HISTORY, "on_s3": True}],
    indirect=True,
    ids=str,
)
def test_tasks_that_are_killed_lose_and_repeat_nothing(killed: Killed, tmp_path: Path) -> None:
    """Each of them, again and again, until the batch is done."""
    marks = {point: tmp_path / point for point in TASKS}
    text = killed.pipeline.file.read_text()  # else the driver would do such small work itself
    killed.pipeline.file.write_text(text.replace("50,", "50, small_batch_bytes: 0,", 1))
    process = killed.pipeline.start(
        ",".join(f"{point}:kill:{mark}" for point, mark in marks.items())
    )
    killed.change()
    killed.pipeline.wait_for(killed.is_delivered)
    for point, mark in marks.items():
        died = _count_of_deaths(process)
        mark.touch()
        while _count_of_deaths(process) == died:  # eight files are put together, not fewer
            assert killed.turn < 40, process.said
            killed.change(touches_old=point != "lake.task.rewrite")
            killed.wait(process, died)
        mark.unlink()
        killed.pipeline.wait_for(killed.is_delivered)
        killed.check()
    assert process.code is None


MINIMAL = (
    "INSERT INTO t VALUES (1, 'a', 1), (2, 'b', 2), (3, 'c', 3)",
    "UPDATE t SET v = 'd' WHERE id = 1",
    "UPDATE t SET n = NULL WHERE id = 2; DELETE FROM t WHERE id = 3",
    "INSERT INTO t VALUES (3, 'e', 4); UPDATE t SET n = n + 1; UPDATE t SET v = 'f' WHERE id = 3",
)
STEPS = (
    "delta.commit.after:kill:2",
    "lake.table.write:kill:1",
    "delta.commit.before:kill:1",
    "delta.commit.after:kill:1",
)


@pytest.mark.thorough
def test_minimal_row_images_are_changes_once_whenever_a_driver_is_killed(
    mysql_server: MySqlServer, mysql_database: str, tmp_path: Path
) -> None:
    place = tmp_path / "lake" / mysql_database / "t"
    outputs = [{"kind": "delta", "path": str(tmp_path / "lake"), **CHANGES}]
    mysql_server.execute("CREATE TABLE t (id int PRIMARY KEY, v varchar(9), n int)", mysql_database)

    def changes() -> list[dict[str, Any]]:
        return by_duckdb(str(place), "version").to_pylist()

    def folded() -> list[tuple[int, Any, Any]]:
        rows: dict[int, dict[str, Any]] = {}
        for change in changes():
            if change["key"] is None:  # the end of the first dump
                continue
            before = rows.pop(change["key"]["id"], {})
            if change["op"] != "d":
                missing = change["missing"] or ()
                after = {k: v for k, v in change["after"].items() if k not in missing}
                rows[change["key"]["id"]] = {**before, **after, "id": change["key"]["id"]}
        return sorted((row["id"], row["v"], row["n"]) for row in rows.values())

    file = tmp_path / "tidelog.yaml"
    file.write_text(
        f"source: {{kind: mysql, url: '{mysql_server.dsn(mysql_database)}', "
        f"tables: ['{mysql_database}.t']}}\nlog: {{path: log}}\n"
        "state: {url: 'sqlite:///state.db'}\npipeline: {trigger_ms: 50, master: 'local[2]'}\n"
        f"outputs: {json.dumps(outputs)}\n"
    )
    config = load_config(file)
    with tidelog.CaptureGroup([config], pipelines=False):
        wait_for_log(config, 0)
        with mysql_server.connect(mysql_database) as session, session.cursor() as cursor:
            cursor.execute("SET SESSION binlog_row_image = MINIMAL")
            known = 0
            for statements, armed in zip(MINIMAL, STEPS, strict=True):
                for statement in statements.split("; "):
                    cursor.execute(statement)
                session.commit()
                known = len(wait_for_log(config, known + 1))
                process = Delivering(file, tmp_path / f"{armed}.log", armed)
                try:
                    assert process.wait(240) == -9, process.said
                finally:
                    process.close()
            cursor.execute("SELECT id, v, n FROM t ORDER BY id")
            wanted = [tuple(row) for row in cursor.fetchall()]
        process = Delivering(file, tmp_path / "last.log")
        try:
            deadline = time.monotonic() + 240
            while len(changes()) < len(wait_for_log(config, known)) or folded() != wanted:
                assert time.monotonic() < deadline, (changes(), wanted, process.said)
                time.sleep(0.2)
        finally:
            process.close()
    versions = [change["version"] for change in changes()]
    assert len(set(versions)) == len(versions)
    assert any(change["missing"] for change in changes())


def _count_of_deaths(process: Delivering) -> int:
    """As the pipeline tells of workers."""
    return sum(process.said.count(text) for text in DIED)
