"""How the page polls a state store: one that hangs or fails delays no other."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest
from starlette.applications import Starlette
from starlette.testclient import TestClient

from tidelog.app.web import routes
from tidelog.app.web import site as poller
from tidelog.app.web.routes import OverviewStream, Role, Web
from tidelog.app.web.site import SAMPLE_S, PollResult, Site
from tidelog.config import Config, parse_config
from tidelog.errors import StateError


def config_of(directory: Path, state: str) -> Config:
    text = f"""
source: {{kind: postgres, url: 'postgresql://h/shop'}}
log: {{path: log}}
state: {{url: '{state}'}}
"""
    return parse_config(text, "test", directory, {})


@pytest.fixture
def frozen(tmp_path: Path) -> Iterator[Site]:
    """Its state store takes connections and never says anything."""
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen(8)
        port = silent.getsockname()[1]
        site = Site("frozen", config_of(tmp_path, f"postgresql://127.0.0.1:{port}/x"))
        site.start()
        yield site
        silent.close()  # what waits for it fails
        site.close()


def wait_for(condition: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + 30
    while not (found := condition()):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return found


def test_a_source_that_hangs_is_reported_and_holds_up_no_other(
    frozen: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    well = Site("well", config_of(tmp_path, "sqlite:///state.db"))
    well.start()
    try:
        teller = OverviewStream([frozen, well], 1, anyio.CapacityLimiter(1))
        begun = time.monotonic()
        assert teller._beat(begun)
        news = wait_for(lambda: b"".join(teller._changes(time.monotonic())))
        assert b'"site": 1' in news
        assert b"No capture has begun here" in news
        assert frozen.latest() is None
        monkeypatch.setattr(poller, "SILENT_S", -SAMPLE_S)
        monkeypatch.setattr(frozen._poller, "_sample_s", SAMPLE_S)
        told = b"".join(teller._changes(time.monotonic()))
        assert b'"site": 0, "trouble": "no answer since ' in told
        assert teller._changes(time.monotonic()) == []  # said once
    finally:
        well.close()


class Reader:
    """Of a state store that fails, or has documents that nobody understands."""

    read_by: set[str]
    fails: Exception | None

    def __init__(self, _config: Config, **_options: float) -> None: ...

    def read(self) -> dict[str, Any]:
        self.read_by.add(threading.current_thread().name)
        if self.fails is not None:
            raise self.fails
        return {}

    def __exit__(self, *_error: object) -> None: ...


@pytest.mark.parametrize(
    ("error", "said"),
    [(StateError("it is away"), "it is away"), (KeyError("a value"), "KeyError")],
)
def test_a_failed_poll_is_remembered_until_one_succeeds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, said: str
) -> None:
    Reader.read_by, Reader.fails = set(), error
    monkeypatch.setattr(poller, "StatusReader", Reader)
    site = Site("failing", config_of(tmp_path, "sqlite:///state.db"))
    site.start()
    try:
        found: PollResult = wait_for(site.latest)
        assert (found.overview, found.trouble) == (None, said)
        Reader.fails = None
        wait_for(lambda: (look := site.latest()) and look.overview)
        assert Reader.read_by == {"tidelog-web-poller"}  # never by who asks
    finally:
        site.close()


def test_who_looks_again_gets_the_same_document(tmp_path: Path) -> None:
    """It is made once, not for each page that is open."""
    site = Site("well", config_of(tmp_path, "sqlite:///state.db"))
    site.start()
    try:
        first = wait_for(site.latest)
        assert site.latest() is first
    finally:
        site.close()


def test_a_store_that_hangs_holds_up_who_asks_it_and_nobody_else(
    frozen: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(routes, "READ_S", 0.2)
    monkeypatch.setattr(routes, "SEND_S", 0.2)
    monkeypatch.setattr(routes, "SITE_THREADS", 3)
    well = Site("well", config_of(tmp_path, "sqlite:///state.db"))
    web = Web([frozen, well], {Role.OPERATOR: "operator-token"})
    with TestClient(Starlette(routes=web.routes())) as client:
        client.post("/web/login", json={"token": "operator-token"})
        csrf = {"X-Tidelog-CSRF": client.get("/web/session").json()["csrf"]}
        pause = {"type": "pause-snapshot", "data": {"dump_id": None}}
        for _ in range(2):
            silent = client.get("/web/sites/0/audit")
            assert (silent.status_code, silent.json()["error"]["kind"]) == (504, "NoAnswer")
        silent = client.post("/web/sites/0/commands", json=pause, headers=csrf)
        assert silent.status_code == 504
        for _ in range(20):  # no thread more is taken
            busy = client.get("/web/sites/0/audit")
            assert (busy.status_code, busy.json()["error"]["kind"]) == (503, "Busy")
        for what in ("history", "activity", "results", "settings"):  # from memory
            assert client.get(f"/web/sites/0/{what}").status_code == 200
        assert client.get("/web/sites/1/audit").json() == []
        assert client.get("/web/session").status_code == 200
