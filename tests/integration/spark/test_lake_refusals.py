"""Delta tables that can't take their rows: each is left out alone, and is whole once it can."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.integration.spark.conftest import Lake
from tests.support.build_log import BuiltLog
from tests.support.delta_readers import by_duckdb
from tests.support.pgoutput_messages import UNCHANGED

from tidelog.errors import OutputRefusedError
from tidelog.model.schema import TableName
from tidelog.outputs.lake.delta.output import DeltaOptions, DeltaOutput
from tidelog.outputs.lake.delta.table import path_of
from tidelog.outputs.lake.table import GENERATION_PROPERTY as GENERATION
from tidelog.spark.datasource.segment_rows import batch_of
from tidelog.spark.transforms import Step
from tidelog.system import failpoints

pytestmark = pytest.mark.spark

REASONS = {
    "public.damaged": "can't be read: it is damaged",
    "public.append_only": "uses delta.appendOnly",
    "public.partitioned": "is partitioned by nothing, and the configuration says v",
    "public.held": "contains a copy of public.held, and the output's holds says changes",
    "public.clustered": "can't be laid out by nothing",
    "public.stepped": "step drop would alter rows",
    "public.stranger": "was filled from generation other of the event log",
    "public.misfit": "step drop, table public.misfit",
    "public.retyped": "column n of public.retyped is string now and was int",
}
FITTING: dict[str, Any] = {"holds": {"public.stepped": "changes"}}
NOT_FITTING: dict[str, Any] = {
    "holds": {"public.stepped": "changes", "public.held": "changes"},
    "partition_by": {"public.partitioned": ["v"]},
    "cluster_by": {"public.clustered": ["nothing"]},
    "steps": (
        Step("drop", ["n"], ("public.stepped",)),
        Step("drop", ["nothing"], ("public.misfit",)),
    ),
}
COLUMNS = {"id": "int64", "v": "text", "n": "int32"}


def place_of(lake: Lake, table: str) -> Path:
    return Path(path_of(lake.path, TableName.parse(table), table))


@contextmanager
def opened(lake: Lake, options: dict[str, Any]) -> Iterator[tuple[DeltaOutput, list[str]]]:
    """The output as after a restart, and the tables that it requests dumps of."""
    output, asked = lake.output(options=DeltaOptions(**options), state=lake.kept()), list[str]()
    try:
        output.prepare(lake.built.log.generation)
        output.take_again(asked.extend)
        yield output, asked
    finally:
        output.close()


def bring(output: DeltaOutput, built: BuiltLog) -> None:
    output.write(batch_of(built.log, 0, built.log.latest_offset()))


def set_property(place: Path, name: str, value: str) -> None:
    """As another writer does."""
    log = place / "_delta_log"
    texts = [text for each in sorted(log.glob("*.json")) for text in each.read_text().splitlines()]
    metadata = [json.loads(text)["metaData"] for text in texts if '"metaData"' in text][-1]
    metadata["configuration"][name] = value
    version = len(list(log.glob("*.json")))
    (log / f"{version:020}.json").write_text(json.dumps({"metaData": metadata}) + "\n")


@pytest.mark.parametrize("amid", [False, True], ids=["at the start", "amid a run"])
def test_a_table_that_can_not_take_its_rows_is_left_out_alone(
    lake: Lake, built: BuiltLog, amid: bool
) -> None:
    tables = {
        name: built.table(name, COLUMNS, relation_id=number)
        for number, name in enumerate([*REASONS, "public.well"], 1)
    }
    for table in tables.values():
        built.insert(table, "1", "a", "1")
    built.flush()
    with opened(lake, FITTING) as (output, _):
        bring(output, built)
        assert output.left_out_tables() == {}
        kept = place_of(lake, "public.damaged").with_name("kept")
        shutil.copytree(place_of(lake, "public.damaged"), kept)
        if amid:
            spoil(lake, built, tables)
            bring(output, built)
            told = output.left_out_tables()
            names = ("damaged", "append_only", "stranger", "retyped")
            assert told.keys() == {f"public.{name}" for name in names}
    if not amid:
        spoil(lake, built, tables)
    with opened(lake, NOT_FITTING) as (output, asked):
        bring(output, built)
        told = output.left_out_tables()
        assert told.keys() == REASONS.keys()
        for name, why in REASONS.items():
            assert why in told[name], told[name]
        output.take_again(asked.extend)
        assert not asked
    assert by_duckdb(str(place_of(lake, "public.well"))).num_rows == 2
    shutil.rmtree(place_of(lake, "public.damaged"))
    kept.rename(place_of(lake, "public.damaged"))
    set_property(place_of(lake, "public.append_only"), "delta.appendOnly", "false")
    set_property(place_of(lake, "public.stranger"), GENERATION, built.log.generation)
    shutil.rmtree(place_of(lake, "public.retyped"))
    with opened(lake, FITTING) as (output, asked):
        assert sorted(asked) == sorted(REASONS)
        assert "rows are missing until a dump" in output.left_out_tables()["public.damaged"]
        for name in REASONS:
            first = built.dump_started(name).first
            built.chunk(tables[name], [["1", "a", "1"], ["2", "b", "2"]])
            built.dump_completed(name, first)
        bring(output, built)
        assert output.left_out_tables() == {}
    for name in REASONS.keys() - {"public.stepped"}:
        rows = by_duckdb(str(place_of(lake, name)))
        assert sorted(rows.column("id").to_pylist()) == [1, 2], name
        assert sorted(rows.column("v").to_pylist()) == ["a", "b"], name


@pytest.mark.parametrize("damage", ["lost", "cut", "scratched"])
def test_a_table_with_a_damaged_file_is_left_out_alone_until_a_dump_of_it_begins(
    lake: Lake, built: BuiltLog, damage: str
) -> None:
    """Without a restart."""
    tables = [
        built.table(f"public.{name}", COLUMNS, relation_id=number)
        for number, name in enumerate(["t", "well"], 1)
    ]
    for key in "12":
        for table in tables:
            built.insert(table, key, "long " * 100, "1")
    built.flush()
    with opened(lake, {}) as (output, asked):
        bring(output, built)
        [file] = place_of(lake, "public.t").glob("*.parquet")
        content = file.read_bytes()
        middle = len(content) // 4
        if damage == "lost":
            file.unlink()
        elif damage == "cut":
            file.write_bytes(content[:middle])
        else:
            file.write_bytes(b"PAR1" + b"\xff" * middle + content[middle + 4 :])
        for key in "12":
            for table in tables:
                built.update(table, key, UNCHANGED, "2")  # what it keeps is in the file
            built.flush()
            output.take_again(asked.extend)
            bring(output, built)
            told = output.left_out_tables()
            assert told.keys() == {"public.t"}
            assert file.name in told["public.t"]
            assert "tidelog dump CONFIG --table public.t" in told["public.t"]
        file.write_bytes(content)
        start = built.log.latest_offset()
        first = built.dump_started("public.t").first
        built.chunk(tables[0], [["1", "a", "2"], ["2", "b", "2"]])
        end = built.dump_completed("public.t", first).next
        output.write(batch_of(built.log, start, end))
        assert output.left_out_tables() == {}
        assert not asked, "the dump was there"
    numbers = [by_duckdb(str(place_of(lake, f"public.{n}"))).column("n") for n in ("t", "well")]
    assert [each.to_pylist() for each in numbers] == [[2, 2], [2, 2]]


@pytest.mark.thorough
def test_a_damaged_file_that_only_a_rewrite_reads_leaves_its_table_out_alone(
    lake: Lake, built: BuiltLog
) -> None:
    """It loses a row to a batch, gets a column again, or loses marked rows at the start."""
    names = ["public.stepped", "public.readded", "public.marked", "public.well"]
    step = Step("drop", ["v"], ("public.stepped",))
    options = {"steps": (step,), "soft_deletes": True, "deletion_vectors": False}

    def change(*keys: str, readded: dict[str, str] = COLUMNS) -> None:
        for number, name in enumerate(names, 1):
            columns = readded if name == "public.readded" else COLUMNS
            table = built.table(name, columns, relation_id=number)
            for key in keys:
                built.insert(table, *[key, "a", "1"][: len(columns)])
        built.flush()

    def damage(name: str) -> dict[Path, bytes]:
        found = {each: each.read_bytes() for each in place_of(lake, name).glob("*.parquet")}
        for each in found:
            each.write_bytes(b"")
        return found

    with opened(lake, options) as (output, _):
        change("1", "2")
        bring(output, built)
        change("3", readded={"id": "int64", "v": "text"})
        bring(output, built)
        damaged = damage("public.stepped") | damage("public.readded")
        change("1")
        bring(output, built)
        told = output.left_out_tables()
        assert told.keys() == {"public.stepped", "public.readded"}
        assert all(any(file.name in text for file in damaged) for text in told.values())
    for file, content in damaged.items():
        file.write_bytes(content)
    damaged = damage("public.marked")
    with opened(lake, {**options, "soft_deletes": False}) as (output, asked):
        assert sorted(asked) == ["public.readded", "public.stepped"]
        change("4")
        bring(output, built)
        told = output.left_out_tables()["public.marked"]
        assert any(file.name in told for file in damaged)
        assert "tidelog dump CONFIG --table public.marked" in told
    assert sorted(by_duckdb(str(place_of(lake, "public.well")))["id"].to_pylist()) == [1, 2, 3, 4]


def test_a_dump_of_a_table_that_is_left_out_removes_no_rows(lake: Lake, built: BuiltLog) -> None:
    """Its rows come in one batch, its end in the next one. No further dump is requested."""
    name = "public.retyped"
    built.insert(built.table(name, COLUMNS), "1", "a", "1")
    built.flush()
    with opened(lake, {}) as (output, asked):
        bring(output, built)
        table = built.table(name, {**COLUMNS, "n": "text"})
        first = built.dump_started(name).first
        end = built.chunk(table, [["1", "a", "1"]]).next
        bring(output, built)
        assert REASONS[name] in output.left_out_tables()[name]
        last = built.dump_completed(name, first).next
        output.write(batch_of(built.log, end, last))
        output.take_again(asked.extend)
        assert REASONS[name] in output.left_out_tables()[name]
        assert not asked
    assert by_duckdb(str(place_of(lake, name))).num_rows == 1


def test_a_dump_of_which_rows_were_left_out_removes_no_rows(lake: Lake, built: BuiltLog) -> None:
    """It ends after the table was taken again; the next dump removes what is gone."""
    name = "public.append_only"
    table = built.table(name, COLUMNS)
    for key in "123":
        built.insert(table, key, "a", "1")
    built.flush()
    place = place_of(lake, name)

    def ids() -> list[int]:
        return sorted(by_duckdb(str(place)).column("id").to_pylist())

    with opened(lake, {}) as (output, asked):
        bring(output, built)
        first = built.dump_started(name).first
        set_property(place, "delta.appendOnly", "true")
        middle = built.chunk(table, [["1", "a", "1"]]).next
        bring(output, built)
        assert "delta.appendOnly" in output.left_out_tables()[name]
        set_property(place, "delta.appendOnly", "false")
        output.take_again(asked.extend)
        assert asked == [name]
        built.chunk(table, [["2", "a", "1"]])
        end = built.dump_completed(name, first).next
        output.write(batch_of(built.log, middle, end))
        assert ids() == [1, 2, 3]
        assert "rows are missing" in output.left_out_tables()[name]
        first = built.dump_started(name, dump_id="d2").first
        built.chunk(table, [["1", "a", "1"], ["2", "a", "1"]])
        built.dump_completed(name, first, dump_id="d2")
        output.write(batch_of(built.log, end, built.log.latest_offset()))
        assert ids() == [1, 2]
        assert output.left_out_tables() == {}


def test_a_table_without_a_key_is_dumped_when_it_is_no_longer_skipped(
    lake: Lake, built: BuiltLog
) -> None:
    name = "public.audit"
    table = built.table(name, {"v": "text"}, ())
    built.insert(table, "one")
    built.flush()
    with opened(lake, {"keyless": "skip"}) as (output, asked):
        bring(output, built)
        assert list(output.keyless_tables()) == [name]
        output.take_again(asked.extend)
        assert not asked
    with opened(lake, {"keyless": "append"}) as (output, asked):
        assert asked == [name]
        assert "rows are missing" in output.left_out_tables()[name]
        middle = built.log.latest_offset()
        first = built.dump_started(name).first
        ordinal = 7
        built.chunk(table, [["one"]], ordinal=ordinal)
        built.keyless_dump_completed(name, first, ordinal)
        output.write(batch_of(built.log, middle, built.log.latest_offset()))
        assert output.left_out_tables() == {}
    assert by_duckdb(str(place_of(lake, name)), "version").column("op").to_pylist() == ["s", "r"]


def spoil(lake: Lake, built: BuiltLog, tables: dict[str, Any]) -> None:
    """Somebody damages a table, and sets a property; the source alters one; all get rows."""
    commits = (place_of(lake, "public.damaged") / "_delta_log").glob("*.json")
    for each in commits:
        each.write_text("{no json")
    set_property(place_of(lake, "public.append_only"), "delta.appendOnly", "true")
    set_property(place_of(lake, "public.stranger"), GENERATION, "other")
    name = "public.retyped"
    columns = {**COLUMNS, "n": "text"}
    tables[name] = built.table(name, columns, relation_id=[*tables].index(name) + 1)
    for table in tables.values():
        built.insert(table, "2", "b", "2")
    built.flush()


def test_a_table_that_is_spoiled_while_its_batch_is_written_is_left_out_alone(
    lake: Lake, built: BuiltLog
) -> None:
    """The other table's rows are committed, once."""
    names = ("public.append_only", "public.well")
    for number, name in enumerate(names, 1):
        built.insert(built.table(name, COLUMNS, relation_id=number), "1", "a", "1")
    built.flush()
    with opened(lake, FITTING) as (output, _):
        bring(output, built)
        for number, name in enumerate(names, 1):
            built.insert(built.table(name, COLUMNS, relation_id=number), "2", "b", "2")
        built.flush()
        place = place_of(lake, "public.append_only")
        hits = [lambda: set_property(place, "delta.appendOnly", "true")]
        with failpoints.arm({"lake.table.write": lambda: hits.pop()() if hits else None}):
            bring(output, built)
        assert output.left_out_tables().keys() == {"public.append_only"}
        assert by_duckdb(str(place_of(lake, "public.well"))).num_rows == 2


