"""A new operator finds what is asked first on the first screen of page and terminal, while much is
wrong: how late, which table and why, when the slot is lost, what the dump needs, who paused it, and
what verify said.
"""

from __future__ import annotations

import os
import re
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import psycopg
import pytest
from tests.e2e.web.conftest import Open
from tests.e2e.web.shop import OPERATOR, Shop, wait_for
from tests.support.postgres import PostgresServer
from tests.support.pseudo_terminal import PseudoTerminal

from tidelog import app
from tidelog.app.base import last_results
from tidelog.app.overview.build import overview
from tidelog.capture import source_monitor
from tidelog.cli.status_lines import lines
from tidelog.control.commands import PauseDump, SetDumpOptions, StartDump
from tidelog.eventlog.consumers import Consumers, DeliveryStats, OutputFailure
from tidelog.eventlog.reader import EventLog
from tidelog.results import TableComparison
from tidelog.state.opening import open_state
from tidelog.system.processes import unix_ms

pytestmark = pytest.mark.integration
TABLES = 20
SIZES = ((80, 24), (100, 30), (160, 50))
TIME = r"\d\d:\d\d:\d\d"
WHEN = rf"([\d-]+ )?{TIME}"
ANSWERS = {
    "log": rf"the slot keeps \S+, with \S+ to spare; at this rate it is lost in .+?, at {WHEN}",
    "tables": r"1 of 21 with a problem: public.clicks \(captured in part: it has no primary key\)",
    "dump": rf"nightly \(and 1 more dump\): \d+ of 21 tables to go, about \S+, until {WHEN}",
    "paused": r"dump again by otto@db-host",
    "verify": "2 differed: public.t01 in copy, public.t02 in copy; "
    rf"20 copies compared at {WHEN}",
}
LATE = (r"shop/copy is \S+ behind \([\d,]+ records\), and fails", "shop/search .*in dead letters")
VERDICT = "Verify found that public.t01 in copy and 1 more copy differed from the source."


@pytest.fixture
def troubled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shop]:
    monkeypatch.setattr(source_monitor, "RATE_FROM_S", 6.0)
    # So much that the slot dies in hours: else that would be the verdict.
    with PostgresServer(settings={"max_slot_wal_keep_size": "50GB"}) as server:
        database, ended = server.create_database("shop"), threading.Event()
        with psycopg.connect(database, autocommit=True) as sql:
            for at in range(TABLES):
                sql.execute(f"CREATE TABLE t{at:02} (id int PRIMARY KEY, note text)".encode())
                sql.execute(f"INSERT INTO t{at:02} SELECT generate_series(1, 300)".encode())
            sql.execute("CREATE TABLE clicks (at timestamptz, url text)")
            sql.execute("ANALYZE")
        shop = Shop(tmp_path, database)
        shop.capture_here()
        writer = threading.Thread(target=writes, args=(database, ended))
        try:
            wait_for(lambda: shop.role() == "leader", "no capture leads")
            wait_for(lambda: has_dumped(shop), "the first dump does not end")
            writer.start()
            make_trouble(shop)
            yield shop
        finally:
            ended.set()
            if writer.ident is not None:
                writer.join(60)
            shop.end()


def writes(database: str, ended: threading.Event) -> None:
    """An old transaction holds the slot, while others write."""
    with psycopg.connect(database) as old, psycopg.connect(database, autocommit=True) as sql:
        old.execute("INSERT INTO t00 VALUES (-1)")
        while not ended.wait(0.3):
            sql.execute("UPDATE t01 SET note = repeat('x', 900)")
        old.rollback()


def has_dumped(shop: Shop) -> bool:
    dumps = app.status(shop.config).document.get("dumps") or ()
    return bool(dumps) and all(each["status"] == "completed" for each in dumps)


def make_trouble(shop: Shop) -> None:
    """As pipeline and verify note it; the rest really is so."""
    now_ms, log = unix_ms(), EventLog.open(shop.directory / "log")
    away = OutputFailure("OutputError", "can't connect: Connection refused", now_ms)
    offset = log.chain().head
    Consumers(log.storage).register(
        "shop", offset, {"copy": offset, "search": offset}, delivered={
            "copy": DeliveryStats(failure=away),
            "search": DeliveryStats(9, 0.5, now_ms, rejected=3, rejected_ms=now_ms, batches=1),
        },
    )  # fmt: skip
    shop.delivers("shop")
    reports = [
        TableComparison("copy", f"public.t{at:02}", at not in (1, 2), rows=300)
        for at in range(TABLES)
    ]
    with closing(open_state(shop.config.state.location)) as state:
        last_results.store_results(state, reports, whole=True)
    slowly = SetDumpOptions(rows_per_second=60, chunk_rows=20)
    for command in (
        slowly, StartDump(dump_id="nightly"),
        StartDump(dump_id="again", tables=("public.t03",)),
        PauseDump(dump_id="again", by="otto@db-host"),
    ):  # fmt: skip
        app.send_command(shop.config, command, timeout_s=60)


def test_what_is_asked_first_is_on_the_first_screen(troubled: Shop, new_page: Open) -> None:
    def all_told() -> bool:
        found = overview(app.status(troubled.config).document, unix_ms())
        texts = {each.name: each.text for each in found.answers}
        return texts["log"].endswith(" at") and texts["dump"].endswith("until")

    wait_for(all_told, "no time is told", 60)
    found = overview(app.status(troubled.config).document, unix_ms())
    piped = "\n".join(lines(found))
    assert piped.startswith(f"✗ {VERDICT}\n    tidelog verify CONFIG --repair\n"), piped
    for size in SIZES:
        for command in ("watch", "status"):
            shown = screen_of(troubled.directory, command, *size)
            for wanted in (VERDICT, *(ANSWERS[name] for name in ANSWERS if name != "dump"), *LATE):
                assert re.search(wanted, shown), f"{command} at {size}: no {wanted}\n{shown}"
            assert re.search(r"nightly is running: \d+ of 21 tables, .* left", shown), shown
    page = new_page(troubled.url, OPERATOR, "Anna")
    page.wait_for_selector("#answers dd")
    where = page.locator("#answers").bounding_box()
    assert where is not None
    assert where["y"] + where["height"] < 800  # without scrolling
    told = page.inner_text("#answers")
    for wanted in ANSWERS.values():
        assert re.search(wanted, told), f"no {wanted}\n{told}"
    assert page.inner_text("#verdict h1") == VERDICT
    tiles = page.inner_text("#tiles")
    assert re.search(r"copy is late by[^;]* to deliver; fails", tiles), tiles
    assert "3 in dead letters" in tiles
    assert page.locator("#tiles .tile.warning").count() == 2


def screen_of(directory: Path, command: str, width: int, height: int) -> str:
    """As one line of words."""
    run = [sys.executable, "-m", "tidelog", command, "tidelog.yaml"]
    with PseudoTerminal(run, directory, width, height) as terminal:
        if command == "status":
            shown = terminal.wait_ended()
        else:
            shown = terminal.wait(lambda text: "q quits" in text and "verify" in text)
    assert shown.startswith("✗ Verify found"), shown
    if wanted := os.environ.get("TIDELOG_SCREENS"):  # to be looked at
        (Path(wanted) / f"{command}-{width}x{height}.txt").write_text(f"{shown}\n")
    first, _, rest = shown.partition("\n")
    return " ".join(f"{re.sub(TIME, '', first)} {rest}".split())
