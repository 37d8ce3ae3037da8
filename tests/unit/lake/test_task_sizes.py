"""How much work a task of a lake is: with the files that it may rewrite."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tidelog.outputs.lake.data_files.data_file import DataFile
from tidelog.outputs.lake.settling.settle import SettleOptions
from tidelog.outputs.lake.settling.tasks import AppendWork, SettleWork

LARGE = 100 << 20
ROWS = 10
ROW_BYTES = ROWS * (50 + 64)


ROWS_OF_BATCH: Any = SimpleNamespace(refs=(SimpleNamespace(payload_bytes=ROWS * 50, rows=ROWS),))


def copy(*files: Any, vectors: bool) -> Any:
    return SimpleNamespace(files=files, options=SettleOptions(deletion_vectors=vectors))


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
    work = SettleWork(copy(file, vectors=vectors), ROWS_OF_BATCH, (), deleted_below)
    assert work.size_bytes == ROW_BYTES + whole * file.size


def test_appended_changes_rewrite_nothing() -> None:
    assert AppendWork(copy(vectors=False), "public.t", ROWS_OF_BATCH).size_bytes == ROW_BYTES
