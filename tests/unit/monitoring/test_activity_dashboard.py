"""The dashboard of examples/activity_log: what it counts, and what it takes for a sudden drop."""

from __future__ import annotations

import importlib.util
import re
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from types import ModuleType
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

FILE = Path(__file__).parents[3] / "examples" / "activity_log" / "dashboard.py"


@pytest.fixture(scope="module")
def dashboard() -> Iterator[ModuleType]:
    spec = importlib.util.spec_from_file_location("activity_dashboard", FILE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


def found(dashboard: Any, *rates: float, bucket_s: int = 1) -> list[tuple[int, int]]:
    series = {"c": np.array(rates, np.float64)}
    activity = dashboard.Activity(1_000_000, bucket_s, {"public.t": series})
    return [(drop.start, drop.end) for drop in dashboard.drops(activity)]


def test_a_sudden_drop_and_its_end_are_found(dashboard: Any) -> None:
    assert found(dashboard, *[30] * 8, 0, 1, 0, 0, 29, 31, 30) == [(8, 12)]
    assert found(dashboard, *[30] * 8, 3, 0, 0, 0, 0) == [(8, 13)]
    two = [*[30] * 6, *[0] * 4, *[30] * 6, *[0] * 4]
    assert found(dashboard, *two) == [(6, 10), (16, 20)]


def test_noise_short_pauses_slow_ends_and_small_tables_are_no_drops(dashboard: Any) -> None:
    assert found(dashboard, *[30] * 8, 0, 0, 30, 30, 30) == []
    assert found(dashboard, *[30, 12, 25, 18] * 6) == []
    assert found(dashboard, *[40, 36, 32, 28, 24, 20, 16, 12, 10, 8, 7, 6, 5, 4]) == []
    assert found(dashboard, *[2] * 8, 0, 0, 0, 0) == []
    # The same rate over longer buckets is many.
    assert found(dashboard, *[2] * 8, 0, 0, 0, 0, bucket_s=60) == [(8, 12)]


def log(root: Path, table: str, seconds: list[int], op: str = "c", extra: Any = 0) -> None:
    folder = root / f"table={table}" / "date=1970-01-12"
    folder.mkdir(parents=True, exist_ok=True)
    rows = pa.table(
        {
            "op": [op] * len(seconds),
            "ts": pa.array([second * 10**6 for second in seconds], pa.timestamp("us", "UTC")),
            "after": pa.array([{"x": extra}] * len(seconds)),
        }
    )
    pq.write_table(rows, folder / f"{op}.parquet")


class Tags(HTMLParser):
    """What a page refers to, and whether its tags close."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []
        self.references: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.append(tag)
        self.references += [v or "" for n, v in attrs if n in ("src", "href", "xlink:href")]


def test_the_page_counts_records_and_needs_nothing_else(dashboard: Any, tmp_path: Path) -> None:
    start = 1_000_000
    steady = [start + s for s in range(21) for _ in range(20)]
    log(tmp_path, "public.carts", steady, "u", extra="text")
    log(tmp_path, "public.a<b", [s for s in steady if s < start + 12])
    (tmp_path / "_tidelog").mkdir()
    (tmp_path / "_tidelog" / "staged").write_text("not Parquet")
    activity = dashboard.read(tmp_path, 1)
    assert activity.buckets == 19
    assert set(activity.rates["public.carts"]["u"].tolist()) == {20.0}
    assert activity.rates["public.a<b"]["c"].sum() == 20 * 11
    page = dashboard.page(activity, "Shop & more")
    assert "Inserts of public.a&lt;b</strong> fell from 20 to 0" in page
    assert "Shop &amp; more" in page
    tags = Tags()
    tags.feed(page)
    assert tags.references == []
    assert not {"script", "link", "img", "iframe"} & set(tags.names)
    assert "url(" not in page
    for svg in re.findall(r"<svg.*?</svg>", page, re.DOTALL):
        ElementTree.fromstring(svg)
    assert "prefers-color-scheme:dark" in page


def test_an_empty_log_is_a_page_too(dashboard: Any, tmp_path: Path) -> None:
    assert "no changes yet" in dashboard.page(dashboard.read(tmp_path, 1), "Nothing")
