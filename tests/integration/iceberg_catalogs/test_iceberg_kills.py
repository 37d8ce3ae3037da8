"""A pipeline into Iceberg on S3 is killed between each two steps: the copy is the source."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.exceptions import NoSuchTableError
from tests.integration.iceberg_catalogs.test_jdbc_catalog import catalog_at
from tests.integration.iceberg_catalogs.test_tables_on_s3 import by_others, jars
from tests.integration.spark.test_delta_kills import KilledPipeline, armed_for
from tests.support.build_log import BuiltLog
from tests.support.iceberg_readers import by_pyiceberg
from tests.support.s3 import S3Server

from tidelog.outputs.lake.iceberg.table import committed_property
from tidelog.outputs.lake.table import application_of

pytestmark = [pytest.mark.spark, pytest.mark.integration, pytest.mark.timeout(600)]

DRIVER = (
    "iceberg.written",
    "iceberg.published",
    "lake.table.write:2",
    "iceberg.written:3",
    "iceberg.published:2",
    "lake.rewrite.commit",
)


class Killed(KilledPipeline):
    """``dsn``: of the catalog."""

    def __init__(self, built: BuiltLog, path: Path, s3: S3Server, dsn: str, **section: Any) -> None:
        catalog = catalog_at(dsn) | {"warehouse": s3.url(path.name)}
        output = {"kind": "iceberg", "catalog": catalog, "storage_options": s3.options, **section}
        super().__init__(built, path, output, conf=jars())
        self.lake = by_others(dsn, "tidelog_iceberg", s3)

    def is_delivered(self) -> bool:
        committed = committed_property(application_of(self.built.log.generation, "iceberg"))
        try:
            table = self.lake.load_table("public.t")
        except NoSuchTableError:
            return False
        return table.properties.get(committed) == str(self.end)

    def check(self) -> None:
        found = by_pyiceberg(self.lake.load_table("public.t"))
        kept = [row for row in found if not row.get("_tidelog_deleted")]
        assert [(row["id"], row["v"]) for row in kept] == sorted(self.rows.items())
        assert len({row["id"] for row in found}) == len(found)


@pytest.fixture
def killed(
    built: BuiltLog, tmp_path: Path, s3: S3Server, database: str, request: pytest.FixtureRequest
) -> Iterator[Killed]:
    made = Killed(built, tmp_path, s3, database, **request.param)
    yield made
    made.pipeline.close()


@pytest.mark.parametrize("killed", [{}], indirect=True, ids=str)
def test_a_driver_killed_behind_its_commit_brings_no_row_twice(killed: Killed) -> None:
    killed.change()
    killed.run_until_killed("iceberg.published:kill:2")
    killed.finish()


@pytest.mark.thorough
@pytest.mark.parametrize(
    "killed",
    [
        {"format_version": version, "mode": mode, "deletes": deletes}
        for version, mode, deletes in (
            (2, "merge-on-read", "hard"),
            (3, "merge-on-read", "soft"),
            (2, "copy-on-write", "hard"),
        )
    ],
    indirect=True,
    ids=str,
)
def test_a_driver_killed_between_any_two_steps_loses_and_repeats_nothing(killed: Killed) -> None:
    for point in DRIVER:
        killed.run_until_killed(armed_for(point))
    killed.finish()
