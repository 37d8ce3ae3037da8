"""Uses the formats of outputs as an engine's serializers."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import Any, cast

import pyarrow as pa
import pyarrow.compute as pc

from tidelog.app.async_engine.steps import Route
from tidelog.engine.event_batches import EventBatch, group_by_schema
from tidelog.engine.events import Events
from tidelog.engine.messages import Messages
from tidelog.errors import ConfigError
from tidelog.kinds.adapters import FORMATTERS
from tidelog.ports import FormatOptions, SchemaFormatter, SourceId, TargetTable
from tidelog.spark.sessions.installation import check_pyspark

_Columns = tuple[list[Any], list[Any], list[Any], list[Any]]
"""Columns of messages: keys, values, headers, topics."""


class FormatSerializer:
    """A `tidelog.engine.ports.Serializer` of the format ``name``: a message per event, no
    tombstones.

    ``routes``: the destinations' names of tables.

    Raises:
        ConfigError: there is no such format, or it needs a schema registry.
        MissingExtraError: pyspark is not installed. Formats use its types; no Java is needed, and
            no session is started.
    """

    def __init__(self, name: str, *, routes: Sequence[Route] = (), topic: str = "{table}") -> None:
        check_pyspark()
        self._formatter = FORMATTERS.get(name)(FormatOptions(topic, tombstones=False))
        if isinstance(self._formatter, SchemaFormatter):
            raise ConfigError(f"format {name}: an engine has no schema registry to give it")
        self._routes = tuple(routes)
        # Schema ids are of one event log, and tasks share this.
        self._targets: dict[tuple[SourceId, int], tuple[TargetTable, pa.Schema]] = {}

    def serialize(self, events: Events) -> Messages:
        # A call of a format costs milliseconds: one for each version of a table, not for each run.
        batches, places = group_by_schema(events.parts)
        formatted = [self._format(batch) for batch in batches]
        if len(formatted) == 1:
            return Messages(events, *formatted[0])
        iterators = [[iter(column) for column in columns] for columns in formatted]
        columns_out: _Columns = [], [], [], []
        for part, at in zip(events.parts, places, strict=True):
            for column, values in zip(columns_out, iterators[at], strict=True):
                column += islice(values, len(part))
        return Messages(events, *columns_out)

    def _format(self, batch: EventBatch) -> _Columns:
        target, schema = self._target(batch)
        messages = self._formatter.format(target, _to_event_shape(batch, schema))
        if messages.num_rows != len(batch):
            raise ConfigError(
                f"the format made {messages.num_rows} messages of {len(batch)} events of "
                f"{batch.schema.table}: an engine needs one of each"
            )
        return _columns(messages)

    def _target(self, part: EventBatch) -> tuple[TargetTable, pa.Schema]:
        which = part.origin, part.schema.schema_id
        cached = self._targets.get(which)
        if cached is None:
            from tidelog.spark.formats import shapes
            from tidelog.spark.sessions.versions import arrow_schema
            from tidelog.spark.transforms import Step, target_table

            # Without steps on rows no session is needed.
            session = cast(Any, None)
            steps = [Step("route", name, tables) for name, tables in self._routes]
            target = target_table(session, part.schema, steps, part.origin, keyed=False)
            schema = arrow_schema(shapes.events(part.schema))
            # Formatters get names, as from `tidelog.outputs.base.tasks`.
            at = schema.get_field_index(shapes.CHANGE_MISSING)
            names = pa.field(shapes.CHANGE_MISSING, pa.list_(pa.string()))
            cached = target, schema.set(at, names)
            self._targets[which] = cached
        return cached


def _columns(messages: pa.RecordBatch) -> _Columns:
    keys, values, names = (_values(messages.column(name)) for name in ("key", "value", "topic"))
    headers = messages.column("headers")
    header_dicts: list[dict[str, str] | None] = [None] * len(keys)
    if headers.null_count < len(keys):
        header_dicts = [None if each is None else dict(each) for each in headers.to_pylist()]
    return keys, values, header_dicts, names


def _values(column: pa.Array) -> list[Any]:
    # Much faster than to_pylist, and the same for texts and bytes.
    values: list[Any] = column.to_numpy(zero_copy_only=False).tolist()
    return values


def _to_event_shape(part: EventBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Return the part in the shape of `tidelog.spark.formats.shapes.events`."""
    data = part.data
    before, after = data.column("before"), data.column("after")
    is_removed = after.is_null()
    rows = after.flatten()
    taken = None
    if is_removed.true_count:
        # The key of a row that a transform removed is kept. Only deletes have old values.
        op = data.column("op")
        deleted = pc.and_(is_removed, pc.equal(op, "d"))
        taken = pc.and_not(is_removed, pc.or_(deleted, pc.equal(op, "t")))
        rows = [
            pc.if_else(is_removed if name in part.schema.match_key else deleted, old, new)
            for name, old, new in zip(part.schema.column_names, before.flatten(), rows, strict=True)
        ]
    source = schema.field(len(schema) - 1).type
    columns = {name: data.column(name) for name in ("kind", "schema_id", "position", "ordinal")}
    columns |= {"xid": data.column("xid"), "commit_ts": data.column("ts").cast(pa.int64())}
    origin = pa.StructArray.from_arrays(
        [columns[field.name].cast(field.type) for field in source], fields=list(source)
    )
    arrays = [
        data.column("op"),
        data.column("version"),
        *rows,
        data.column("missing"),
        before.cast(schema.field(len(schema) - 2).type),
        origin,
    ]
    shaped = pa.RecordBatch.from_arrays(arrays, schema=schema)
    if taken is not None and taken.true_count:
        from tidelog.outputs.formatters.messages import ROW_TAKEN

        shaped = shaped.append_column(ROW_TAKEN, taken)
    return shaped
