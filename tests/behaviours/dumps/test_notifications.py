"""What a waiter for Debezium's notifications sees, in its types, statuses and order.

As in `IncrementalSnapshotNotificationService` and
`AbstractIncrementalSnapshotChangeEventSource.readChunk` of Debezium 3.3: a table that can't be read
ends by a TABLE_SCAN_COMPLETED that says why, the others continue, and COMPLETED always comes.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.behaviours.dumps.dumped import Dumped, Make, gate
from tests.behaviours.dumps.sources import N
from tests.behaviours.dumps.ways import Way, ways

from tidelog.capture.notifications import TableScanStatus
from tidelog.control.commands import CancelDump, PauseDump, ResumeDump
from tidelog.state.sqlite import SqliteState

pytestmark = pytest.mark.integration

SIGNALS = "CREATE TABLE public.signals (id varchar(42) PRIMARY KEY, type varchar(32), data text)"
DEBEZIUMS = {"EMPTY", "NO_PRIMARY_KEY", "SKIPPED", "SQL_EXCEPTION", "SUCCEEDED", "UNKNOWN_SCHEMA"}
"""``IncrementalSnapshotNotificationService.TableScanCompletionStatus``."""


def ask(dumped: Dumped, signal_id: str, *collections: str, **data: Any) -> str:
    document = {"data-collections": collections, **data}
    dumped.sql.execute(
        "INSERT INTO signals VALUES (%s, 'execute-snapshot', %s)", (signal_id, json.dumps(document))
    )
    return signal_id


def completed(dumped: Dumped, signal_id: str) -> list[tuple[str, str]]:
    """All that was told of the dump, once COMPLETED is."""
    dumped.wait_for(
        lambda: ("COMPLETED", "") in dumped.notifications(signal_id), f"{signal_id} is told"
    )
    return dumped.notifications(signal_id)


def scan(table: str, status: str) -> tuple[str, str]:
    return ("TABLE_SCAN_COMPLETED", f"{table} {status}")


@ways([Way("table", 1), Way("gtid", 4, "mysql"), Way("table", 4, "mariadb")])
def test_a_waiter_for_completed_never_waits_for_ever(make: Make) -> None:
    dumped = make(source_lines="signal_table: public.signals")
    dumped.sql.execute(SIGNALS.encode())
    dumped.table(rows=12)
    dumped.sql.execute(b"CREATE TABLE public.keyless (n int)")
    dumped.sql.execute(b"INSERT INTO public.keyless VALUES (1)")
    dumped.start()
    start, end = ("STARTED", ""), ("COMPLETED", "")
    ask(dumped, "keyless", "public.keyless")
    ask(dumped, "surrogate", "public.keyless", **{"surrogate-key": "n"})
    ask(dumped, "unknown", "public.nowhere", "nodot", r"other\\..*")
    ask(dumped, "blocking", "public.nowhere", type="blocking")
    condition = {"data-collection": "public.t", "filter": "nothing = 1"}
    ask(dumped, "failing", "public.t", **{"additional-conditions": [condition]})
    ask(dumped, "some", "public.nowhere", "public.t", "public.keyless")
    done = scan("public.keyless", "SUCCEEDED")
    unknown = scan("public.nowhere", "UNKNOWN_SCHEMA")
    assert completed(dumped, "keyless") == [start, done, end]
    assert completed(dumped, "surrogate") == [start, done, end]
    others = [scan(name, "UNKNOWN_SCHEMA") for name in ("nodot", r"other\\..*")]
    assert completed(dumped, "unknown") == [start, unknown, *others, end]
    assert completed(dumped, "blocking") == [start, unknown, end]
    assert completed(dumped, "failing") == [start, scan("public.t", "SQL_EXCEPTION"), end]
    some = completed(dumped, "some")
    assert (some[:2], some[-1]) == ([start, unknown], end)
    assert sorted(some[2:-1]) == [done, scan("public.t", "SUCCEEDED")]
    named = {n.data["data_collections"] for n in dumped.notices if n.dump_id == "some"}
    assert {each.count(",") for each in named} == {2}
    statuses = {n.data["status"] for n in dumped.notices if "status" in n.data}
    assert statuses <= DEBEZIUMS
    assert {str(status) for status in TableScanStatus} == DEBEZIUMS
    rejected = {entry["table"]: entry["reason"] for entry in dumped.state("some")["rejected"]}
    assert rejected.keys() == {"public.nowhere"}
    assert "no captured table matches" in rejected["public.nowhere"]
    dumped.restart()
    assert completed(dumped, ask(dumped, "after", "public.keyless")) == [start, done, end]
    assert dumped.notifications("some").count(end) == 1
    dumped.check()


@ways([Way("table", 1), Way("gtid", 1, "mysql")])
def test_nothing_is_in_progress_while_paused_nor_after_the_end(make: Make) -> None:
    """A chunk that was being read when the signal came is delivered, and not told."""
    dumped = make(chunk_rows=2)
    dumped.table(rows=20)
    dumped.start()
    with gate("chunk.after_read", hit=2) as held:
        dump = dumped.dump()
        dumped.reach(held)
        dumped.send(PauseDump(dump_id=dump))
        before = dumped.progress(dump)["chunks"]
        held.open()
        dumped.passed(dump, before + 1)
    types = [str(n.type) for n in dumped.notices if n.dump_id == dump]
    assert types[-1] == "PAUSED", types
    with gate("chunk.after_read", hit=1) as held:
        dumped.send(ResumeDump(dump_id=dump))
        dumped.reach(held)
        dumped.send(CancelDump(dump_id=dump))
        held.open()
    dumped.dumped(dump, "aborted")
    dumped.do(f"UPDATE t SET n = {N} WHERE id = 3")
    dumped.check()  # what was being read is in the log by then, or never will be
    types = [str(n.type) for n in dumped.notices if n.dump_id == dump]
    assert types[types.index("PAUSED") + 1] == "RESUMED"
    assert types[-1] == "ABORTED", types


@ways([Way("table", 1), Way("gtid", 4, "mysql")])
def test_windows_of_a_debezium_that_shares_the_signal_table(
    make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    """Debezium writes two rows for each of its chunks there, and may delete them."""
    dumped = make(source_lines="signal_table: public.signals")
    dumped.sql.execute(SIGNALS.encode())
    dumped.table(rows=5)
    dumped.start()
    for number in range(3):
        for what in ("open", "close"):
            dumped.sql.execute(
                "INSERT INTO signals VALUES (%s, %s, %s)",
                (f"{number}-{what}", f"snapshot-window-{what}", '{"openWindowTimestamp": "x"}'),
            )
    dumped.sql.execute(b"DELETE FROM signals WHERE id = '1-open'")
    assert completed(dumped, ask(dumped, "after", "public.t"))
    assert not [n for n in dumped.notices if n.aggregate_type == "Signal"]
    assert "snapshot-window" not in caplog.text
    assert not [r for r in caplog.records if "is skipped" in r.getMessage()]
    state = SqliteState(dumped.config.state.url)
    results = [state.get(name) for name in state.keys("results/")]
    state.close()
    assert len(results) == 1, "of the one signal that is ours"
