"""A struct of a Delta table gets new members at its end, null in the files from before."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.unit.lake.test_plain_names import Copied, by_pyarrow

from tidelog.errors import TableLeftOutError

BEFORE = 'struct([["street","text"]])'
AFTER = 'struct([["street","text"],["floor","int32"]])'


@pytest.mark.parametrize(("column", "plain"), [("at", True), ("a t", True), ("a t", False)])
def test_a_new_member_is_null_in_older_files(tmp_path: Path, column: str, plain: bool) -> None:
    """One of them is rewritten; with column mapping (a name that needs it) and without."""
    copied = Copied(tmp_path, plain_names=plain, deletion_vectors=False)
    before, after = ({"id": "int64", column: kind, "n": "int32"} for kind in (BEFORE, AFTER))
    copied.bring(before, ["1", "(one)", "1"], ["2", "(two)", "1"])
    copied.bring(before, ["3", "(three)", "1"])
    copied.bring(after, ["4", "(four,4)", "1"], ["1", "(one,)", "2"])
    column = column.replace(" ", "_") if plain else column
    rows = [
        {"id": 1, column: {"street": "one", "floor": None}, "n": 2},
        {"id": 2, column: {"street": "two", "floor": None}, "n": 1},
        {"id": 3, column: {"street": "three", "floor": None}, "n": 1},
        {"id": 4, column: {"street": "four", "floor": 4}, "n": 1},
    ]
    assert copied.rows() == rows
    if plain:  # pyarrow does not read column mapping
        assert by_pyarrow(copied) == rows


@pytest.mark.parametrize(
    "kind",
    [
        'struct([["floor","int32"],["street","text"]])',
        'struct([["road","text"],["floor","int32"]])',
    ],
    ids=["in front", "renamed"],
)
def test_other_members_leave_the_table_out(tmp_path: Path, kind: str) -> None:
    copied = Copied(tmp_path)
    copied.bring({"id": "int64", "at": BEFORE}, ["1", "(one)"])
    with pytest.raises(TableLeftOutError, match="can't change that in place"):
        copied.bring({"id": "int64", "at": kind}, ["2", "(2,two)"])
