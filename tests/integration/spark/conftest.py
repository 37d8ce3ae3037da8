"""One Spark session per test process; logs and lakes in each test's own directory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.build_log import BuiltLog
from tests.support.iceberg_sql import SPARK_OF_ICEBERG, iceberg_sql_jars
from tests.support.postgres_jdbc import postgres_jdbc_jar
from tests.support.s3 import hadoop_aws_jars

from tidelog.model.schema import TableName
from tidelog.outputs.lake.delta.output import DeltaOptions, DeltaOutput
from tidelog.outputs.lake.delta.table import path_of
from tidelog.spark import spark_session
from tidelog.spark.pipeline import LoopOptions, run_output_loops
from tidelog.spark.sessions.jars import DELTA_SPARK_JARS, iceberg_jars
from tidelog.spark.sessions.versions import SPARK_VERSION
from tidelog.state.sqlite import SqliteState

SHARED = {
    "spark.sql.shuffle.partitions": "2",
    "spark.default.parallelism": "2",
    # Tests bring few rows: to compile Spark's code thoroughly took a quarter of their CPU.
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1",
    # A user's VACUUM with RETAIN 0 HOURS, which takes minutes with Spark's default of 10,000.
    "spark.databricks.delta.retentionDurationCheck.enabled": "false",
    "spark.sql.sources.parallelPartitionDiscovery.parallelism": "2",
}


@pytest.fixture(scope="session")
def spark() -> Iterator[Any]:
    """With Delta, if there is one for this Spark, and with Iceberg, whose SQL one Spark has, the
    driver for its catalogs in PostgreSQL, and Hadoop's client of S3.
    """
    with_sql = SPARK_VERSION == SPARK_OF_ICEBERG
    jars = iceberg_sql_jars() if with_sql else [*iceberg_jars(), *hadoop_aws_jars()]
    conf = SHARED | {"spark.jars": ",".join(map(str, [*jars, postgres_jdbc_jar()]))}
    session = spark_session("local[2]", conf=conf, delta=SPARK_VERSION in DELTA_SPARK_JARS)
    yield session
    session.stop()


@pytest.fixture
def built(tmp_path: Path) -> BuiltLog:
    return BuiltLog(tmp_path / "log")


class Lake:
    """A Delta output of one event log, run once per call."""

    deleted = "_deleted"

    def __init__(self, spark: Any, built: BuiltLog, root: Path) -> None:
        self.spark = spark
        self.built = built
        self.root = root
        self.path = str(root / "lake")

    def options(self, **options: Any) -> Any:
        return DeltaOptions(**options)

    def output(self, **options: Any) -> Any:
        return DeltaOutput(self.spark, self.built.path, self.path, **options)

    def kept(self) -> SqliteState:
        """What outputs keep beside their tables."""
        return SqliteState(f"sqlite:///{self.root / 'state.db'}")

    def run(self, **options: Any) -> int:
        """One run; with another ``name`` all of the log comes again."""
        output = options.pop("output", None) or self.output()
        try:
            return run_output_loops(
                self.spark,
                self.built.path,
                [output],
                LoopOptions(once=True),
                **options,
            )
        finally:
            output.close()

    def frame(self, table: str) -> Any:
        return self.spark.sql(f"SELECT * FROM {self.name(table)}")  # a path would be a pattern

    def rows(self, table: str, key: str = "id") -> list[tuple[Any, ...]]:
        """The table's rows without the version, by key."""
        return [tuple(row) for row in self.frame(table).drop("_version").orderBy(key).collect()]

    def name(self, table: str) -> str:
        """As SQL calls it."""
        return f"delta.`{path_of(self.path, TableName.parse(table), table)}`"

    def add(self, table: str, rows: list[tuple[int, str]]) -> None:
        """Rows (id, v) as a user inserts them, who tells no other column."""
        values = ", ".join(f"({key}, '{v}')" for key, v in rows)
        self.session().sql(f"INSERT INTO {self.name(table)} (id, v) VALUES {values}")

    def session(self) -> Any:
        """One that knows the tables as any other user's."""
        return self.spark

    def commits(self, table: str) -> int:
        return int(self.spark.sql(f"DESCRIBE HISTORY {self.name(table)}").count())


@pytest.fixture
def lake(spark: Any, built: BuiltLog, tmp_path: Path) -> Lake:
    if SPARK_VERSION not in DELTA_SPARK_JARS:
        pytest.skip(f"Delta has no library for Spark {SPARK_VERSION}, which looks at the tables")
    return Lake(spark, built, tmp_path)


@pytest.fixture
def read(spark: Any, built: BuiltLog) -> Callable[..., Any]:
    """Batch-read the log with options."""

    def _read(**options: Any) -> Any:
        return spark.read.format("tidelog").option("path", built.path).options(**options).load()

    return _read
