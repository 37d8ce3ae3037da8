"""As `test_delta_random` and `test_delta_shapes`, into Iceberg tables of both formats and modes, as
PyIceberg and DuckDB read them: copies, and history.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.table import StaticTable
from tests.integration.spark.conftest import Lake
from tests.integration.spark.random_copy import RandomCopy, play
from tests.integration.spark.random_table import BATCHES, SEED, RandomTable
from tests.integration.spark.test_delta_random import SHAPE, RandomHistory
from tests.integration.spark.test_delta_shapes import SHAPES, fast  # noqa: F401 - a fixture
from tests.support import iceberg_readers
from tests.support.build_log import BuiltLog

from tidelog.outputs.lake.iceberg.output import IcebergOptions, IcebergOutput
from tidelog.outputs.lake.settling.tasks import RewriteWork, rewrite_files
from tidelog.system import failpoints

pytestmark = [pytest.mark.spark, pytest.mark.integration]

SHAPES = {"plain": SHAPE, **SHAPES}
QUICK = (("copy", "binary", 3, "merge-on-read"), ("history", "plain", 2, "merge-on-read"))
PARTITIONS = ("q", "p", "days(q)", "bucket(3, a)", "truncate(2, a)", "truncate(4, p)")


class IcebergLake(Lake):
    def options(self, **options: Any) -> IcebergOptions:
        return IcebergOptions(**options)

    def output(self, **options: Any) -> IcebergOutput:
        catalog = {"type": "hadoop", "warehouse": self.path}
        return IcebergOutput(self.spark, self.built.path, catalog, **options)


def by_duckdb(metadata: str) -> pa.Table:
    return iceberg_readers.query(metadata)


def by_pyiceberg(metadata: str) -> pa.Table:
    return StaticTable.from_metadata(metadata).scan().to_arrow()


class IcebergCopy(RandomCopy):
    """Brings the log into an Iceberg table."""

    points = ("lake.table.write", "iceberg.written", "iceberg.published", "lake.rewrite.commit")

    def _rewrite(self) -> None:
        table = self.opened()
        self.acted.append("files put together")
        with failpoints.arm(dict.fromkeys(self.points, lambda: None)):
            if table is not None and table.data_files():
                work = RewriteWork(table.files())
                table.commit_files([rewrite_files(work)], "OPTIMIZE", data_change=False)

    def opened(self) -> Any:
        table = self.other._open(self.table, str(self.table))
        return table if table.exists() else None

    def _read(self, read: Any) -> Iterator[dict[str, Any]]:
        folder = Path(self.place) / "metadata"
        version = (folder / "version-hint.text").read_text()
        for row in read(str(folder / f"v{version}.metadata.json")).to_pylist():
            if not row.get("_tidelog_deleted"):
                yield row

    def _readers(self) -> Sequence[Any]:
        return (by_duckdb, by_pyiceberg)


class IcebergHistory(RandomHistory, IcebergCopy):
    """Brings the log into an Iceberg table of history."""


FORMS = {"copy": IcebergCopy, "history": IcebergHistory}


@pytest.mark.parametrize(
    ("form", "shape", "version", "mode"),
    [
        pytest.param(*each, marks=[] if each in QUICK else pytest.mark.thorough)
        for each in product(FORMS, SHAPES, (2, 3), ("merge-on-read", "copy-on-write"))
    ],
)
def test_iceberg_tables_are_the_source_whatever_happens(
    spark: Any,
    built: BuiltLog,
    tmp_path: Path,
    fast: None,  # noqa: F811
    form: str,
    shape: str,
    version: int,
    mode: str,
) -> None:
    rng = random.Random(f"{SEED} {form} {shape} {version} {mode}")
    source = RandomTable(built, SHAPES[shape], rng)
    options: dict[str, Any] = {
        "soft_deletes": rng.random() < 0.5,
        "mode": mode,
        "format_version": version,
    }
    if source.shape.partitions:
        options["partition_by"] = {str(source.shape.table): rng.sample(PARTITIONS, 2)}
    lake = IcebergLake(spark, built, tmp_path)
    play(source, FORMS[form](lake, source, rng, **options), BATCHES)
