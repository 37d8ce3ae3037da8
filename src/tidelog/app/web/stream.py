"""What a page that is open is told: the overview once a second where it changed, tables apart."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, Final

import anyio.to_thread

from tidelog.app.overview import Overview
from tidelog.app.web.site import Site
from tidelog.errors import TidelogError

EVERY_S: Final = 1.0
TURN_S: Final = 0.2
BEAT_EVERY_S: Final = 4.0
"""A page that hears nothing for a while says so, and asks anew."""
TABLES_EVERY_S: Final = 3.0
MOST_STREAMS: Final = 64
THREADS: Final = 4
"""That read for all of them."""


class Teller:
    """Tells one page. ``chosen``: the site whose tables it shows; ``limiter``: of its threads."""

    def __init__(self, sites: Sequence[Site], chosen: int, limiter: anyio.CapacityLimiter) -> None:
        self._sites = sites
        self._limiter = limiter
        self._chosen = chosen
        self._told: dict[int, dict[str, Any]] = {}
        self._tables: dict[str, dict[str, Any]] | None = None
        self._tables_due = 0.0
        self._beat_due = 0.0

    async def tell(
        self, goes_on: Callable[[], bool], closed: Callable[[], bool]
    ) -> AsyncIterator[bytes]:
        """Events, until the session ends or the process."""
        yield b"retry: 1000\n\n"
        due = 0.0
        while not closed() and goes_on():
            now = time.monotonic()
            if now < due:
                await asyncio.sleep(TURN_S)
                continue
            due = now + EVERY_S
            for event in await self._read(now):
                yield event
        if not closed():
            yield _event("ended", {})

    async def _read(self, now: float) -> list[bytes]:
        """In threads apart: a slow state store must not take those that commands need."""
        return await anyio.to_thread.run_sync(self._news, now, limiter=self._limiter)

    def _news(self, now: float) -> list[bytes]:
        found = []
        for number, site in enumerate(self._sites):
            try:
                overview = site.look()
                shown = {key: v for key, v in overview.to_json().items() if key != "tables"}
                news: dict[str, Any] = {"site": number, "overview": shown}
            except (TidelogError, OSError) as error:
                news = {"site": number, "trouble": _told_of(error)}
            else:
                if number == self._chosen and now >= self._tables_due:
                    self._tables_due = now + TABLES_EVERY_S
                    found += self._of_tables(overview)
            if news != self._told.get(number):
                found.insert(0, _event("overview", self._without_known(number, news)))
                self._told[number] = news
        if not found and now >= self._beat_due:
            found.append(_event("beat", {}))
        if found:
            self._beat_due = now + BEAT_EVERY_S
        return found

    def _without_known(self, number: int, news: dict[str, Any]) -> dict[str, Any]:
        """Without the problems if they are as they were: a thousand tables may have one each."""
        overview, told = news.get("overview"), self._told.get(number, {}).get("overview")
        if overview is None or told is None or overview["problems"] != told["problems"]:
            return news
        return {**news, "overview": {k: v for k, v in overview.items() if k != "problems"}}

    def _of_tables(self, overview: Overview) -> list[bytes]:
        """Only what changed: there may be thousands."""
        current = {row["table"]: row for row in overview.to_json()["tables"]}
        before = self._tables or {}
        changed = [row for name, row in current.items() if before.get(name) != row]
        gone = [name for name in before if name not in current]
        first, self._tables = self._tables is None, current
        if not (changed or gone or first):
            return []
        return [_event("tables", {"first": first, "changed": changed, "gone": gone})]


def _told_of(error: Exception) -> str:
    """Messages of our own errors hold no values; of others only the kind is told."""
    return str(error) if isinstance(error, TidelogError) else type(error).__name__


def _event(name: str, data: Any) -> bytes:
    return f"event: {name}\ndata: {json.dumps(data)}\n\n".encode()
