"""Files of a table after a batch hold the rows that MERGE would make, whatever files there were."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.support.merge_model import Change, Row
from tests.unit.lake.settling.tables import (
    DELIVERED,
    LAYOUT,
    SOFT,
    Case,
    Files,
    by_text,
    cases,
    folded,
)

from tidelog.outputs.base.stores import open_file_store
from tidelog.outputs.lake.data_files.data_file import DataFile
from tidelog.outputs.lake.data_files.look_up import KeyIndexCache
from tidelog.outputs.lake.settling.changes import FoldedChanges
from tidelog.outputs.lake.settling.settle import (
    ChangeFile,
    SettleOptions,
    replace_files,
    rewrite,
    settle,
)


@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data(), case=cases())
def test_files_hold_what_merge_makes(tmp_path: Path, data: st.DataObject, case: Case) -> None:
    store = open_file_store(str(tmp_path / uuid.uuid4().hex))
    table = Files(store, case.layout, KeyIndexCache(str(tmp_path / "keys")))
    before = _random_files(table, case.table, data)
    # A file's rows are sorted by key: of equal ones that are doubled, which is first may differ.
    case = replace(case, table=table.rows(before))
    settled = settle(case.changes(), before, store, case.layout, DELIVERED, table.cache)
    assert settled.rows == len(case.source)
    if case.layout.change_feed:
        _check_feed(table, case, settled.change_files)
    options = SettleOptions(
        deletion_vectors=data.draw(st.booleans()), rewrite_share=data.draw(st.floats(0, 1))
    )
    by_path = {file.path: file for file in before}
    changes = replace_files(settled.dead, by_path, store, case.layout, options)
    if not options.deletion_vectors:
        assert not changes.marked
    after = [*table.after(before, changes), *settled.added]
    assert by_text(table.rows(after)) == by_text(case.expected())
    whole = table.after(after, rewrite(after, store, case.layout))
    assert by_text(table.rows(whole)) == by_text(case.expected())
    assert len(whole) <= 1


@pytest.mark.parametrize("stats", [True, False])
@pytest.mark.parametrize(
    ("version", "before", "applied"),
    [(6, 5, True), (5, 5, False), (4, 5, False), (1, None, True)],
)
def test_change_replaces_a_row_of_a_lower_version_or_of_none(
    tmp_path: Path, version: int, before: int | None, applied: bool, stats: bool
) -> None:
    """In a file of other versions, too: its highest may be above the change's."""
    table = Files(open_file_store(str(tmp_path / "t")), LAYOUT, KeyIndexCache(str(tmp_path / "k")))
    row = {"k": 1, "a": 1, "b": "old", "_version": before}
    for others in ([], [{"k": 2, "a": 2, "b": "other", "_version": 9}]):
        file = table.write([row, *others], [], stats=stats)
        change = Change("u", version, {"k": 1, "a": 7, "b": "new"})
        settled = settle(folded([change]), file, table.store, LAYOUT, DELIVERED, table.cache)
        new = [{**row, "a": 7, "b": "new", "_version": version}] if applied else []
        assert table.rows(settled.added) == new
        assert set(settled.dead) == ({file[0].path} if applied else set())


@pytest.mark.parametrize("soft", [True, False])
def test_rows_below_a_version_are_gone_and_those_without_one_stay(
    tmp_path: Path, soft: bool
) -> None:
    layout = SOFT if soft else LAYOUT
    table = Files(open_file_store(str(tmp_path / "t")), layout, KeyIndexCache(str(tmp_path / "k")))
    files = [
        file
        for versions in ([1, 2], [3, 4], [4, 5], [1, None], [None, None])
        for file in table.write(
            [{"k": at, "a": at, "_version": v} for at, v in enumerate(versions)], [], stats=True
        )
    ]
    gone = [{"k": 8, "a": 8, "b": "gone", "_version": 1, "_deleted": True}] if soft else []
    files += table.write(gone, [], stats=True)
    none = FoldedChanges.none(deleted_below=4)
    settled = settle(none, files, table.store, layout, (), table.cache)
    by_path = {file.path: file for file in files}
    options = SettleOptions(deletion_vectors=True, rewrite_share=1.0)
    changes = replace_files(settled.dead, by_path, table.store, layout, options)
    assert list(changes.removed) == files[:1]
    assert [old for old, _ in changes.marked] == [files[1], files[3]]
    left = table.rows(table.after(files, changes))
    assert [row["_version"] for row in left if row not in gone] == [4, 4, 5, None, None, None]
    assert [row for row in left if row in gone] == gone
    marked = [(row["_version"], row["_deleted"]) for row in table.rows(settled.added)]
    assert sorted(marked) == ([(1, True), (1, True), (2, True), (3, True)] if soft else [])


def _check_feed(table: Files, case: Case, files: Sequence[ChangeFile]) -> None:
    """The changes lead from the rows before to those after, and updates keep the key."""
    changes: dict[str, list[Row]] = {
        kind: [] for kind in ("insert", "update_preimage", "update_postimage", "delete")
    }
    for file in files:
        for row in pq.read_table(Path(table.store.path) / file.path).to_pylist():
            changes[row.pop("_change_type")].append(row)
    inserted, before, after, deleted = map(by_text, changes.values())
    left = Counter(by_text(case.table))
    left.subtract(before + deleted)
    assert min(left.values(), default=0) >= 0
    left.update(inserted + after)
    assert left == Counter(by_text(case.expected())) + Counter()
    keys = [sorted(str(row["k"]) for row in changes[kind]) for kind in list(changes)[1:3]]
    assert keys[0] == keys[1]
    there = {row["k"] for row in case.table if row["k"] is not None or case.layout.null_key}
    assert not there & {row["k"] for row in changes["insert"]}


def _random_files(table: Files, rows: Sequence[Row], data: st.DataObject) -> list[DataFile]:
    """``rows`` in up to three files, with others that vectors mark."""
    parts: list[list[Row]] = [[], [], []]
    for row in rows:
        parts[data.draw(st.integers(0, 2))].append(row)
    found = []
    for part in parts:
        dead = []
        with_vector = data.draw(st.booleans())
        if part and with_vector:
            part.insert(0, {**part[0], "k": -1})  # comes first in its file
            dead = [0]
        found += table.write(part, dead, stats=data.draw(st.booleans()))
    return found
