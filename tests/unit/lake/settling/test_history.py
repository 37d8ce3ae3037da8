"""A table of history has a row for each state of a key: all histories of a key that a few versions
allow, however batches cut them, against a model that takes one change after the other.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.unit.lake.settling.tables import LAYOUT, Files, by_text

from tidelog.outputs.base.stores import open_file_store
from tidelog.outputs.lake.data_files.data_file import DataFile
from tidelog.outputs.lake.data_files.file_reader import DataFileReader
from tidelog.outputs.lake.data_files.layout import FileColumn
from tidelog.outputs.lake.data_files.look_up import KeyIndexCache
from tidelog.outputs.lake.settling.history import Removals
from tidelog.outputs.lake.settling.rows import is_closed, newest_version
from tidelog.outputs.lake.settling.settle import (
    ChangeFile,
    SettledChanges,
    SettleOptions,
    replace_files,
    rewrite,
)
from tidelog.outputs.lake.settling.settle_history import (
    equal_values,
    settle_history,
    settle_removals,
)
from tidelog.spark.formats.shapes import (
    CHANGE_MISSING,
    CHANGE_OP,
    CHANGE_VERSION,
    EVENT_SOURCE,
)

OWN = {
    "_valid_from": pa.timestamp("us", "UTC"),
    "_valid_to": pa.timestamp("us", "UTC"),
    "_valid_from_version": pa.int64(),
    "_valid_to_version": pa.int64(),
    "_current": pa.bool_(),
}
HISTORY = replace(
    LAYOUT,
    columns=(*LAYOUT.columns, *(FileColumn(name, name, kind) for name, kind in OWN.items())),
    statistics=("k", "_version", "_valid_to_version"),
    deletion_vectors=True,
    history=True,
)
SLOTS = (10, 20, 30, 40)
KINDS: tuple[Any, ...] = (None, "x", "y", "partial", "delete")
Removal = tuple[int, int, int]
TRUNCATE, DUMP, EARLY = (25, 25, 25), (45, 22, 45), (35, 10, 35)


@dataclass(frozen=True)
class Event:
    """``b`` is missing if ``partial``; ``a`` is None for a delete."""

    key: int
    version: int
    time: int
    a: int | None
    b: str | None
    partial: bool = False


def _event(key: int, version: int, kind: Any) -> Event:
    if kind == "delete":
        return Event(key, version, version, None, None)
    if kind == "partial":
        return Event(key, version, version, 1, None, partial=True)
    return Event(key, version, version, 1, kind)


@dataclass
class Model:
    """Takes the records of one key in the order of their versions."""

    key: int
    rows: list[dict[str, Any]] = field(default_factory=list)
    open: dict[str, Any] | None = None

    def removal(self, at: int, below: int, time: int) -> None:
        if self.open is not None and self.open["_version"] < below:
            self._close(at, time)

    def event(self, event: Event) -> None:
        if event.a is None:
            self._close(event.version, event.time)
            return
        if event.partial and self.open is None:
            return
        b = self.open["b"] if event.partial and self.open else event.b
        values = {"a": event.a, "b": b}
        if self.open is not None and values.items() <= self.open.items():
            self.open["_version"] = event.version
            return
        self._close(event.version, event.time)
        self.open = {"k": self.key, **values, "_version": event.version}
        self.open |= {"_valid_from": event.time, "_valid_from_version": event.version}
        self.open |= {"_valid_to": None, "_valid_to_version": None, "_current": True}
        self.rows.append(self.open)

    def _close(self, version: int, time: int) -> None:
        if self.open is not None:
            self.open |= {"_valid_to": time, "_valid_to_version": version, "_current": False}
            self.open = None


class Table(Files):
    """A table of history, and its files. ``feed``: rows as its change feed gives them."""

    def __init__(self, path: Path, **options: Any) -> None:
        layout = replace(HISTORY, **options)
        super().__init__(open_file_store(str(path / "t")), layout, KeyIndexCache(str(path / "k")))
        object.__setattr__(self, "files", [])
        object.__setattr__(self, "feed", [])

    files: list[DataFile]
    feed: list[str]

    def settle(self, events: Sequence[Event], removals: Sequence[Removal] = ()) -> SettledChanges:
        place = self.store, self.layout
        ends = Removals.of(removals)
        given = _arrow(events)
        settled = settle_history(given, self.files, *place, ("k", "A", "b"), self.cache, ends)
        if len(ends):
            others = settle_removals(self.files, *place, self.cache, ends, settled.dead)
            settled = SettledChanges.of_parts([settled, others])
        if self.layout.change_feed:
            self._follow(settled.change_files)
        by_path = {file.path: file for file in self.files}
        options = SettleOptions(deletion_vectors=True)
        changes = replace_files(settled.dead, by_path, *place, options)
        self.files[:] = [*self.after(self.files, changes), *settled.added]
        return settled

    def states(self) -> list[dict[str, Any]]:
        return [_numbers(row) for row in self.rows(self.files)]

    def _follow(self, files: Sequence[ChangeFile]) -> None:
        for file in files:
            for row in pq.read_table(Path(self.store.path) / file.path).to_pylist():
                kind = row.pop("_change_type")
                if kind in ("insert", "update_postimage"):
                    self.feed.append(str(_numbers(row)))
                else:
                    self.feed.remove(str(_numbers(row)))


def _arrow(events: Sequence[Event]) -> pa.Table | None:
    arrays = {
        CHANGE_OP: ["d" if each.a is None else "u" for each in events],
        CHANGE_VERSION: pa.array([each.version for each in events], pa.int64()),
        "k": pa.array([each.key for each in events], pa.int64()),
        "A": pa.array([each.a for each in events], pa.int32()),
        "b": pa.array([each.b for each in events], pa.string()),
        CHANGE_MISSING: pa.array(
            [["b"] if each.partial else None for each in events], pa.list_(pa.string())
        ),
        EVENT_SOURCE: pa.array(
            [{"commit_ts": each.time} for each in events], pa.struct([("commit_ts", pa.int64())])
        ),
    }
    return pa.table(arrays) if events else None


def _numbers(row: dict[str, Any]) -> dict[str, Any]:
    def of(name: str, value: Any) -> Any:
        times = value is not None and name in ("_valid_from", "_valid_to")
        return round(value.timestamp() * 1_000_000) if times else value

    return {name: of(name, value) for name, value in row.items()}


def _histories() -> Iterator[tuple[int, Sequence[Event]]]:
    """Every sequence of kinds of records in the slots, as a key of its own."""
    for key, kinds in enumerate(product(KINDS, repeat=len(SLOTS))):
        yield (
            key,
            [
                _event(key, version, kind)
                for version, kind in zip(SLOTS, kinds, strict=True)
                if kind is not None
            ],
        )


def _expected(removals: Sequence[Removal]) -> list[dict[str, Any]]:
    found = []
    for key, events in _histories():
        model = Model(key)
        records: list[Any] = [*events, *removals]
        for each in sorted(records, key=lambda r: r.version if isinstance(r, Event) else r[0]):
            model.event(each) if isinstance(each, Event) else model.removal(*each)
        found += model.rows
    return found


@pytest.mark.parametrize("cuts", [(), (20,), (26, 46), (15, 25, 35, 45)], ids=str)
@pytest.mark.parametrize("removals", [(), (TRUNCATE,), (EARLY, DUMP), (TRUNCATE, DUMP)], ids=str)
def test_all_short_histories_are_those_of_the_model_however_they_are_cut(
    tmp_path: Path, removals: Sequence[Removal], cuts: Sequence[int]
) -> None:
    table = Table(tmp_path, change_feed=cuts == (26, 46))
    events = [event for _, found in _histories() for event in found]
    for start, end in pairwise((0, *cuts, 99)):
        table.settle(
            sorted(
                (each for each in events if start <= each.version < end), key=lambda e: e.version
            ),
            [each for each in removals if start <= each[0] < end],
        )
    expected = _expected(removals)
    assert by_text(table.states()) == by_text(expected)
    if table.layout.change_feed:
        names = table.layout.schema.names
        assert sorted(table.feed) == sorted(
            str({name: row[name] for name in names}) for row in expected
        )


def test_values_of_ended_states_are_not_decoded_again(tmp_path: Path) -> None:
    """They are cached as they are written; also by compaction, which tells ended states apart."""
    table = Table(tmp_path)
    table.settle([_event(key, 10, "x") for key in range(12)])
    table.settle([_event(key, 20, "y") for key in range(2)])
    changes = rewrite(table.files, table.store, table.layout, cache=table.cache)
    table.files[:] = table.after(table.files, changes)
    kinds = [is_closed(file, table.layout) for file in table.files]
    assert sorted(kinds) == [False, True]
    before = {file.path: (Path(table.store.path) / file.path).read_bytes() for file in table.files}
    for path in before:
        (Path(table.store.path) / path).write_bytes(b"not Parquet")
    table.settle([_event(key, 30, "x") for key in range(3)])
    for path, data in before.items():
        (Path(table.store.path) / path).write_bytes(data)
    rows = [(row["k"], row["_valid_from"], row["_valid_to"]) for row in table.states()]
    assert sorted(rows, key=str) == sorted(
        [(0, 10, 20), (0, 20, 30), (0, 30, None), (1, 10, 20), (1, 20, 30), (1, 30, None),
         (2, 10, None), *((key, 10, None) for key in range(3, 12))], key=str
    )  # fmt: skip


def test_a_batch_that_comes_again_changes_nothing(tmp_path: Path) -> None:
    """As after a crash between the files and the commit, or from a restored table on."""
    table = Table(tmp_path)
    events = [_event(1, 10, "x"), _event(1, 20, "y"), _event(2, 30, "x")]
    table.settle(events)
    before = table.states()
    settled = table.settle([events[1], events[2]])
    assert (settled.added, settled.dead) == ((), {})
    assert table.states() == before
    reader = DataFileReader(table.store, table.layout)
    assert max(newest_version(file, reader, table.layout) for file in table.files) == 30


@pytest.mark.parametrize("cuts", [(), (15,), (15, 25)], ids=str)
def test_a_row_under_another_key_keeps_values_that_were_not_logged(
    tmp_path: Path, cuts: Sequence[int]
) -> None:
    """From one key to the next, in one batch or several."""
    table = Table(tmp_path)
    events = [
        _event(1, 10, "x"),
        _event(1, 20, "delete"), _event(2, 20, "partial"),
        _event(2, 30, "delete"), _event(3, 30, "partial"), _event(3, 40, "partial"),
    ]  # fmt: skip
    for start, end in pairwise((0, *cuts, 99)):
        table.settle([event for event in events if start <= event.version < end])
    rows = sorted(table.states(), key=lambda row: row["k"])
    assert [(row["k"], row["b"], row["_valid_to"], row["_version"]) for row in rows] == [
        (1, "x", 20, 10), (2, "x", 30, 20), (3, "x", None, 40)
    ]  # fmt: skip


def test_an_older_state_opens_and_closes_nothing(tmp_path: Path) -> None:
    table = Table(tmp_path)
    table.settle([_event(1, 20, "x")])
    before = table.states()
    table.settle([_event(1, 15, "y"), _event(1, 18, "delete")])
    assert table.states() == before


def test_the_time_of_a_removal_counts_only_for_what_it_removed(tmp_path: Path) -> None:
    """A dump's end has another clock than changes."""
    table = Table(tmp_path)
    events = [_event(1, 10, "x"), _event(2, 10, "x"), _event(1, 20, "delete")]
    table.settle([*events, _event(1, 40, "y"), _event(2, 40, "y")], [(30, 25, 999)])
    rows = sorted(table.states(), key=lambda row: (row["k"], row["_valid_from_version"]))
    assert [(row["_valid_from"], row["_valid_to"]) for row in rows] == [
        (10, 20), (40, None), (10, 999), (999, None)
    ]  # fmt: skip


