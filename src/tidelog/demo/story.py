"""The demo's story: its events in plain words, and its current state."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from threading import Lock
from typing import Any, Literal

from tidelog.app.overview import overview
from tidelog.demo.shop import TABLES
from tidelog.system.download_progress import Download

Kind = Literal["ok", "info", "critical"]
LAGS_KEPT = 60
RATE_OVER_S = 3.0


@dataclass(frozen=True, slots=True)
class StoryEvent:
    """An event of the demo."""

    at_s: float
    kind: Kind
    text: str


class Story:
    """Calls ``on_status`` with one document repeatedly. Thread-safe.

    It has ``at_s``, ``source`` (its name), ``step``, the events so far as ``story``, and, if known:
    ``fetching``, ``tables``, ``transactions``, ``capture``, ``dump``, ``lags``, ``lake``.
    """

    def __init__(
        self, source: str, shop_rows: int, on_status: Callable[[dict[str, Any]], None]
    ) -> None:
        """``source``: its name; ``shop_rows``: the rows at the start."""
        self._shop_rows = shop_rows
        self._on_status = on_status
        self._lock = Lock()
        self._started_at = time.monotonic()
        self._state: dict[str, Any] = {"source": source, "step": ""}
        self._lags: deque[float] = deque(maxlen=LAGS_KEPT)
        self._records: deque[tuple[float, int]] = deque(maxlen=LAGS_KEPT)
        self._lag_at = 0
        self.moments: list[StoryEvent] = []

    @property
    def at_s(self) -> float:
        return round(time.monotonic() - self._started_at, 1)

    def set_step(self, step: str) -> None:
        """Set the current step."""
        self.publish(step=step)

    def add_event(self, kind: Kind, text: str) -> None:
        with self._lock:
            self.moments.append(StoryEvent(self.at_s, kind, text))
        self.publish()

    def set_download(self, now: Download) -> None:
        self.publish(fetching=None if now.done else {**asdict(now), "share": now.share})

    def set_row_counts(self, source: Mapping[str, int], lake: Mapping[str, int]) -> None:
        """Set the numbers of rows on both sides."""
        if source:
            self._shop_rows = sum(source.values())
            rows = [
                {"table": table, "source": source[table], "lake": lake.get(table, 0)}
                for table in TABLES
            ]
            self._set(tables=rows)

    def set_capture(self, state: str, pid: int, lag_s: float | None, records: int) -> None:
        """Set the ``state`` (``starts``, ``leads``, ``killed``), and all captures' ``records``."""
        now = time.monotonic()
        if lag_s is not None and int(now) != self._lag_at:
            self._lag_at = int(now)
            self._lags.append(lag_s)
        self._records.append((now, records))
        then, before = next(e for e in self._records if e[0] >= now - RATE_OVER_S)
        rate = (records - before) / (now - then) if now > then else 0.0
        capture = {
            "state": state, "process": pid, "records": records, "records_per_s": round(rate),
            "lag_s": lag_s,
        }  # fmt: skip
        self._set(capture=capture, lags=list(self._lags))

    def set_status(self, status: Mapping[str, Any]) -> None:
        """Set the status document of capture and pipeline."""
        dumps = status.get("dumps") or ()
        if dumps:
            newest = dumps[-1]
            tables = newest["tables"]
            dump = {
                "dump_id": newest["dump_id"],
                "status": newest["status"],
                "rows": sum(table["rows_read"] for table in tables),
                "of_rows": self._shop_rows,
                "superseded": sum(table["rows_superseded"] for table in tables),
            }
            self._set(dump=dump)
        outputs = overview(status, int(time.time() * 1000)).outputs
        self._set(lake=asdict(outputs[0]) if outputs else None)

    def _set(self, **changes: Any) -> None:
        with self._lock:
            self._state.update(changes)

    def publish(self, **changes: Any) -> None:
        """Update the state, and publish it."""
        with self._lock:
            self._state.update(changes)
            document = {
                "at_s": self.at_s,
                **{name: value for name, value in self._state.items() if value is not None},
                "story": [asdict(moment) for moment in self.moments],
            }
            self._on_status(document)
