"""What the demo and `tidelog verify` show while they work."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tidelog.model.units import brief_span


def demo_facts(document: Mapping[str, Any]) -> list[tuple[str, str, float | None]]:
    """Of a document that `tidelog.demo.run.demo` tells."""
    shown: list[tuple[str, str, float | None]] = [("demo", document["step"], None)]
    if "transactions" not in document:
        return shown
    shown.append(("source", f"{document['transactions']:,} transactions were written", None))
    if "records" in document:
        lag_s = document.get("lag_s")
        late = "" if lag_s is None else ", up to date"
        if lag_s is not None and lag_s >= 1:
            late = f", {brief_span(lag_s * 1000)} behind"
        rate = f"{document['events_per_s']:,} a second"
        shown.append(("capture", f"{document['records']:,} records, {rate}{late}", None))
    dump = document.get("dump")
    if dump is not None:
        text = f"{dump['dump_id']} is {dump['status']}: {dump['tables_done']} of {dump['tables']} "
        share = 1.0
        if dump["status"] == "running":
            share = dump["rows"] / (dump["estimated_rows"] or max(1, 2 * dump["rows"]))
        text += f"tables, {dump['rows']:,} rows, {document['superseded_rows']:,} superseded"
        shown.append(("dump", text, share))
    shown.append(("copy", f"{document['merged_rows']:,} rows were merged into Delta Lake", None))
    return shown


def verify_facts(document: Mapping[str, Any]) -> list[tuple[str, str, float | None]]:
    """Of a table that is about to be compared."""
    number, of = document["number"], document["of"]
    text = f"table {number} of {of}: {document['table']} with {document['output']}"
    return [("verify", text, (number - 1) / of)]
