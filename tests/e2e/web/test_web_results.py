"""What a capture, verify and check left in the state store, on the page of `tidelog serve`."""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.e2e.web.conftest import Open
from tests.e2e.web.shop import HOSTILE, OPERATOR, VIEWER, Shop, free_port, wait_for

from tidelog import app
from tidelog.app.base import last_results
from tidelog.capture.activity import ACTIVITY_KEY, BUCKET_S, Activity, ActivityDay
from tidelog.capture.session.start import STATUS_KEY
from tidelog.results import CheckFinding, TableComparison
from tidelog.state.opening import open_state

if TYPE_CHECKING:
    from playwright.sync_api import Page

    from tidelog.config import Config
    from tidelog.ports import StateStore

pytestmark = pytest.mark.integration

NIGHT_S = 1_700_000_100 // BUCKET_S * BUCKET_S
DROP_AT = 200


def fill(state: StateStore, config: Config) -> None:
    """As a day left it: orders end suddenly; a table has a hostile name."""
    day = ActivityDay()
    for bucket in range(250):
        orders = [1700 if bucket < DROP_AT else 0, 40, 3, 0]
        counts = {"public.orders": orders, HOSTILE: [0, 7, 0, 0]}
        counts |= {f"public.t{n}": [1, 0, 0, 0] for n in range(30)}
        day.add(NIGHT_S + bucket * BUCKET_S, BUCKET_S, counts)
    state.put(ACTIVITY_KEY, day.to_json(), None)
    drops = Activity(state, str).drops()
    assert [(each["table"], each["kind"]) for each in drops] == [("public.orders", "insert")]
    state.put(ACTIVITY_KEY, {**day.to_json(), "drops": drops}, None)
    keys = (("hunter2-key",),)
    reports = [
        TableComparison("lake", "public.orders", True, rows=20_000),
        TableComparison("lake", HOSTILE, False, missing=3, different=2, keys=keys),
    ]
    last_results.store_results(state, reports, whole=True)
    fix = "-- as a superuser:\nALTER SYSTEM SET wal_level = logical;\nThen restart the server."
    finding = CheckFinding("wal_level", "error", HOSTILE, fix)
    status = {"source": {"kept_s": 30 * 86_400}, "updated_ms": NIGHT_S * 1000, "capture": {}}
    state.put(STATUS_KEY, status, None)
    state.put(last_results.check_key(config), last_results.check_summary([finding]), None)


@pytest.fixture
def port(tmp_path: Path) -> Iterator[int]:
    """Of a page over a Tidelog whose database is away, and which nothing captures."""
    config = Shop(tmp_path, "postgresql://127.0.0.1:1/none").config
    with closing(open_state(config.state.location)) as state:
        fill(state, config)
    stop, urls, found = threading.Event(), list[str](), free_port()
    thread = threading.Thread(
        target=lambda: app.serve_page(
            [(tmp_path / "tidelog.yaml", config)],
            host=None, port=found, stop_event=stop, on_start=urls.append,
        )
    )  # fmt: skip
    thread.start()
    wait_for(lambda: urls, "nothing is served")
    yield found
    stop.set()
    thread.join(30)


def url(port: int) -> str:
    return f"http://127.0.0.1:{port}/"


