"""How many rows the shop has, and how many of them are in the lake, while both change."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from tidelog.demo.shop import TABLES, Shop

EVERY_S = 1.0


class DeltaRows:
    """Rows of a Delta table by the files of its log, which cost no Spark job.

    Each commit adds and removes data files, and says how many rows are in one. It reads commits
    alone, not checkpoints: for a table that is so young that all of them are there.
    """

    def __init__(self, table: Path) -> None:
        self._log = table / "_delta_log"
        self._next = 0
        self._rows_of: dict[str, int] = {}

    def count(self) -> int:
        """As of the newest commit; 0 without a table."""
        while True:
            try:
                text = (self._log / f"{self._next:020}.json").read_text()
            except FileNotFoundError:
                return sum(self._rows_of.values())
            self._apply([json.loads(line) for line in text.splitlines()])
            self._next += 1

    def _apply(self, actions: list[dict[str, Any]]) -> None:
        """Files that are removed first: one whose rows were marked as deleted is added anew."""
        for removed in (action["remove"] for action in actions if "remove" in action):
            self._rows_of.pop(removed["path"], None)
        for added in (action["add"] for action in actions if "add" in action):
            gone = (added.get("deletionVector") or {}).get("cardinality", 0)
            stats = json.loads(added.get("stats") or "{}")
            self._rows_of[added["path"]] = stats.get("numRecords", 0) - gone


class RowCounts:
    """Counts both sides again and again, on a thread of its own. A context manager.

    Args:
        open_shop: a connection of its own.
        lake: the directory of the shop's Delta tables.
    """

    def __init__(self, open_shop: Callable[[], Shop], lake: Path) -> None:
        self._open_shop = open_shop
        self._copies = {table: DeltaRows(lake / table) for table in TABLES}
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="demo-counts", daemon=True)
        self.source: dict[str, int] = {}
        self.lake: dict[str, int] = {}

    def __enter__(self) -> RowCounts:
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._ended.set()
        self._thread.join(10)

    def _run(self) -> None:
        # Without the server, which ends first where the demo is interrupted, it ends as well.
        with suppress(Exception), self._open_shop() as shop:
            while not self._ended.wait(EVERY_S):
                self.look(shop)

    def look(self, shop: Shop) -> None:
        """Count now."""
        with shop.transaction(commit=False):
            self.source = {table: shop.count(table) for table in TABLES}
        self.lake = {table: copy.count() for table, copy in self._copies.items()}
