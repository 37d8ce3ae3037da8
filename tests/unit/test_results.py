"""Results have the JSON that programs parse: names and values of their documents stay."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tidelog.control.mailbox import Outcome
from tidelog.results import (
    CheckFinding,
    DumpDelivery,
    DumpPlan,
    DumpSummary,
    FailedRange,
    FixedSchema,
    ForgottenEngine,
    HandoverResult,
    KeyRepair,
    NotDumped,
    NotedVersion,
    PlanTotal,
    RepairRequest,
    ResetPlan,
    SchemaVersion,
    SchemaVersions,
    StateCopy,
    StoredKeys,
    TableComparison,
    TableDelivery,
    TablePlan,
    TableVersions,
    Verification,
)

DELIVERY = TableDelivery("s.t", "done", "", 7, taken=True, delivered=False)
DUMP = {"dump_id": "d", "status": "completed", "tables": [], "more": 1}
COMPARISON = TableComparison("lake", "s.t", equal=False, keys=(("1", None),), method="rows")
COMPARED = (
    '{"output": "lake", "table": "s.t", "equal": false, "rows": 0, "missing": 0, "surplus": 0, '
    '"different": 0, "unsettled": 0, "keys": [["1", null]], "method": "rows", "because": "", '
    '"ranges": 0, "ranges_read": 0, "note": ""'
)
RESULTS: list[tuple[Any, str]] = [
    (CheckFinding("a", "ok", "m"), '{"check": "a", "level": "ok", "message": "m", "fix": ""}'),
    (
        Outcome("1", {"dumps": ["d"]}),
        '{"state": "done", "id": "1", "details": {"dumps": ["d"]}, "error": null, "usage": false}',
    ),
    (HandoverResult("a:1", "b:2"), '{"from": "a:1", "to": "b:2"}'),
    (StateCopy("a", "b", 5), '{"from": "a", "to": "b", "documents": 5}'),
    (ForgottenEngine("e", None), '{"engine": "e", "offset": null}'),
    (
        StoredKeys(("s.t",), "k", ("id",)),
        '{"tables": ["s.t"], "key_set": "k", "key_columns": ["id"]}',
    ),
    (
        FailedRange("d", "s.t", ("id",), None, ("9",)),
        '{"dump_id": "d", "table": "s.t", "key_columns": ["id"], "low": null, "high": ["9"]}',
    ),
    (
        DumpDelivery("d", "running", False, None, (DELIVERY,), ""),
        '{"dump_id": "d", "status": "running", "delivered": false, "offset": null, "tables": '
        '[{"table": "s.t", "status": "done", "reason": "", "finalized_until": 7, "taken": true, '
        '"delivered": false}], "stands": ""}',
    ),
    (Verification(False, (COMPARISON,)), f'{{"equal": false, "tables": [{COMPARED}}}]}}'),
    (
        Verification(False, (), ("s.t in lake",)),
        '{"equal": false, "tables": [], "not_compared": ["s.t in lake"]}',
    ),
    (
        TableComparison("lake", "s.t", True, repair=RepairRequest("r", "done", None, 0)).repair,
        '{"dump_id": "r", "state": "done", "error": null, "left_out": 0}',
    ),
    (
        DumpPlan(
            {"chunk_rows": 5},
            PlanTotal(1, 2, 3, 4, None),
            (TablePlan("s.t", 2, 3, 4, 0.5, "counted", "-"),),
            (NotDumped("s.u", "gone"),),
        ),
        '{"options": {"chunk_rows": 5}, "total": {"tables": 1, "rows": 2, "bytes": 3, "chunks": 4, '
        '"seconds": null}, "tables": [{"table": "s.t", "rows": 2, "bytes": 3, "chunks": 4, '
        '"seconds": 0.5, "rows_from": "counted", "speed_from": "-"}], "not_dumped": '
        '[{"table": "s.u", "reason": "gone"}]}',
    ),
    (
        ResetPlan("/l", True, None, ("s.t",), ()),
        '{"log": "/l", "log_exists": true, "captured_until_ms": null, "tables": ["s.t"], '
        '"not_dumped": []}',
    ),
    (
        SchemaVersions(
            (
                TableVersions("s.t", versions=(SchemaVersion(1, ("id",), "id int"),)),
                TableVersions("s.u", False, "x", (), (NotedVersion("4:2", "not known"),)),
            )
        ),
        '{"tables": [{"table": "s.t", "versions": [{"version": 1, "key": ["id"], "columns": '
        '"id int"}]}, {"table": "s.u", "captured": false, "left_out": "x", "versions": [], '
        '"noted": [{"from": "4:2", "version": "not known"}]}]}',
    ),
    (
        FixedSchema("s.t", "4:2", 3, ("id",), ({"name": "id"},), ("secret",)),
        '{"table": "s.t", "from": "4:2", "version": 3, "key": ["id"], "columns": [{"name": "id"}], '
        '"excluded": ["secret"]}',
    ),
    (DumpSummary(DUMP), json.dumps(DUMP)),
    (
        KeyRepair("d", "completed", 2, DumpSummary(DUMP), (("7",),)),
        '{"dump_id": "d", "status": "completed", "tables": [], "more": 1, "keys": 2, '
        '"missing_keys": [["7"]]}',
    ),
    (
        KeyRepair(None, "completed", 0),
        '{"dump_id": null, "status": "completed", "keys": 0, "tables": []}',
    ),
]


@pytest.mark.parametrize(("result", "document"), RESULTS, ids=lambda each: type(each).__name__)
def test_a_result_has_the_document_that_its_command_prints(result: Any, document: str) -> None:
    assert json.dumps(result.to_dict()) == document
    assert result == type(result)(**{n: getattr(result, n) for n in type(result).__slots__})
