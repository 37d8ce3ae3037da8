"""Logs of Delta tables: ours as others read them, and Spark's as we do."""

from __future__ import annotations

import datetime
import json
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql.types import (
    DateType,
    DecimalType,
    IntegerType,
    LongType,
    ShortType,
    StringType,
    StructField,
    TimestampNTZType,
    TimestampType,
)
from tests.support.delta_readers import by_delta_rs, by_duckdb, by_spark, rows_of

from tidelog.outputs.base.stores import open_file_store
from tidelog.outputs.lake.data_files.data_file import DataFile
from tidelog.outputs.lake.data_files.deletion_vectors import DeletionVectorWriter, read_rows
from tidelog.outputs.lake.data_files.layout import delta_layout
from tidelog.outputs.lake.data_files.parquet_files import ParquetFileWriter
from tidelog.outputs.lake.delta_log.actions import add, remove, transaction
from tidelog.outputs.lake.delta_log.commits import CommitWriter, write_checkpoint
from tidelog.outputs.lake.delta_log.definition import TableDefinition, new_table
from tidelog.outputs.lake.delta_log.features import check_supported
from tidelog.outputs.lake.delta_log.table_state import TableState

pytestmark = pytest.mark.spark

ID = StructField("id", LongType())
TEXT = StructField("v", StringType())
VERSION = StructField("_version", LongType())


class OwnTable:
    """A Delta table that is made and written without Spark."""

    def __init__(self, place: Path) -> None:
        self.place = str(place)
        self.store = open_file_store(self.place)
        self.state = TableState(self.store)
        self.state.refresh()

    @property
    def definition(self) -> TableDefinition:
        state = self.state
        assert state.protocol is not None
        assert state.metadata is not None
        return TableDefinition(state.protocol, state.metadata, state.domains)

    def commit(self, actions: Sequence[dict[str, Any]], operation: str = "WRITE") -> None:
        CommitWriter(self.store).commit(
            self.state, actions, operation=operation, parameters={"mode": "Append"}, note=None
        )

    def define(self, wanted: TableDefinition) -> None:
        before = None if self.state.version < 0 else self.definition
        self.commit(wanted.changes(before), "SET TBLPROPERTIES")

    def append(self, rows: list[dict[str, Any]]) -> None:
        metadata = self.definition.metadata
        layout = delta_layout(metadata, key=("id",), version="_version", deleted="", null_key=False)
        table = pa.Table.from_pylist(rows, layout.schema)
        files = ParquetFileWriter(self.store, layout).write(table)
        actions = [add(file, data_change=True) for file in files]
        self.commit([*actions, transaction("app", self.state.version)])

    def mark(self, file: DataFile, rows: list[int]) -> None:
        """Delete rows of a file by a vector."""
        writer = DeletionVectorWriter(self.store)
        vector = writer.add(np.array(rows, np.int64))
        writer.close()
        stats = (file.stats or "").replace('"tightBounds":true', '"tightBounds":false')
        marked = DataFile(
            file.path, file.partition_values, file.size, file.modification_time_ms, stats, vector
        )
        gone = remove(file, at_ms=file.modification_time_ms, data_change=True)
        self.commit([gone, add(marked, data_change=True)], "DELETE")

    def checkpoint(self) -> None:
        """Write one, and take the commits before it away, so that readers need it."""
        write_checkpoint(self.store, self.state)
        log = [f"_delta_log/{version:020d}.json" for version in range(self.state.version)]
        self.store.delete(log)

    def read(self, spark: Any) -> list[dict[str, Any]]:
        """What three other readers see, which is the same."""
        rows = rows_of(by_spark(spark, self.place))
        assert rows_of(by_delta_rs(self.place)) == rows
        assert rows_of(by_duckdb(self.place)) == rows
        return rows


def detail(spark: Any, place: str) -> dict[str, Any]:
    row = spark.sql(f"DESCRIBE DETAIL delta.`{place}`").first().asDict()
    for name in ("id", "location", "createdAt", "lastModified"):
        assert row.pop(name) is not None
    row["tableFeatures"] = sorted(row["tableFeatures"])
    return row


def schema(spark: Any, place: str) -> list[tuple[str, str, bool]]:
    fields = spark.read.format("delta").load(place).schema.fields
    return [(field.name, field.dataType.simpleString(), field.nullable) for field in fields]


