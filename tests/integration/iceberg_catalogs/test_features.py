"""What users do to Iceberg tables by format 3: defaults of columns are read and written, and what
Tidelog does not know leaves the table out by its name.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyiceberg.expressions import EqualTo
from pyiceberg.table import StaticTable
from tests.integration.iceberg_catalogs.conftest import Delivered, change, written_output
from tests.integration.iceberg_catalogs.test_readers import metadata, read
from tests.support.iceberg_readers import by_duckdb

from tidelog.errors import TableLeftOutError
from tidelog.outputs.lake import table as lake_table
from tidelog.outputs.lake.iceberg.output import IcebergOutput
from tidelog.spark.transforms import Step
from tidelog.state.sqlite import SqliteState

pytestmark = [pytest.mark.spark, pytest.mark.integration]

CATALOG = {"type": "hadoop"}
DEFAULTS = {
    "whole": ("int", 5),
    "big": ("long", -(2**40)),
    "real": ("float", 0.5),
    "double": ("double", -2.25),
    "yes": ("boolean", True),
    "text": ("string", "é"),
    "empty": ("string", ""),
    "money": ("decimal(10,2)", Decimal("-1.50")),
    "bytes": ("binary", b"\x00\xff"),
    "day": ("date", date(1960, 1, 2)),
    "local": ("timestamp", datetime(1999, 12, 31, 23, 59, 59, 123456)),
    "moment": ("timestamptz", datetime(2024, 1, 2, 3, 4, 5, tzinfo=UTC)),
}


class Table:
    """``public.t`` of an output, to be altered as by its users."""

    def __init__(self, output: IcebergOutput) -> None:
        catalog = output._catalog
        self.jvm = catalog._jvm
        self.table = catalog._catalog.loadTable(catalog._identifier(("public", "t")))

    def kind(self, name: str) -> Any:
        return self.jvm.org.apache.iceberg.types.Types.fromPrimitiveString(name)

    def literal(self, name: str, value: Any) -> Any:
        of = self.jvm.org.apache.iceberg.expressions.Literal.of
        if name == "binary":
            return of(self.jvm.java.nio.ByteBuffer.wrap(value))
        if isinstance(value, datetime):
            return of(value.isoformat()).to(self.kind(name))
        is_text = isinstance(value, date | Decimal | str)
        return of(str(value) if is_text else value).to(self.kind(name))

    def add(self, name: str, kind: str, default: Any, *, within: str | None = None) -> None:
        update = self.table.updateSchema()
        literal = self.literal(kind, default)
        update.addColumn(within, name, self.kind(kind), "", literal).commit()

    def sort(self, *fields: tuple[str, int, str]) -> None:
        """By transforms of columns, which are given by their ids; null last."""
        names = ("transform", "source-id", "direction")
        given = [
            dict(zip(names, each, strict=True)) | {"null-order": "nulls-last"} for each in fields
        ]
        found, operations = json.dumps({"order-id": 1, "fields": given}), self.table.operations()
        base = operations.refresh()
        order = self.jvm.org.apache.iceberg.SortOrderParser.fromJson(base.schema(), found)
        operations.commit(base, base.replaceSortOrder(order))


def kept(delivered: Delivered) -> SqliteState:
    return SqliteState(f"sqlite:///{delivered.warehouse.removeprefix('file://')}.db")


def filled(delivered: Delivered, **options: Any) -> tuple[Any, IcebergOutput]:
    """Three rows of ``public.t`` in a table of format 3, and an output that has it open."""
    built = delivered.built
    schema = built.table("public.t", {"id": "int64", "v": "text"})
    for number in range(1, 4):
        built.insert(schema, str(number), f"v{number}")
    built.flush()
    output = delivered.output(CATALOG, state=kept(delivered), format_version=3, **options)
    output.prepare(built.log.generation)
    delivered.write(output)
    return schema, output


@pytest.mark.parametrize("mode", ["merge-on-read", "copy-on-write"])
def test_a_default_of_a_column_stays_in_old_rows_and_comes_into_new_ones(
    delivered: Delivered, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Through updates, rewrites and compaction; others read it from files that do not have it."""
    schema, output = filled(delivered, mode=mode)
    table, built = Table(output), delivered.built
    for name, (kind, value) in DEFAULTS.items():
        table.add(name, kind, value)
    wanted = {name: value for name, (_, value) in DEFAULTS.items()}
    rows = [{"id": n, "v": f"v{n}", **wanted} for n in (1, 2, 3)]
    assert read(delivered) == rows
    built.update(schema, "1", "new")
    built.insert(schema, "4", "v4")
    built.flush()
    monkeypatch.setattr(lake_table, "FILES_OF_A_TIER", 2)
    delivered.write(output)
    output.close()
    rows = [{**rows[0], "v": "new"}, *rows[1:], {**rows[0], "id": 4, "v": "v4"}]
    assert read(delivered) == rows
    assert not output.left_out_tables()


