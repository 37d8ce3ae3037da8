"""Which files of a Delta table are removed, when, and how many at once."""

from __future__ import annotations

import json
import logging
import os
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import deltalake
import pyarrow as pa
import pytest
from tests.unit.lake.delta_log.tables import METADATA, PROTOCOL, Table

from tidelog.errors import OutputError
from tidelog.outputs.base.file_store import StoredFile, name_beside
from tidelog.outputs.lake.data_files.data_file import DataFile, DeletionVector
from tidelog.outputs.lake.data_files.deletion_vectors import encode
from tidelog.outputs.lake.delta import vacuum
from tidelog.outputs.lake.delta.options import DeltaLayout
from tidelog.outputs.lake.delta.table import DeltaTable
from tidelog.outputs.lake.delta.vacuum import KNOWN_SINCE_PROPERTY, Vacuum, VacuumTimes
from tidelog.outputs.lake.delta_log.actions import add, remove
from tidelog.outputs.lake.delta_log.commits import write_checkpoint
from tidelog.outputs.lake.delta_log.table_state import REMOVED_FILES
from tidelog.ports import StateStore
from tidelog.state.sqlite import SqliteState

DAY_S = 24 * 3600
WEEK_S = 7 * DAY_S
NOW_S = time.time()


def ago_ms(days: float) -> int:
    return int((NOW_S - days * DAY_S) * 1000)


def vector(number: int) -> DeletionVector:
    return DeletionVector("u", encode(bytes([number] * 16)), 1, 40, 1)


def vector_name(number: int) -> str:
    return f"deletion_vector_{uuid.UUID(bytes=bytes([number] * 16))}.bin"


class Lake:
    """A table whose files are names, partitioned by ``_p``; and what vacuums it."""

    def __init__(self, root: Path, caplog: pytest.LogCaptureFixture) -> None:
        self.root, self._caplog = root, caplog
        self.table = Table(root)
        self.state = self.table.state()
        # Its folders begin like hidden ones.
        column = {"name": "_p", "type": "string", "nullable": True, "metadata": {}}
        fields = [*METADATA.schema["fields"], column]
        metadata = {
            **METADATA.to_json(),
            "schemaString": json.dumps({"type": "struct", "fields": fields}),
            "partitionColumns": ["_p"],
        }
        self.commit({"protocol": PROTOCOL.to_json()}, {"metaData": metadata})
        self.copy = DeltaTable(str(root), DeltaLayout(), lambda _: [])

    def commit(self, *actions: dict[str, Any]) -> None:
        self.table.commit(self.state, *actions)

    def file(self, name: str, days: float = 30) -> str:
        """One that was written so long ago."""
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"12345")
        os.utime(path, (NOW_S - days * DAY_S,) * 2)
        return name

    def add(self, name: str, number: int = 0, path: str | None = None) -> DataFile:
        """A file of the table, with the vector of that number."""
        self.file(name)
        if number:
            self.file(vector_name(number))
        there = DataFile(
            path or quote(name), {"_p": "1"}, 5, 1, None, vector(number) if number else None
        )
        self.commit(add(there, data_change=True))
        return there

    def remove(self, there: DataFile, days: float) -> None:
        self.commit(remove(there, at_ms=ago_ms(days), data_change=True))

    def names(self) -> set[str]:
        files = (each for each in self.root.rglob("*") if each.is_file())
        return {str(each.relative_to(self.root)) for each in files}

    def run(self, of: Vacuum, said: str = ": removed ") -> set[str]:
        """Names of the files that are gone once it has said so."""
        before = self.names()
        turn_until(of, lambda: said in self._caplog.text, self.copy)
        return before - self.names()


def turn_until(of: Vacuum, done: Callable[[], bool], *written: DeltaTable) -> None:
    deadline = time.monotonic() + 20
    of.take_turn(written)
    while not done():
        assert time.monotonic() < deadline
        time.sleep(0.001)
        of.take_turn([])