DEFINITIONS = {
    "plain": (
        "(id BIGINT, v STRING, _version BIGINT)",
        "TBLPROPERTIES ('tidelog.table' = 'public.t', 'delta.dataSkippingStatsColumns' = 'id')",
        {"properties": {"tidelog.table": "public.t", "delta.dataSkippingStatsColumns": "id"}},
    ),
    "vectors and partitions": (
        "(id BIGINT, v STRING, _version BIGINT)",
        "PARTITIONED BY (v) TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')",
        {"partitions": ["v"], "deletion_vectors": True},
    ),
    "column mapping and a change data feed": (
        "(id BIGINT, `v w` STRING, _version BIGINT)",
        "TBLPROPERTIES ('delta.columnMapping.mode' = 'name', "
        "'delta.enableChangeDataFeed' = 'true')",
        {"column_mapping": True, "properties": {"delta.enableChangeDataFeed": "true"}},
    ),
    "clusters, times without a zone": (
        "(id BIGINT, v TIMESTAMP_NTZ, _version BIGINT)",
        "CLUSTER BY (id) TBLPROPERTIES ('delta.columnMapping.mode' = 'name')",
        {"column_mapping": True, "clusters": ["id"]},
    ),
}


def thorough(names: Sequence[Any], *plain: Any) -> list[Any]:
    """Parameters, of which all but ``plain`` are for `make test-thorough`."""
    marks = pytest.mark.thorough
    return [name if name in plain else pytest.param(name, marks=marks) for name in names]


@pytest.mark.parametrize("name", thorough([*DEFINITIONS], *[*DEFINITIONS][2:]))
def test_a_new_table_is_the_one_that_spark_makes(spark: Any, tmp_path: Path, name: str) -> None:
    columns, options, ours = DEFINITIONS[name]
    theirs = tmp_path / "theirs"
    spark.sql(f"CREATE TABLE delta.`{theirs}` {columns} USING delta {options}")
    kind = TimestampNTZType() if "TIMESTAMP_NTZ" in columns else StringType()
    fields = [ID, StructField("v w" if "v w" in columns else "v", kind), VERSION]
    known = {"properties": {}, "column_mapping": False, "deletion_vectors": False}
    table = OwnTable(tmp_path / "ours")
    table.define(new_table(fields, **{**known, **ours}))
    assert detail(spark, table.place) == detail(spark, str(theirs))
    assert schema(spark, table.place) == schema(spark, str(theirs))


def test_a_table_that_is_altered_is_the_one_that_spark_alters(spark: Any, tmp_path: Path) -> None:
    place = tmp_path / "theirs"
    theirs = f"delta.`{place}`"
    for statement in (
        f"CREATE TABLE {theirs} (id SMALLINT, v STRING) USING delta",
        f"ALTER TABLE {theirs} ADD COLUMNS (n DECIMAL(10, 2))",
        f"ALTER TABLE {theirs} SET TBLPROPERTIES ('delta.enableTypeWidening' = 'true')",
        f"ALTER TABLE {theirs} ALTER COLUMN id TYPE INT",
        f"ALTER TABLE {theirs} ALTER COLUMN n TYPE DECIMAL(12, 3)",
        f"ALTER TABLE {theirs} SET TBLPROPERTIES ('delta.columnMapping.mode' = 'name')",
        f"ALTER TABLE {theirs} ADD COLUMNS (`a b` DATE)",
        f"ALTER TABLE {theirs} CLUSTER BY (v)",
        f"ALTER TABLE {theirs} SET TBLPROPERTIES ('tidelog.dropped' = '[]')",
    ):
        spark.sql(statement)
    table = OwnTable(tmp_path / "ours")
    known = {"properties": {}, "column_mapping": False, "deletion_vectors": False}
    table.define(new_table([StructField("id", ShortType()), TEXT], **known))
    for change in (
        lambda t: t.with_columns([StructField("n", DecimalType(10, 2))]),
        lambda t: t.with_type("id", IntegerType()).with_type("n", DecimalType(12, 3)),
        lambda t: t.with_column_mapping(),
        lambda t: t.with_columns([StructField("a b", DateType())]).with_clusters(["v"]),
        lambda t: t.with_properties({"tidelog.dropped": "[]"}),
    ):
        table.define(change(table.definition))
    assert detail(spark, table.place) == detail(spark, str(place))
    assert schema(spark, table.place) == schema(spark, str(place))
    read = OwnTable(place).definition
    assert read.protocol == table.definition.protocol
    ours, other = (each.metadata.schema["fields"] for each in (table.definition, read))
    for field in (*ours, *other):  # of new columns it is a UUID
        if field["name"] == "a b":
            assert field["metadata"].pop("delta.columnMapping.physicalName").startswith("col-")
    assert ours == other


