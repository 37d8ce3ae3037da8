"""A range of the log as a batch."""

from __future__ import annotations

from pathlib import Path

from tests.support.build_log import BuiltLog

from tidelog.capture.dumps.state import DumpState, TableProgress, started_record
from tidelog.ports import OutputBatch
from tidelog.spark.datasource.segment_rows import batch_of


def test_the_batch_of_a_batch_may_hold_no_record(tmp_path: Path) -> None:
    """As where a batch that was planned before a handover ends behind the last record."""
    built = BuiltLog(tmp_path / "log")
    table = built.table("p.t", {"id": "int4"})
    built.insert(table, "1")
    built.flush()
    log, end = built.log, built.log.latest_offset()
    whole = batch_of(log, log.head_offset, end)
    assert [(each.table, each.rows) for each in whole.tables] == [(table.table, 1)]
    assert batch_of(log, end - 1, end) == OutputBatch(log.generation, end - 1, end, ())


def test_a_batch_names_the_tables_of_which_dumps_begin_in_it(tmp_path: Path) -> None:
    built = BuiltLog(tmp_path / "log")
    start = built.log.head_offset
    middle = built.dump_started("p.t").next
    end = built.dump_completed("p.t", start).next
    assert batch_of(built.log, start, end).started == ("p.t",)
    assert batch_of(built.log, middle, end).started == ()


def test_a_dump_of_a_part_of_a_table_brings_no_missing_rows(tmp_path: Path) -> None:
    """A table that is left out is not taken again for it."""
    built = BuiltLog(tmp_path / "log")
    dump = DumpState("d1", 1, [TableProgress("p.t", where="id > 7"), TableProgress("p.u")])
    start = built.log.head_offset
    for progress in dump.tables:
        end = built.control(started_record(dump, progress)).next
    assert batch_of(built.log, start, end).started == ("p.u",)
