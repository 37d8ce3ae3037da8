"""Delta tables that hold all of an event log are known without Spark."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.support.build_log import BuiltLog

from tidelog.errors import KeyMissingError, OutputRefusedError, TableLeftOutError
from tidelog.outputs.base.left_out import LeftOutTableStore
from tidelog.outputs.lake.delta import output as delta_output
from tidelog.outputs.lake.delta.config import KIND, DeltaSection
from tidelog.outputs.lake.delta.options import DeltaOptions
from tidelog.outputs.lake.delta.output import files_if_idle
from tidelog.outputs.lake.delta.table import DeltaTable, commit_note, path_of
from tidelog.outputs.lake.delta_log.commits import CommitWriter
from tidelog.outputs.lake.idle import WatchedFiles
from tidelog.outputs.lake.table import application_of
from tidelog.ports import LogExtent
from tidelog.spark.datasource.partitions import schemas_now
from tidelog.spark.transforms import target_table
from tidelog.state.sqlite import SqliteState


class Copies:
    """A log with a row of public.t, and its copy, which has it."""

    def __init__(self, path: Path, **options: Any) -> None:
        self.lake = str(path / "lake")
        self.built = BuiltLog(path / "log")
        self.state = SqliteState(f"sqlite:///{path / 'state.db'}")
        self.schema = self.built.table("public.t", {"id": "int64", "v": "text"})
        self.end = self.insert("1")
        self.application = application_of(self.built.log.generation, "delta")
        self.copy = DeltaTable(
            path_of(self.lake, self.schema.table, "public.t"),
            DeltaOptions(**options).layout_of(self.schema.table),
            lambda works: [],
        )

    def insert(self, key: str) -> int:
        self.built.insert(self.schema, key, "v")
        return self.built.flush().next

    def create(self, generation: str | None = None) -> None:
        source = self.built.log.source
        target = target_table(None, self.schema, (), source, keyed=True)  # type: ignore[arg-type]
        self.copy.exists()
        self.copy.create(target, generation or self.built.log.generation)

    def commit(self, end: int) -> None:
        self.copy.commit([], self.application, self.copy.committed(self.application), end)

    def are_idle(self, **options: Any) -> bool:
        log = self.built.log
        extent = LogExtent(self.built.path, log.generation, log.latest_offset(), self.state)
        found = files_if_idle(extent, self.lake, "delta", (), DeltaOptions(**options))
        return found is not None

    def are_known(self, **options: Any) -> bool:
        """Are they, by the output's kind, which may remember the last check?"""
        log = self.built.log
        extent = LogExtent(self.built.path, log.generation, log.latest_offset(), self.state)
        return KIND.is_idle(DeltaSection(kind="delta", path=self.lake, **options), extent)


@pytest.fixture
def copies(tmp_path: Path) -> Iterator[Copies]:
    made = Copies(tmp_path)
    yield made
    made.state.close()


def test_a_copy_with_all_rows_of_its_table_is_enough(copies: Copies) -> None:
    assert not copies.are_idle(), "there is no table"
    copies.create()
    assert not copies.are_idle(), "it has committed nothing"
    copies.commit(copies.end)
    assert copies.are_idle()
    other = copies.built.table("public.other", {"id": "int64"}, relation_id=2)
    copies.built.insert(other, "1")
    copies.built.flush()
    assert not copies.are_idle(), "the other table's row is nowhere"


def test_a_table_without_a_key_that_is_left_out_is_nothing_to_deliver(copies: Copies) -> None:
    copies.create()
    audit = copies.built.table("public.audit", {"v": "text"}, (), relation_id=2)
    copies.built.insert(audit, "1")
    copies.commit(copies.built.flush().next)
    assert not copies.are_idle(), "nobody left it out"
    left_out = LeftOutTableStore(copies.state, copies.built.log.generation, "delta")
    left_out.add("public.audit", KeyMissingError("it has no key"), 0)
    assert copies.are_idle()
    assert not copies.are_idle(keyless="append"), "a dump is to be requested"
    audit = copies.built.table("public.audit", {"v": "text"}, ("v",), relation_id=2)
    copies.built.insert(audit, "2")
    copies.built.flush()
    assert not copies.are_idle(), "it has a key now"


def test_rows_that_came_later_are_to_be_delivered(copies: Copies) -> None:
    copies.create()
    copies.commit(copies.end)
    later = copies.insert("2")
    assert not copies.are_idle()
    copies.commit(later)
    assert copies.are_idle()


def test_a_dump_that_ended_later_removes_rows(copies: Copies) -> None:
    copies.create()
    copies.commit(copies.end)
    end = copies.built.dump_completed("public.t", copies.end).next
    assert not copies.are_idle()
    copies.commit(end)
    assert copies.are_idle()


