"""Applies the steps of a configuration, and the formats of outputs, to an engine's events.

The steps do what `tidelog.spark.transforms` does to events, on Arrow batches as they are polled.
Steps with Spark SQL are refused.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from typing import Any, Final, cast

import pyarrow as pa
import pyarrow.compute as pc
from pydantic import ValidationError

from tidelog.engine.event_batches import EventBatch, event_schema, group_by_schema
from tidelog.engine.events import Events
from tidelog.engine.ports import Messages, Transform
from tidelog.errors import ConfigError
from tidelog.kinds.adapters import FORMATTERS
from tidelog.model.patterns import matches
from tidelog.model.schema import Column, TableSchema
from tidelog.outputs.base.sections import StepSection
from tidelog.ports import FormatOptions, SchemaFormatter, SourceId, TargetTable
from tidelog.spark.sessions.installation import check_pyspark

# Steps.

Route = tuple[str, tuple[str, ...]]
"""A destination's name, and the patterns of the tables that go there."""

_INSTEAD: Final = {
    "filter": "a function that returns None leaves an event out",
    "cast": "a function changes values with event.replace",
    "compute": "a function changes values with event.replace",
    "python": "give the engine a function of events in place of one of DataFrames",
}
_HASHED: Final = (
    pa.types.is_string,
    pa.types.is_binary,
    pa.types.is_integer,
    pa.types.is_boolean,
)


def split_transforms(
    transforms: Sequence[Transform | StepSection | Mapping[str, Any]],
) -> tuple[list[StepSection], list[Transform]]:
    """Return the steps, and the functions after them.

    Raises:
        ConfigError: a step is wrong, needs Spark, or comes after a function.
    """
    steps: list[StepSection] = []
    functions: list[Transform] = []
    for each in transforms:
        if not isinstance(each, (StepSection, Mapping)):
            functions.append(each)
            continue
        step = _step(each)
        if functions:
            raise ConfigError(
                f"transforms: step {step.action} comes after a function: steps are applied to "
                "whole batches, before any function sees their events. Put them first"
            )
        steps.append(step)
    return steps, functions


def message_routes(steps: Sequence[StepSection]) -> tuple[Route, ...]:
    """Return the destinations of messages."""
    return tuple((s.route, tuple(s.tables)) for s in steps if s.route is not None)


def _step(given: StepSection | Mapping[str, Any]) -> StepSection:
    try:
        step = given if isinstance(given, StepSection) else StepSection(**given)
    except ValidationError as error:
        problems = [str(each["msg"]) for each in error.errors()]
        raise ConfigError("\n".join(f"transforms: {problem}" for problem in problems)) from None
    if step.action in _INSTEAD:
        raise ConfigError(
            f"transforms: step {step.action} needs Spark, which an engine does without: "
            f"{_INSTEAD[step.action]}"
        )
    return step


@dataclass(frozen=True)
class _KeptColumn:
    """A column that is kept, with its index in the source's row, and the changes of its values."""

    place: int
    column: Column
    changes: tuple[Callable[[pa.Array], pa.Array], ...] = ()


@dataclass(frozen=True)
class _Shape:
    """The result of the steps for one version of a table."""

    schema: TableSchema
    kept: tuple[_KeptColumn, ...]
    names: Mapping[str, str]

    def apply(self, batch: EventBatch) -> EventBatch:
        data = batch.data
        before, after = (self._image(data.column(name)) for name in ("before", "after"))
        columns = dict(zip(data.schema.names, data.columns, strict=True))
        columns |= {"before": before, "after": after, "missing": self._missing(columns["missing"])}
        schema = event_schema(after.type)
        arrays = [columns[name] for name in schema.names]
        return EventBatch(
            self.schema,
            batch.origin,
            pa.RecordBatch.from_arrays(arrays, schema=schema),
            batch.first,
        )

    def _image(self, image: pa.StructArray) -> pa.StructArray:
        values = image.flatten()
        arrays = []
        for kept in self.kept:
            array = values[kept.place]
            for change in kept.changes:
                array = change(array)
            arrays.append(array)
        return pa.StructArray.from_arrays(arrays, self.schema.column_names, mask=image.is_null())

    def _missing(self, missing: pa.Array) -> pa.Array:
        if missing.null_count == len(missing):
            return missing
        names = self.names
        source_names = [
            [names[name] for name in each if name in names] if each else None
            for each in missing.to_pylist()
        ]
        return pa.array([each or None for each in source_names], missing.type)


class EventSteps:
    """Applies the steps to batches. Not thread-safe: each task has its own."""

    def __init__(self, steps: Sequence[StepSection]) -> None:
        self._steps = [step for step in steps if step.route is None]
        self._shapes: dict[int, _Shape | None] = {}

    def __call__(self, batch: EventBatch) -> EventBatch:
        """Apply the steps. Raises ConfigError, which names the table: a step does not fit it."""
        number = batch.schema.schema_id
        if number not in self._shapes:
            own = [each for each in self._steps if matches(each.tables, batch.schema.table)]
            types = batch.data.schema.field("after").type
            self._shapes[number] = _shape(own, batch.schema, types) if own else None
        shape = self._shapes[number]
        return batch if shape is None else shape.apply(batch)


_Columns = dict[str, _KeptColumn]


