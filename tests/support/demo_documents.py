"""What `tidelog demo` shows: during its dump, killed, and at the end."""

from __future__ import annotations

from typing import Any

_STORY = (
    (2.9, "ok", "PostgreSQL runs, with its own data directory."),
    (5.1, "ok", "A shop of 300,000 rows in 4 tables exists."),
    (12.4, "ok", "An application writes 200 transactions a second. Capture reads the log "
     "while it dumps all tables."),
    (20.2, "critical", "kill -9 of capture, process 4711, during the dump: 115,000 rows "
     "(38%) are durable in the event log."),
    (24.3, "ok", "Capture leads again after 4.1 s, as process 4790. The database kept its log: the "
     "812 transactions since then are read now."),
    (31.8, "ok", "The dump is complete. Of the 23 chunks of before the kill none was read twice: "
     "only the other 185,632 rows were read."),
    (44.9, "ok", "Every table was dumped once more, while everything ran: 305,120 rows."),
    (57.7, "info", "The application stops after 9,120 transactions; the lake takes in the rest, "
     "then every row is compared."),
    (88.6, "ok", "4 tables, 312,019 rows compared: every table equals its Delta copy."),
)  # fmt: skip
_TABLES = (
    ("customers", 50_000, 50_000), ("products", 10_000, 10_000),
    ("orders", 103_110, 41_216), ("order_items", 148_909, 0),
)  # fmt: skip


def document(moments: int, at_s: float, **changes: Any) -> dict[str, Any]:
    """With so many of the story's moments."""
    found: dict[str, Any] = {
        "at_s": at_s,
        "source": "PostgreSQL",
        "step": "capture reads the log while it dumps all tables",
        "tables": [{"table": t, "source": s, "lake": lake} for t, s, lake in _TABLES],
        "transactions": 1_618,
        "capture": {
            "state": "leads", "process": 4711, "records": 5_310, "records_per_s": 640,
            "lag_s": 0.2,
        },
        "lags": [0.2, 0.3, 0.2, 1.1, 2.1, 3.1, 0.4, 0.2],
        "dump": {
            "dump_id": "initial", "status": "running", "rows": 115_000, "of_rows": 312_019,
            "superseded": 17,
        },
        "lake": {"behind_records": 3_400, "lag_s": 1.25},
        "story": [
            {"at_s": at, "kind": kind, "text": text} for at, kind, text in _STORY[:moments]
        ],
    }  # fmt: skip
    return {**found, **changes}


RUNNING = document(3, 19.7)
KILLED = document(
    4,
    22.3,
    step="nobody captures; the application keeps writing",
    capture={
        "state": "killed", "process": 4711, "records": 5_310, "records_per_s": 0, "lag_s": 2.1,
    },
)  # fmt: skip
ENDED = document(9, 88.7, tables=[{"table": t, "source": s, "lake": s} for t, s, _ in _TABLES])
REPORT: dict[str, Any] = {
    "equal": True,
    "summary": _STORY[-1][2],
    "seconds": 88.7,
    "tables": [
        {"table": f"public.{t}", "rows": s, "equal": True, "missing": 0, "surplus": 0,
         "different": 0, "note": ""}
        for t, s, _ in _TABLES
    ],
    "story": ENDED["story"],
}  # fmt: skip