@pytest.mark.parametrize("cut", [False, True])
def test_times_of_a_key_never_go_back(tmp_path: Path, cut: bool) -> None:
    """Its states follow each other, whatever clocks do; a state that is seen once more, as by a
    dump with its own clock, does not count.
    """
    table = Table(tmp_path)
    events = [
        Event(1, 10, 100, 1, "x"),
        Event(1, 20, 900, 1, "x"),
        Event(1, 30, 70, 1, "y"),
        Event(1, 40, 200, None, None),
    ]
    for batch in ([*events[:2]], [*events[2:]]) if cut else (events,):
        table.settle(batch)
    rows = sorted(table.states(), key=lambda row: row["_valid_from_version"])
    assert [(row["_valid_from"], row["_valid_to"]) for row in rows] == [(100, 100), (100, 200)]
    assert [(row["_version"], row["_valid_to_version"]) for row in rows] == [(20, 30), (30, 40)]


def test_rows_of_others_are_closed_by_the_next_change(tmp_path: Path) -> None:
    """Rows that somebody inserted have no version; of two of one key the newer one counts."""
    table = Table(tmp_path)
    table.settle([_event(1, 10, "x")])
    foreign = {"k": 2, "a": 5, "b": "mine"}
    table.files += table.write([foreign, {**foreign, "k": 1}], [], stats=False)
    table.settle([_event(1, 20, "y"), _event(2, 20, "y")], [(15, 15, 15)])
    rows = sorted(table.states(), key=lambda row: (row["k"], row["_current"]))
    assert [(row["k"], row["b"], row["_valid_from"], row["_valid_to"]) for row in rows] == [
        (1, "x", 10, 15), (1, "y", 20, None), (2, "mine", None, 20), (2, "y", 20, None)
    ]  # fmt: skip


