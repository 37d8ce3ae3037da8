"""Iceberg tables in a directory of each test's own. Needs Spark 4.1: `make test-iceberg`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from tests.integration.spark.conftest import *  # noqa: F403 - its fixtures
from tests.integration.spark.conftest import Lake
from tests.support.build_log import BuiltLog
from tests.support.iceberg_sql import SPARK_OF_ICEBERG, spark_catalog_conf

from tidelog.model.schema import TableName, backticked
from tidelog.outputs.lake.iceberg.output import IcebergOptions, IcebergOutput
from tidelog.spark.datasource.segment_rows import batch_of
from tidelog.spark.sessions.versions import SPARK_VERSION

_ROOT = str(Path(__file__).parents[3])
if _ROOT not in os.environ.get("PYTHONPATH", "").split(os.pathsep):  # executors import tests
    os.environ["PYTHONPATH"] = os.pathsep.join(
        part for part in (_ROOT, os.environ.get("PYTHONPATH")) if part
    )

if SPARK_VERSION != SPARK_OF_ICEBERG:
    collect_ignore_glob = ["test_*.py"]


_DIRECT = (IcebergOutput, type(None))


class IcebergLake(Lake):
    """An Iceberg output of one event log."""

    deleted = "_tidelog_deleted"

    def __init__(self, spark: Any, built: BuiltLog, root: Path) -> None:
        super().__init__(spark, built, root)
        self.catalog = {"type": "hadoop", "warehouse": self.path}
        self._done: dict[str, int] = {}  # by pipeline

    def options(self, **options: Any) -> IcebergOptions:
        return IcebergOptions(**options)

    def output(self, **options: Any) -> IcebergOutput:
        self.catalog["warehouse"] = self.path
        return IcebergOutput(self.spark, self.built.path, self.catalog, **options)

    def run(self, name: str = "pipeline", **options: Any) -> int:
        """One batch of what is new."""
        if options.keys() - {"output"} or not isinstance(options.get("output"), _DIRECT):
            return super().run(name=name, **options)
        log = self.built.log
        output = options.get("output") or self.output()
        start = self._done.get(name, log.head_offset)
        try:
            output.prepare(log.generation)
            output.write(batch_of(log, start, log.latest_offset()))
        finally:
            output.close()
        self._done[name] = log.latest_offset()
        return self._done[name]

    def session(self) -> Any:
        """One that reads the tables as any other user's."""
        session = self.spark.newSession()
        conf = spark_catalog_conf("lake", {**self.catalog, "warehouse": self.path})
        for name, value in conf.items():
            session.conf.set(name, value)
        return session

    def name(self, table: str) -> str:
        name = TableName.parse(table)
        return f"lake.{backticked(name.namespace)}.{backticked(name.name)}"

    def frame(self, table: str) -> Any:
        return self.session().table(self.name(table))

    def commits(self, table: str) -> int:
        """Snapshots that readers saw."""
        return int(self.session().table(f"{self.name(table)}.history").count())


@pytest.fixture
def lake(spark: Any, built: BuiltLog, tmp_path: Path) -> IcebergLake:
    return IcebergLake(spark, built, tmp_path)