@dataclass(frozen=True)
class _StepTable:
    """The table to which steps are applied."""

    schema: TableSchema
    row: pa.StructType

    def check(self, step: StepSection, names: Iterable[str], kept: _Columns) -> None:
        for name in names:
            if name not in kept:
                raise ConfigError(
                    f"transforms: step {step.action}: {self.schema.table} has no column {name!r}"
                )

    def is_key(self, kept: _KeptColumn) -> bool:
        return self.schema.columns[kept.place].name in self.schema.match_key

    def type_of(self, kept: _KeptColumn) -> pa.DataType:
        return pa.string() if kept.changes else self.row.field(kept.place).type


def _shape(steps: Sequence[StepSection], schema: TableSchema, row: pa.StructType) -> _Shape:
    table = _StepTable(schema, row)
    kept = {column.name: _KeptColumn(at, column) for at, column in enumerate(schema.columns)}
    for step in steps:
        kept = _ACTIONS[step.action](step, kept, table)
    names = {schema.columns[each.place].name: name for name, each in kept.items()}
    missing_keys = [name for name in schema.match_key if name not in names]
    if missing_keys:
        raise ConfigError(
            f"transforms: the steps take {', '.join(missing_keys)} away from {schema.table}, by "
            "which its rows are known: keep the columns of the key"
        )
    result = replace(
        schema,
        columns=tuple(replace(each.column, name=name) for name, each in kept.items()),
        key=tuple(names[name] for name in schema.key if name in names),
        identity=tuple(names[name] for name in schema.identity if name in names),
    )
    return _Shape(result, tuple(kept.values()), names)


def _select(step: StepSection, kept: _Columns, table: _StepTable) -> _Columns:
    names = step.select or []
    table.check(step, names, kept)
    return {name: kept[name] for name in names}


def _drop(step: StepSection, kept: _Columns, table: _StepTable) -> _Columns:
    names = step.drop or []
    table.check(step, names, kept)
    return {name: each for name, each in kept.items() if name not in names}


def _rename(step: StepSection, kept: _Columns, table: _StepTable) -> _Columns:
    names = step.rename or {}
    table.check(step, names, kept)
    renamed = {names.get(name, name): each for name, each in kept.items()}
    if len(renamed) < len(kept):
        raise ConfigError(
            f"transforms: step rename gives two columns of {table.schema.table} one name"
        )
    return renamed


def _mask(step: StepSection, kept: _Columns, table: _StepTable) -> _Columns:
    texts = step.mask or {}
    table.check(step, texts, kept)
    for name in texts:
        if table.is_key(kept[name]):
            raise ConfigError(
                f"transforms: step mask: column {name!r} is of the key of {table.schema.table}, by "
                "which its rows are known: keep it as it is, or hash it"
            )
    masked = {
        name: _as_text(kept[name], partial(_mask_values, text)) for name, text in texts.items()
    }
    return {**kept, **masked}


def _hash(step: StepSection, kept: _Columns, table: _StepTable) -> _Columns:
    names = step.hash or []
    table.check(step, names, kept)
    for name in names:
        kind = table.type_of(kept[name])
        if not any(fits(kind) for fits in _HASHED):
            raise ConfigError(
                f"transforms: step hash: column {name!r} of {table.schema.table} is {kind}, whose "
                "text is Spark's: an engine hashes texts, whole numbers, booleans and bytes. Give "
                "a function"
            )
    salt = step.salt.get_secret_value().encode()
    hashed = {name: _as_text(kept[name], partial(_hash_values, salt)) for name in names}
    return {**kept, **hashed}


def _as_text(kept: _KeptColumn, change: Callable[[pa.Array], pa.Array]) -> _KeptColumn:
    # Our texts have no type number in the source.
    column = replace(kept.column, type_id=0, type_mod=-1, type_name="text", logical="text")
    return _KeptColumn(kept.place, column, (*kept.changes, change))


def _mask_values(text: str, values: pa.Array) -> pa.Array:
    return pc.if_else(values.is_null(), pa.scalar(None, pa.string()), pa.scalar(text))


def _hash_values(salt: bytes, values: pa.Array) -> pa.Array:
    if not pa.types.is_binary(values.type):
        values = values.cast(pa.string()).cast(pa.binary())
    digests = [
        None if value is None else hashlib.sha256(salt + value).hexdigest()
        for value in values.to_pylist()
    ]
    return pa.array(digests, pa.string())


_ACTIONS: Final[Mapping[str, Callable[[StepSection, _Columns, _StepTable], _Columns]]] = {
    "select": _select,
    "drop": _drop,
    "rename": _rename,
    "mask": _mask,
    "hash": _hash,
}


# Formats of outputs as an engine's serializers.

_SerializedColumns = tuple[list[Any], list[Any], list[Any], list[Any]]
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

    def __init__(self, name: str, *, routes: Sequence[Route] = ()) -> None:
        check_pyspark()
        self._formatter = FORMATTERS.get(name)(FormatOptions("{table}", tombstones=False))
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
        columns_out: _SerializedColumns = [], [], [], []
        for part, at in zip(events.parts, places, strict=True):
            for column, values in zip(columns_out, iterators[at], strict=True):
                column += islice(values, len(part))
        return Messages(events, *columns_out)

    def _format(self, batch: EventBatch) -> _SerializedColumns:
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


def _columns(messages: pa.RecordBatch) -> _SerializedColumns:
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
