"""Files that are replaced keep the rows they should, and say of them what is true."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from pyroaring import BitMap
from tests.unit.lake.settling.tables import LAYOUT, SOFT, Files, by_text

from tidelog.outputs.base.stores import open_file_store
from tidelog.outputs.lake.data_files.look_up import KeyIndexCache
from tidelog.outputs.lake.settling.settle import SettleOptions, replace_files, rewrite

ROWS = [{"k": k, "a": k, "b": str(k), "_version": k} for k in range(10)]


def files_of(tmp_path: Path, *, soft: bool = False) -> Files:
    layout = SOFT if soft else LAYOUT
    return Files(open_file_store(str(tmp_path / "t")), layout, KeyIndexCache(str(tmp_path / "k")))


@pytest.mark.parametrize(
    ("dead", "what"), [(1, "kept"), (3, "marked"), (4, "rewritten"), (10, "removed")]
)
def test_share_of_dead_rows_decides_what_becomes_of_a_file(
    tmp_path: Path, dead: int, what: str
) -> None:
    """Those that were dead before count, too."""
    table = files_of(tmp_path)
    (file,) = table.write(ROWS, [0], stats=True)
    changes = replace_files(
        {file.path: BitMap(range(1, dead)).serialize()},
        {file.path: file},
        table.store,
        LAYOUT,
        SettleOptions(deletion_vectors=True),
    )
    counts = len(changes.marked), len(changes.removed), len(changes.added)
    expected = {
        "kept": (0, 0, 0),
        "marked": (1, 0, 0),
        "rewritten": (0, 1, 1),
        "removed": (0, 1, 0),
    }
    assert counts == expected[what]
    assert by_text(table.rows(table.after([file], changes))) == by_text(ROWS[dead:])


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (
            '{"numRecords":10,"minValues":{"d":12345678901234567890.10}}',
            '{"numRecords":10,"minValues":{"d":12345678901234567890.10},"tightBounds":false}',
        ),
        (
            '{"tightBounds": true, "numRecords": 10}',
            '{"tightBounds": false, "numRecords": 10}',
        ),
        (
            '{"numRecords":10,"maxValues":{"tightBounds":true},"tightBounds":true}',
            '{"numRecords":10,"maxValues":{"tightBounds":true},"tightBounds":false}',
        ),
        ('{"numRecords":10,"tightBounds":false}', '{"numRecords":10,"tightBounds":false}'),
        ("{}", '{"numRecords": 10, "tightBounds": false}'),
        (None, '{"numRecords": 10, "tightBounds": false}'),
    ],
)
def test_statistics_of_a_marked_file_have_loose_bounds_and_the_numbers_they_had(
    tmp_path: Path, before: str | None, after: str
) -> None:
    table = files_of(tmp_path)
    (file,) = table.write(ROWS, [], stats=True)
    file = replace(file, stats=before)
    options = SettleOptions(deletion_vectors=True)
    changes = replace_files(
        {file.path: BitMap([3])}, {file.path: file}, table.store, LAYOUT, options
    )
    ((_, marked),) = changes.marked
    assert marked.stats == after
    assert json.loads(after)["tightBounds"] is False


def test_rewritten_files_are_one_without_dead_rows_deleted_ones_and_old_values(
    tmp_path: Path,
) -> None:
    table = files_of(tmp_path, soft=True)
    marks = [True, False, None]
    rows = [{**row, "_deleted": marks[at % 3]} for at, row in enumerate(ROWS)]
    files = [*table.write(rows[:5], [1], stats=True), *table.write(rows[5:], [], stats=False)]
    changes = rewrite(files, table.store, SOFT, null_columns=["b"], drop_deleted=True)
    (whole,) = changes.added
    assert list(changes.removed) == files
    left = [row for row in rows if not row["_deleted"] and row["k"] != 1]
    assert table.rows([whole]) == [{**row, "b": None} for row in left]
