"""Pictures of `tidelog watch` as texts, kept in tests/unit/cli/screens.

After a wanted change of the picture: ``python -m tests.support.screens``, and read the difference.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tidelog.cli.live import View
from tidelog.cli.screen import screen

FOLDER = Path(__file__).parents[1] / "unit" / "cli" / "screens"
SIZES = ((80, 24), (100, 30), (160, 50))
TABLES = (1, 20, 500)
NOW_MS = 1_700_000_000_000


def status(tables: int, at_s: int = 10, **changes: Any) -> dict[str, Any]:
    """After ``at_s`` seconds of a dump of so many tables."""
    document: dict[str, Any] = {
        "leader": "db-host.example:3174",
        "standbys": [{"holder": "db-other.example:811", "zone": None}],
        "epoch": 3,
        "since_ms": NOW_MS - 86_400_000,
        "updated_ms": NOW_MS - 10_500 + 1000 * at_s,
        "lag_bytes": 3 << 20,
        "source": {
            "position": "4F/208C0C0", "lag_s": 1.2, "retained_bytes": 33 << 20,
            "spare_bytes": 9 << 30, "kept_s": None, "lost_in_s": None, "error": None,
        },
        "capture": {"records": 12_000_000 + 3500 * at_s, "held": False},
        "dump_options": {"chunk_rows": 10_000, "parallelism": 4},
        "readers_busy": 4,
        "throttle": {
            "settings": {
                "delay_ms": 0, "rows_per_second": 0, "max_lag_bytes": 256 << 20,
                "max_replica_lag_ms": 10_000, "max_select_ms": 2_000, "max_commit_delay_ms": 0,
            },
            "observed": {"lag_bytes": 3 << 20, "replica_lag_ms": None, "select_ms": 120},
            "decision": {
                "limited_by": None, "parallelism_share": 1.0, "pause_ms": 0, "reason": "",
            },
        },
        "windows": [{"chunk": "eeeeeeee", "table": _name(0), "state": "reading", "age_ms": 400}],
        "events": [
            _event("aaaaaaaa", "begun", 4000),
            _event("aaaaaaaa", "read", 3000, rows=10_000),
            _event("aaaaaaaa", "durable", 2000, rows=10_000, superseded=321),
            _event("eeeeeeee", "begun", 400),
        ],
        "refused": [],
        "outputs": [
            output("lake", 2.4, 8_400),
            output("search_index", 0.0, 0),
        ],
        "pipelines": [
            {
                "pipeline": "shop", "leader": "spark-host.example:90210", "epoch": 2,
                "zone": None, "since_ms": NOW_MS - 3_600_000, "standbys": [],
            }
        ],
        "dumps": [
            {
                "dump_id": "nightly", "status": "running", "mode": "incremental",
                "tables": [_table(at, tables, at_s) for at in range(tables)],
            }
        ],
    }  # fmt: skip
    return {**document, **changes}


def output(name: str, lag_s: float, behind: int, **changes: Any) -> dict[str, Any]:
    """A row of ``outputs``."""
    row = {
        "pipeline": "shop", "output": name, "offset": 9, "behind_records": behind, "lag_s": lag_s,
        "noted_ms": NOW_MS - 1000, "state": "following",
    }  # fmt: skip
    return {**row, **changes}


def _name(at: int) -> str:
    long = "_of_the_last_quarter_by_region_and_customer" if at % 7 == 3 else ""
    return f"sales.order_items_{at:03}{long}"


def _table(at: int, of: int, at_s: int) -> dict[str, Any]:
    done, running = of * 7 // 10, 4
    state = "done" if at < done else "running" if at < done + running else "pending"
    read = {"done": 250_000, "running": 12_000 * (at_s + at % 5), "pending": 0}[state]
    return {
        "table": _name(at), "status": state, "reason": "", "where": None, "key_count": 0,
        "keys_read": 0, "keys_absent": 0, "chunks": read // 10_000, "chunks_voided": at % 3,
        "rows_read": read, "rows_superseded": 34 * (at % 4), "estimated_rows": 250_000,
        "failed_ranges": 0, "started_ms": NOW_MS - 60_000 if state != "pending" else None,
    }  # fmt: skip


def _event(chunk: str, kind: str, before_ms: int, **numbers: int) -> dict[str, Any]:
    at_ms = NOW_MS - before_ms
    return {"at_ms": at_ms, "chunk": chunk, "table": _name(0), "event": kind, **numbers}


def _refused(at: int) -> dict[str, Any]:
    return {
        "table": _name(at), "since_ms": 0,
        "reason": "it has no primary key, and its REPLICA IDENTITY is not FULL",
        "remedy": f'ALTER TABLE "sales"."order_items_{at:03}" REPLICA IDENTITY FULL; '
        "-- or give it a primary key of plain columns that is not deferrable",
    }  # fmt: skip


FAULTS: dict[str, Any] = {
    "source": {
        "position": "4F/208C0C0", "lag_s": 780.0, "retained_bytes": 60 << 30,
        "spare_bytes": 2 << 30, "kept_s": None, "lost_in_s": 1500.0, "error": None,
    },
    "refused": [_refused(3), _refused(5), _refused(6)],
    "paused_pipelines": {"shop": {"by": "otto@db-host", "since_ms": NOW_MS - 1_800_000}},
    "verified": {
        "at_ms": NOW_MS - 40_000_000, "compared": 500,
        "differ": ["sales.order_items_001 in lake", "sales.order_items_002 in lake"],
    },
    "outputs": [
        output("lake", 1300.0, 4_800_000),
        output("search_index", 40.0, 90_000, state="stopped",
               error="the index orders-v2 is read-only: its disk is full (flood stage)"),
    ],
}  # fmt: skip
IDLE: dict[str, Any] = {"dumps": [], "windows": [], "events": [], "readers_busy": 0}


def pictures() -> Iterator[tuple[str, list[str]]]:
    """Each by its name, in UTC."""
    before = os.environ.get("TZ")
    os.environ["TZ"] = "UTC"
    time.tzset()
    try:
        for width, height in SIZES:
            for tables in TABLES:
                name = f"{width}x{height}-{tables}-tables"
                yield name, text(status, tables, View("tidelog.yaml"), width, height)
        yield "80x24-faults", text(status, 500, View("tidelog.yaml"), 80, 24, **FAULTS)
        yield "100x30-faults", text(status, 20, View("tidelog.yaml"), 100, 30, **FAULTS)
        yield "80x24-idle", text(status, 1, View("tidelog.yaml"), 80, 24, **IDLE)
        view = View("tidelog.yaml", windows=True)
        yield "100x30-windows", text(status, 20, view, 100, 30)
        view = View("tidelog.yaml", scroll=300)
        yield "80x24-scrolled", text(status, 500, view, 80, 24)
        yield "80x24-words", text(status, 1, View("tidelog.yaml", words=True), 80, 24)
        yield "60x15-faults", text(status, 20, View("tidelog.yaml"), 60, 15, **FAULTS)
    finally:
        if before is None:
            del os.environ["TZ"]
        else:
            os.environ["TZ"] = before
        time.tzset()


def text(make: Any, tables: int, view: View, width: int, height: int, **changes: Any) -> list[str]:
    """The lines of a picture of the last ten seconds."""
    history = [make(tables, at_s, **changes) for at_s in range(11)]
    return [line.plain.rstrip() for line in screen(history, view, NOW_MS, width, height)]


class Feed:
    """Where nothing was noted yet."""

    poll_interval_s = 0.5
    pays_per_request = False

    def __init__(self, _config: Any) -> None:
        pass

    def __enter__(self) -> Feed:
        return self

    def __exit__(self, *_error: object) -> None:
        pass

    def latest(self, *, last: bool = False) -> dict[str, Any]:
        return {"leader": None, "capture": None}


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    for file in FOLDER.glob("*.txt"):
        file.unlink()
    for name, lines in pictures():
        (FOLDER / f"{name}.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