@pytest.mark.parametrize("mapped", thorough([False, True], True))
def test_what_we_write_is_read_by_others_and_written_on(
    spark: Any, tmp_path: Path, mapped: bool
) -> None:
    table = OwnTable(tmp_path / "t")
    fields = [ID, TEXT, StructField("t", TimestampType()), StructField("n", ShortType()), VERSION]
    table.define(new_table(fields, properties={}, column_mapping=mapped, deletion_vectors=True))
    at = datetime.datetime(2026, 1, 2, 3, 4, 5, 678901, datetime.UTC)
    rows = [{"id": n, "v": f"\N{EURO SIGN}{n}", "t": at, "n": n, "_version": n} for n in range(100)]
    table.append(rows)
    (file,) = table.state.files.values()
    table.mark(file, list(range(0, 100, 3)))
    (marked,) = table.state.files.values()
    table.mark(marked, [*range(0, 98, 3), 98, 99])
    alive = [dict(sorted(row.items())) for row in rows if row["id"] % 3 and row["id"] != 98]
    table.checkpoint()
    assert table.read(spark) == alive

    added = StructField("c", DecimalType(10, 2))
    table.define(table.definition.with_columns([added]))
    more = {"id": 200, "v": None, "t": None, "n": None, "_version": 200, "c": Decimal("1.50")}
    table.append([more])
    expected = [{**row, "c": None} for row in alive] + [more]
    table.checkpoint()
    assert table.read(spark) == [dict(sorted(row.items())) for row in expected]

    # Others write on, and we read what they did.
    name = f"delta.`{table.place}`"
    spark.sql(
        f"MERGE INTO {name} t USING (SELECT explode(array(1L, 61L, 300L)) id) s ON t.id = s.id "
        "WHEN MATCHED AND s.id = 1 THEN DELETE WHEN MATCHED THEN UPDATE SET c = 7 "
        "WHEN NOT MATCHED THEN INSERT (id, c) VALUES (s.id, 8)"
    )
    spark.sql(f"ALTER TABLE {name} ADD COLUMNS (d INT)")
    table.state.refresh()
    table.append([{"id": 400, "d": 4, "_version": 400}])
    found = {row["id"]: row for row in table.read(spark)}
    assert found.keys() == {row["id"] for row in expected} - {1} | {300, 400}
    assert (found[61]["c"], found[300]["c"], found[400]["d"]) == (7, 8, 4)
    fresh = OwnTable(Path(table.place)).state
    assert (fresh.files, fresh.version) == (table.state.files, table.state.version)
    history = spark.sql(f"DESCRIBE HISTORY {name}").collect()
    assert {row["engineInfo"].split("/")[0] for row in history} == {"Tidelog", "Apache-Spark"}


def test_wider_types_are_read_by_spark(spark: Any, tmp_path: Path) -> None:
    table = OwnTable(tmp_path / "t")
    fields = [ID, StructField("n", ShortType()), StructField("d", DateType()), VERSION]
    table.define(new_table(fields, properties={}, column_mapping=False, deletion_vectors=True))
    day = datetime.date(2026, 1, 2)
    table.append([{"id": 1, "n": 1, "d": day, "_version": 1}])
    wide = table.definition.with_type("n", LongType()).with_type("d", TimestampNTZType())
    table.define(wide)
    table.append([{"id": 2, "n": 2**40, "d": datetime.datetime(2026, 1, 3, 4), "_version": 2}])
    table.checkpoint()
    rows = rows_of(by_spark(spark, table.place))
    assert [(row["n"], row["d"]) for row in rows] == [
        (1, datetime.datetime(2026, 1, 2)),
        (2**40, datetime.datetime(2026, 1, 3, 4)),
    ]


CHECKPOINTS = {
    "classic": ({}, {}),
    "multi-part": ({}, {"spark.databricks.delta.checkpoint.partSize": "2"}),
    "v2 json": (
        {"delta.checkpointPolicy": "v2"},
        {"spark.databricks.delta.checkpointV2.topLevelFileFormat": "json"},
    ),
    "v2 parquet": (
        {"delta.checkpointPolicy": "v2", "delta.checkpoint.writeStatsAsJson": "false"},
        {"spark.databricks.delta.checkpointV2.topLevelFileFormat": "parquet"},
    ),
}


