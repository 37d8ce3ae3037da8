"""What a page that is open is told: the overview once a second where it changed, tables apart."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, Final

import anyio.to_thread

from tidelog.app.web.instance import Instance
from tidelog.app.web.poller import PollResult

EVERY_S: Final = 1.0
TURN_S: Final = 0.2
BEAT_EVERY_S: Final = 4.0
"""A page that hears nothing for a while says so, and asks anew."""
TABLES_EVERY_S: Final = 3.0
MOST_STREAMS: Final = 64
THREADS: Final = 4
"""That read for all of them."""


class OverviewStream:
    """Tells one page. ``chosen``: the site whose tables it shows; ``limiter``: of its threads."""

    def __init__(
        self, sites: Sequence[Instance], chosen: int, limiter: anyio.CapacityLimiter
    ) -> None:
        self._sites = sites
        self._limiter = limiter
        self._chosen = chosen
        self._told: dict[int, PollResult] = {}
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
            for event in self._beat(now):  # before anything that may take its time
                yield event
            for event in await self._read(now):
                yield event
            known = len(self._told) == len(self._sites)
            due = now + (EVERY_S if known else TURN_S)
        if not closed():
            yield _event("ended", {})

    async def _read(self, now: float) -> list[bytes]:
        """In threads apart: thousands of tables are compared, and commands need theirs."""
        return await anyio.to_thread.run_sync(self._news, now, limiter=self._limiter)

    def _beat(self, now: float) -> list[bytes]:
        """The page is told that somebody is there, if it has heard nothing for a while."""
        if now < self._beat_due:
            return []
        self._beat_due = now + BEAT_EVERY_S
        return [_event("beat", {})]

    def _news(self, now: float) -> list[bytes]:
        found = []
        for number, site in enumerate(self._sites):
            look = site.look()
            if look is None:
                continue
            if look.overview and number == self._chosen and now >= self._tables_due:
                self._tables_due = now + TABLES_EVERY_S
                found += self._of_tables(look.tables)
            told = self._told.get(number)
            if told is None or (told is not look and _differ(told, look)):
                found.insert(0, _event("overview", _shown(number, told, look)))
                self._told[number] = look
        if found:
            self._beat_due = now + BEAT_EVERY_S
        return found

    def _of_tables(self, current: dict[str, dict[str, Any]]) -> list[bytes]:
        """Only what changed: there may be thousands."""
        before = self._tables or {}
        changed = [row for name, row in current.items() if before.get(name) != row]
        gone = [name for name in before if name not in current]
        first, self._tables = self._tables is None, current
        if not (changed or gone or first):
            return []
        return [_event("tables", {"first": first, "changed": changed, "gone": gone})]


def _differ(told: PollResult, look: PollResult) -> bool:
    return told.overview != look.overview or told.trouble != look.trouble


def _shown(number: int, told: PollResult | None, look: PollResult) -> dict[str, Any]:
    """Without the problems if they are as they were: a thousand tables may have one each."""
    if look.overview is None:
        return {"site": number, "trouble": look.trouble}
    shown, before = look.overview, told and told.overview
    if before and before["problems"] == shown["problems"]:
        shown = {key: value for key, value in shown.items() if key != "problems"}
    return {"site": number, "overview": shown}


def _event(name: str, data: Any) -> bytes:
    return f"event: {name}\ndata: {json.dumps(data)}\n\n".encode()
