"""Streams the overview to an open page once a second if it has changed, and tables less often."""

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
"""A page that gets no event for a while says so, and reconnects."""
TABLES_EVERY_S: Final = 3.0
MOST_STREAMS: Final = 64
THREADS: Final = 4
"""Threads that read for all pages."""


class OverviewStream:
    """The stream of one page.

    Args:
        sites: the instances on the page.
        chosen: the number of the site whose tables it shows.
        limiter: the limit of its threads.
    """

    def __init__(
        self, sites: Sequence[Instance], chosen: int, limiter: anyio.CapacityLimiter
    ) -> None:
        self._sites = sites
        self._limiter = limiter
        self._chosen = chosen
        self._sent: dict[int, PollResult] = {}
        self._tables: dict[str, dict[str, Any]] | None = None
        self._tables_due = 0.0
        self._beat_due = 0.0

    async def events(
        self, is_valid: Callable[[], bool], closed: Callable[[], bool]
    ) -> AsyncIterator[bytes]:
        """Yield events until the session or the process ends."""
        yield b"retry: 1000\n\n"
        due = 0.0
        while not closed() and is_valid():
            now = time.monotonic()
            if now < due:
                await asyncio.sleep(TURN_S)
                continue
            for event in self._beat(now):  # before anything slow
                yield event
            for event in await self._read(now):
                yield event
            all_sent = len(self._sent) == len(self._sites)
            due = now + (EVERY_S if all_sent else TURN_S)
        if not closed():
            yield _event("ended", {})

    async def _read(self, now: float) -> list[bytes]:
        """Read in other threads: it compares thousands of tables, and commands need theirs."""
        return await anyio.to_thread.run_sync(self._changes, now, limiter=self._limiter)

    def _beat(self, now: float) -> list[bytes]:
        """Return a heartbeat event if no event was sent for a while."""
        if now < self._beat_due:
            return []
        self._beat_due = now + BEAT_EVERY_S
        return [_event("beat", {})]

    def _changes(self, now: float) -> list[bytes]:
        events_out = []
        for number, site in enumerate(self._sites):
            latest = site.latest()
            if latest is None:
                continue
            if latest.overview and number == self._chosen and now >= self._tables_due:
                self._tables_due = now + TABLES_EVERY_S
                events_out += self._table_events(latest.tables)
            sent = self._sent.get(number)
            if sent is None or (sent is not latest and _differ(sent, latest)):
                events_out.insert(0, _event("overview", _shown(number, sent, latest)))
                self._sent[number] = latest
        if events_out:
            self._beat_due = now + BEAT_EVERY_S
        return events_out

    def _table_events(self, current: dict[str, dict[str, Any]]) -> list[bytes]:
        """Return only changed tables: there may be thousands."""
        before = self._tables or {}
        changed = [row for name, row in current.items() if before.get(name) != row]
        removed = [name for name in before if name not in current]
        first, self._tables = self._tables is None, current
        if not (changed or removed or first):
            return []
        return [_event("tables", {"first": first, "changed": changed, "gone": removed})]


def _differ(sent: PollResult, latest: PollResult) -> bool:
    return sent.overview != latest.overview or sent.trouble != latest.trouble


def _shown(number: int, sent: PollResult | None, latest: PollResult) -> dict[str, Any]:
    """Return the overview without unchanged problems: a thousand tables may have one each."""
    if latest.overview is None:
        return {"site": number, "trouble": latest.trouble}
    shown, before = latest.overview, sent and sent.overview
    if before and before["problems"] == shown["problems"]:
        shown = {key: value for key, value in shown.items() if key != "problems"}
    return {"site": number, "overview": shown}


def _event(name: str, data: Any) -> bytes:
    return f"event: {name}\ndata: {json.dumps(data)}\n\n".encode()
