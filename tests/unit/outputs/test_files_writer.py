"""One task's part of an activity log, without Spark."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from tests.support.output_options import LAYOUT, file_format

from tidelog.model.schema import TableName, TableSchema
from tidelog.outputs.base.stores import open_file_store
from tidelog.outputs.files.commits import Attempt
from tidelog.outputs.files.writer import FileFormat, FilesLayout, FilesWriter
from tidelog.ports import SourceId, TargetTable, WriteTask

SCHEMA = TableSchema(TableName("public", "t"), 1, (), (), (), "d", "pgoutput")
COLUMNS = pa.schema([("id", pa.int64()), ("v", pa.string())])
TABLE = TargetTable(
    SCHEMA.table, "public.t", SCHEMA, COLUMNS, ("id",), SourceId("postgres", "7", "shop", 1)
)


def events(first: int, count: int, missing: list[str] | None = None) -> pa.RecordBatch:
    """Creations of keys ``first``…, versions alike."""
    ids = list(range(first, first + count))
    source = {"kind": 1, "schema_id": 3, "position": 5, "ordinal": 0, "xid": 7, "commit_ts": 0}
    return pa.RecordBatch.from_pydict(
        {
            "_tidelog_op": ["c"] * count,
            "_tidelog_version": pa.array(ids, pa.int64()),
            "id": pa.array(ids, pa.int64()),
            "v": ["x" * 100] * count,
            "_tidelog_missing": pa.array([missing] * count, pa.list_(pa.string())),
            "_tidelog_source": pa.array([source] * count),
        }
    )


def writer(root: Path, file_format: FileFormat) -> FilesWriter:
    store = open_file_store(str(root))
    store.make_folder("staging")
    made = FilesWriter(store, "staging", FilesLayout(LAYOUT), file_format)
    made.open(WriteTask("files", "g", 0, 10, 4))
    return made


def staged(root: Path) -> Attempt:
    (said,) = (root / "staging").glob("*.json")
    return Attempt.from_json(said.read_bytes())


def test_a_file_that_is_large_is_closed_and_another_begun(tmp_path: Path) -> None:
    made = writer(tmp_path, file_format(compression="none", file_bytes=100))
    for number in range(3):
        made.write(TABLE, events(number * 50, 50))
    made.commit()
    made.close()
    attempt = staged(tmp_path)
    assert attempt.task == "4:public.t"
    assert [(file.rows, file.directory) for file in attempt.files] == [
        (50, "table=public.t/date=1970-01-01")
    ] * 3
    versions = [
        version
        for file in attempt.files
        for version in pq.ParquetFile(tmp_path / file.staged).read()["version"].to_pylist()
    ]
    assert versions == list(range(150))


def test_small_batches_gather_to_one_row_group(tmp_path: Path) -> None:
    made = writer(tmp_path, file_format())
    for number in range(20):
        made.write(TABLE, events(number * 5, 5))
    made.commit()
    (file,) = staged(tmp_path).files
    assert pq.ParquetFile(tmp_path / file.staged).metadata.num_row_groups == 1


def test_lines_of_json_hold_what_is_missing(tmp_path: Path) -> None:
    made = writer(tmp_path, file_format(kind="json", values="json", compression="none"))
    made.write(TABLE, events(1, 1, ["v"]))
    made.write(TABLE, events(2, 1))
    made.commit()
    (file,) = staged(tmp_path).files
    first, second = (json.loads(line) for line in (tmp_path / file.staged).read_text().splitlines())
    assert first == {
        "op": "c", "version": 1, "ts": "1970-01-01T00:00:00.000000Z", "schema_version": 3,
        "position": 5, "xid": 7, "key": {"id": 1}, "before": None,
        "after": {"id": 1, "v": "x" * 100}, "missing": ["v"],
    }  # fmt: skip
    assert second["missing"] is None


def test_a_task_that_fails_says_nothing_and_leaves_no_open_file(tmp_path: Path) -> None:
    made = writer(tmp_path, file_format(compression="none", file_bytes=100))
    made.write(TABLE, events(0, 50))
    made.write(TABLE, events(50, 1))
    made.close()
    assert not list((tmp_path / "staging").glob("*.json"))


def test_only_texts_that_repeat_have_a_dictionary(tmp_path: Path) -> None:
    """Trying one for each column costs more than all else of writing."""
    made = writer(tmp_path, file_format())
    rows = events(0, 50)
    made.write(TABLE, rows)
    unique = pa.array([f"text {n}" for n in range(50)])
    other = TargetTable(SCHEMA.table, "u", SCHEMA, COLUMNS, ("id",), TABLE.origin)
    made.write(other, rows.set_column(rows.schema.get_field_index("v"), "v", unique))
    made.commit()
    found = {}
    for file in staged(tmp_path).files:
        group = pq.ParquetFile(tmp_path / file.staged).metadata.row_group(0)
        columns = (group.column(at) for at in range(group.num_columns))
        found[file.table] = {each.path_in_schema for each in columns if each.has_dictionary_page}
    nulls = {"before.v"}
    assert found == {"public.t": {"op", "after.v"} | nulls, "u": {"op"} | nulls}