@pytest.fixture
def lake(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> Lake:
    caplog.set_level(logging.INFO, "tidelog.outputs.lake.delta.vacuum")
    return Lake(tmp_path / "t", caplog)


@pytest.fixture
def vacuums(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Vacuum]]:
    """Makes some, which begin at once."""
    monkeypatch.setattr(vacuum, "FIRST_S", 0.0)
    made: list[Vacuum] = []

    def make(after_s: float = WEEK_S, state: StateStore | None = None) -> Vacuum:
        made.append(Vacuum(after_s, "vacuum", VacuumTimes(state, "vacuum/g/delta")))
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.mark.parametrize("checkpoint", [False, True])
def test_only_what_no_version_of_late_needs_goes(
    lake: Lake, vacuums: Callable[..., Vacuum], checkpoint: bool
) -> None:
    gone = set()
    lake.add("alive.parquet")
    lake.add("marked.parquet", 1)
    lake.add("absolute.parquet", path=f"file:{quote(str(lake.root / 'absolute.parquet'))}")
    lake.remove(lake.add("young tombstone.parquet", 2), 6.9)
    lake.remove(lake.add("old tombstone.parquet", 3), 7.1)
    gone |= {"old tombstone.parquet", vector_name(3)}
    # One file, marked anew twice.
    for number, days in ((4, 8.0), (5, 6.0)):
        lake.remove(lake.add("again.parquet", number), days)
    lake.add("again.parquet", 6)
    gone.add(vector_name(4))
    odd = "_p=a b%2Fü"  # as Hive has it
    lake.add(f"{odd}/alive.parquet")
    lake.remove(lake.add(f"{odd}/dead.parquet"), 8)
    gone.add(f"{odd}/dead.parquet")
    if checkpoint:
        write_checkpoint(lake.table.store, lake.state)
        lake.remove(lake.add("behind.parquet"), 8)
        gone.add("behind.parquet")
    for name in ("_delta_log/1.json", "a/.x.crc"):  # of a process that was killed
        lake.file(name_beside(name), days=6.9)
        gone.add(lake.file(name_beside(name), days=7.1))
    for hidden in ("_delta_log/x.parquet", "_other/x", "a/_b/x", "a/.x", ".x.crc", "_change_data_"):
        lake.file(hidden)
    for under_way in ("new.parquet", "_change_data/new.parquet", f"{odd}/new.parquet"):
        lake.file(under_way, days=6.9)
    for left in ("a/left.parquet", "_change_data/cdc.parquet", "_change_data/_p=1/cdc.parquet"):
        gone.add(lake.file(left, days=7.1))
    assert lake.run(vacuums()) == gone


def test_versions_of_the_last_week_are_read_and_no_more(
    lake: Lake, vacuums: Callable[..., Vacuum], tmp_path: Path
) -> None:
    """Of a table that delta-rs writes; and what it would remove itself is removed."""
    place = tmp_path / "other"
    for version in range(4):
        rows = pa.table({"id": [version], "p": ["a/b"]})
        deltalake.write_deltalake(str(place), rows, mode="overwrite", partition_by=["p"])
    # Version 1 was replaced eight days ago.
    for number, days in ((1, 9), (2, 8), (3, 1)):
        log = place / f"_delta_log/{number:020d}.json"
        actions = [json.loads(line) for line in log.read_text().splitlines()]
        for action in actions:
            if "remove" in action:
                action["remove"]["deletionTimestamp"] = ago_ms(days)
        log.write_text("".join(f"{json.dumps(action)}\n" for action in actions))
    for file in place.rglob("*.parquet"):
        os.utime(file, (NOW_S - 30 * DAY_S,) * 2)
    own = deltalake.DeltaTable(str(place)).vacuum(168, dry_run=True, full=True)
    lake.root, lake.copy = place, DeltaTable(str(place), DeltaLayout(), lambda _: [])
    assert lake.run(vacuums()) == {path.replace("%25", "%") for path in own}
    for version in (2, 3):
        found = deltalake.DeltaTable(str(place), version=version).to_pyarrow_table()
        assert found["id"].to_pylist() == [version]
    with pytest.raises(Exception, match=r"(?i)not found|no such file"):
        deltalake.DeltaTable(str(place), version=1).to_pyarrow_table()


