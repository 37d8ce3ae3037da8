"""What the history oracle takes for a true history, and what it does not."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest
from tests.support.oracle.dumps import REFETCH, PlacedChunk
from tests.support.oracle.history import HistoryError, SourceHistory, TableDump
from tests.support.oracle.values import UNCHANGED, Change, Key, Row, Transaction

from tidelog.model.records import ChunkMeta

TABLE = "app.t"
DUMP = TableDump("d", TABLE, 0, 3)


def change(op: str, offset: int, *, new: Row | None = None, old: Row | None = None) -> Change:
    return Change(op, TABLE, b"", offset, new=new, old=old, key=("id",), offset=offset)


def control(kind: str, offset: int, **more: Any) -> Change:
    told = {"type": kind, "dump_id": "d", "table": TABLE, **more}
    return Change("c", "", json.dumps(told).encode(), offset, offset=offset)


def row(key: str, seq: str, text: str) -> Row:
    return {"id": key, "seq": seq, "text": text}


STARTED = control("dump-started", 0)
PARTIAL = change("I", 1, new=row("1", "1", UNCHANGED))
COMPLETED = control("dump-completed", 2, first_offset=0, delete_absent=True)
MOVED = change("U", 3, new=row("2", "2", "a"), old=row("1", "1", "a"))
ABSENT = change("a", 4, old={"id": "1"})
REREAD = ChunkMeta(REFETCH, TABLE, "c", None, None, "0", "0", "1:1:", 1, 0)
READ_AGAIN = PlacedChunk(4, 5, REREAD)
SOURCE: dict[Key, Row] = {("2",): row("2", "2", "a")}


def history(*records: Change, rereads: Sequence[PlacedChunk] = (READ_AGAIN,)) -> SourceHistory:
    truth = [
        Transaction(record.offset, record.position, 0, [record])
        for record in records
        if record.op in "IUD"
    ]
    found = SourceHistory(truth, records, 0, lambda one, other: one == other)
    found.refetch = rereads
    found.check_order()
    return found


def test_a_row_that_lacks_columns_may_move_away_before_it_is_read_again() -> None:
    history(STARTED, PARTIAL, COMPLETED, MOVED, ABSENT).check_replay(DUMP, SOURCE)


def test_a_row_that_lacks_columns_and_is_never_read_again_is_reported() -> None:
    with pytest.raises(HistoryError, match="replay lacks it"):
        history(STARTED, PARTIAL, COMPLETED, MOVED, rereads=()).check_replay(DUMP, SOURCE)


def test_a_row_that_lacks_columns_may_be_made_good_by_the_log_before_it_is_read_again() -> None:
    whole = change("U", 3, new=row("1", "2", "a"), old=row("1", "1", "a"))
    source = {("1",): row("1", "2", "a")}
    history(STARTED, PARTIAL, COMPLETED, whole).check_replay(DUMP, source)
    with pytest.raises(HistoryError, match="replay lacks it"):
        history(STARTED, PARTIAL, COMPLETED, whole, rereads=()).check_replay(DUMP, source)
    late = PlacedChunk(3, 3, REREAD)
    with pytest.raises(HistoryError, match="replay lacks it"):
        history(STARTED, PARTIAL, COMPLETED, whole, rereads=(late,)).check_replay(DUMP, source)
