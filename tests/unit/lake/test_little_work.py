"""How much work a batch of a lake is: with the files that its tasks may rewrite."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tidelog.outputs.lake.data_files.data_file import DataFile
from tidelog.outputs.lake.settling.settle import SettleOptions
from tidelog.outputs.lake.settling_output import _bytes_of

LARGE = 100 << 20
ROWS = 10
ROW_BYTES = ROWS * (50 + 64)


def work(file: Any, *, vectors: bool, deleted_below: int = 0) -> Any:
    ref = SimpleNamespace(payload_bytes=ROWS * 50, rows=ROWS)
    files = SimpleNamespace(files=(file,), options=SettleOptions(deletion_vectors=vectors))
    return SimpleNamespace(
        refs=(ref,),
        copy=SimpleNamespace(files=lambda: files),
        work=SimpleNamespace(deleted_below=deleted_below),
    )


def file(rows: int | None, deleted: int = 0, size: int = LARGE) -> Any:
    stats = None if rows is None else f'{{"numRecords":{rows}}}'
    plain = DataFile("f", size=size, stats=stats)
    return SimpleNamespace(size=plain.size, statistics=plain.statistics, deleted_rows=deleted)


@pytest.mark.parametrize(
    ("file", "vectors", "deleted_below", "whole"),
    [
        (file(1000), True, 0, False),
        (file(1000, deleted=289), True, 0, False),
        (file(1000, deleted=291), True, 0, True),  # the batch may push it over the share
        (file(None), True, 0, True),
        (file(None, size=1000), True, 0, False),
        (file(1000), True, 1, True),
        (file(1000), False, 0, True),
        (file(1000, size=1000), False, 0, True),
    ],
)
def test_files_that_may_be_rewritten_count(
    file: Any, vectors: bool, deleted_below: int, whole: bool
) -> None:
    found = _bytes_of(work(file, vectors=vectors, deleted_below=deleted_below))
    assert found == ROW_BYTES + whole * file.size