def test_a_turn_is_bounded_and_knows_the_table_as_it_is(
    lake: Lake, vacuums: Callable[..., Vacuum], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vacuum, "MOST_FILES", 3)
    files = [lake.add(f"{number}.parquet") for number in range(7)]
    for file in files:
        lake.remove(file, 8)
    of = vacuums()

    def left() -> list[DataFile]:
        return [file for file in files if (lake.root / file.path).exists()]

    of.take_turn([lake.copy])
    deadline = time.monotonic() + 20
    while len(left()) > 4:
        assert time.monotonic() < deadline
    time.sleep(0.05)
    assert len(left()) == 4
    come_back = left()[0]
    lake.commit(add(come_back, data_change=True))  # as RESTORE does
    lake.run(of)
    assert left() == [come_back]


def test_a_table_is_vacuumed_once_a_day_and_not_at_first(
    lake: Lake, vacuums: Callable[..., Vacuum], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vacuum, "FIRST_S", 1000.0)
    clock = [0.0]
    monkeypatch.setattr(vacuum.time, "time", lambda: clock[0])
    listed: list[float] = []
    monkeypatch.setattr(lake.copy.store, "all_files", lambda _: iter(listed.append(clock[0]) or ()))
    of = vacuums()
    of.take_turn([lake.copy])
    expected: list[float] = []
    for clock[0] in (999.0, 1000.0, 1001.0, 87_399.0, 87_401.0):
        if clock[0] in (1000.0, 87_401.0):
            expected.append(clock[0])
        of.take_turn([lake.copy])
        for _ in range(2000):  # by this clock no time passes
            if listed == expected and (of._turn is None or of._turn.done()):
                break
            time.sleep(0.001)
        of.take_turn([])
        assert listed == expected


