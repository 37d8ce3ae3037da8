"""The Iceberg output and a Hive Metastore, which others use as well."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyiceberg.table import StaticTable
from tests.integration.iceberg_catalogs.conftest import Delivered
from tests.integration.spark.orders import COLUMNS, orders
from tests.support.hive import HiveMetastore
from tests.support.iceberg_readers import by_duckdb, by_pyiceberg

from tidelog.errors import OutputError
from tidelog.outputs.lake.delta.hive import HiveCatalog
from tidelog.outputs.lake.delta.registration import Entry
from tidelog.state.sqlite import SqliteState

pytestmark = [pytest.mark.spark, pytest.mark.integration, pytest.mark.thorough]


def test_tables_are_in_the_metastore_beside_those_of_others(
    delivered: Delivered, tmp_path: Path
) -> None:
    with HiveMetastore() as metastore:
        # Ours has no tables of locks.
        own = {"table-default.engine.hive.lock-enabled": "false"}
        catalog = {"type": "hive", "uri": metastore.uri, **own}
        hive = HiveCatalog(delivered.spark, metastore.uri)
        table = orders(delivered.built)
        theirs = delivered.built.table("public.theirs", COLUMNS)
        delivered.built.insert(theirs, "1", "n", "1.5")
        delivered.built.flush()
        hive.register([Entry(theirs.table, "public", "theirs", str(tmp_path / "theirs"))])

        def rows() -> list[tuple[int, str]]:
            client = hive._connect()
            place = client.getTable("public", "orders").getParameters().get("metadata_location")
            client.close()
            found = by_pyiceberg(StaticTable.from_metadata(place))
            assert by_duckdb(place) == found
            return [(row["id"], row["name"]) for row in found]

        def run() -> dict[str, str]:
            state = SqliteState(f"sqlite:///{tmp_path / 'state.db'}")
            return delivered.run(catalog, state=state)

        left_out = run()
        assert rows() == [(0, "n0"), (1, "n1"), (2, "n2"), (3, "n3")]
        assert list(left_out) == ["public.theirs"], "that table alone"
        assert "is no Iceberg table" in left_out["public.theirs"]
        delivered.built.update(table, "1", "changed", "1.5")
        delivered.built.delete(table, "3")
        delivered.built.flush()
        run()
        assert rows() == [(0, "n0"), (1, "changed"), (2, "n2")]


def test_a_metastore_that_can_not_lock_a_table_is_named(delivered: Delivered) -> None:
    with HiveMetastore() as metastore:
        orders(delivered.built)
        conf = delivered.spark.sparkContext._jsc.hadoopConfiguration()
        conf.set("iceberg.hive.lock-creation-timeout-ms", "1000")
        conf.set("iceberg.hive.lock-timeout-ms", "1000")
        with pytest.raises(OutputError, match=r"neither created public\.orders nor has it"):
            delivered.run({"type": "hive", "uri": metastore.uri})