@pytest.mark.parametrize("way", ["prepare", "table_of"])
def test_a_column_that_was_added_before_somebody_asked_for_the_table_is_written(
    lake: Lake, built: BuiltLog, way: str
) -> None:
    """As by an output that is retried after it has stopped, and by one with a filter."""
    built.insert(built.table("public.t", {"id": "int64", "v": "text"}), "1", "a")
    built.flush()
    with opened(lake, {}) as (output, _):
        bring(output, built)
        wider = built.table("public.t", COLUMNS)
        built.insert(wider, "2", "b", "5")
        built.flush()
        if way == "prepare":
            output.prepare(built.log.generation)
        else:
            output.table_of(wider)
        bring(output, built)
    rows = by_duckdb(str(place_of(lake, "public.t")))
    found = zip(rows.column("id").to_pylist(), rows.column("n").to_pylist(), strict=True)
    assert dict(found) == {1: None, 2: 5}


def test_a_policy_that_says_stop_stops_the_output(lake: Lake, built: BuiltLog) -> None:
    built.insert(built.table("public.t", COLUMNS), "1", "a", "1")
    built.flush()
    with opened(lake, {}) as (output, _):
        bring(output, built)
    built.insert(built.table("public.t", {**COLUMNS, "n": "text"}), "2", "b", "2")
    built.flush()
    with (
        opened(lake, {"on_schema_change": "fail"}) as (output, _),
        pytest.raises(OutputRefusedError, match="on_schema_change is fail"),
    ):
        bring(output, built)