def test_operations_by_table_and_their_sudden_drop(port: int, new_page: Open) -> None:
    page: Page = new_page(url(port), VIEWER)
    page.wait_for_selector("#activity-list tbody tr")
    rows = page.locator("#activity-list tbody tr")
    assert rows.count() == 21  # the busiest, and all others together
    first = rows.nth(0).inner_text()
    assert "public.orders" in first
    assert "inserts fell from 340 to 0 a minute at" in first
    assert "have not come back" in first
    assert "340,000" in first  # 200 times 1,700
    drawing = rows.nth(0).locator("svg[role=img]")
    assert "inserts fell from 340 to 0" in str(drawing.get_attribute("aria-label"))
    assert drawing.locator(".drop-sign").count() == 1
    patterns = [
        str(line.evaluate("line => getComputedStyle(line).strokeDasharray"))
        for line in page.locator("#activity-legend line").all()
    ]
    assert len(set(patterns)) == 4  # told apart without colours
    assert "all others" in rows.nth(20).inner_text()
    assert page.locator("#page img").count() == 0
    assert "owned" not in page.title()
    page.set_viewport_size({"width": 390, "height": 844})
    page.wait_for_timeout(300)
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    shown = rows.nth(0).locator("th").bounding_box()
    assert shown is not None
    assert shown["width"] > 250  # its name is on one line
    assert page.evaluate(
        "(box => box.scrollWidth <= box.clientWidth)(document.getElementById('activity-list'))"
    )


def test_numbers_of_charts_and_tiles_are_whole(port: int, new_page: Open) -> None:
    page: Page = new_page(url(port), VIEWER)
    tile = page.locator(".tile", has_text="Log kept").inner_text().split("\n")
    assert tile[-2:] == ["safe", "the server removes its log after 30 days"]
    steps = [
        {"at_s": NIGHT_S + n, "over_s": 1, "records": 10**6, "lag_s": 0, "outputs": {}}
        for n in range(2)
    ]
    page.route("**/history", lambda route: route.fulfill(json={"recent": steps, "day": steps}))
    page.reload()
    page.wait_for_selector("#charts .axis")
    lefts = page.eval_on_selector_all("#charts .axis", "all => all.map(text => text.getBBox().x)")
    assert min(lefts) >= 0, "the page cuts off the axis's numbers"


def test_what_verify_and_check_found(port: int, new_page: Open) -> None:
    page: Page = new_page(url(port), VIEWER)
    page.wait_for_selector("#verified")
    page.click("#verified >> text=Each copy")
    said = page.inner_text("#results-list")
    assert "1 copy differed" in said
    assert "3 missing, 2 different" in said
    assert "public.orders in lake" in said
    assert "1 to fix" in said
    boxes = page.locator("#results-list pre").all_inner_texts()
    assert boxes == ["-- as a superuser:\nALTER SYSTEM SET wal_level = logical;"]
    assert "Then restart the server." in said
    assert "hunter2" not in page.content()
    assert page.locator("#page img").count() == 0
    assert page.locator("text=Check now").count() == 0  # for operators alone

    counts = {"error": 0, "warning": 1, "ok": 3}
    own = {"at_ms": NIGHT_S * 1000, "by": "capture", "counts": counts, "findings": []}
    check = {"running": False, "trouble": "", "found": own}
    commands = {"check": "tidelog check x.yaml", "verify": "tidelog verify x.yaml"}
    answer = {"verified": None, "check": check, "commands": commands}
    page.route("**/results", lambda route: route.fulfill(json=answer))
    page.reload()
    page.wait_for_selector("#checked >> text=by capture: the source alone")

    acting = new_page(url(port), OPERATOR, "Anna")
    acting.wait_for_selector("#checked")
    acting.click("text=Check now")
    acting.wait_for_selector("#checked >> text=connection")  # the database does not answer
    assert "wal_level" not in acting.inner_text("#results-list")


def test_a_check_is_not_begun_by_others(port: int) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    given = {"Content-Type": "application/json"}

    def post(path: str, headers: dict[str, str], body: Any = None) -> http.client.HTTPResponse:
        connection.request("POST", path, json.dumps(body or {}), {**given, **headers})
        answer = connection.getresponse()
        answer.read()
        return answer

    check = "/web/sites/0/check"
    assert post(check, {}).status == 401
    for token in (OPERATOR, VIEWER):
        cookie = str(post("/web/login", {}, {"token": token}).getheader("Set-Cookie"))
        session = {"Cookie": cookie.partition(";")[0]}
        assert post(check, session).status == 403
    connection.close()
