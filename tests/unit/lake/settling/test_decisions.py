"""Decisions and new rows are those of MERGE, for all that hypothesis thinks of."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from tests.unit.lake.settling.tables import DELIVERED, Case, by_text, cases

from tidelog.outputs.lake.settling.changes import NO_VERSION, ChangedRows, OldRows, decide
from tidelog.outputs.lake.settling.rows import build_rows, mark_deleted, needed_columns


@settings(max_examples=300)
@given(cases())
def test_rows_are_those_that_merge_makes(case: Case) -> None:
    layout, below = case.layout, case.below
    changes = ChangedRows.of(case.changes(), layout, DELIVERED)
    found = [
        (at, number)
        for at, row in enumerate(case.table)
        for number, change in enumerate(case.source)
        if row["k"] == change.values["k"] and (row["k"] is not None or layout.null_key)
    ]
    matched = [case.table[at] for at, _ in found]
    old = OldRows(
        key=np.array([number for _, number in found], np.int64),
        version=np.array([_version(row["_version"]) for row in matched], np.int64),
        deleted=np.array([bool(row.get("_deleted")) for row in matched], np.bool_),
    )
    decided = decide(changes, old, below, soft=bool(layout.deleted))
    rows = pa.Table.from_pylist(matched, layout.schema)
    kept = rows.select(needed_columns(changes, layout)).take(pa.array(decided.updated))
    new = build_rows(changes, decided, kept, np.arange(len(decided.updates)), layout).to_pylist()
    if layout.deleted:
        new += mark_deleted(
            rows.take(pa.array(decided.marks)), layout, decided.mark_versions
        ).to_pylist()
    alive = [row for row, dies in zip(matched, decided.dies, strict=True) if not dies]
    others = [row for at, row in enumerate(case.table) if at not in {at for at, _ in found}]
    swept = [each for row in others for each in case.model.not_in_source(row, below)]
    assert by_text([*new, *alive, *swept]) == by_text(case.expected())


def _version(version: int | None) -> int:
    return NO_VERSION if version is None else version
