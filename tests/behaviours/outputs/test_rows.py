"""What becomes of rows: changes of every kind, dumps, truncates, several tables, new columns."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from tests.behaviours.outputs.destinations import Destination, write
from tests.support.build_log import BuiltLog
from tests.support.pgoutput_messages import UNCHANGED

from tidelog.errors import OutputRefusedError
from tidelog.model.schema import TableSchema
from tidelog.spark.datasource.segment_rows import batch_of
from tidelog.spark.pipeline import DUMP_COMPLETED
from tidelog.spark.transforms import Step

pytestmark = pytest.mark.spark

COLUMNS = {"id": "int64", "v": "text", "n": "int32"}


def row(key: int, v: str | None, n: int | None) -> dict[str, Any]:
    return {"id": key, "v": v, "n": n}


def bring(destination: Destination, built: BuiltLog, **how: Any) -> None:
    """Everything that is in the log, as one batch."""
    write(destination, built, (built.log.head_offset, built.log.latest_offset()), **how)


@pytest.mark.parametrize("parts", ["one task", "several tasks"])
def test_every_kind_of_change(destination: Destination, built: BuiltLog, parts: str) -> None:
    table = built.table("public.t", COLUMNS)
    for number in range(1, 6):
        built.insert(table, str(number), f"v{number}", "0")
    built.flush()
    built.update(table, "1", "changed", "1")
    built.delete(table, "2")
    built.update(table, "30", "moved", "3", key=["3"])
    built.flush()
    built.update(table, "4", UNCHANGED, "4")  # in the same batch as what it does not tell
    built.flush()
    bring(destination, built, **({} if parts == "one task" else {"part_bytes": 1}))
    built.update(table, "5", UNCHANGED, "5")  # in a later one
    built.delete(table, "77")  # that there never was
    built.flush()
    bring(destination, built)
    assert sorted(destination.rows("public.t"), key=lambda each: int(each["id"])) == [
        row(1, "changed", 1),
        row(4, "v4", 4),
        row(5, "v5", 5),
        row(30, "moved", 3),
    ]


def test_a_truncate_empties_the_table(destination: Destination, built: BuiltLog) -> None:
    table = built.table("public.t", COLUMNS)
    built.insert(table, "1", "a", "1")
    built.insert(table, "2", "b", "2")
    built.flush()
    bring(destination, built)
    built.update(table, "2", "c", "2")
    built.truncate(table)
    built.insert(table, "3", "d", "3")
    built.flush()
    bring(destination, built)
    assert destination.rows("public.t") == [row(3, "d", 3)]
    built.truncate(table)
    built.flush()
    bring(destination, built)
    assert destination.rows("public.t") == []


def test_a_complete_dump_removes_what_it_lacks(destination: Destination, built: BuiltLog) -> None:
    if "stream" in destination.traits:
        pytest.skip("a stream has no rows to remove; dumps send deletes of keys they look for")
    table = built.table("public.t", COLUMNS)
    for key in "123":
        built.insert(table, key, "old", "0")
    built.flush()
    bring(destination, built)
    first = built.chunk(table, [("1", "dumped", "1")], absent=[("2",)]).first
    built.control(
        {
            "type": DUMP_COMPLETED,
            "dump_id": "d1",
            "table": "public.t",
            "first_offset": first,
            "delete_absent": True,
        }
    )
    bring(destination, built)
    assert destination.rows("public.t") == [row(1, "dumped", 1)]


def test_tables_go_their_own_ways(destination: Destination, built: BuiltLog) -> None:
    one = built.table("public.t", COLUMNS)
    two = built.table("public.u", {"id": "int64", "w": "text"}, relation_id=2)
    built.insert(one, "1", "a", "1")
    built.insert(two, "1", "b")
    built.update(one, "1", "c", "1")
    built.delete(two, "1")
    built.insert(two, "2", "d")
    built.flush()
    bring(destination, built)
    assert destination.rows("public.t") == [row(1, "c", 1)]
    assert destination.rows("public.u") == [{"id": 2, "w": "d"}]


def test_columns_follow_the_source(destination: Destination, built: BuiltLog) -> None:
    table = built.table("public.t", {"id": "int64", "n": "int32"})
    built.insert(table, "1", "1")
    built.insert(table, "2", "2")
    built.flush()
    bring(destination, built)
    wider = built.table("public.t", {"id": "int64", "n": "int64", "v": "text"})
    built.insert(wider, "2", str(2**40), "new")
    built.flush()
    bring(destination, built)
    found = destination.rows("public.t")
    assert [each["n"] for each in found] == [1, 2**40]
    assert [each.get("v") for each in found] == [None, "new"]


def test_a_column_that_was_dropped_and_comes_back_takes_values(
    destination: Destination, built: BuiltLog
) -> None:
    """The shape that is there again has its old number, which is not the greatest."""
    columns = {"id": "int64", "v": "text"}

    def wide() -> TableSchema:
        return built.table("public.t", columns | {"c": "text"})

    def narrow() -> TableSchema:
        return built.table("public.t", columns)

    first = wide()
    built.insert(first, "1", "a", "old")
    ends = [built.log.head_offset, built.flush().next]
    built.insert(narrow(), "2", "b")
    ends.append(built.flush().next)
    built.update(narrow(), "1", "between")
    built.flush()
    assert wide().schema_id == first.schema_id
    built.update(wide(), "1", "after", "new")
    built.insert(wide(), "3", "c", "new")
    ends.append(built.flush().next)
    built.insert(wide(), "4", "d", "newer")
    built.update(wide(), "2", "b", "newer")
    ends.append(built.flush().next)
    write(destination, built, (ends[0], ends[1]))
    write(destination, built, *itertools.pairwise(ends[1:]))  # by one that knows no other columns
    found = {each["id"]: (each["v"], each.get("c")) for each in destination.rows("public.t")}
    assert found == {
        1: ("after", "new"),
        2: ("b", "newer"),
        3: ("c", "new"),
        4: ("d", "newer"),
    }


def test_a_rename_that_was_taken_back_lets_steps_name_the_column(
    destination: Destination, built: BuiltLog
) -> None:
    if "no-delivery" in destination.traits:
        pytest.skip("its steps are its own")
    old = built.table("public.t", {"id": "int64", "a": "text"})
    built.table("public.t", {"id": "int64", "b": "text"})
    built.insert(old, "1", "x")
    built.flush()
    write(destination, built, steps=(Step("mask", {"a": "***"}),))  # starts


def test_a_changed_schema_is_refused_where_that_is_asked_for(
    destination: Destination, built: BuiltLog
) -> None:
    if "no-delivery" in destination.traits:
        pytest.skip("it always evolves")
    table = built.table("public.t", {"id": "int64"})
    built.insert(table, "1")
    built.flush()
    bring(destination, built)
    built.insert(built.table("public.t", {"id": "int64", "v": "text"}), "2", "new")
    built.flush()
    with pytest.raises(OutputRefusedError, match="columns v"):
        bring(destination, built, on_schema_change="fail")
    bring(destination, built, on_schema_change="ignore")
    assert destination.rows("public.t") == [{"id": 1}, {"id": 2}]


def test_a_column_that_was_dropped_before_is_no_change_to_refuse(
    destination: Destination, built: BuiltLog
) -> None:
    if "no-delivery" in destination.traits:
        pytest.skip("it always evolves")
    built.insert(built.table("public.t", {"id": "int64", "a": "text", "v": "text"}), "1", "a", "b")
    built.flush()
    bring(destination, built)
    table = built.table("public.t", {"id": "int64", "v": "text"})
    built.insert(table, "2", "c")
    built.flush()
    with pytest.raises(OutputRefusedError, match="columns a"):
        bring(destination, built, on_schema_change="fail")
    bring(destination, built, on_schema_change="evolve")
    built.insert(table, "3", "d")
    built.flush()
    bring(destination, built, on_schema_change="fail")
    assert [each["v"] for each in destination.rows("public.t")] == ["b", "c", "d"]
    built.insert(built.table("public.t", {"id": "int64"}), "4")
    built.flush()
    with pytest.raises(OutputRefusedError, match="columns v"):
        bring(destination, built, on_schema_change="fail")


def test_a_column_that_is_not_followed_need_not_be_readable(
    destination: Destination, built: BuiltLog
) -> None:
    if "no-delivery" in destination.traits:
        pytest.skip("it always evolves")
    table = built.table("public.t", {"id": "int64", "c": "text", "v": "text"})
    built.insert(table, "1", "12", "a")
    built.flush()
    bring(destination, built)
    built.update(table, "1", "12 kg", "b")  # no number, in one batch with the column's new type
    built.insert(built.table("public.t", {"id": "int64", "c": "int32", "v": "text"}), "2", "5", "c")
    built.flush()
    bring(destination, built, on_schema_change="lenient")
    assert [each["v"] for each in destination.rows("public.t")] == ["b", "c"]


@pytest.mark.parametrize("how", ["plain", "stepped", "total"])
def test_a_change_is_told_under_its_own_schema(
    destination: Destination, built: BuiltLog, how: str
) -> None:
    """The pipeline was down while a column went, came back and got another name."""
    if "stream" not in destination.traits:
        pytest.skip("copies follow the newest schema")
    options: dict[str, Any] = {}
    if how == "stepped":
        options = {"steps": (Step("mask", {"v": "***"}, ("public.t",)),)}
    elif how == "total":
        options = {"order": "total"}
    columns = {"id": "int64", "v": "text"}

    def wide() -> TableSchema:
        return built.table("public.t", columns | {"gone": "text"})

    other = built.table("public.u", {"id": "int64", "w": "text"}, relation_id=2)
    built.insert(wide(), "1", "a", "x")
    built.insert(other, "1", "first")
    built.flush()
    built.insert(wide(), "2", "b", "y")
    built.update(built.table("public.t", columns), "1", "c")
    built.insert(built.table("public.t", columns), "3", "c")
    built.insert(other, "2", "second")
    built.flush()
    built.insert(wide(), "4", "d", "z")
    built.flush()
    built.insert(built.table("public.t", columns | {"new": "text"}), "5", "e", "n")
    built.flush()
    try:
        bring(destination, built, **options)
    except OutputRefusedError as refused:
        pytest.skip(str(refused))  # no steps, or no total order, in this one
    found = {
        each["id"]: (each["v"], each.get("gone"), each.get("new"))
        for each in destination.rows("public.t")
    }
    hidden = how == "stepped"
    assert found == {
        key: ("***" if hidden else v, gone, new)
        for key, v, gone, new in [
            (1, "c", None, None), (2, "b", "y", None), (3, "c", None, None),
            (4, "d", "z", None), (5, "e", None, "n"),
        ]
    }  # fmt: skip
    assert [each["w"] for each in destination.rows("public.u")] == ["first", "second"]


def test_a_column_that_a_step_hides_does_not_show_by_its_old_name(
    destination: Destination, built: BuiltLog
) -> None:
    """The step names the column as it is called now; an old record calls it otherwise."""
    if "no-delivery" in destination.traits:
        pytest.skip("its steps are its own")
    built.insert(built.table("public.t", {"id": "int64", "mail": "text"}), "1", "secret")
    built.insert(built.table("public.t", {"id": "int64", "email": "text"}), "2", "secret")
    built.flush()
    bring(destination, built, steps=(Step("mask", {"email": "***"}),))
    found = destination.rows("public.t")
    assert [each.get("mail") for each in found] == [None, None]
    assert [each["email"] for each in found] == [None, "***"]


STEPS = (
    Step("compute", {"short": "left(doc, 3)", "longer": "short || '-d'", "next": "n + 1"}),
    Step("mask", {"mail": "***"}),
    Step("rename", {"doc": "n", "n": "doc"}),
    Step("filter", "coalesce(doc, 0) < 9"),
)


def test_steps_leave_what_a_record_lacks_as_it_was(
    destination: Destination, built: BuiltLog
) -> None:
    """An update without an unchanged TOAST: what is computed of it is lacking as well."""
    columns = {"id": "int64", "n": "int32", "mail": "text", "doc": "text"}
    table = built.table("public.t", columns)
    for key in "123":
        built.insert(table, key, "0", "m", "document")
    built.insert(table, "4", None, None, None)
    built.flush()
    bring(destination, built, steps=STEPS)
    built.update(table, "1", "1", None, UNCHANGED)
    built.update(table, "2", "1", UNCHANGED, "other")
    built.delete(table, "3")
    built.flush()
    bring(destination, built, steps=STEPS)
    names = ("id", "doc", "mail", "n", "short", "longer", "next")
    assert [tuple(each.get(name) for name in names) for each in destination.rows("public.t")] == [
        (1, 1, None, "document", "doc", "doc-d", 2),
        (2, 1, "***", "other", "oth", "oth-d", 2),
        (4, None, None, None, None, None, None),
    ]


def test_rows_that_a_step_can_not_take_leave_out_their_table_alone(
    destination: Destination, built: BuiltLog
) -> None:
    """Until a dump of it begins, without a restart; then it is whole."""
    if "stream" in destination.traits:
        pytest.skip("an output of changes stops: tests/integration/spark/test_own_output.py")
    columns = {"id": "int64", "v": "text"}
    table = built.table("public.t", columns)
    other = built.table("public.u", columns, relation_id=2)
    built.insert(table, "1", "a secret")
    built.insert(other, "1", "a")
    start, middle = built.log.head_offset, built.flush().next
    asked: list[str] = []
    output: Any = destination.open(steps=(Step("cast", {"v": "int"}, ("public.t",)),))
    try:
        output.prepare(built.log.generation)
        output.write(batch_of(built.log, start, middle))
        told = output.left_out_tables()["public.t"]
        assert "CAST_INVALID_INPUT" in told
        assert "tidelog dump CONFIG --table public.t" in told
        assert "secret" not in told
        built.update(table, "1", "7")
        built.insert(other, "2", "b")
        until = built.flush().next
        output.take_again(asked.extend)
        output.write(batch_of(built.log, middle, until))
        assert output.left_out_tables() == {"public.t": told}
        assert [each["id"] for each in destination.rows("public.u")] == [1, 2]
        first = built.dump_started("public.t").first
        begun = built.log.latest_offset()
        output.write(batch_of(built.log, until, begun))
        built.chunk(table, [("1", "7")])
        end = built.dump_completed("public.t", first).next
        output.write(batch_of(built.log, begun, end))
        output.take_again(asked.extend)
        assert output.left_out_tables() == {}
        assert not asked, "the dump was there"
    finally:
        output.close()
    assert [int(each["v"]) for each in destination.rows("public.t")] == [7]
