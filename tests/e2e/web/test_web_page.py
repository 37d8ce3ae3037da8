"""The web page in Chromium, over a real capture: what it shows, and what an operator does there."""

from __future__ import annotations

import http.client
import json
import re
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from tests.e2e.web.conftest import Open
from tests.e2e.web.shop import HOSTILE, OPERATOR, VIEWER, Shop, free_port, wait_for

from tidelog import app
from tidelog.capture import activity
from tidelog.config import load_config
from tidelog.control.commands import SetDumpOptions
from tidelog.state.opening import open_state

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = pytest.mark.integration


def dumps(shop: Shop) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = app.status(shop.config).document["dumps"]
    return found


def ask(
    shop: Shop, method: str, path: str, headers: dict[str, str] | None = None, body: Any = None
) -> tuple[int, http.client.HTTPMessage, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", shop.port, timeout=30)
    try:
        data = None if body is None else json.dumps(body)
        given = {"Content-Type": "application/json"} if data else {}
        connection.request(method, path, data, {**given, **(headers or {})})
        answer = connection.getresponse()
        return answer.status, answer.headers, answer.read()
    finally:
        connection.close()


def events_of(
    shop: Shop, session: dict[str, str], within_s: float = 60
) -> Iterator[tuple[str, Any]]:
    """What a page that is open hears: names and data, for so long."""
    until = time.monotonic() + within_s
    connection = http.client.HTTPConnection("127.0.0.1", shop.port, timeout=30)
    with closing(connection):
        connection.request("GET", "/web/stream", headers=session)
        answer = connection.getresponse()
        while time.monotonic() < until:
            name, _, value = answer.readline().decode().strip().partition(": ")
            if name == "event":
                yield value, json.loads(answer.readline().decode().removeprefix("data: "))


def login(shop: Shop, token: str) -> dict[str, str]:
    """Headers of a session, its check against forgery among them."""
    status, headers, _ = ask(shop, "POST", "/web/login", body={"token": token, "name": "x"})
    assert status == 200
    cookie = headers["Set-Cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=strict" in cookie
    session = {"Cookie": cookie.partition(";")[0]}
    status, _, body = ask(shop, "GET", "/web/session", session)
    assert status == 200
    return {**session, "X-Tidelog-CSRF": json.loads(body)["csrf"]}


@pytest.mark.first
def test_the_first_screen_and_every_action(shop: Shop, page: Page) -> None:
    page.wait_for_selector("#tables-list tbody tr")
    assert page.inner_text("#verdict h1").startswith("public.no_key")  # the one that is refused
    assert "Capture is late by" in page.inner_text("#tiles")
    assert "no_key" in page.inner_text("#problems-list")
    boxes = page.locator("#problems-list pre").all_inner_texts()
    assert boxes
    assert all(each.startswith(("--", "ALTER ", "tidelog ")) for each in boxes)
    page.click("#problems-list >> text=What this means")
    page.wait_for_selector("#dialog .prose p")
    page.keyboard.press("Escape")
    # Whatever a table is called, it is a text.
    page.wait_for_selector(f"text={HOSTILE[:8]}")
    assert page.locator("#page img").count() == 0
    assert "owned" not in page.title()

    # Limits, then a dump with its plan first, slow enough to be steered.
    page.click("text=Limits…")
    page.fill("#limit-rows_per_second", "400")
    page.fill("#limit-chunk_rows", "100")
    assert page.input_value("#limit-max_lag_bytes") == "256"  # in MiB
    page.fill("#limit-max_lag_bytes", "0.5")
    page.click("[data-act=limits]")
    assert "256 MiB → 512 KiB" in page.inner_text("#dialog")
    assert "Rows a second" in page.inner_text("#dialog")
    page.click("[data-act=confirm]")
    page.wait_for_selector("text=Changed.")
    limited = {"rows_per_second": 400, "chunk_rows": 100, "max_lag_bytes": 512 << 10}
    wait_for(
        lambda: limited.items() <= app.status(shop.config).document["dump_options"].items(),
        "limits",
    )
    page.click("text=Dump…")
    page.fill("#dump-tables", "public.orders")
    page.click("[data-act=plan]")
    page.wait_for_selector("text=Start this dump?")
    assert "public.orders" in page.inner_text("#dialog")
    page.click("[data-act=confirm]")
    page.wait_for_selector(".dump >> text=Pause")
    press_slowly(page, ".dump >> text=Pause")
    page.click("[data-act=confirm]")
    page.wait_for_selector("text=paused by Anna on the web page")
    page.click(".dump >> text=Resume")
    page.click("[data-act=confirm]")
    page.wait_for_selector(".badge:text('running')")
    page.click(".dump >> text=Cancel")
    page.click("text=Leave it")  # nothing was done
    assert not any(dump["status"] == "aborted" for dump in dumps(shop))
    page.click(".dump >> text=Cancel")
    page.click("[data-act=confirm]")
    page.wait_for_selector("text=No dump runs.")
    wait_for(lambda: any(dump["status"] == "aborted" for dump in dumps(shop)), "not cancelled")
    app.send_command(shop.config, SetDumpOptions(rows_per_second=0), timeout_s=30)

    said = wait_for(lambda: (t := page.inner_text("#audit-list")).count("Anna") == 5 and t, "audit")
    for word in ("changed limits", "dumped public.orders", "paused", "resumed", "cancelled"):
        assert word in said

    page.fill("#tables-search", "orders")
    page.click("#tables-list >> text=public.orders")
    page.wait_for_selector("#dialog >> text=secret_value")  # a column's name, of its schema
    page.keyboard.press("Escape")
    page.click("#settings-details summary")
    page.wait_for_selector("#settings-list tr")
    assert "control.rest.token" in page.inner_text("#settings-list")
    whole = page.content()
    for secret in ("hunter2-", OPERATOR, VIEWER):
        assert secret not in whole
    page.click("text=Log out")
    page.wait_for_selector("#token")
    assert page.context.cookies() == []


def test_operations_are_counted_by_table_and_kind(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(activity, "BUCKET_S", 2)  # of the capture, which is in this process

    def counted() -> list[int]:
        with closing(open_state(shop.config.state.location)) as state:
            stored = state.get(activity.ACTIVITY_KEY)
        tables = [] if stored is None else stored.value["tables"]
        assert "hunter2" not in json.dumps(tables)
        ours = (each["counts"] for each in tables if each["table"] == "public.customers")
        buckets = [bucket for counts in ours for bucket in counts if bucket]
        return [sum(kind) for kind in zip(*buckets, strict=True)] or [0] * 4

    before = wait_for(lambda: (c := counted())[3] >= 3000 and c, "its dump is not counted")
    with psycopg.connect(shop.database, autocommit=True) as sql:
        sql.execute("INSERT INTO customers SELECT i, 'new' FROM generate_series(9001, 9005) i")
        sql.execute("UPDATE customers SET name = 'hunter2' WHERE id > 9002")
        sql.execute("DELETE FROM customers WHERE id > 9000")
    wanted = [before[0] + 5, before[1] + 3, before[2] + 5]
    wait_for(lambda: counted()[:3] == wanted, "not counted")


def press_slowly(page: Page, what: str) -> None:
    """As people do: meanwhile the page hears what is new, and must not replace the button."""
    page.locator(what).click(delay=2500)


def test_a_plan_that_comes_late_opens_nothing(shop: Shop, page: Page) -> None:
    held: list[Any] = []
    page.route("**/plan", lambda route: held.append(route))
    page.click("text=Dump…")
    page.click("[data-act=plan]")
    page.wait_for_selector("text=Looks at the tables…")
    page.keyboard.press("Escape")
    page.click("text=Limits…")
    plan = {"total": {"tables": 1, "rows": 1, "bytes": 1, "chunks": 1, "seconds": 1}}
    held[0].fulfill(json={**plan, "tables": [], "not_dumped": []})
    page.wait_for_timeout(500)
    assert page.inner_text("#dialog-title") == "How dumps read"


def test_another_source_in_trouble_shows_nothing_of_the_former(
    shop: Shop, tmp_path: Path, new_page: Open
) -> None:
    away = tmp_path / "away.yaml"
    away.write_text(
        shop.file.read_text().replace("sqlite:///state.db", "postgresql://127.0.0.1:1/x")
    )
    stop, urls = threading.Event(), list[str]()
    configs = [(shop.file, shop.config), (away, load_config(away))]
    thread = threading.Thread(
        target=lambda: app.serve_page(
            configs, host=None, port=free_port(), stop_event=stop, on_start=urls.append
        )
    )
    thread.start()
    try:
        wait_for(lambda: urls, "nothing is served")
        page = new_page(urls[0], OPERATOR, expected="503")
        page.wait_for_selector("#tables-list >> text=public.orders")
        assert page.is_visible("text=Dump…")
        page.click("#sites >> text=away")
        page.wait_for_selector("#verdict >> text=can't be read")
        assert "public." not in page.inner_text("#page")
        assert not page.is_visible("text=Dump…")
        page.click("#sites >> text=tidelog")
        page.wait_for_selector("#tables-list >> text=public.orders")
        assert page.is_visible("text=Dump…")
    finally:
        stop.set()
        thread.join(30)


def test_a_hidden_page_leaves_its_place_and_comes_back(page: Page) -> None:
    page.wait_for_selector("#live >> text=live")
    with page.expect_event("requestfailed", lambda request: "web/stream" in request.url):
        page.evaluate(
            """Object.defineProperty(document, "hidden", { value: true, configurable: true });
            document.dispatchEvent(new Event("visibilitychange"));"""
        )
    with page.expect_request("**/web/stream*"):
        page.evaluate(
            """delete document.hidden;
            document.dispatchEvent(new Event("visibilitychange"));"""
        )


def test_a_full_server_is_reported(
    shop: Shop, new_page: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidelog.app.web.routes.MOST_STREAMS", 0)
    page = new_page(shop.url, expected="503")
    page.fill("#token", OPERATOR)
    page.click("text=Log in >> nth=-1")
    page.wait_for_selector("#silence >> text=pages are open already")
    monkeypatch.undo()
    page.wait_for_selector("#verdict h1")
    page.wait_for_selector("#silence", state="hidden")


@pytest.mark.parametrize(
    ("what", "answer"),
    [
        ("audit", [None]), ("results", {"check": {"running": False}, "verified": {}}),
        ("activity", {"at_s": [1]}), ("history", {}), ("settings", [None]),
    ],
)  # fmt: skip
def test_a_failure_of_drawing_is_heard(
    shop: Shop, browser: Browser, what: str, answer: Any
) -> None:
    """It is no failure of the request, which the page tells by itself."""
    context = browser.new_context()
    try:
        page = context.new_page()
        page.route(f"**/web/sites/0/{what}", lambda route: route.fulfill(json=answer))
        page.goto(shop.url)
        page.fill("#token", OPERATOR)
        with page.expect_event("pageerror", timeout=20_000):
            page.click("text=Log in >> nth=-1")
            page.click("#settings-details summary")
        page.wait_for_selector("#verdict h1")  # the rest is drawn
    finally:
        context.close()


def test_a_viewer_sees_and_does_not_act(shop: Shop, new_page: Open) -> None:
    page = new_page(shop.url, VIEWER)
    page.wait_for_selector("#tables-list tbody tr")
    assert page.locator("text=Dump…").count() == 0
    assert page.locator("text=Limits…").count() == 0
    session = login(shop, VIEWER)
    for path, body in (
        ("commands", {"type": "pause-snapshot", "data": {"dump_id": None}}),
        ("plan", {"tables": []}),
    ):
        status, _, text = ask(shop, "POST", f"/web/sites/0/{path}", session, body)
        assert (status, json.loads(text)["error"]["kind"]) == (403, "NotAllowed")
    given = f"Bearer {VIEWER}"
    assert ask(shop, "GET", "/status", {"Authorization": given})[0] == 401  # for the page alone


def test_requests_that_are_forged_do_nothing(shop: Shop) -> None:
    session = login(shop, OPERATOR)
    pause = {"type": "pause-snapshot", "data": {"dump_id": None}}
    path = "/web/sites/0/commands"
    without = {"Cookie": session["Cookie"]}
    other = login(shop, OPERATOR)["X-Tidelog-CSRF"]
    foreign = {**session, "Sec-Fetch-Site": "cross-site"}
    assert ask(shop, "POST", path, {}, pause)[0] == 401
    assert ask(shop, "POST", path, without, pause)[0] == 403
    assert ask(shop, "POST", path, {**without, "X-Tidelog-CSRF": other}, pause)[0] == 403
    assert ask(shop, "POST", path, foreign, pause)[0] == 403
    form = {**session, "Content-Type": "text/plain"}
    assert ask(shop, "POST", path, form, pause)[0] == 415
    assert ask(shop, "POST", path, session, pause)[0] == 202
    body, _, mac = session["Cookie"].partition("=")[2].partition(".")
    for cookie in (f"{body}.{mac[:-1]}0", f"{body}x.{mac}", body, ".", "x" * 5000):
        name = session["Cookie"].partition("=")[0]
        assert ask(shop, "GET", "/web/session", {"Cookie": f"{name}={cookie}"})[0] == 401
    bad: list[Any] = [
        {}, [], {"type": ["pause-log"]}, {"type": "drop"},
        {"type": "log", "data": {"message": "x"}},
        {"type": "execute-snapshot", "data": {"tables": "x"}},
        {"type": "pause-snapshot", "data": {"dump_id": 1}},
        {"type": "pause-snapshot", "data": {"dump_id": "a b"}},
        {"type": "set-dump-options", "data": {"chunk_rows": 0}},
        {"type": "set-dump-options", "data": 7},
    ]  # fmt: skip
    for each in bad:
        assert ask(shop, "POST", path, session, each)[0] == 400, each


def test_wrong_tokens_are_slowed_down_and_nobody_is_locked_out(shop: Shop) -> None:
    found = [
        ask(shop, "POST", "/web/login", {"X-Forwarded-For": f"10.9.9.{n}"}, {"token": f"no-{n}"})[0]
        for n in range(12)
    ]
    told = found.count(403)
    assert told in (9, 10)  # one may have been tried at the HTTP interface before
    assert found == [403] * told + [429] * (12 - told)  # whatever addresses they claim
    login(shop, OPERATOR)


@pytest.mark.parametrize(
    "path",
    [
        "/web/files/../routes.py", "/web/files/..%2froutes.py", "/web/files/%2e%2e/routes.py",
        "/web/files/..%5croutes.py", "/web/files//etc/passwd", "/web/files/%2fetc%2fpasswd",
        "/web/files/index.html%00.js", "/web/files/", "/web/files/routes.py", "/web/sites/-1/audit",
        "/web/sites/9/audit", "/web/sites/%D9%A1/audit",
    ],
)  # fmt: skip
def test_no_other_file_is_served(shop: Shop, path: str) -> None:
    status, _, body = ask(shop, "GET", path, login(shop, OPERATOR))
    assert status == 404
    assert b"import" not in body


@pytest.mark.first
def test_all_that_the_first_screen_needs_is_served(shop: Shop) -> None:
    """Files, then what they show, as a machine without Chromium can tell."""
    status, _, page = ask(shop, "GET", "/")
    assert status == 200
    wanted, seen = set(re.findall(r'(?:href|src)="(web/[^"]+)"', page.decode())), set[str]()
    while wanted:
        seen |= (now := wanted)
        wanted = set()
        for path in now:
            status, _, body = ask(shop, "GET", f"/{path}")
            assert status == 200, path
            imported = re.findall(r'^(?:import|export) .*from "\./(\w+\.js)"', body.decode(), re.M)
            wanted |= {f"web/files/{name}" for name in imported} - seen
    assert {"web/files/page.css", "web/files/summary.js", "web/files/tables.js"} <= seen

    verdict, tables = "", set[str]()
    for name, event in events_of(shop, login(shop, VIEWER)):
        if name == "overview":
            verdict = event["overview"]["verdict"]
        elif name == "tables":
            tables |= {row["table"] for row in event["changed"]}
        if verdict.startswith("public.no_key") and {"public.orders", "public.customers"} <= tables:
            return
    pytest.fail(f"the page hears {verdict!r} of {sorted(tables)}")


def test_headers_keep_others_out(shop: Shop) -> None:
    _, headers, body = ask(shop, "GET", "/")
    policy = headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert "frame-ancestors 'none'" in policy
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert not re.search(rb"<script(?![^>]*src=)|style=|\son\w+=", body)
    for path in ("/web/session", "/web/stream", "/web/sites/0/settings", "/web/sites/0/audit"):
        status, headers, _ = ask(shop, "GET", path)
        assert status == 401
        assert headers["Cache-Control"] == "no-store"
