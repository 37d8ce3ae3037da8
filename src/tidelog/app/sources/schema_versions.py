"""Lists the schema versions of tables, and sets columns by hand."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from tidelog.app.base.elections import CaptureElection, acquire_lease
from tidelog.app.base.log_location import event_log_path
from tidelog.app.sources.kinds import SchemaNotes, source_kind
from tidelog.capture.catalogue_watch import SHAPES_KEY
from tidelog.capture.session.start import STATUS_KEY
from tidelog.config import Config
from tidelog.errors import UsageError
from tidelog.eventlog.reader import EventLog
from tidelog.eventlog.schemas import SchemaStore
from tidelog.model.patterns import matches
from tidelog.model.schema import TableName, TableSchema
from tidelog.results import (
    FixedSchema,
    NotedVersion,
    SchemaVersion,
    SchemaVersions,
    TableVersions,
)
from tidelog.state.opening import ReadOnlyStateStore, open_state


class _Column(BaseModel):
    """A column in the document of ``--columns``."""

    model_config = ConfigDict(extra="forbid", hide_input_in_errors=True)

    name: str = Field(min_length=1)
    type: str = Field(min_length=1, pattern=r"\S")
    nullable: bool = True
    collation: str | int | None = None


class _Columns(BaseModel):
    """The document of ``--columns``."""

    model_config = ConfigDict(extra="forbid", hide_input_in_errors=True)

    columns: list[_Column] = Field(min_length=1)
    key: list[str] = []


def schemas(config: Config, *, table: str | None = None) -> SchemaVersions:
    """Return the tables with their schema versions, and the source position at which each starts.

    A table that is not captured may be a partition, whose rows are in the log under the name of its
    partitioned table.

    ``table``: only this one, column by column. Raises UsageError if there is no event log, or the
    table is not in it.
    """
    store = _store(config)
    state = ReadOnlyStateStore(config.state.location)
    try:
        notes = source_kind(config).schema_notes(store, state)
        names = store.tables()
        if table is not None:
            names = [name for name in names if str(name) == table]
            if not names:
                raise UsageError(f"the event log holds no version of a table {table!r}")
        shapes = state.get(SHAPES_KEY)
        captured = None if shapes is None else shapes.value.keys()
        status = state.get(STATUS_KEY)
        left_out = {
            each["table"]: f"{', '.join(each['columns'])} ({each['reason']})"
            for each in ({} if status is None else status.value).get("left_out_columns", ())
        }
        return SchemaVersions(
            tuple(
                _describe_table(name, store, notes, captured, left_out, whole=bool(table))
                for name in names
            )
        )
    finally:
        state.close()


def fix_schema(config: Config, *, table: str, at: str, columns: str) -> FixedSchema:
    """Set the columns that a table had from position ``at`` of the source's log on.

    Args:
        config: the configuration of the capture.
        table: ``namespace.table``.
        at: the position, as in the error message.
        columns: JSON or YAML: ``{columns: [{name, type, nullable, collation}], key: [name]}``.

    Raises:
        UsageError: an argument is wrong, a capture leads, or the source needs no such help.
    """
    given = _parse_columns(columns)
    store = _store(config)
    try:
        name = TableName.parse(table)
    except ValueError as error:
        raise UsageError(f"--table: {error}") from None
    if not matches(config.source.tables, name):
        raise UsageError(f"--table: {table} is not one of source.tables; check its spelling")
    state = open_state(config.state.location)
    try:
        notes = source_kind(config).schema_notes(store, state)
        with _exclude_capture(config):
            schema = notes.fix(name, at, [c.model_dump() for c in given.columns], given.key)
        return FixedSchema(table, at, **_version(schema, notes, whole=True).to_dict())
    finally:
        state.close()


def _describe_table(
    table: TableName,
    store: SchemaStore,
    notes: SchemaNotes,
    captured: Collection[str] | None,
    left_out: Mapping[str, str],
    *,
    whole: bool,
) -> TableVersions:
    noted = tuple(
        NotedVersion(at, "not known" if number is None else number)
        for at, number in notes.of(table)
    )
    return TableVersions(
        str(table),
        captured=None if captured is None else str(table) in captured,
        left_out=left_out.get(str(table)),
        versions=tuple(_version(schema, notes, whole=whole) for schema in store.versions(table)),
        noted=noted or None,
    )


def _version(schema: TableSchema, notes: SchemaNotes, *, whole: bool) -> SchemaVersion:
    # The whole description can be given back by hand, so it has the excluded columns too.
    shown = schema.whole.columns if whole else schema.columns
    columns: Any = [notes.describe(column) for column in shown]
    if not whole:
        columns = ", ".join(f"{column['name']} {column['type']}" for column in columns)
    excluded = tuple(each.column.name for each in schema.excluded)
    return SchemaVersion(schema.schema_id, tuple(schema.key), columns, excluded or None)


def _store(config: Config) -> SchemaStore:
    path = event_log_path(config)
    if not EventLog.exists(path):
        raise UsageError(f"{path} holds no event log; `tidelog capture` creates one")
    return SchemaStore(path)


def _parse_columns(text: str) -> _Columns:
    try:
        document = yaml.safe_load(text)  # JSON is a part of YAML
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f" (line {mark.line + 1})" if mark is not None else ""
        raise UsageError(f"--columns: neither JSON nor YAML{where}") from None
    if isinstance(document, list):
        document = {"columns": document}
    try:
        return _Columns.model_validate(document)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "the document"
        raise UsageError(
            f"--columns: {where}: {first['msg']}; expected "
            "{columns: [{name, type, nullable, collation}], key: [name]}"
        ) from None


@contextmanager
def _exclude_capture(config: Config) -> Iterator[None]:
    """Keep the capture lease, so that no capture leads."""
    election = CaptureElection(config, "tidelog schema")
    try:
        lease = acquire_lease(election)
        try:
            yield
        finally:
            election.release(lease)
    finally:
        election.close()
