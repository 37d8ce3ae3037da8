"""`tidelog serve`: one page over several Tidelogs, apart from their captures."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.e2e.web.conftest import Open
from tests.e2e.web.shop import OPERATOR, VIEWER, Shop, free_port, wait_for

from tidelog import app
from tidelog.app.web.http_server import named_configs
from tidelog.config import load_config
from tidelog.errors import UsageError

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = pytest.mark.integration


@pytest.fixture
def other(tmp_path: Path) -> Path:
    """Of a Tidelog that never captured."""
    return Shop(tmp_path, "postgresql://localhost:1/none").file.rename(tmp_path / "bills.yaml")


def test_several_sources_are_on_one_page(shop: Shop, other: Path, new_page: Open) -> None:
    stop, urls = threading.Event(), list[str]()
    configs = [(shop.file, shop.config), (other, load_config(other))]
    thread = threading.Thread(
        target=lambda: app.serve_page(
            configs, host=None, port=free_port(), stop_event=stop, on_start=urls.append
        )
    )
    thread.start()
    try:
        wait_for(lambda: urls, "nothing is served")
        page: Page = new_page(urls[0], VIEWER)
        page.wait_for_selector("#sites >> text=bills")
        page.wait_for_selector("#tables-list >> text=public.orders")
        page.click("#sites >> text=bills")
        page.wait_for_selector("text=No capture has begun here")
        page.wait_for_selector("text=No table is captured yet.")
        page.click("#sites >> text=tidelog")
        page.wait_for_selector("#tables-list >> text=public.orders")
        acting = new_page(urls[0], OPERATOR, "Otto")
        acting.click("text=Dump…")
        acting.fill("#dump-tables", "public.customers")
        acting.click("[data-act=plan]")
        acting.wait_for_selector("text=Start this dump?")
        acting.click("[data-act=confirm]")
        acting.wait_for_selector("text=begins.")  # the capture of another process acts on it
        acting.wait_for_selector("#audit-list >> text=Otto dumped public.customers")
    finally:
        stop.set()
        thread.join(30)
    assert not thread.is_alive()


def test_it_says_what_it_lacks(shop: Shop, tmp_path: Path) -> None:
    file = tmp_path / "no-rest.yaml"
    file.write_text("source: {kind: postgres, url: 'postgresql://h/x'}\nlog: {path: log}\n")
    stop = threading.Event()

    def serve(file: Path, port: int | None = None) -> None:
        configs = [(file, load_config(file))]
        app.serve_page(configs, host=None, port=port, stop_event=stop, on_start=lambda _: None)

    with pytest.raises(UsageError, match=r"control\.rest is missing"):
        serve(file)
    with pytest.raises(UsageError, match="is taken, perhaps by a capture"):
        serve(shop.file)


def test_alike_names_are_numbered(shop: Shop) -> None:
    config = shop.config
    files = [Path("a/shop.yaml"), Path("b/shop.yaml"), Path("c/bills.yaml")]
    found = [name for name, _ in named_configs([(file, config) for file in files])]
    assert found == ["shop 1", "shop 2", "bills"]
