"""Results of `tidelog.app` for tests of the command line, made of the documents that it prints."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from tidelog.app.overview.build import overview
from tidelog.control.mailbox import Outcome
from tidelog.results import (
    CheckFinding,
    DumpDelivery,
    DumpPlan,
    DumpSummary,
    FixedSchema,
    NotDumped,
    PlanTotal,
    ResetPlan,
    SchemaVersions,
    Severity,
    Status,
    StoredKeys,
    TableComparison,
    Verification,
)


def result_of(name: str, found: Any = None) -> Any:
    """What the function of this name returns; others' answers are as they are given."""
    document: Mapping[str, Any] = found if isinstance(found, Mapping) else {}
    if name == "status":
        summary = overview(document, 0)
        if "overview" in document:
            severity = Severity(document["overview"]["severity"])
            summary = replace(summary, severity=severity)
        return Status(summary, document)
    if name == "dump_wait":
        return DumpSummary({"dump_id": "d", "status": "completed", **document})
    if name == "wait_delivered":
        values = {"dump_id": "d", "status": "completed", "delivered": True, "tables": ()}
        return DumpDelivery(**{"offset": None, "stands": "", **values, **document})
    if name == "send_command":
        handled = document["state"] != "waiting"
        return Outcome(document["id"], document["details"], document["error"], handled=handled)
    if name == "store_key_file":
        return StoredKeys(
            **{"tables": ("public.orders",), "key_set": "k", "key_columns": ("id",), **document}
        )
    if name == "verify":
        tables = [TableComparison("lake", **each) for each in document.get("tables", ())]
        return Verification(document.get("equal", True), tuple(tables))
    if name == "reset_plan":
        left = tuple(NotDumped(**each) for each in document.get("not_dumped", ()))
        values = {"log": "/l", "log_exists": True, "captured_until_ms": None, "tables": ()}
        return ResetPlan(**{**values, **document, "not_dumped": left})
    if name == "check":
        return [CheckFinding(**each) for each in found or ()]
    if name == "plan":
        return DumpPlan({}, PlanTotal(0, 0, 0, 0, 0.0), (), ())
    if name == "schemas":
        return SchemaVersions(())
    if name == "fix_schema":
        return FixedSchema("t", "1", 1, (), ())
    return found
