"""Unsupported tables and the dumps that they need survive restarts, with a state store on disk."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tidelog.capture.notifications import Notification
from tidelog.capture.unsupported_tables import UnsupportedTables
from tidelog.errors import KeyMissingError, NameRefusedError, RowsLeftOutError, TableLeftOutError
from tidelog.model.schema import TableName, TableSchema
from tidelog.outputs.base.left_out import LeftOutTableStore
from tidelog.ports import DumpCompleted, OutputBatch, UnsupportedReason
from tidelog.state.sqlite import SqliteState

T, U = TableName("public", "t"), TableName("public", "u")
KEYED, KEYLESS = (TableSchema(T, 1, (), key, key, "d", "none") for key in (("id",), ()))


@pytest.fixture
def state(tmp_path: Path) -> Iterator[SqliteState]:
    made = SqliteState(tmp_path / "state.db")
    yield made
    made.close()


def known(state: SqliteState) -> UnsupportedTables:
    return UnsupportedTables(state, lambda _notification: None)


def test_unsupported_tables_and_owed_dumps_outlive_a_restart(state: SqliteState) -> None:
    unsupported = known(state)
    unsupported.add("log", T, UnsupportedReason("it has no key"))
    assert [line["table"] for line in known(state).summary()] == ["public.t"]
    unsupported.require_dump(U)
    unsupported.on_dump_failed(T, "no right to read")
    assert not known(state).needs_dump(U), "what a decision owes is stored once its lock was let go"
    unsupported.flush()
    after = known(state)
    assert after.needs_dump(U)
    assert after.needs_dump(T)
    after.resolve("log", T)
    assert after.find_reason(T) is not None, "the right is missing still"
    assert known(state).find_reason(T) == after.find_reason(T)


def test_table_that_is_gone_is_owed_nothing(state: SqliteState) -> None:
    """Also one that the log refused as well: nothing is left of it."""
    unsupported = known(state)
    unsupported.require_dump(T)
    unsupported.add("log", T, UnsupportedReason("it has no key"))
    unsupported.keep_only([U])
    assert not unsupported.any_left
    assert not known(state).any_left


def test_a_table_is_reported_once_when_it_is_unsupported_and_once_when_it_is_not(
    state: SqliteState,
) -> None:
    told: list[Notification] = []
    unsupported = UnsupportedTables(state, told.append)
    for _ in range(2):
        unsupported.set_all("catalogue", {T: UnsupportedReason("it has no key")})
    for _ in range(2):
        unsupported.set_all("catalogue", {})
    assert [str(notification.type) for notification in told] == ["SKIPPED", "RESUMED"]


def test_an_output_forgets_refused_names_of_tables_that_it_takes_no_more(
    state: SqliteState,
) -> None:
    names = LeftOutTableStore(state, "generation", "output")
    for table in ("public.t", "public.u"):
        names.add(table, NameRefusedError("too long"), 1)
    asked: list[str] = []
    names.take_again([KEYED], lambda _schema: None, asked.extend, 7)
    assert asked == ["public.t"]
    assert list(LeftOutTableStore(state, "generation", "output").messages()) == ["public.t"]


def test_a_table_that_was_resumed_by_a_row_is_dumped_when_tables_are_tried_again(
    state: SqliteState,
) -> None:
    tables = LeftOutTableStore(state, "generation", "output")
    tables.add("public.t", TableLeftOutError("somebody else's"), 1)
    tables.resume("public.t", 4)
    asked: list[str] = []
    for _ in range(2):
        tables.take_again([KEYED], lambda _schema: None, asked.extend, 7)
    assert asked == ["public.t"]


def test_a_table_of_which_a_dump_has_begun_is_dumped_by_that_one(state: SqliteState) -> None:
    tables = LeftOutTableStore(state, "generation", "output")
    tables.add("public.t", RowsLeftOutError("its row is rejected"), 1)
    tables.resume("public.t", 4, is_dumped=True)
    asked: list[str] = []
    tables.take_again([KEYED], lambda _schema: None, asked.extend, 7)
    assert not asked
    tables.remove_dumped([DumpCompleted("d", "public.t", 4, True)])
    assert tables.messages() == {}


@pytest.mark.parametrize("by_row", [False, True])
def test_a_table_without_a_key_waits_for_a_dump_that_began_once_it_was_written_again(
    state: SqliteState, by_row: bool
) -> None:
    tables = LeftOutTableStore(state, "generation", "output")
    tables.add("public.t", TableLeftOutError("somebody else's"), 1)
    if by_row:
        tables.resume("public.t", 7, keyed=False)
    asked: list[str] = []
    tables.take_again([KEYED], lambda _schema: None, asked.extend, 7)
    tables.resume("public.t", 9, keyed=False)
    assert asked == list(tables.messages()) == ["public.t"]
    for first, is_missing in ((6, True), (7, False)):
        tables.remove_dumped([DumpCompleted("d", "public.t", first, False, 20, rows_ordinal=8)])
        assert bool(tables.messages()) == is_missing


def test_no_dump_is_requested_of_a_table_that_was_left_out_again(state: SqliteState) -> None:
    tables = LeftOutTableStore(state, "generation", "output")
    asked: list[str] = []

    def refuse(_schema: TableSchema) -> None:
        raise TableLeftOutError("somebody else's")

    for since in (1, 5):
        tables.add("public.t", TableLeftOutError("somebody else's"), since)
        if since == 1:
            tables.resume("public.t", 4)
    tables.take_again([KEYED], refuse, asked.extend, 7)
    assert not asked
    assert tables.messages() == {"public.t": "somebody else's"}


def test_a_table_without_a_key_is_reported_once_and_is_no_problem(
    state: SqliteState, caplog: pytest.LogCaptureFixture
) -> None:
    for since in (3, 5):
        tables = LeftOutTableStore(state, "generation", "output")
        tables.add("public.t", KeyMissingError("it has no key"), since)
        assert (tables.messages(), tables.keyless()) == ({}, {"public.t": "it has no key"})
    assert [each.levelname for each in caplog.records] == ["WARNING"]
    asked: list[str] = []
    tables.take_again([KEYED], lambda _schema: None, asked.extend, 7)
    assert not asked, "it has a key now: capture dumps it"
    assert tables.keyless()


@pytest.mark.parametrize("by_row", [False, True])
def test_a_table_without_a_key_that_is_appended_now_is_dumped(
    state: SqliteState, by_row: bool
) -> None:
    tables = LeftOutTableStore(state, "generation", "output")
    asked: list[str] = []

    def refuse(_schema: TableSchema) -> None:
        raise KeyMissingError("it has no key")

    tables.add("public.t", KeyMissingError("it has no key"), 3)
    tables.take_again([KEYLESS], refuse, asked.extend, 5)
    assert not asked
    if by_row:
        tables.resume("public.t", 7, keyed=False)
    tables.take_again([KEYLESS], lambda _schema: None, asked.extend, 7)
    assert asked == list(tables.messages()) == ["public.t"]
    assert not tables.keyless()
    for first, is_missing in ((6, True), (7, False)):
        tables.remove_dumped([DumpCompleted("d", "public.t", first, False, 20, rows_ordinal=8)])
        assert bool(tables.messages()) == is_missing


def test_a_dump_of_which_rows_were_left_out_is_not_complete(state: SqliteState) -> None:
    tables = LeftOutTableStore(state, "generation", "output")
    before, since = (DumpCompleted("d", "public.t", first, True) for first in (9, 10))
    other = DumpCompleted("d", "public.u", 1, True)
    tables.add("public.t", TableLeftOutError("somebody else's"), 5)
    for _ in range(2):
        batch = OutputBatch("generation", 10, 20, (), (before, since, other))
        assert tables.with_complete_dumps(batch).completed == (since, other)
        tables.resume("public.t", 10)
    tables.remove_dumped([since])
    batch = OutputBatch("generation", 20, 30, (), (before, other))
    assert tables.with_complete_dumps(batch) == batch


@pytest.mark.parametrize(("dump", "lacking"), [(7, True), (8, False)])
def test_the_dump_of_a_table_that_got_a_key_begins_when_it_was_last_left_out(
    state: SqliteState, dump: int, lacking: bool
) -> None:
    """Not with its first row that has a key, which may be one of that dump."""
    tables = LeftOutTableStore(state, "generation", "output")
    for since, resumed in ((3, 5), (8, 9)):
        tables.add("public.t", KeyMissingError("it has no key"), since)
        tables.resume("public.t", resumed)
    tables.remove_dumped([DumpCompleted("d", "public.t", dump, True)])
    assert bool(tables.messages()) == lacking


def test_a_table_whose_rows_are_rejected_again_is_not_dumped_by_each_start(
    state: SqliteState,
) -> None:
    """`pipeline --once` starts every few minutes. Other options are another try."""
    rejected = RowsLeftOutError("its row is rejected")
    asked: list[str] = []
    counts = []
    for start, options in enumerate(["a", "a", "a", "b", "b", "b"]):
        tables = LeftOutTableStore(state, "generation", "output", options)
        tables.take_again([KEYED], lambda _schema: None, asked.extend, start)
        left_out = dict(tables.unwritable)
        if not left_out:
            tables.leave_out(T, rejected, start, "")
        assert bool(left_out) == (start in (2, 4, 5))
        reason = tables.messages()["public.t"]
        assert reason.startswith("its row is rejected. Then run `tidelog dump CONFIG --table publ")
        assert ("start the pipeline again" in reason) == (start == 0)
        counts.append(len(asked))
    assert counts == [0, 1, 1, 2, 2, 2]
    batch = OutputBatch("generation", 7, 9, (), started=("public.t",))
    assert tables.begin_dumps(batch) == [T]
    assert not LeftOutTableStore(state, "generation", "output", "b").unwritable
