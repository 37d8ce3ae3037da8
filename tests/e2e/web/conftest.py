"""A headless Chromium and its pages. Without it, or without Playwright, tests are left out."""

from __future__ import annotations

import asyncio
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from tests.e2e.web.shop import OPERATOR, SQL, Shop, wait_for
from tests.left_out import SAID
from tests.support.postgres import PostgresServer

if TYPE_CHECKING:
    from playwright.sync_api import Browser, ConsoleMessage, Page

REQUEST_FAILED, LOGGED_OUT = "Failed to load resource:", 401
"""What the browser itself writes, of whoever has not logged in too."""


@pytest.fixture(scope="session")
def started_browser() -> Iterator[tuple[Browser, asyncio.AbstractEventLoop]]:
    """And Playwright's event loop, which counts as running in this thread from its first call on:
    no other test could run one of its own.
    """
    program = shutil.which("chromium") or shutil.which("chromium-browser")
    if program is None:
        pytest.skip(f"{SAID}Chromium, for tests of the web page: apt-get install chromium")
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        pytest.skip(f"{SAID}Playwright, for tests of the web page: pip install playwright")
    with sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        loop = asyncio.get_running_loop()
        asyncio._set_running_loop(None)
        yield found, loop
        asyncio._set_running_loop(loop)
        found.close()
    asyncio._set_running_loop(None)


@pytest.fixture
def browser(
    started_browser: tuple[Browser, asyncio.AbstractEventLoop],
) -> Iterator[Browser]:
    found, loop = started_browser
    asyncio._set_running_loop(loop)
    yield found
    asyncio._set_running_loop(None)


Open = Callable[..., "Page"]


@pytest.fixture
def new_page(browser: Browser) -> Iterator[Open]:
    """Pages with cookies of their own. What goes wrong in one is the test's failure; ``expected``:
    of what its requests may fail.
    """
    contexts, wrong = [], list[str]()

    def open_page(
        url: str, token: str = "", name: str = "", *, expected: str = "", **options: Any
    ) -> Page:
        status = f"the server responded with a status of {LOGGED_OUT} "
        may_fail = re.compile(f"{REQUEST_FAILED} ({status}|.*{expected or status})")

        def heard(line: ConsoleMessage) -> None:
            if line.type == "error" and not may_fail.match(line.text):
                wrong.append(f"{line.text} ({line.location['url']})")

        context = browser.new_context(**{"viewport": {"width": 1280, "height": 800}, **options})
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(60_000)
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("console", heard)
        page.goto(url)
        if token:
            page.fill("#token", token)
            page.fill("#name", name)
            page.click("text=Log in >> nth=-1")
            page.wait_for_selector("#verdict h1")
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert not wrong


@pytest.fixture(scope="module")
def shop(postgres: PostgresServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    """One that is captured, its first dump done."""
    database = postgres.create_database("web_shop")
    with psycopg.connect(database, autocommit=True) as sql:
        sql.execute(SQL.encode())
    found = Shop(Path(tmp_path_factory.mktemp("shop")), database)
    found.capture_here()
    try:
        wait_for(lambda: found.role() == "leader", "no capture leads")
        yield found
    finally:
        found.end()
        postgres.drop_database("web_shop")


@pytest.fixture
def page(shop: Shop, new_page: Open) -> Page:
    """An operator's."""
    return new_page(shop.url, OPERATOR, "Anna")