def test_runs_of_minutes_vacuum_as_often(
    lake: Lake, vacuums: Callable[..., Vacuum], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(vacuum, "FIRST_S", 1000.0)
    monkeypatch.setattr(vacuum, "MOST_FILES", 1)
    clock = [0.0]
    monkeypatch.setattr(vacuum.time, "time", lambda: clock[0])
    state = SqliteState(f"sqlite:///{tmp_path}/state.db")

    def run(*written: DeltaTable) -> int:
        """One with a batch; returns how many files it has removed."""
        for name in "ab":
            lake.file(f"{name}.parquet")
        before, of = lake.names(), vacuums(state=state)
        of.take_turn(written)
        of.finish(threading.Event())
        of.close()
        return len(before - lake.names())

    removed = []
    for clock[0] in (0.0, 999.0, 1000.0, 1001.0, 87_399.0, 87_401.0):
        removed.append(run(lake.copy))
    assert removed == [0, 0, 2, 0, 0, 2]
    clock[0] = 200_000.0
    assert run() == 0, "nothing was written"
    clock[0] = 2000.0
    assert run(lake.copy) == 2, "the clock was put back"


def test_a_run_that_is_stopped_leaves_the_rest_to_the_next_one(
    lake: Lake, vacuums: Callable[..., Vacuum], tmp_path: Path
) -> None:
    state = SqliteState(f"sqlite:///{tmp_path}/state.db")
    lake.file("a.parquet")
    stop = threading.Event()
    stop.set()
    of = vacuums(state=state)
    of._waiting.append(lake.copy)
    of.finish(stop)
    of.close()
    assert "a.parquet" in lake.names()
    of = vacuums(state=state)
    of.take_turn([lake.copy])
    of.finish(threading.Event())
    assert "a.parquet" not in lake.names()


def test_without_the_state_store_the_times_are_those_of_the_process(
    lake: Lake, vacuums: Callable[..., Vacuum], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """No batch fails."""
    state = SqliteState(f"sqlite:///{tmp_path}/state.db")
    state.close()
    lake.file("a.parquet")
    of = vacuums(state=state)
    of.take_turn([lake.copy])
    of.finish(threading.Event())
    assert "a.parquet" not in lake.names()
    assert "when tables are to be vacuumed is not known or not stored" in caplog.text


@pytest.mark.parametrize(("property_", "gone"), [("10 days", False), ("8 days", True)])
def test_a_table_may_keep_files_for_longer(
    lake: Lake, vacuums: Callable[..., Vacuum], property_: str, gone: bool
) -> None:
    lake.copy.exists()
    lake.copy.set_property(REMOVED_FILES, f"interval {property_}")
    lake.state.refresh()
    lake.remove(lake.add("x.parquet"), 9)
    assert bool(lake.run(vacuums())) is gone
    assert lake.copy.property(KNOWN_SINCE_PROPERTY) is None


def test_what_checkpoints_may_have_forgotten_is_kept_for_longer(
    lake: Lake, vacuums: Callable[..., Vacuum], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A table whose checkpoints know files for a week, and versions that are kept for thirty."""
    lake.remove(lake.add("x.parquet"), 9)
    write_checkpoint(lake.table.store, lake.state)  # without the file
    before = lake.state.version
    vacuums(30 * DAY_S).take_turn([lake.copy])
    lake.copy.exists()
    assert lake.copy.property(REMOVED_FILES) == "interval 30 days"
    assert lake.copy.state.version == before + 1, "both properties in one commit"

    def after(days: float) -> Callable[[], int]:
        return lambda: int((NOW_S + days * DAY_S) * 1e9)

    monkeypatch.setattr(time, "time_ns", after(22.9))
    assert lake.run(vacuums(30 * DAY_S), "no files are removed yet") == set()
    monkeypatch.setattr(time, "time_ns", after(23.1))
    assert lake.run(vacuums(30 * DAY_S)) == {"x.parquet"}


def test_nothing_goes_where_the_time_is_not_understood(
    lake: Lake, vacuums: Callable[..., Vacuum]
) -> None:
    lake.copy.exists()
    lake.copy.set_property(REMOVED_FILES, "interval 1 month")
    lake.file("x.parquet")
    assert lake.run(vacuums(), f"no files are removed: {REMOVED_FILES}") == set()


def test_nothing_goes_where_a_vector_is_stored_in_an_unknown_way(
    lake: Lake, vacuums: Callable[..., Vacuum]
) -> None:
    lake.commit(
        add(DataFile("a", deletion_vector=DeletionVector("z", "?", 1, 1, 1)), data_change=True)
    )
    lake.file("x.parquet")
    assert lake.run(vacuums(), "the log has deletion vectors stored as") == set()


def test_a_failure_is_reported_and_the_next_table_comes(
    lake: Lake,
    vacuums: Callable[..., Vacuum],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    tmp_path: Path,
) -> None:
    other = Lake(tmp_path / "u", caplog)
    other.file("x.parquet")
    lake.file("x.parquet")
    monkeypatch.setattr(lake.copy.store, "delete", lambda _: None)
    broken = DeltaTable(str(tmp_path / "v"), DeltaLayout(), lambda _: [])

    def refuse() -> bool:
        raise OutputError("it does not answer")

    monkeypatch.setattr(broken, "exists", refuse)
    of = vacuums()
    turn_until(of, lambda: "x.parquet" not in other.names(), lake.copy, broken, other.copy)
    assert "x.parquet can't be deleted" in caplog.text
    assert "it does not answer" in caplog.text


def test_it_stops_when_the_output_closes(
    lake: Lake, vacuums: Callable[..., Vacuum], monkeypatch: pytest.MonkeyPatch
) -> None:
    listed = 0

    def endless(_: object) -> Iterator[StoredFile]:
        nonlocal listed
        until = time.monotonic() + 20
        while time.monotonic() < until:
            listed += 1
            yield StoredFile("x", 1, int(NOW_S * 1000))

    monkeypatch.setattr(lake.copy.store, "all_files", endless)
    of = vacuums()
    of.take_turn([lake.copy])
    begun = time.monotonic()
    while not listed:
        time.sleep(0.001)
    of.close()
    assert time.monotonic() < begun + 10