def test_a_removal_ends_no_row_that_was_replaced_before(tmp_path: Path) -> None:
    """One whose file still has it, by a deletion vector."""
    table = Table(tmp_path)
    table.settle([_event(key, 10, "x") for key in range(6)])
    table.settle([_event(1, 20, "y")])
    assert any(file.deletion_vector for file in table.files)
    table.settle([], [(30, 30, 30)])
    rows = [row for row in table.states() if row["k"] == 1]
    assert sorted((row["_valid_from"], row["_valid_to"]) for row in rows) == [(10, 20), (20, 30)]


def test_the_newest_version_of_files_may_be_that_of_an_end(tmp_path: Path) -> None:
    """What came before it is there: a restored table gets what comes after it."""
    table = Table(tmp_path)
    table.settle([_event(1, 10, "x"), _event(1, 20, "delete")])
    reader = DataFileReader(table.store, table.layout)
    for stats in (True, False):
        files = [file if stats else replace(file, stats=None) for file in table.files]
        assert [newest_version(file, reader, table.layout) for file in files] == [20]


def test_files_that_somebody_put_together_are_read_right(tmp_path: Path) -> None:
    """With open and closed rows in one file, with or without statistics."""
    for stats in (True, False):
        table = Table(tmp_path / str(stats))
        table.settle([_event(key, 10, "x") for key in range(6)])
        table.settle([_event(1, 20, "y"), _event(2, 20, "delete")])
        both = table.write(table.states(), [], stats=stats)
        table.files[:] = both
        table.settle([_event(1, 40, "x"), _event(2, 40, "x")], [(30, 30, 30)])
        rows = sorted(table.states(), key=lambda row: row["_valid_from_version"])
        of = [(row["k"], row["_valid_from"], row["_valid_to"]) for row in rows if row["k"] < 4]
        assert sorted(of) == [
            (0, 10, 30), (1, 10, 20), (1, 20, 30), (1, 40, None), (2, 10, 20), (2, 40, None),
            (3, 10, 30),
        ]  # fmt: skip


