"""What a leading capture does with the commands that wait for it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from tidelog.capture.dumps import DumpCoordinator
from tidelog.control.commands import (
    Command,
    ExecuteSnapshot,
    PauseSnapshot,
    ResumeSnapshot,
    SetDumpOptions,
    StopSnapshot,
)
from tidelog.control.mailbox import Mailbox
from tidelog.errors import UsageError
from tidelog.model.schema import TableName
from tidelog.sources.postgres.catalogue import PostgresCatalogue
from tidelog.sources.postgres.patterns import matches


def act(
    mailbox: Mailbox,
    coordinator: DumpCoordinator,
    catalogue: PostgresCatalogue,
    captured: Sequence[str],
) -> None:
    """Act on the commands that wait."""

    def handle(_command_id: str, command: Command) -> dict[str, Any]:
        if isinstance(command, ExecuteSnapshot):
            return _execute(command, coordinator, catalogue, captured)
        if isinstance(command, StopSnapshot):
            return _cancel(command, coordinator)
        if isinstance(command, PauseSnapshot):
            return {"dumps": coordinator.pause(command.dump_id)}
        if isinstance(command, ResumeSnapshot):
            return {"dumps": coordinator.resume(command.dump_id)}
        if isinstance(command, SetDumpOptions):
            changes = command.model_dump(exclude_none=True)
            options = coordinator.set_options(**changes)
            return {name: getattr(options, name) for name in changes}
        raise UsageError(f"this capture does not know the command {command.type}")

    mailbox.handle_pending(handle)


def _cancel(command: StopSnapshot, coordinator: DumpCoordinator) -> dict[str, Any]:
    if not command.tables:
        return {"dumps": coordinator.cancel(command.dump_id)}
    dumped = {table.table for dump in coordinator.dumps() for table in dump.tables}
    chosen = [name for name in dumped if matches(command.tables, TableName.parse(name))]
    if not chosen:
        raise UsageError(f"no dump reads a table that matches {', '.join(command.tables)}")
    return {"dumps": coordinator.cancel(command.dump_id, chosen)}


def _execute(
    command: ExecuteSnapshot,
    coordinator: DumpCoordinator,
    catalogue: PostgresCatalogue,
    captured: Sequence[str],
) -> dict[str, Any]:
    if command.mode == "blocking":
        raise UsageError("blocking dumps are not available yet: use --mode incremental")
    tables = catalogue.tables(captured)
    if command.tables:
        chosen = [table for table in tables if matches(command.tables, table)]
        for pattern in command.tables:
            if not any(matches([pattern], table) for table in tables):
                raise UsageError(
                    f"no captured table matches {pattern!r}; captured are "
                    f"{', '.join(str(table) for table in tables) or 'none'}"
                )
    else:
        chosen = tables
    keys = key_columns = None
    if command.keys is not None:
        keys, key_columns = _ordered_keys(command, catalogue, chosen)
    dump = coordinator.request(
        command.dump_id,
        chosen,
        where=command.where,
        keys=keys,
        key_columns=key_columns,
        now_ms=int(time.time() * 1000),
    )
    return {"dump_id": dump.dump_id, "tables": [table.table for table in dump.tables]}


def _ordered_keys(
    command: ExecuteSnapshot, catalogue: PostgresCatalogue, tables: Sequence[TableName]
) -> tuple[list[tuple[str | None, ...]], tuple[str, ...]]:
    """The command's keys and their columns, in order: the table's key, or its match key."""
    if len(tables) != 1:
        raise UsageError("keys need exactly one table; the pattern matches more")
    shape = catalogue.shape(tables[0])
    key = shape.schema.key if shape is not None else ()
    if not key:
        raise UsageError(f"{tables[0]} has no primary key")
    order = command.key_columns or key
    assert command.keys is not None
    assert shape is not None
    if sorted(order) == sorted(shape.schema.match_key):
        key = shape.schema.match_key
    if sorted(order) != sorted(key) or any(len(k) != len(key) for k in command.keys):
        raise UsageError(f"a key of {tables[0]} is ({', '.join(key)}): give these columns")
    places = [order.index(name) for name in key]
    return list(dict.fromkeys(tuple(k[place] for place in places) for k in command.keys)), key
