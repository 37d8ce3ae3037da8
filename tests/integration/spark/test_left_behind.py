"""Outputs that stand where retention has removed the event log."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from tests.behaviours.outputs import destination_sqlite
from tests.behaviours.outputs.destinations import Context
from tests.integration.spark.conftest import Lake
from tests.integration.spark.orders import orders
from tests.support.build_log import BuiltLog

from tidelog.errors import OffsetGoneError
from tidelog.eventlog.consumers import Consumers
from tidelog.eventlog.maintenance import EventLogMaintenance
from tidelog.spark.pipeline import LoopOptions, run_output_loops

pytestmark = pytest.mark.spark


def test_a_dump_makes_copies_right_that_lack_changes(
    lake: Lake, built: BuiltLog, tmp_path: Path
) -> None:
    kept = destination_sqlite.destination(Context(lake.spark, built, tmp_path))

    def run(**how: Any) -> None:
        outputs = [lake.output(), kept.open()]
        try:
            run_output_loops(lake.spark, built.path, outputs, LoopOptions(once=True), **how)
        finally:
            for output in outputs:
                output.close()

    table = orders(built)
    run()
    built.update(table, "1", "changed", "2.00")
    built.delete(table, "2")
    built.insert(table, "9", "new", None)
    built.flush()
    built.control({"type": "nothing"})
    Consumers(built.log.storage).forget("pipeline")  # as the cap passes over it
    assert EventLogMaintenance(built.path).retain(0, now_ms=4_000_000_000_000)
    with pytest.raises(OffsetGoneError, match="retention removed everything"):
        run()
    assert len(lake.rows("public.orders")) == 4

    first = built.dump_started("public.orders").first
    state = [("0", "n0", "1.5"), ("1", "changed", "2.00"), ("3", "n3", "1.5"), ("9", "new", None)]
    built.chunk(table, state)
    built.dump_completed("public.orders", first)
    head = built.log.head_offset
    run(resume_offset=lambda _output, _done: head)
    assert lake.rows("public.orders") == [
        (0, "n0", Decimal("1.50")),
        (1, "changed", Decimal("2.00")),
        (3, "n3", Decimal("1.50")),
        (9, "new", None),
    ]
    assert [(row["id"], row["name"]) for row in kept.rows("public.orders")] == [
        (int(key), name) for key, name, _ in state
    ]
    built.delete(table, "9")
    built.flush()
    run()  # as any other
    assert len(lake.rows("public.orders")) == len(kept.rows("public.orders")) == 3