def test_a_column_that_comes_back_is_emptied_in_open_rows_alone(tmp_path: Path) -> None:
    table = Table(tmp_path)
    table.settle([_event(1, 10, "x"), _event(1, 20, "y")])
    changes = rewrite(table.files, table.store, table.layout, null_columns=("b",))
    rows = table.rows(table.after(table.files, changes))
    assert sorted((row["_current"], row["b"]) for row in rows) == [(False, "x"), (True, None)]


def test_values_are_equal_whatever_their_type() -> None:
    nested = pa.list_(pa.struct([("n", pa.float64())]))
    nan = float("nan")
    cases: Sequence[tuple[Any, Sequence[Any], Sequence[Any], Sequence[bool]]] = [
        (pa.int32(), [1, None, 2, None], [1, None, 3, 0], [True, True, False, False]),
        (pa.float64(), [nan, nan, 0.5], [nan, 1.0, None], [True, False, False]),
        (pa.float32(), [0.0, -0.0, None], [-0.0, -0.0, None], [False, True, True]),
        (pa.list_(pa.string()), [["a", None], [], None, ["a"]], [["a", None], None, None, ["b"]],
         [True, False, True, False]),
        (nested, [[{"n": nan}, None], [{"n": 1.0}]], [[{"n": nan}, None], [{"n": 2.0}]],
         [True, False]),
        (pa.map_(pa.string(), pa.int32()), [[("a", 1)], None, [], [("a", 1)]],
         [[("a", 1)], None, None, [("a", None)]], [True, True, False, False]),
    ]  # fmt: skip
    for kind, left, right, expected in cases:
        found = equal_values(pa.array(left, kind), pa.array(right, kind))
        assert found.dtype == np.bool_
        assert found.tolist() == list(expected), kind
