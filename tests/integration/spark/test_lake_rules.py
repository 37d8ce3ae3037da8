"""The model that lake outputs are tested against does what Spark's MERGE does, case by case."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
from tests.support.merge_model import Change, MergeModel, Row

pytestmark = [pytest.mark.spark, pytest.mark.thorough]

TABLE = "case_no int, k int, a int, b string, kept string, _version bigint"
SOURCE = "op string, version bigint, missing array<string>, case_no int, k int, a int, b string"
COLUMNS, KEY, DELIVERED = ["case_no", "k", "a", "b", "kept"], ["case_no", "k"], ["a", "b"]


def statement(path: str, below: int, *, soft: bool, null_key: bool) -> str:
    """What lake outputs ran when MERGE was their way."""
    same = "<=>" if null_key else "="
    matched = " AND ".join(f"t.{name} {same} s.{name}" for name in KEY)
    unknown = "s.missing IS NOT NULL AND array_contains(s.missing, '{0}')"
    updates = [f"t.{n} = IF({unknown.format(n)}, t.{n}, s.{n})" for n in DELIVERED]
    updates += ["t._version = s.version", *(f"t.{name} = s.{name}" for name in KEY)]
    names, values = [*KEY, *DELIVERED, "_version"], [*(f"s.{n}" for n in KEY), "s.a", "s.b"]
    values.append("s.version")
    newer = "(t._version IS NULL OR s.version > t._version)"
    may_remove = f"({newer} OR t._version < {below})" if below else newer
    removed, swept, may_update = "DELETE", "THEN DELETE", newer
    if soft:
        latest = "greatest(t._version, s.version)"
        removed = f"UPDATE SET t._version = {latest}, t._deleted = true"
        swept = "AND NOT coalesce(t._deleted, false) THEN UPDATE SET t._deleted = true"
        updates.append("t._deleted = false")
        names.append("_deleted")
        values.append("false")
        may_update += " AND (s.missing IS NULL OR NOT coalesce(t._deleted, false))"
    sweep = f"WHEN NOT MATCHED BY SOURCE AND t._version < {below} {swept}" if below else ""
    return (
        f"MERGE INTO delta.`{path}` t USING lake_rules_source s ON {matched} "
        f"WHEN MATCHED AND {may_remove} AND s.op = 'd' THEN {removed} "
        f"WHEN MATCHED AND {may_update} THEN UPDATE SET {', '.join(updates)} "
        "WHEN NOT MATCHED AND s.op = 'u' AND s.missing IS NULL "
        f"THEN INSERT ({', '.join(names)}) VALUES ({', '.join(values)}) {sweep}"
    )


def cases(*, soft: bool) -> tuple[list[Row], list[Change]]:
    """Each row beside each change of its key, one of them or both, each pair with a key apart."""
    kinds = [("u", None), ("u", ["a"]), ("d", None)]
    changes = [None, *itertools.product(kinds, (3, 5, 6, 9))]
    rows = [None, *itertools.product((None, 4, 6, 8), (False, True, None) if soft else (False,))]
    table: list[Row] = []
    source = []
    every = itertools.product(rows, changes, (1, None))
    for number, (row, change, k) in enumerate(every):
        key = {"case_no": number, "k": k}
        if row is not None:
            there: Row = {**key, "a": 1, "b": "old", "kept": "kept", "_version": row[0]}
            table.append({**there, "_deleted": row[1]} if soft else there)
        if change is not None:
            (op, missing), version = change
            told = {"a": None if missing else 2, "b": "new"} if op == "u" else dict.fromkeys("ab")
            source.append(Change(op, version, {**key, **told}, missing))
    return table, source


@pytest.mark.parametrize("null_key", [True, False])
@pytest.mark.parametrize("below", [0, 6])
@pytest.mark.parametrize("soft", [True, False])
def test_model_does_what_merge_does(
    spark: Any, tmp_path: Path, soft: bool, below: int, null_key: bool
) -> None:
    table, source = cases(soft=soft)
    model = MergeModel(COLUMNS, KEY, "_version", "_deleted" if soft else "", null_key)
    path, names = str(tmp_path / "table"), f"{TABLE}{', _deleted boolean' if soft else ''}"
    spark.createDataFrame([tuple(row.values()) for row in table], names).write.format("delta").save(
        path
    )
    brought = [model.deleted_below(change, below) for change in source]
    rows = [(each.op, each.version, each.missing, *each.values.values()) for each in brought]
    spark.createDataFrame(rows, SOURCE).createOrReplaceTempView("lake_rules_source")
    spark.sql(statement(path, below, soft=soft, null_key=null_key))
    found = [row.asDict() for row in spark.read.format("delta").load(path).collect()]
    assert sorted(map(str, found)) == sorted(map(str, model.merge(table, source, below)))
