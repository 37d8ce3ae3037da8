"""Repairing a lake from a DataFrame, and waiting until the lake holds what a dump has read."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import psycopg
import pyarrow.parquet as pq
import pytest
from tests.support.postgres import PostgresServer

import tidelog
from tidelog import app
from tidelog.cli import main
from tidelog.config import Config, load_config
from tidelog.control.commands import StartDump
from tidelog.errors import TidelogError, UsageError
from tidelog.state.sqlite import SqliteState

pytestmark = [pytest.mark.spark, pytest.mark.integration]

SQL = """
CREATE TABLE orders (at timestamptz, line int, total numeric(10,2), PRIMARY KEY (at, line));
INSERT INTO orders SELECT '2024-01-01Z'::timestamptz + i * interval '1 hour', i % 3, i
FROM generate_series(1, 3000) i;
CREATE TABLE aside (id int PRIMARY KEY);
INSERT INTO aside VALUES (1);
"""


class Shop:
    """A source, its capture on a thread, and a lake that `deliver` brings up to date.

    ``output``: its section, without the path.
    """

    def __init__(self, spark: Any, dsn: str, directory: Path, output: str = "kind: delta") -> None:
        self.spark = spark
        self.sql = psycopg.connect(dsn, autocommit=True)
        self.file = directory / "tidelog.yaml"
        self.file.write_text(
            f"source: {{kind: postgres, url: '{dsn}', slot: repairing}}\n"
            f"log: {{path: {directory}/log}}\n"
            f"state: {{url: 'sqlite:///{directory}/state.db'}}\n"
            "capture: {flush_ms: 10}\n"
            f"outputs: [{{{output}, path: {directory}/lake, tables: [public.orders]}}]\n"
            f"pipeline: {{checkpoint: {directory}/checkpoint}}\n"
        )
        self.config: Config = load_config(self.file)
        self.path = f"{directory}/lake/public/orders"
        self.delta = f"delta.`{self.path}`"
        self._capture = tidelog.Capture(self.config)

    def start(self) -> None:
        self._capture.start()
        deadline = time.monotonic() + 60
        while not self._dumped():
            assert not self._capture.wait(0)
            assert time.monotonic() < deadline
            time.sleep(0.1)

    def _dumped(self) -> bool:
        dumps = app.status(self.config).document.get("dumps", ())
        return any(dump["status"] == "completed" for dump in dumps)

    def deliver(self) -> None:
        app.run_pipeline(self.config, once=True, stop_event=threading.Event())

    def lake(self) -> Any:
        return self.spark.read.format("delta").load(self.path)

    def equal(self) -> bool:
        select = "SELECT extract(epoch FROM at)::bigint, line, total FROM orders ORDER BY 1"
        source = self.sql.execute(select).fetchall()
        copy = self.lake().selectExpr("unix_seconds(at) AS at", "line", "total").orderBy("at")
        return source == [tuple(row) for row in copy.collect()]

    def close(self) -> None:
        self._capture.stop()
        self._capture.wait(30)
        self.sql.close()


@pytest.fixture(scope="module")
def shop(
    spark: Any, postgres16: PostgresServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Shop]:
    dsn = postgres16.create_database("repairing")
    postgres16.execute(SQL, "repairing")
    found = Shop(spark, dsn, tmp_path_factory.mktemp("shop"))
    found.start()
    found.deliver()
    yield found
    found.close()
    postgres16.drop_database("repairing")


def test_falsified_rows_are_read_again_and_nothing_else(shop: Shop) -> None:
    assert shop.equal()
    shop.spark.sql(f"UPDATE {shop.delta} SET total = -total WHERE line = 1")
    shop.spark.sql(
        f"INSERT INTO {shop.delta} VALUES (TIMESTAMP'2001-01-01 00:00:00Z', 9, -1.00, 0)"
    )
    wrong = shop.lake().where("total < 0").selectExpr("*", "total AS more")
    done = tidelog.repair(wrong.union(wrong), shop.file, "public.orders", timeout_s=60)
    assert (done.status, done.keys) == ("completed", 1001)
    [table] = done.tables
    assert (table.rows_read, table.keys_absent) == (1001, 1)
    assert done.to_dict()["tables"][0]["rows_read"] == 1001
    assert not shop.equal()
    shop.deliver()
    assert shop.equal()


def test_missing_keys_are_listed_and_not_deleted(
    shop: Shop, capsys: pytest.CaptureFixture[str]
) -> None:
    keys = shop.spark.sql(
        "SELECT TIMESTAMP'2024-01-01 02:00:00Z' AS at, line FROM VALUES (1), (2), (3) AS v(line)"
    )
    done = tidelog.repair(keys, shop.config, "public.orders", missing="list", timeout_s=60)
    assert [line for _, line in sorted(done.missing_keys)] == ["1", "3"]
    listed = list(app.missing_keys(shop.config, done.dump_id))
    assert sorted(listed) == sorted(done.missing_keys)
    events = list(app.read_log(shop.config, table="public.orders"))
    assert events[-1]["after"]["line"] == 2  # and no delete of the others

    arguments = ["dump", str(shop.file), "-t", "public.orders", "--wait", "--missing", "list"]
    given = '[["2024-01-01 01:00:00+00", 1], ["2024-01-01 01:00:00+00", 7]]'
    with pytest.raises(SystemExit) as ended:
        main([*arguments, "--json", "--keys", given])
    assert not ended.value.code
    report = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert report["missing_keys"] == [["2024-01-01 01:00:00+00", "7"]]
    with pytest.raises(UsageError, match="there is no dump nope"):
        list(app.missing_keys(shop.config, "nope"))


def test_what_can_not_be_repaired_is_refused_and_leaves_nothing(shop: Shop) -> None:
    lake = shop.lake()
    with pytest.raises(UsageError, match=r"a key of public\.orders is"):
        tidelog.repair(lake.drop("line"), shop.config, "public.orders")
    with pytest.raises(UsageError, match=r"no captured table matches 'public\.nope'"):
        tidelog.repair(lake, shop.config, "public.nope")
    with pytest.raises(UsageError, match="3000 rows have NULL in the key"):
        tidelog.repair(lake.selectExpr("at", "null + 1 AS line"), shop.config, "public.orders")
    nothing = tidelog.repair(lake.where("false"), shop.config, "public.orders")
    assert (nothing.dump_id, nothing.keys, nothing.tables) == (None, 0, ())
    assert key_sets(shop) == []


def test_keys_of_a_refused_command_are_let_go(shop: Shop, tmp_path: Path) -> None:
    file = tmp_path / "keys.csv"
    file.write_text("line,at\n1,2024-01-01 01:00:00+00\n")
    fields = asdict(app.store_key_file(shop.config, file, ["public.orders"]))
    assert len(key_sets(shop)) == 1
    command = StartDump(dump_id="refused", **(fields | {"tables": ("public.aside",)}))
    assert app.send_command(shop.config, command, timeout_s=30).to_dict()["error"] is not None
    assert key_sets(shop) == []


def key_sets(shop: Shop) -> list[str]:
    state = SqliteState(shop.config.state.url)
    try:
        return state.keys("key-set/given-")
    finally:
        state.close()


def test_key_file_is_dumped_and_its_keys_are_let_go(shop: Shop, tmp_path: Path) -> None:
    file = tmp_path / "keys.parquet"
    pq.write_table(shop.lake().where("line = 2").toArrow(), file)
    fields = asdict(app.store_key_file(shop.config, file, ["public.ord*"]))
    assert fields["key_columns"] == ("at", "line")
    command = StartDump(dump_id="from-file", **fields)
    assert app.send_command(shop.config, command, timeout_s=30).to_dict()["error"] is None
    done = app.dump_wait(shop.config, "from-file", timeout_s=60).to_dict()
    assert (done["tables"][0]["rows_read"], done["tables"][0]["keys_absent"]) == (1000, 0)
    assert key_sets(shop) == []


def test_waiting_ends_when_the_lake_holds_the_dump_and_not_before(shop: Shop) -> None:
    shop.deliver()
    assert app.wait_delivered(shop.config, "from-file", timeout_s=5).to_dict()["delivered"]
    command = StartDump(dump_id="whole", tables=("public.orders", "public.aside"))
    assert app.send_command(shop.config, command, timeout_s=30).to_dict()["error"] is None
    assert app.dump_wait(shop.config, "whole", timeout_s=60).to_dict()["status"] == "completed"
    with pytest.raises(TidelogError, match=r"within 1 s: the outputs are behind; is the pipeline"):
        app.wait_delivered(shop.config, "whole", timeout_s=1)
    shop.deliver()
    found = app.wait_delivered(shop.config, "whole", "delta", timeout_s=5).to_dict()
    tables = {table["table"]: table for table in found["tables"]}
    assert found["delivered"]
    assert found["offset"] >= tables["public.orders"]["finalized_until"]
    assert not tables["public.aside"]["taken"]

    marks = [
        event
        for event in app.read_log(shop.config, table="public.orders", dumps=True)
        if event["op"] == "dump" and event["dump"]["dump_id"] == "whole"
    ]
    assert [mark["dump"]["type"] for mark in marks] == ["dump-started", "dump-completed"]
    assert marks[-1]["version"] + 1 == tables["public.orders"]["finalized_until"]


def test_capture_says_how_far_it_is_where_nothing_is_captured(shop: Shop) -> None:
    """Verify need not wait for the event log's next position record."""
    shop.sql.execute("SELECT pg_logical_emit_message(true, 'of nobody', '')")
    [end] = shop.sql.execute("SELECT pg_current_wal_flush_lsn() - '0/0'::pg_lsn").fetchone() or ()
    deadline = time.monotonic() + 60
    while app.status(shop.config).document["capture"]["covered"] < end:
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_verify_repairs_what_it_finds(shop: Shop) -> None:
    shop.deliver()
    shop.spark.sql(f"DELETE FROM {shop.delta} WHERE total < 11")
    zone = shop.spark.conf.get("spark.sql.session.timeZone")
    shop.spark.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")
    stop = threading.Event()
    running = threading.Thread(
        target=app.run_pipeline, args=(shop.config,), kwargs={"stop_event": stop}
    )
    running.start()  # verify waits for what is on its way
    try:
        report = app.verify(shop.config, repair=True).to_dict()
    finally:
        stop.set()
        running.join(60)
        shop.spark.conf.set("spark.sql.session.timeZone", zone)
    [table] = report["tables"]
    assert (table["missing"], table["surplus"], table["different"]) == (10, 0, 0)
    verified = app.status(shop.config).document["overview"]["verified"]
    assert (verified["differ"], verified["repaired"]) == ((), ("public.orders in delta",))
    done = app.dump_wait(shop.config, table["repair"]["dump_id"], timeout_s=60).to_dict()
    assert (done["tables"][0]["rows_read"], done["tables"][0]["keys_absent"]) == (10, 0)
    shop.deliver()
    assert shop.equal()


@pytest.mark.parametrize(
    ("dump", "output", "expected"),
    [
        ("nope", None, "there is no dump nope"),
        ("from-file", "nope", "no output or consumer 'nope'; outputs: delta"),
    ],
)
def test_waiting_for_what_is_not_there_is_refused(
    shop: Shop, dump: str, output: str | None, expected: str
) -> None:
    with pytest.raises(UsageError, match=expected):
        app.wait_delivered(shop.config, dump, output, timeout_s=5)


def test_dump_that_no_output_takes_is_not_waited_for(shop: Shop) -> None:
    command = StartDump(dump_id="aside", tables=("public.aside",))
    assert app.send_command(shop.config, command, timeout_s=30).to_dict()["error"] is None
    with pytest.raises(UsageError, match="no output takes a table of dump aside"):
        app.wait_delivered(shop.config, "aside", timeout_s=30)
