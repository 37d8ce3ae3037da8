"""The event log, read with the history oracle's own decoders."""

from __future__ import annotations

from tests.support.oracle.images import (
    canonical_documents,
    hexadecimal,
    is_row_image,
    parse_row_images,
)
from tests.support.oracle.pgoutput import parse_images
from tests.support.oracle.values import Change

from tidelog.eventlog.reader import EventLog
from tidelog.model.records import RecordKind


def read_event_log(log: EventLog, start: int, end: int) -> list[Change]:
    """The records of ``[start, end)``, each decoded with the schema version that it names."""
    changes: list[Change] = []
    for ref in log.segments(start, end):
        for record in log.read(ref).to_pylist():
            changes.append(_change(log, record))
    return changes


def _change(log: EventLog, record: dict[str, object]) -> Change:
    kind, payload, schema_id = record["kind"], record["payload"], record["schema_id"]
    assert isinstance(kind, int)
    assert isinstance(payload, bytes)
    assert isinstance(schema_id, int)
    place = {
        "position": record["position"],
        "xid": record["xid"],
        "commit_us": record["commit_ts"],
        "offset": record["offset"],
        "schema_id": schema_id,
    }
    if kind == RecordKind.CONTROL:
        return Change("c", "", payload, **place)  # type: ignore[arg-type]
    if kind == RecordKind.MESSAGE:
        return Change("M", "", payload, **place)  # type: ignore[arg-type]
    schema = log.schemas.get(schema_id)
    table, key = str(schema.table), schema.match_key
    if kind == RecordKind.TRUNCATE:
        return Change("T", table, b"", key=key, **place)  # type: ignore[arg-type]
    if is_row_image(payload):
        old, new = parse_row_images(payload, schema.columns)
    else:
        old, new = parse_images(payload, schema.column_names)
        new = hexadecimal(canonical_documents(new, schema.columns), schema.columns)
        old = hexadecimal(old, schema.columns)
    return Change(chr(kind), table, payload, new=new, old=old, key=key, **place)  # type: ignore[arg-type]
