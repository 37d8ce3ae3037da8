"""An engine's messages are those that outputs write."""

from __future__ import annotations

import gc
import json
import threading
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from tests.support import pgoutput_messages
from tests.support.build_log import BuiltLog
from tests.support.pgoutput_messages import UNCHANGED

from tidelog.app.async_engine.log_task import LogTask
from tidelog.app.async_engine.steps import FormatSerializer
from tidelog.codecs.cell_positions import named_lists
from tidelog.engine.events import Events
from tidelog.engine.ports import Message
from tidelog.errors import ConfigError
from tidelog.eventlog.reader import EventLog
from tidelog.kinds.adapters import FORMATTERS
from tidelog.model.records import RecordKind
from tidelog.model.schema import TableSchema
from tidelog.ports import FormatOptions
from tidelog.spark.datasource.executor import events_batch
from tidelog.spark.formats import shapes
from tidelog.spark.sessions.versions import arrow_schema
from tidelog.spark.transforms import target_table

COLUMNS = {"id": "int64", "note": "text", "at": "timestamptz", "price": "decimal(10,2)"}
ROW = ('näme "x"', "2026-01-02 03:04:05.678901+00", "12.30")


def written(path: Path) -> TableSchema:
    built = BuiltLog(path)
    orders = built.table("public.orders", COLUMNS)
    built.insert(orders, "1", *ROW)
    built.update(orders, "1", UNCHANGED, *ROW[1:])
    built.update(orders, "2", UNCHANGED, None, None, key=["1"])
    built.delete(orders, "2")
    built.truncate(orders)
    built.insert(orders, "3", None, None, None)
    built.flush()
    built.chunk(orders, [["4", *ROW]])
    return orders


def polled(path: Path) -> Events:
    task = LogTask(str(path), "engine")
    task.start(threading.Event())
    events = task.poll(1.0)
    assert events is not None
    return events


def of_outputs(path: Path, schema: TableSchema, name: str) -> list[tuple[object, ...]]:
    """By way of Spark's shape, as executors make them."""
    log = EventLog.open(path)
    batches = [b for ref in log.segments(log.head_offset) for b in log.batches(ref)]
    records = pa.concat_batches(batches)
    shaped = events_batch(records, schema, schema, arrow_schema(shapes.events(schema)))
    at = shaped.schema.get_field_index(shapes.CHANGE_MISSING)
    names = named_lists(shaped.column(at), schema.column_names)
    shaped = shaped.set_column(at, shapes.CHANGE_MISSING, names)
    target = target_table(None, schema, (), log.source, keyed=False)  # type: ignore[arg-type]
    found = FORMATTERS.get(name)(FormatOptions(tombstones=False)).format(target, shaped)
    return [
        (row["key"], row["value"], dict(row["headers"]) if row["headers"] else None, row["topic"])
        for row in found.to_pylist()
    ]


def comparable(messages: Sequence[Message]) -> list[tuple[object, ...]]:
    return [(m.key, m.value, m.headers, m.topic) for m in messages]


@pytest.mark.parametrize("name", ["debezium", "flat", "cloudevents"])
def test_messages_are_those_of_outputs(tmp_path: Path, name: str) -> None:
    schema = written(tmp_path)
    events = polled(tmp_path)
    messages = FormatSerializer(name).serialize(events)
    assert len(messages) == 8  # a key change is two
    assert comparable(messages) == of_outputs(tmp_path, schema, name)
    assert [m.event.version for m in messages] == [event.version for event in events]
    sliced = Events([events.parts[0].slice(1, 4)], events.end)
    assert comparable(FormatSerializer(name).serialize(sliced)) == comparable(messages)[1:4]


def test_a_transforms_change_is_serialized(tmp_path: Path) -> None:
    written(tmp_path)
    events = polled(tmp_path)
    changed = [
        each.replace(after={**each.after, "note": "***"}) if each.after else each for each in events
    ]
    messages = FormatSerializer("debezium").serialize(Events.of(changed, events.end))
    values = [message.value or b"" for message in messages]
    assert all((b"***" in v) is bool(e.after) for v, e in zip(values, events, strict=True))