@pytest.mark.thorough
@pytest.mark.parametrize("kind", [*CHECKPOINTS])
def test_what_spark_writes_is_read_as_spark_reads_it(spark: Any, tmp_path: Path, kind: str) -> None:
    place = tmp_path / "t"
    name = f"delta.`{place}`"
    properties, settings = CHECKPOINTS[kind]
    properties = {
        "delta.columnMapping.mode": "name",
        "delta.enableDeletionVectors": "true",
        "delta.enableTypeWidening": "true",
        "delta.enableChangeDataFeed": "true",
        "delta.enableInCommitTimestamps": "true",
        "delta.checkpointInterval": "3",
        **properties,
    }
    listed = ", ".join(f"'{key}' = '{value}'" for key, value in properties.items())
    for setting, value in settings.items():
        spark.conf.set(setting, value)
    try:
        spark.sql(
            f"CREATE TABLE {name} (id INT, `v w` STRING, t TIMESTAMP, d DECIMAL(9, 2)) USING delta "
            f"CLUSTER BY (id) TBLPROPERTIES ({listed})"
        )
        for statement in (
            f"INSERT INTO {name} SELECT id, 'x', TIMESTAMP'2026-01-01 00:00:00.123', 1.5 "
            "FROM range(0, 1000, 1, 2)",
            f"DELETE FROM {name} WHERE id % 7 = 3",
            f"ALTER TABLE {name} ALTER COLUMN id TYPE BIGINT",
            f"UPDATE {name} SET `v w` = 'y' WHERE id < 10",
        ):
            spark.sql(statement)
    finally:
        for setting in settings:
            spark.conf.unset(setting)
    log = place / "_delta_log"
    made = [each.name for each in log.iterdir() if each.name.startswith(f"{3:020d}.checkpoint")]
    assert made, sorted(each.name for each in log.iterdir())
    assert (len(made) > 1) is (kind == "multi-part")
    assert made[0].endswith("json") is (kind == "v2 json")
    for version in range(3):  # the checkpoint must be read
        (log / f"{version:020d}.json").unlink()

    state = OwnTable(place).state
    assert state.protocol is not None
    assert state.metadata is not None
    check_supported(state.protocol, state.metadata, str(place))
    snapshot = spark._jvm.org.apache.spark.sql.delta.DeltaLog.forTable(
        spark._jsparkSession, str(place)
    ).update(False, spark._jvm.scala.Option.empty(), spark._jvm.scala.Option.empty())
    assert state.version == snapshot.version() == 4
    assert state.timestamp_ms == snapshot.timestamp()
    theirs = snapshot.allFiles().toJSON().collectAsList()
    vectors = {
        action["path"]: (action.get("deletionVector") or {}).get("cardinality")
        for action in map(json.loads, list(theirs))
    }
    assert {
        path: None if file.deletion_vector is None else file.deletion_vector.cardinality
        for path, file in state.files.items()
    } == vectors
    store = open_file_store(str(place))
    deleted = sum(
        len(read_rows(store, file.deletion_vector))
        for file in state.files.values()
        if file.deletion_vector is not None
    )
    records = sum(json.loads(file.stats or "")["numRecords"] for file in state.files.values())
    assert records - deleted == spark.read.format("delta").load(str(place)).count()
    assert "clusteringColumns" in state.domains["delta.clustering"]

    # What we write behind it, others read; our checkpoint takes the place of theirs.
    before = by_spark(spark, str(place)).num_rows
    table = OwnTable(place)
    (gone, *_) = table.state.files.values()
    table.commit([remove(gone, at_ms=1, data_change=True)], "DELETE")
    write_checkpoint(table.store, table.state)
    for version in range(3, 5):
        (log / f"{version:020d}.json").unlink()
    assert OwnTable(place).state.files == table.state.files
    assert by_spark(spark, str(place)).num_rows < before
    assert by_duckdb(str(place)).num_rows == by_spark(spark, str(place)).num_rows


def test_a_vector_of_spark_has_the_bytes_of_ours(spark: Any, tmp_path: Path) -> None:
    place = tmp_path / "t"
    spark.sql(
        f"CREATE TABLE delta.`{place}` (id BIGINT) USING delta "
        "TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')"
    )
    spark.range(0, 200_000, 1, 1).write.format("delta").mode("append").save(str(place))
    spark.sql(f"DELETE FROM delta.`{place}` WHERE id % 5 = 0 OR id BETWEEN 70000 AND 140000")
    (theirs,) = place.glob("deletion_vector_*.bin")
    store = open_file_store(str(place))
    (file,) = OwnTable(place).state.files.values()
    assert file.deletion_vector is not None
    rows = read_rows(store, file.deletion_vector)
    ids = np.arange(200_000)
    assert np.array_equal(rows, ids[(ids % 5 == 0) | ((ids >= 70000) & (ids <= 140000))])
    data = theirs.read_bytes()
    theirs.unlink()
    writer = DeletionVectorWriter(store)
    writer.add(rows)
    writer.close()
    (ours,) = place.glob("deletion_vector_*.bin")
    assert ours.read_bytes() == data