def test_a_table_of_changes_is_asked_likewise(tmp_path: Path) -> None:
    made = Copies(tmp_path, holds={"public.*": "changes"})
    made.create()
    made.commit(made.end)
    assert made.are_idle(holds={"public.*": "changes"})
    with pytest.raises(OutputRefusedError, match="contains the changes"):
        made.are_idle()
    made.insert("2")
    assert not made.are_idle(holds={"public.*": "changes"})
    made.state.close()


def test_a_copy_beyond_the_log_or_restored_is_looked_at_with_spark(copies: Copies) -> None:
    copies.create()
    copies.commit(copies.end)
    writer, parameters = CommitWriter(copies.copy.store), {"version": "0"}
    writer.commit(copies.copy.state, [], operation="RESTORE", parameters=parameters, note=None)
    assert not copies.are_idle()
    copies.copy.find_restore(copies.application, copies.end)
    writer.commit(
        copies.copy.state,
        [],
        operation="MERGE",
        parameters={},
        note=commit_note(copies.application, copies.end, copies.copy.state.version),
    )
    assert copies.are_idle()
    copies.copy.exists()
    copies.commit(copies.end + 1000)
    assert not copies.are_idle()


def test_another_configuration_or_log_is_looked_at_with_spark(copies: Copies) -> None:
    copies.create("older")
    copies.commit(copies.end)
    with pytest.raises(OutputRefusedError, match="generation older"):
        copies.are_idle()


def test_deletes_that_become_soft_are_to_be_settled(copies: Copies) -> None:
    copies.create()
    copies.commit(copies.end)
    assert not copies.are_idle(soft_deletes=True)


@pytest.fixture
def checks(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The outputs of which tables were read, by name."""
    found: list[str] = []

    def read(
        log: LogExtent, root: str, output: str, *rest: Any
    ) -> Mapping[str, WatchedFiles] | None:
        found.append(output)
        return files_if_idle(log, root, output, *rest)

    monkeypatch.setattr(delta_output, "files_if_idle", read)
    return found


def test_tables_are_not_read_again_until_somebody_commits(
    copies: Copies, checks: list[str]
) -> None:
    copies.create()
    copies.commit(copies.end)
    assert copies.are_known()
    assert copies.are_known()
    assert len(checks) == 1
    writer = CommitWriter(copies.copy.store)
    writer.commit(copies.copy.state, [], operation="OPTIMIZE", parameters={}, note=None)
    assert copies.are_known()
    assert len(checks) == 2
    writer.commit(
        copies.copy.state, [], operation="RESTORE", parameters={"version": "0"}, note=None
    )
    assert not copies.are_known()


def test_a_check_does_not_hold_for_other_rows_settings_or_tables(
    copies: Copies, checks: list[str]
) -> None:
    copies.create()
    copies.commit(copies.end)
    assert copies.are_known()
    assert not copies.are_known(deletes="soft")
    left_out = LeftOutTableStore(copies.state, copies.built.log.generation, "delta")
    left_out.add("public.t", TableLeftOutError("it is damaged"), 0)
    assert not copies.are_known()
    schemas = schemas_now(copies.built.log).values()
    left_out.take_again(schemas, lambda _: None, lambda _: None, 0)
    left_out.take_again([], lambda _: None, lambda _: None, 0)
    assert copies.are_known()
    copies.insert("2")
    assert not copies.are_known()


def test_a_removed_copy_and_one_in_its_place_are_noticed(copies: Copies) -> None:
    copies.create()
    copies.commit(copies.end)
    assert copies.are_known()
    shutil.rmtree(copies.copy.path)
    assert not copies.are_known(), "it is gone"
    copies.copy = DeltaTable(copies.copy.path, copies.copy.layout, lambda works: [])
    copies.create("older")
    copies.commit(copies.end)
    with pytest.raises(OutputRefusedError, match="generation older"):
        copies.are_known()


LOADED = """
import sys
from tidelog.outputs.lake.delta.config import KIND, DeltaSection
from tidelog.ports import LogExtent
from tidelog.state.sqlite import SqliteState
url, log, generation, end, lake = sys.argv[1:]
extent = LogExtent(log, generation, int(end), SqliteState(url))
found = KIND.is_idle(DeltaSection(kind="delta", path=lake), extent)
print(found, {"numba", "pyspark"} & sys.modules.keys())
"""


def test_a_check_that_holds_loads_neither_spark_nor_the_decoder(
    copies: Copies, tmp_path: Path
) -> None:
    copies.create()
    copies.commit(copies.end)
    assert copies.are_known()
    log, url = copies.built.log, f"sqlite:///{tmp_path / 'state.db'}"
    given = [url, copies.built.path, log.generation, str(log.latest_offset()), copies.lake]
    done = subprocess.run([sys.executable, "-c", LOADED, *given], capture_output=True, text=True)
    assert done.stdout == "True set()\n", done.stderr
