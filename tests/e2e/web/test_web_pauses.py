"""Pausing and resuming the source's log, and a pipeline, on the page, over a real capture."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from tests.e2e.web.conftest import Open
from tests.e2e.web.shop import OPERATOR, VIEWER, Shop, wait_for
from tests.e2e.web.test_web_page import ask, login

from tidelog import app
from tidelog.control.commands import PauseLog, ResumeLog, ResumePipeline, StartDump

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = pytest.mark.integration

LOG = {"type": "pause-log"}
PIPELINE = {"type": "pause-pipeline", "data": {"pipeline": "shop"}}


@pytest.fixture
def delivering(shop: Shop) -> Iterator[Shop]:
    """With a pipeline that delivered once. Goes on with all in the end."""
    shop.delivers("shop")
    yield shop
    for command in (ResumeLog(), ResumePipeline(pipeline="shop")):
        app.send_command(shop.config, command, timeout_s=30)


def status(shop: Shop) -> dict[str, Any]:
    found: dict[str, Any] = app.status(shop.config).document
    return found


def records(shop: Shop) -> int:
    return int(status(shop)["log"]["next"])


def test_the_log_is_paused_and_resumed(delivering: Shop, page: Page) -> None:
    page.click("text=Pause the log…")
    said = page.inner_text("#dialog")
    assert "The source keeps its log during the pause" in said
    assert "Dumps wait" in said
    page.click("text=Leave it")  # nothing was done
    assert status(delivering)["log_paused"] is None

    page.click("text=Pause the log…")
    page.click("[data-act=confirm]")
    page.wait_for_selector("text=Paused by Anna on the web page.")
    page.wait_for_selector("#processes-list >> text=/The log is paused by Anna .* since \\d\\d:/")
    assert "paused by Anna on the web page since" in page.inner_text("#tiles")
    page.wait_for_selector("#problems-list >> text=The log is paused by Anna on the web page for")
    assert f"tidelog resume {delivering.file} --log" in page.inner_text("#problems-list")
    assert "CONFIG" not in page.inner_text("body")
    before = records(delivering)
    with psycopg.connect(delivering.database, autocommit=True) as sql:
        sql.execute("UPDATE customers SET name = 'while it was paused' WHERE id = 1")
    page.wait_for_timeout(2500)
    assert records(delivering) == before
    dump = StartDump(dump_id="meanwhile", tables=("public.customers",))
    app.send_command(delivering.config, dump, timeout_s=30)
    page.wait_for_selector(".dump >> text=The log is paused by Anna on the web page.")
    assert "blocked by capture" in page.inner_text(".dump")
    assert page.locator(".dump >> text=Resume").count() == 0  # it would not
    # Another page, opened later, tells who it was.
    page.reload()
    page.wait_for_selector("#processes-list >> text=The log is paused by Anna on the web page")

    page.click("text=Resume the log…")
    page.click("[data-act=confirm]")
    page.wait_for_selector("text=Pause the log…")
    wait_for(lambda: records(delivering) > before, "it is not read on")
    page.wait_for_selector("text=No dump runs.")
    wait_for(lambda: page.inner_text("#audit-list").count("Anna") == 2, "audit")
    said = page.inner_text("#audit-list")
    assert "Anna paused the source's log" in said
    assert "Anna resumed the source's log" in said


def test_a_pipeline_is_paused_and_resumed(delivering: Shop, new_page: Open) -> None:
    page = new_page(delivering.url, OPERATOR, "Otto")
    page.click("text=Pause shop…")
    assert "the event log, not the source, keeps" in page.inner_text("#dialog")
    page.click("[data-act=confirm]")
    page.wait_for_selector("#processes-list >> text=/It is paused by Otto on the web page since /")
    paused = status(delivering)["paused_pipelines"]
    assert paused["shop"]["by"] == "Otto on the web page"
    assert status(delivering)["log_paused"] is None
    page.click("text=Resume shop…")
    page.click("[data-act=confirm]")
    page.wait_for_selector("text=Pause shop…")
    assert status(delivering)["paused_pipelines"] == {}
    wait_for(lambda: page.inner_text("#audit-list").count("Otto") == 2, "audit")
    said = page.inner_text("#audit-list")
    assert "Otto paused pipeline shop" in said
    assert "Otto resumed pipeline shop" in said


def test_a_viewer_sees_who_paused_and_resumes_nothing(delivering: Shop, new_page: Open) -> None:
    app.send_command(delivering.config, PauseLog(by="me@db-host"), timeout_s=30)
    page = new_page(delivering.url, VIEWER)
    page.wait_for_selector("#processes-list >> text=The log is paused by me@db-host since")
    assert page.locator("#processes-list button").count() == 0
    session = login(delivering, VIEWER)
    for body in (
        LOG,
        PIPELINE,
        {"type": "resume-log"},
        {**PIPELINE, "type": "resume-pipeline"},
    ):
        status_, _, text = ask(delivering, "POST", "/web/sites/0/commands", session, body)
        assert (status_, json.loads(text)["error"]["kind"]) == (403, "NotAllowed")
    assert status(delivering)["log_paused"]["by"] == "me@db-host"
    assert status(delivering)["paused_pipelines"] == {}


def test_a_pause_of_no_pipeline_is_refused(shop: Shop) -> None:
    session = login(shop, OPERATOR)
    for name in (None, 7, "", "a b", "x/../log", ["shop"]):
        body = {"type": "pause-pipeline", "data": {"pipeline": name}}
        assert ask(shop, "POST", "/web/sites/0/commands", session, body)[0] == 400, name
    assert status(shop)["paused_pipelines"] == {}