@pytest.mark.parametrize("holds", ["changes", "history"])
def test_a_default_comes_into_new_rows_of_changes_and_of_history(
    delivered: Delivered, holds: str
) -> None:
    schema, output = filled(delivered, holds={"*.*": holds})
    Table(output).add("more", "int", 7)
    delivered.built.update(schema, "1", "new")
    delivered.built.insert(schema, "4", "v4")
    delivered.built.flush()
    delivered.write(output)
    output.close()
    order = "version" if holds == "changes" else "id"
    found = by_duckdb(metadata(delivered, "public/t"), order)
    assert [row["more"] for row in found] == [7] * 5


@pytest.mark.parametrize("mode", ["merge-on-read", "copy-on-write"])
def test_rows_of_files_are_in_the_order_of_the_table(
    delivered: Delivered, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files say so, those that compaction writes too; keys are found in them whatever the order."""
    schema, output = filled(delivered, mode=mode)
    table, built = Table(output), delivered.built
    table.sort(("identity", 2, "desc"), ("identity", 1, "asc"))
    for number in range(4, 9):
        built.insert(schema, str(number), None if number == 5 else f"v{number % 4}")
    built.update(schema, "2", "z")
    built.flush()
    delivered.write(output)
    assert (1, [2, 7, 6, 4, 8, 5]) in orders(delivered)
    built.update(schema, "8", "zz")
    built.delete(schema, "3")
    built.flush()
    monkeypatch.setattr(lake_table, "FILES_OF_A_TIER", 2)
    delivered.write(output)
    rows = {row["id"]: row["v"] for row in read(delivered)}
    assert rows == {1: "v1", 2: "z", 4: "v0", 5: None, 6: "v2", 7: "v3", 8: "zz"}
    assert orders(delivered) == [(1, [8, 2, 7, 6, 1, 4, 5])]
    table.sort(("truncate[1]", 2, "asc"))
    built.insert(schema, "9", "v9")
    built.flush()
    monkeypatch.undo()
    delivered.write(output)
    output.close()
    assert (0, [9]) in orders(delivered), "an order that Tidelog can't keep"


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize(
    "mode", ["merge-on-read", pytest.param("copy-on-write", marks=pytest.mark.thorough)]
)
def test_files_of_several_partition_specs_are_written_beside_each_other(
    delivered: Delivered, version: int, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Users add and replace fields amid; a batch deletes rows of files of all specs."""
    built = delivered.built
    schema = built.table("public.t", {"id": "int64", "v": "text"})
    output = delivered.output(
        CATALOG, format_version=version, mode=mode, partition_by={"*.*": ["truncate(1, v)"]}
    )
    output.prepare(built.log.generation)
    wanted: dict[int, str] = {}

    def batch(first: int, *gone: int, changed: int = 0) -> None:
        for number in range(first, first + 16):
            wanted[number] = f"v{number % 2}"
            built.insert(schema, str(number), wanted[number])
        for number in gone:
            del wanted[number]
            built.delete(schema, str(number))
        if changed:
            wanted[changed] = "w"
            built.update(schema, str(changed), "w")
        built.flush()
        delivered.write(output)
        assert not output.left_out_tables()
        rows = read(delivered)
        assert {row["id"]: row["v"] for row in rows} == wanted
        assert len(rows) == len(wanted)

    batch(0)
    table = Table(output).table
    table.updateSpec().addField("v").commit()
    batch(20, 1, changed=2)
    table.refresh()
    table.updateSpec().removeField("v_trunc").removeField("v").addField("id").commit()
    batch(40, 3, 21, changed=22)
    table.refresh()
    table.updateSpec().removeField("id").commit()
    batch(60, 4, 23, 40)
    static = StaticTable.from_metadata(metadata(delivered, "public/t"))
    if mode == "merge-on-read":
        data, deletes = static.inspect.data_files(), static.inspect.delete_files()
        assert set(data["spec_id"].to_pylist()) == {0, 1, 2, 3}
        assert set(deletes["spec_id"].to_pylist()) == {0, 1}
    changed = static.scan(row_filter=EqualTo("v", "w")).to_arrow()
    assert set(changed["id"].to_pylist()) == {2, 22}
    monkeypatch.setattr(lake_table, "FILES_OF_A_TIER", 2)
    batch(80, 5, 24, 41, 60)
    output.close()


@pytest.mark.parametrize("mode", ["merge-on-read", "copy-on-write"])
def test_rows_keep_their_ids_in_other_files(
    delivered: Delivered, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Iceberg's specification, "Row Lineage": each row that moves as it is keeps the id, and the
    number of the commit that changed it; also one that has moved before.
    """
    schema, output = filled(delivered, mode=mode)
    built = delivered.built
    for number in range(4, 8):
        built.insert(schema, str(number), "x")
    built.flush()
    delivered.write(output)
    monkeypatch.setattr(lake_table, "FILES_OF_A_TIER", 2)
    built.update(schema, "1", "new")
    built.delete(schema, "2")
    built.flush()
    delivered.write(output)
    found = lineage(delivered)
    assert {key: found[key] for key in (3, 4, 5, 6, 7)} == {
        3: (2, 1),
        **{number: (number - 1, 2) for number in range(4, 8)},
    }
    assert found[1][0] >= 7, "a new row"
    assert found[1][1] == 3
    output.close()  # another one knows the files by their metadata alone
    again = delivered.output(CATALOG, state=kept(delivered))
    again.prepare(built.log.generation)
    for number in (4, 6):
        built.delete(schema, str(number))
    built.flush()
    delivered.write(again)
    again.close()
    after = lineage(delivered)
    assert {key: after[key] for key in (1, 3, 5, 7)} == {key: found[key] for key in (1, 3, 5, 7)}


def lineage(delivered: Delivered) -> dict[int, tuple[int, int]]:
    """By key, ids of rows and numbers of commits in the only file, which compaction wrote."""
    rows = read(delivered)
    static = StaticTable.from_metadata(metadata(delivered, "public/t"))
    (file,) = static.inspect.data_files().to_pylist()
    found = pq.read_table(file["file_path"][len("file:") :])
    names = ("_row_id", "_last_updated_sequence_number")
    numbers = zip(*(found[name].to_pylist() for name in names), strict=True)
    lived = dict(zip(found["id"].to_pylist(), numbers, strict=True))
    return {row["id"]: lived[row["id"]] for row in rows}


def orders(delivered: Delivered) -> list[tuple[int, list[int]]]:
    """Of each file the id of its sort order, and its rows."""
    files = StaticTable.from_metadata(metadata(delivered, "public/t")).inspect.data_files()
    return [
        (each["sort_order_id"], pq.read_table(each["file_path"][len("file:") :])["id"].to_pylist())
        for each in files.to_pylist()
    ]


def _partition_by_member(table: Table) -> None:
    types = table.jvm.org.apache.iceberg.types.Types
    member = types.NestedField.optional(99, "m", types.IntegerType.get())
    fields = table.jvm.java.util.ArrayList()
    fields.add(member)
    table.table.updateSchema().addColumn("s", types.StructType.of(fields)).commit()
    table.table.updateSpec().addField("s.m").commit()


def _default_of_member(table: Table) -> None:
    _partition_by_member(table)
    table.table.updateSpec().removeField("s.m").commit()
    table.add("d", "int", 5, within="s")


def _of_type(kind: str) -> Callable[[Table], None]:
    def alter(table: Table) -> None:
        update = table.table.updateSchema()
        update.addColumn("strange", table.kind(kind)).commit()

    return alter


@pytest.mark.parametrize(
    ("alter", "named"),
    [
        (_partition_by_member, r"a partition by a member of a column, s\.m.*DROP PARTITION FIELD"),
        (_default_of_member, r"a default of s\.d.*Drop the member"),
        (_of_type("geometry"), r"column strange is of type geometry.*drop the column"),
        (_of_type("unknown"), r"column strange is of type unknown"),
        (_of_type("timestamp_ns"), r"column strange is of type timestamp_ns"),
    ],
)
def test_what_tidelog_does_not_know_leaves_the_table_out_by_name(
    delivered: Delivered, alter: Callable[[Table], None], named: str
) -> None:
    _, output = filled(delivered)
    alter(Table(output))
    _refused(delivered, output, named)


def test_a_member_in_a_list_that_was_renamed_keeps_its_values(delivered: Delivered) -> None:
    """It leaves the table out by its name, or stays as it is, also in files that are rewritten."""
    step = Step("compute", {"xs": "array(named_struct('a', id, 'b', name))"})
    options: dict[str, Any] = {"steps": (step,), "mode": "copy-on-write"}
    with written_output(delivered, CATALOG, **options) as output:
        state = output._catalog.load(("public", "orders"))
        assert state is not None
        state._table.updateSchema().renameColumn("xs.element.a", "c").commit()
        change(delivered)
        with pytest.raises(TableLeftOutError, match=r"column xs .* was array<struct<c:"):
            delivered.write(output)
    delivered.run(CATALOG, on_schema_change="lenient", **options)
    found = {row["id"]: row["xs"] for row in by_duckdb(metadata(delivered, "public/orders"))}
    assert found == {**{number: [{"c": number, "b": f"n{number}"}] for number in range(3)}, 4: None}


def _encrypted(found: dict[str, Any]) -> None:
    key = {"key-id": "1", "encrypted-key-metadata": "YQ=="}
    found["encryption-keys"] = [key]


def _by_bucket_of_two(found: dict[str, Any]) -> None:
    field = {"name": "b", "transform": "bucket[2]", "source-ids": [1, 2], "field-id": 1000}
    found["partition-specs"].append({"spec-id": 1, "fields": [field]})
    found["default-spec-id"] = 1


def _newer(found: dict[str, Any]) -> None:
    found["format-version"] = 9


@pytest.mark.parametrize(
    ("alter", "named"),
    [
        (_encrypted, "uses encryption"),
        (_by_bucket_of_two, "a partition of several columns|metadata that Iceberg's library"),
        (_newer, "metadata that Iceberg's library can't read.*update Tidelog"),
    ],
)
def test_metadata_that_tidelog_does_not_know_leave_the_table_out(
    delivered: Delivered, alter: Callable[[dict[str, Any]], None], named: str
) -> None:
    _, output = filled(delivered)
    output.close()
    newest = Path(metadata(delivered, "public/t"))
    found = json.loads(newest.read_text())
    alter(found)
    version = int(newest.name[1:].split(".")[0]) + 1
    newest.with_name(f"v{version}.metadata.json").write_text(json.dumps(found))
    newest.with_name("version-hint.text").write_text(str(version))
    _refused(delivered, delivered.output(CATALOG, state=kept(delivered)), named)


def _refused(delivered: Delivered, output: IcebergOutput, named: str) -> None:
    """It is that table's trouble: another one is written."""
    other = delivered.built.table("public.other", {"id": "int64", "v": "text"})
    delivered.built.insert(other, "1", "x")
    delivered.built.flush()
    try:
        output.prepare(delivered.built.log.generation)
        delivered.write(output)
        left_out = dict(output.left_out_tables())
    finally:
        output.close()
    assert list(left_out) == ["public.t"]
    assert re.search(named, left_out["public.t"]), left_out
    assert read(delivered, "public/other") == [{"id": 1, "v": "x"}]
