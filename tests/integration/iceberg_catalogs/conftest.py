"""An Iceberg output into catalogs of servers, without Iceberg's SQL; others read its tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.integration.spark.conftest import *  # noqa: F403 - its fixtures
from tests.integration.spark.orders import orders
from tests.support.build_log import BuiltLog

from tidelog.errors import OutputError
from tidelog.outputs.lake.iceberg.output import IcebergOptions, IcebergOutput
from tidelog.spark.datasource.segment_rows import batch_of


class Delivered:
    """Writes an event log into a catalog, one batch at a time."""

    def __init__(self, spark: Any, built: BuiltLog, root: Path) -> None:
        self.spark, self.built = spark, built
        self.warehouse = f"file://{root}/warehouse"
        self.storage_options: dict[str, str] = {}

    def output(self, catalog: Mapping[str, str], **options: Any) -> IcebergOutput:
        """``options``: arguments of the output, or of its options."""
        named = {
            key: options.pop(key)
            for key in ("catalog_name", "name", "state", "settings", "storage_options")
            if key in options
        }
        named.setdefault("storage_options", self.storage_options)
        return IcebergOutput(
            self.spark,
            self.built.path,
            {"warehouse": self.warehouse, **catalog},
            options=IcebergOptions(**options),
            **named,
        )

    def run(self, catalog: Mapping[str, str], **options: Any) -> dict[str, str]:
        """One batch of all, by an output that begins. Returns the tables that are left out."""
        output = self.output(catalog, **options)
        try:
            output.prepare(self.built.log.generation)
            self.write(output)
            return dict(output.left_out_tables())
        finally:
            output.close()

    def write(self, output: IcebergOutput) -> None:
        """One batch of all."""
        log = self.built.log
        output.write(batch_of(log, log.head_offset, log.latest_offset()))

    def retry(self, output: IcebergOutput) -> int:
        """One batch of all, again while it fails, as pipelines do. Returns how often it failed."""
        for failures in range(4):
            try:
                self.write(output)
            except OutputError:
                continue
            return failures
        raise AssertionError("the batch fails again and again")


@contextmanager
def written_output(
    delivered: Delivered, catalog: Mapping[str, str], **options: Any
) -> Iterator[IcebergOutput]:
    """An output that has written a batch: rows 0 to 3."""
    orders(delivered.built)
    found = delivered.output(catalog, **options)
    found.prepare(delivered.built.log.generation)
    delivered.write(found)
    assert found._expiring is not None
    found._expiring.result()  # once an hour it loads the table in a thread
    yield found
    found.close()


def change(delivered: Delivered) -> None:
    """Lead from these rows to `CHANGED`."""
    built = delivered.built
    table = built.log.schemas.latest(built.log.schemas.tables()[0])
    built.update(table, "1", "changed", "1.5")
    built.insert(table, "4", "n4", "1.5")
    built.delete(table, "3")
    built.flush()


CHANGED = {0: "n0", 1: "changed", 2: "n2", 4: "n4"}


@pytest.fixture
def delivered(spark: Any, built: BuiltLog, tmp_path: Path) -> Delivered:
    return Delivered(spark, built, tmp_path)
