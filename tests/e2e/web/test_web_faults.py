"""The web page while processes and the database die, with many tables, and its pictures."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
import pytest
from tests.e2e.web.conftest import Open
from tests.e2e.web.shop import OPERATOR, SQL, Shop, free_port, wait_for
from tests.support.postgres import PostgresServer

from tidelog import app
from tidelog.app.base import last_results
from tidelog.capture.activity import ACTIVITY_KEY, BUCKET_S, Activity, ActivityDay
from tidelog.control.commands import PauseDump, SetDumpOptions, StartDump
from tidelog.results import CheckFinding, TableComparison
from tidelog.state.opening import open_state

if TYPE_CHECKING:
    from playwright.sync_api import Page

    from tidelog.config import Config
    from tidelog.ports import StateStore

pytestmark = [pytest.mark.integration, pytest.mark.thorough]

TABLES = 500
WAIT_MS = 120_000
IMAGES = Path(__file__).parents[3] / "docs" / "images"


@pytest.fixture
def server() -> Iterator[PostgresServer]:
    # The port is the same when it is started again.
    with PostgresServer(settings={"max_slot_wal_keep_size": "1GB"}, port=free_port()) as found:
        yield found


@pytest.fixture
def busy(server: PostgresServer, tmp_path: Path) -> Iterator[Shop]:
    """A shop on a server of its own; nothing captures it yet."""
    database = server.create_database("shop")
    with psycopg.connect(database, autocommit=True) as sql:
        sql.execute(SQL.encode())
    found = Shop(tmp_path, database)
    yield found
    found.end()


def test_a_killed_leader_and_one_that_comes_back(busy: Shop, new_page: Open) -> None:
    first = busy.capture()
    wait_for(lambda: busy.role() == "leader", "no capture leads")
    other_port = free_port()
    other = busy.config_file("other.yaml", busy.database, other_port)
    busy.capture(other)
    wait_for(lambda: busy.role(other_port) == "standby", "nobody stands by")
    here = new_page(busy.url, OPERATOR, expected="net::ERR_|50[034]")
    there = new_page(f"http://127.0.0.1:{other_port}/", OPERATOR, "Otto")
    there.wait_for_selector("#tables-list tbody tr")
    assert f":{first.pid} leads" in there.inner_text("#processes-list")
    # A standby's page acts, too.
    there.click("text=Dump…")
    there.fill("#dump-tables", "public.customers")
    there.click("[data-act=plan]")
    there.click("[data-act=confirm]")
    there.wait_for_selector("text=begins.", timeout=WAIT_MS)

    first.kill()
    here.wait_for_selector("text=The server does not answer since", timeout=WAIT_MS)
    assert here.is_visible("#verdict h1")  # as it was
    another = f"text=/:(?!{first.pid} )\\d+ leads/"
    there.wait_for_selector(f"#processes-list >> {another}", timeout=WAIT_MS)

    # It comes back, to stand by; the session goes on.
    busy.capture()
    here.wait_for_selector("#silence", state="hidden", timeout=WAIT_MS)
    here.wait_for_selector("#processes-list >> text=stands by", timeout=WAIT_MS)
    assert not here.is_visible("#token")


def test_a_stopped_database(busy: Shop, server: PostgresServer, new_page: Open) -> None:
    busy.capture()
    wait_for(lambda: busy.role() == "leader", "no capture leads")
    page = new_page(busy.url, OPERATOR, expected="503")
    server.kill()
    page.wait_for_selector("#verdict.critical", timeout=WAIT_MS)
    assert "capture" in page.inner_text("#problems-list").lower()
    server.start()
    page.wait_for_selector("#verdict:not(.critical)", timeout=WAIT_MS)


def test_many_tables(busy: Shop, new_page: Open) -> None:
    with psycopg.connect(busy.database, autocommit=True) as sql:
        for number in range(TABLES):
            sql.execute(f"CREATE TABLE part_{number:04} (id int PRIMARY KEY)".encode())
    busy.capture()
    wait_for(lambda: busy.role() == "leader", "no capture leads")
    page = new_page(busy.url, OPERATOR)
    page.wait_for_selector(f"#tables-count >> text={TABLES + 4} tables", timeout=WAIT_MS)
    page.fill("#tables-search", "part_0499")
    assert page.locator("#tables-list tbody tr").count() == 1
    page.fill("#tables-search", "part_")
    page.click("text=/show \\d+ more/")
    assert page.locator("#tables-list tbody tr").count() == TABLES
    page.fill("#tables-search", "no such table")
    assert page.locator("#tables-list tbody tr").count() == 0
    assert f"0 of {TABLES + 4} tables" in page.inner_text("#tables-count")


def test_pictures(busy: Shop, new_page: Open, tmp_path: Path) -> None:
    """Of a shop in which something goes on; into docs/images with TIDELOG_PICTURES=1."""
    images = IMAGES if os.environ.get("TIDELOG_PICTURES") else tmp_path
    with psycopg.connect(busy.database, autocommit=True) as sql:
        for name in ("invoices", "items", "payments", "products", "returns", "shipments", "users"):
            sql.execute(f"CREATE TABLE {name} (id int PRIMARY KEY)".encode())
            sql.execute(f"INSERT INTO {name} SELECT generate_series(1, 500)".encode())
        sql.execute(b"""DO $$ BEGIN EXECUTE (SELECT format('DROP TABLE %I', relname) FROM pg_class
            WHERE relname LIKE '<img%' AND relkind = 'r'); END $$""")
        sql.execute(b"ANALYZE")
    with closing(open_state(busy.config.state.location)) as state:
        remember(state, busy.config)
    busy.capture()
    wait_for(lambda: busy.role() == "leader", "no capture leads")
    wait_for(lambda: app.status(busy.config).document["outputs"] == [], "no log")
    busy.delivers("shop")
    page = new_page(busy.url, OPERATOR, "Anna")
    page.click("[data-act=pause-pipeline-shop]")
    page.click("[data-act=confirm]")
    page.wait_for_selector("#audit-list >> text=pipeline shop")
    with psycopg.connect(busy.database, autocommit=True) as sql:
        for number in range(60):
            rows = 300 + 40 * (number % 7)
            sql.execute("UPDATE orders SET note = %s WHERE id <= %s", (str(number), rows))
            page.wait_for_timeout(500)
            if number % 5 == 0:
                busy.deliver({"delta": 1, "opensearch": 1})
    busy.deliver({"delta": 1, "opensearch": 1})
    app.send_command(busy.config, SetDumpOptions(rows_per_second=900, chunk_rows=100), timeout_s=60)
    dump = StartDump(dump_id="nightly", tables=("public.orders", "public.customers"))
    app.send_command(busy.config, dump, timeout_s=60)
    again = StartDump(dump_id="items-again", tables=("public.items",))
    app.send_command(busy.config, again, timeout_s=60)
    pause = PauseDump(dump_id="items-again", by="otto@db-host")
    app.send_command(busy.config, pause, timeout_s=60)
    page.wait_for_selector(".percent:text-matches('[2-9]\\\\d %')", timeout=WAIT_MS)
    for colours, name in (("light", ""), ("dark", "-dark")):
        page.emulate_media(color_scheme=colours)
        taken(page, images / f"web-page{name}.png", 1280, 1240)
        taken(page, tmp_path / f"whole{name}.png", 1280, 1240, whole=True)
        taken(page, images / f"web-page-phone{name}.png", 390, 844)
        taken(page, tmp_path / f"whole-phone{name}.png", 390, 844, whole=True)
    page.set_viewport_size({"width": 1280, "height": 800})
    page.click("[data-act=pause-log]")
    taken(page, tmp_path / "asked.png", 390, 844)


def remember(state: StateStore, config: Config) -> None:
    """A day of operations, in which one kind of them suddenly ended, and what was compared."""
    day, now_s = ActivityDay(), int(time.time()) // BUCKET_S * BUCKET_S
    for bucket in range(260):
        busy = 1.2 + math.sin(bucket / 40)
        orders = [0 if bucket >= 240 else int(800 * busy), int(300 * busy), 5, 0]
        counts = {
            "public.orders": orders, "public.customers": [int(20 * busy), 60, 0, 0],
            "public.items": [int(900 * busy), 0, int(90 * busy), 500 if bucket == 100 else 0],
        }  # fmt: skip
        day.add(now_s + (bucket - 260) * BUCKET_S, BUCKET_S, counts)
    state.put(ACTIVITY_KEY, day.to_json(), None)
    drops = Activity(state, str).drops()
    state.put(ACTIVITY_KEY, {**day.to_json(), "drops": drops}, None)
    reports = [
        TableComparison("delta", "public.orders", True, rows=20_000),
        TableComparison("delta", "public.items", True, rows=500),
    ]
    last_results.store_results(state, reports, whole=True)
    found = [CheckFinding("wal_level", "ok", "is logical")]
    state.put(last_results.check_key(config), last_results.check_summary(found), None)


def taken(page: Page, file: Path, width: int, height: int, *, whole: bool = False) -> None:
    page.set_viewport_size({"width": width, "height": height})
    page.wait_for_timeout(800)
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")  # nothing overflows
    page.screenshot(path=file, full_page=whole)
    assert file.stat().st_size > 10_000
