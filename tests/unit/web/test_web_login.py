"""Logging in to the web page, over HTTP: cookies of several Tidelogs, and tokens that are wrong."""

from __future__ import annotations

import http.cookiejar
import json
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.routing import Mount

from tidelog.app.web.http_server import http_server, listen, url_of
from tidelog.app.web.routes import Role, Web
from tidelog.control.channels.rate_limit import MOST_FAILURES, MOST_OF_ALL


@contextmanager
def served(*, behind_proxy: bool = False) -> Iterator[str]:
    """The URL of a server that has two Tidelogs, below ``/one`` and ``/two``."""
    pages = [
        Mount(
            f"/{name}",
            routes=Web([], {role: f"{name}-{role}" for role in Role}).routes(),
        )
        for name in ("one", "two")
    ]
    server = http_server(Starlette(routes=pages), behind_proxy=behind_proxy)
    listening = listen("127.0.0.1", 0)
    assert listening is not None
    thread = threading.Thread(target=server.run, args=([listening],))
    with listening:
        thread.start()
        try:
            yield url_of(listening)
        finally:
            server.should_exit = True
            thread.join(30)


class Browser:
    """Keeps cookies as one does."""

    def __init__(self, url: str) -> None:
        self._url = url
        self.cookies = http.cookiejar.CookieJar()
        self._opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(self.cookies))

    def ask(self, path: str, body: Any = None, **headers: str) -> tuple[int, Any]:
        data = None if body is None else json.dumps(body).encode()
        given = {"Content-Type": "application/json", **headers}
        asked = urllib.request.Request(f"{self._url}{path}", data, given)
        try:
            with self._opener.open(asked, timeout=30) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            return error.code, json.load(error)

    def login(self, name: str, token: str, **headers: str) -> int:
        return self.ask(f"/{name}/web/login", {"token": token}, **headers)[0]

    def role(self, name: str) -> str | None:
        status, found = self.ask(f"/{name}/web/session")
        return found["role"] if status == 200 else None


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with ExitStack() as stack:
        yield stack.enter_context(served())


def test_two_tidelogs_below_two_paths_leave_each_others_sessions(url: str) -> None:
    browser = Browser(url)
    assert browser.login("one", "one-operator") == 200
    assert browser.role("two") is None  # a session is of one of them
    assert browser.login("two", "two-viewer") == 200
    assert (browser.role("one"), browser.role("two")) == ("operator", "viewer")
    assert browser.ask("/one/web/logout", {})[0] == 200
    assert (browser.role("one"), browser.role("two")) == (None, "viewer")


@pytest.mark.parametrize("roles", [("viewer", "operator"), ("operator", "viewer")])
def test_who_logs_in_again_is_what_the_last_token_says(url: str, roles: tuple[str, str]) -> None:
    browser = Browser(url)
    for role in roles:
        assert browser.login("one", f"one-{role}") == 200
        assert len(browser.cookies) == 1
        assert browser.role("one") == role


def test_a_right_token_never_has_to_wait(url: str) -> None:
    browser = Browser(url)
    found = [browser.login("one", f"guess-{n}") for n in range(MOST_FAILURES + 2)]
    assert found == [403] * MOST_FAILURES + [429] * 2
    assert browser.login("one", "one-operator") == 200


def test_many_addresses_are_slowed_down_together() -> None:
    with served(behind_proxy=True) as url:
        found = [
            Browser(url).login("one", "guess", **{"X-Forwarded-For": f"10.0.0.{n}"})
            for n in range(MOST_OF_ALL + 2)
        ]
    assert found == [403] * MOST_OF_ALL + [429] * 2
