"""`tidelog verify` and its remedy for a table of history: its current rows are the source's."""

from __future__ import annotations

import io
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, redirect_stdout
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from tests.integration.spark.test_delta_random import check_states
from tests.integration.spark.test_repairing import SQL, Shop
from tests.support.delta_readers import by_duckdb
from tests.support.postgres import PostgresServer
from tests.support.postgres_jdbc import jdbc_uri

from tidelog import app
from tidelog.cli import main

pytestmark = [pytest.mark.spark, pytest.mark.integration]

Make = Callable[[str], Shop]
"""For the section of an output."""


@pytest.fixture
def database_dsn(postgres16: PostgresServer) -> Iterator[str]:
    dsn = postgres16.create_database("kept")
    postgres16.execute(SQL, "kept")
    yield dsn
    postgres16.drop_database("kept")


@pytest.fixture
def make(spark: Any, database_dsn: str, tmp_path: Path) -> Iterator[Make]:
    made: list[Shop] = []

    def shop(section: str) -> Shop:
        made.append(Shop(spark, database_dsn, tmp_path, f"{section}, holds: {{'*.*': history}}"))
        made[0].start()
        return made[0]

    yield shop
    made[0].close()


def verify(shop: Shop, command: str = "tidelog verify CONFIG") -> dict[str, Any]:
    """Run the command while the pipeline runs: it waits for what is on its way."""
    arguments = [each.replace("CONFIG", str(shop.file)) for each in command.split()[1:]]
    stop = threading.Event()
    call = {"args": (shop.config,), "kwargs": {"stop_event": stop}}
    running = threading.Thread(target=app.run_pipeline, **call)  # type: ignore[arg-type]
    running.start()
    try:
        with redirect_stdout(io.StringIO()) as printed, pytest.raises(SystemExit) as ended:
            main([*arguments, "--json"])
    finally:
        stop.set()
        running.join(60)
    report = json.loads(printed.getvalue())
    [table] = report["tables"]
    assert report["equal"] is table["equal"] is not bool(ended.value.code)
    return dict(table)


def check_repaired(
    shop: Shop, falsify: Callable[[], None], rows: Callable[[], list[dict[str, Any]]]
) -> None:
    """Five current rows are falsified, one goes, and a state that has ended is another."""
    shop.sql.execute("UPDATE orders SET total = total + 0.5 WHERE total <= 20")
    shop.sql.execute("DELETE FROM orders WHERE total > 2990")
    shop.deliver()
    assert verify(shop)["equal"]
    before = len(rows())
    falsify()
    found = verify(shop)
    assert (found["missing"], found["surplus"], found["different"]) == (1, 0, 5)
    [differs] = [
        each for each in app.status(shop.config).overview.problems if "differ" in each.kind
    ]
    found = verify(shop, differs.remedy)
    assert (found["missing"], found["surplus"], found["different"]) == (1, 0, 5)
    app.dump_wait(shop.config, found["repair"]["dump_id"], timeout_s=60)
    shop.deliver()
    assert verify(shop)["equal"]
    states: dict[Any, list[dict[str, Any]]] = {}
    for row in rows():
        states.setdefault((row["at"], row["line"]), []).append(row)
    for of_key in states.values():
        check_states(of_key, "")
    assert sum(map(len, states.values())) == before + 5, "the false ones have ended"
    source = shop.sql.execute("SELECT at, line, total FROM orders ORDER BY at").fetchall()
    now = [row for of_key in states.values() for row in of_key if row["_current"]]
    assert sorted((row["at"], row["line"], row["total"]) for row in now) == source


def test_current_rows_of_a_delta_table_are_repaired(make: Make) -> None:
    shop = make("kind: delta")

    def falsify() -> None:
        shop.spark.sql(f"UPDATE {shop.delta} SET total = -total WHERE _current AND total < 6")
        shop.spark.sql(f"DELETE FROM {shop.delta} WHERE _current AND total = 6.5")

    check_repaired(shop, falsify, lambda: by_duckdb(shop.path, "_valid_from_version").to_pylist())


@pytest.mark.filterwarnings("ignore:Merge on read is not yet supported")
def test_current_rows_of_an_iceberg_table_are_repaired(make: Make, database_dsn: str) -> None:
    uri, login = jdbc_uri(database_dsn)
    catalog = ", ".join(f"{name}: '{value}'" for name, value in login.items())
    shop = make(
        f"kind: iceberg, catalog_name: lake, catalog: {{type: jdbc, uri: '{uri}', {catalog}}}"
    )
    users = SqlCatalog("lake", uri=database_dsn.replace("postgresql:", "postgresql+psycopg:"))

    def scanned() -> pa.Table:
        return users.load_table("public.orders").scan().to_arrow()

    def falsify() -> None:
        rows = scanned()
        current, total = rows["_current"], rows["total"]
        wrong = pc.and_(current, pc.less(total, pa.scalar(6)))
        values = pc.if_else(wrong, pc.negate(total), total).cast(total.type)
        rows = rows.set_column(rows.column_names.index("total"), rows.field("total"), values)
        gone = pc.and_(current, pc.equal(total.cast(pa.float64()), 6.5))
        users.load_table("public.orders").overwrite(rows.filter(pc.invert(gone)))

    with closing(users):
        check_repaired(shop, falsify, lambda: scanned().to_pylist())