@pytest.mark.parametrize("name", ["debezium", "flat", "cloudevents"])
def test_a_row_that_a_transform_removed_does_not_show_in_its_old_image(
    tmp_path: Path, name: str
) -> None:
    built = BuiltLog(tmp_path)
    full = built.table("public.orders", COLUMNS, identity_kind="f", identity=tuple(COLUMNS))
    old = pgoutput_messages.update(
        full.relation_id, ("1", "new", *ROW[1:]), old=("1", "hidden", *ROW[1:])
    )
    built.add(RecordKind.UPDATE, full, old)
    built.flush()
    [event] = polled(tmp_path)
    assert event.before is not None
    assert event.before["note"] == "hidden"
    [told] = FormatSerializer(name).serialize(Events.of([event], 99))
    [message] = FormatSerializer(name).serialize(Events.of([event.replace(after=None)], 99))
    assert b"new" in (told.value or b"")
    assert b"new" not in (message.value or b"")
    if name == "flat":
        assert message.value is None
    else:
        envelope = json.loads(message.value or b"")
        assert envelope.get("data", envelope)["after"] is None
    # Debezium's has the old image in its own place.
    assert (message.value or b"").count(b"hidden") == (told.value or b"").count(b"hidden")
    assert message.key == told.key


def test_a_format_that_needs_a_registry_is_refused() -> None:
    with pytest.raises(ConfigError, match="no schema registry"):
        FormatSerializer("avro")


def test_a_message_shows_no_value_where_it_is_logged(tmp_path: Path) -> None:
    written(tmp_path)
    messages = FormatSerializer("debezium").serialize(polled(tmp_path))
    assert repr(messages[0]).startswith("<Message of <Event c of public.orders, version ")


def test_tables_that_alternate_cost_a_call_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where a transform has changed every event, which makes each a batch of its own."""
    built = BuiltLog(tmp_path)
    orders, lines = (
        built.table(name, {"id": "int64", "note": "text"}, relation_id=number)
        for number, name in enumerate(("public.orders", "public.lines"))
    )
    for number in range(12):
        built.insert(orders, str(number), "x")
        built.insert(lines, str(number), "y")
        built.update(orders, str(number + 100), UNCHANGED, key=[str(number)])
    built.flush()
    events = polled(tmp_path)
    alone = [FormatSerializer("debezium").serialize(Events([p], 0)) for p in events.parts]
    serializer = FormatSerializer("debezium")
    calls: list[int] = []
    format_ = serializer._formatter.format

    def counted(target: Any, rows: pa.RecordBatch) -> pa.RecordBatch:
        calls.append(rows.num_rows)
        return format_(target, rows)

    monkeypatch.setattr(serializer, "_formatter", SimpleNamespace(format=counted))
    messages = serializer.serialize(events)
    assert calls == [36, 12]
    assert comparable(messages) == comparable([message for part in alone for message in part])
    assert [m.event.number for m in messages] == [event.number for event in events]
    calls.clear()
    changed = Events.of([e.replace(after=e.after) for e in events], events.end)
    assert comparable(serializer.serialize(changed)) == comparable(messages)
    assert calls == [36, 12]


def test_messages_are_made_when_they_are_looked_at(tmp_path: Path) -> None:
    built = BuiltLog(tmp_path)
    orders = built.table("public.orders", COLUMNS)
    for number in range(2000):
        built.insert(orders, str(number), *ROW)
    built.flush()
    serializer, events = FormatSerializer("debezium"), polled(tmp_path)
    serializer.serialize(events)  # whatever is made once
    gc.collect()
    before = len(gc.get_objects())
    messages = serializer.serialize(events)
    assert len(gc.get_objects()) - before < 500, "the collector goes through every message"
    made = list(messages)
    assert len(made) == len(messages) == 2000
    some = [messages[0], messages[-1], *messages[1:3]]
    assert comparable(some) == comparable([made[0], made[-1], *made[1:3]])
    assert [m.event.number for m in some] == [0, 1999, 1, 2]
