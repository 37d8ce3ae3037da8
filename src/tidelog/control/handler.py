"""Executes the commands that wait for the leading capture."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tidelog.capture.dumps.coordinator import DumpCoordinator, tables_in_order
from tidelog.capture.dumps.refetch_queue import KEY_SETS, KeySets
from tidelog.capture.dumps.state import NO_KEY, UNFINISHED_DUMPS, DumpState, Key, Rejected
from tidelog.capture.notifications import Notify, TableScanStatus
from tidelog.capture.pauses import PIPELINE_KEYS, ReadingPause, pause, resume
from tidelog.control.commands import (
    CancelDump,
    Command,
    Handover,
    LogMessage,
    PauseDump,
    PauseLog,
    PausePipeline,
    ResumeDump,
    ResumeLog,
    ResumePipeline,
    SetDumpOptions,
    StartDump,
    TableSelection,
    without_any_case,
)
from tidelog.control.debezium import another_dump_id
from tidelog.control.mailbox import Mailbox
from tidelog.control.plain_conditions import names
from tidelog.control.signal_intake import skipped
from tidelog.errors import (
    ChunkRefusedError,
    CommandIdReusedError,
    Policy,
    TidelogError,
    UnsupportedTableError,
    UsageError,
)
from tidelog.model.patterns import pattern_of, similar_table
from tidelog.model.schema import TableName, TableSchema
from tidelog.model.units import printable
from tidelog.ports import Catalogue, StateStore
from tidelog.system.processes import unix_ms

logger = logging.getLogger(__name__)
messages = logging.getLogger("tidelog.messages")
messages.setLevel(logging.INFO)  # requested by the command, whatever --log-level is

_UNMATCHED = "no captured table matches"
_NONE_CAPTURED = "no table is captured; see source.tables"


class CommandHandler:
    """Executes commands. Used by one thread.

    Args:
        coordinator: coordinator of the dumps.
        catalogue: the source's.
        state: store of keys that commands contain.
        captured: patterns of the captured tables.
        database: its name, which Debezium's signals may put before a table's.
        notify: receives notifications about signals that can't be executed.
        hand_over: ends this leadership.
        reading_pause: pauses and resumes the log.
    """

    def __init__(
        self,
        coordinator: DumpCoordinator,
        catalogue: Catalogue,
        state: StateStore,
        captured: Sequence[str],
        *,
        database: str | None,
        notify: Notify,
        hand_over: Callable[[Handover], dict[str, Any]],
        reading_pause: ReadingPause,
    ) -> None:
        self._reading_pause = reading_pause
        self._coordinator = coordinator
        self._catalogue = catalogue
        self._state = state
        self._captured = captured
        self._database = database
        self._notify = notify
        self._methods: Mapping[type[Command], Callable[[str, Any], dict[str, Any]]] = {
            StartDump: self._execute,
            CancelDump: self._stop,
            PauseDump: self._pause,
            ResumeDump: self._resume,
            SetDumpOptions: self._set_options,
            LogMessage: self._log_message,
            PauseLog: self._pause_log,
            ResumeLog: self._resume_log,
            PausePipeline: self._pause_pipeline,
            ResumePipeline: self._resume_pipeline,
            Handover: lambda _id, command: hand_over(command),
        }

    def act(self, mailbox: Mailbox) -> int:
        """Execute the waiting commands; returns their number."""
        return mailbox.handle_pending(self.handle)

    def handle(self, command_id: str, command: Command) -> dict[str, Any]:
        """Execute a command; returns its details. Idempotent.

        Raises:
            UsageError: if it can't be executed as requested.
        """
        try:
            return self._methods[type(command)](command_id, command)
        except TidelogError as error:
            if error.policy not in (Policy.RETRY, Policy.RESTART):
                logger.warning("command %s (%s): %s", command_id, command.type, error)
                signal_id = getattr(command, "signal_id", None)
                if signal_id is not None:
                    self._notify(skipped(command.dump_id, str(error)))  # type: ignore[attr-defined]
            raise

    def _pause(self, _id: str, command: PauseDump) -> dict[str, Any]:
        now_ms = unix_ms()
        return {"dumps": self._coordinator.pause(command.dump_id, command.by, now_ms)}

    def _resume(self, _id: str, command: ResumeDump) -> dict[str, Any]:
        return {"dumps": self._coordinator.resume(command.dump_id)}

    def _set_options(self, _id: str, command: SetDumpOptions) -> dict[str, Any]:
        options = self._coordinator.set_options(**command.changes)
        return {name: getattr(options, name) for name in command.changes}

    def _log_message(self, command_id: str, command: LogMessage) -> dict[str, Any]:
        # One line, whatever it contains.
        messages.info("message of command %s: %s", command_id, ascii(command.message)[1:-1])
        return {"logged": True}

    def _pause_log(self, _id: str, command: PauseLog) -> dict[str, Any]:
        return {"log": "paused", "paused": self._reading_pause.pause(command.by).to_json()}

    def _resume_log(self, _id: str, _command: ResumeLog) -> dict[str, Any]:
        return {"log": "read", "resumed": self._reading_pause.resume()}

    def _pause_pipeline(self, _id: str, command: PausePipeline) -> dict[str, Any]:
        paused = pause(self._state, PIPELINE_KEYS + command.pipeline, command.by)
        return {"pipeline": command.pipeline, "paused": paused.to_json()}

    def _resume_pipeline(self, _id: str, command: ResumePipeline) -> dict[str, Any]:
        resumed = resume(self._state, PIPELINE_KEYS + command.pipeline)
        return {"pipeline": command.pipeline, "resumed": resumed}

    # ------------------------------------------------------------ start

    def _execute(self, command_id: str, command: StartDump) -> dict[str, Any]:
        dump_id, reason = command.dump_id, "requested"
        known = self._find_dump(dump_id)
        if command.signal_id is not None:
            reason = f"signal {command_id}"
            if known is not None and known.reason != reason:
                dump_id = another_dump_id(dump_id, command_id)
                known = self._find_dump(dump_id)
        of_signal = command.signal_id is not None
        if known is not None and of_signal:
            return _details(known)
        choice = TableSelection(command.matching, self._database)
        shapes, rejected = self._choose_tables(command, choice)
        if known is not None:
            self._require_same(known, command, choice, shapes)
            return _details(known)
        if not shapes and not (of_signal and rejected):
            raise UsageError(
                "; ".join(f"{entry.table}: {entry.reason}" for entry in rejected)
                or ("the patterns select no captured table" if command.tables else _NONE_CAPTURED)
            )
        dump = self._coordinator.request(
            dump_id,
            list(shapes),
            reason=reason,
            priority=command.priority,
            rejected=rejected if of_signal else (),
            now_ms=unix_ms(),
            **self._scope(dump_id, command, choice, shapes),
        )
        details = _details(dump)
        if rejected:
            details["rejected"] = [_rejection(entry.table, entry.reason) for entry in rejected]
        unused = choice.patterns_without_table(command.conditions, shapes)
        if unused:
            details["unused_conditions"] = unused
        if command.surrogate_key is not None:
            details["note"] = "surrogate-key is not needed: tables are read by their own key"
        if of_signal and rejected:
            listed = "; ".join(f"{entry.table}: {entry.reason}" for entry in rejected)
            logger.warning(
                "command %s (%s): not dumped: %s", command_id, command.type, printable(listed)
            )
        return details

    def _require_same(
        self,
        known: DumpState,
        command: StartDump,
        choice: TableSelection,
        shapes: dict[TableName, TableSchema],
    ) -> None:
        """Raise CommandIdReusedError if the known dump has another mode, lacks a table that the
        command names, or reads other rows of one. What patterns match, and a stored set of keys,
        may have changed since.
        """
        before = {TableName.parse(each.table): each for each in known.tables}
        other = command.mode != known.mode
        for table in shapes:
            found = before.get(table)
            if found is None:
                other = other or bool({str(table), pattern_of(table)} & set(command.tables))
                continue
            where = choice.first_match(command.conditions, table) or command.where
            other = other or where != found.where
            if command.key_set is None:
                other = other or len(set(command.keys or ())) != found.key_count
        if other:
            raise CommandIdReusedError(
                f"dump {known.dump_id} was requested before, with other tables, conditions, keys "
                "or another mode: give this one an id of its own"
            )

    def _find_dump(self, dump_id: str) -> DumpState | None:
        known = next((d for d in self._coordinator.dumps() if d.dump_id == dump_id), None)
        self._coordinator.flush()  # an earlier attempt may not have been stored yet
        return known

    def _choose_tables(
        self, command: StartDump, choice: TableSelection
    ) -> tuple[dict[TableName, TableSchema], list[Rejected]]:
        """The tables to dump, each once, small ones first; and the rejected ones with reasons."""
        tables = self._catalogue.tables(self._captured)
        chosen = choice.select(command.tables, tables)
        captured = ", ".join(map(str, tables[:20])) or "none"
        more = f" and {len(tables) - 20} more" if len(tables) > 20 else ""
        rejected: list[Rejected] = []
        for pattern in choice.patterns_without_table(command.tables, tables):
            does = "it excludes no captured table" if choice.excludes(pattern) else _UNMATCHED
            advice = choice.advice(pattern) or similar_table(
                pattern, tables, self._catalogue.partitioned
            )
            reason = f"{does}; {advice or f'captured: {captured}{more}'}"
            status = TableScanStatus.UNKNOWN_SCHEMA.value
            rejected.append(Rejected(without_any_case(pattern), reason, status))
        by_keys = command.keys is not None or command.key_set is not None
        shapes: dict[TableName, TableSchema] = {}
        for table in chosen:
            status, reason = TableScanStatus.UNKNOWN_SCHEMA, "the table does not exist any more"
            try:
                shape = self._catalogue.shape(table)
            except UnsupportedTableError as error:
                shape, status, reason = None, TableScanStatus.SQL_EXCEPTION, error.reason
            condition = command.where or choice.first_match(command.conditions, table)
            wrong = None
            if shape is not None and condition is not None and not command.plain:
                wrong = self._condition_error(table, condition)
            if shape is None:
                rejected.append(Rejected(str(table), reason, status.value))
            elif by_keys and not shape.schema.key:
                status = TableScanStatus.NO_PRIMARY_KEY
                rejected.append(Rejected(str(table), NO_KEY, status.value))
            elif wrong is not None:
                rejected.append(Rejected(str(table), wrong, TableScanStatus.SQL_EXCEPTION.value))
            else:
                shapes[table] = shape.schema
        ordered = tables_in_order(list(shapes), self._catalogue.estimated_rows)
        return {table: shapes[table] for table in ordered}, rejected

    def _condition_error(self, table: TableName, condition: str) -> str | None:
        """The server's error for the condition, if it has one."""
        try:
            self._catalogue.check_condition(table, condition)
        except ChunkRefusedError as error:
            return str(error).removeprefix(f"{table}: ")
        return None

    def _scope(
        self,
        dump_id: str,
        command: StartDump,
        choice: TableSelection,
        shapes: dict[TableName, TableSchema],
    ) -> dict[str, Any]:
        """The arguments of `DumpCoordinator.request` for the rows to dump."""
        scope: dict[str, Any] = {}
        if command.mode != "incremental":
            scope["mode"] = command.mode
        if command.where is not None:
            scope["where"] = command.where
        by_table = {table: choice.first_match(command.conditions, table) for table in shapes}
        conditions = {table: text for table, text in by_table.items() if text is not None}
        if conditions:
            scope["conditions"] = conditions
        if command.plain:
            scope["named_by"] = names
        if command.keys is None and command.key_set is None:
            return scope
        if len(shapes) != 1:
            raise UsageError("keys need exactly one table; the pattern matches more")
        [(table, schema)] = shapes.items()
        sets = KeySets(self._state)
        if command.key_set is not None:
            columns = _key_columns(table, schema, command.key_columns)
            name, count = command.key_set, _count(self._state, command.key_set)
            if not count:
                raise UsageError(f"there is no key set {name}")
        else:
            keys, columns = _ordered_keys(table, schema, command)
            name, count = dump_id, sets.put(dump_id, keys)
        return scope | {
            "key_set": name,
            "key_count": count,
            "key_columns": columns,
            "missing": command.missing,
        }

    # ------------------------------------------------------------ stop

    def _stop(self, _id: str, command: CancelDump) -> dict[str, Any]:
        if not command.tables and command.mode is None:
            return {"dumps": self._coordinator.cancel(command.dump_id)}
        dumps = [
            dump
            for dump in self._coordinator.dumps()
            if command.dump_id in (None, dump.dump_id)
            and dump.status in UNFINISHED_DUMPS
            and command.mode in (None, getattr(dump, "mode", "incremental"))
        ]
        if not command.tables:
            return {"dumps": [d for dump in dumps for d in self._coordinator.cancel(dump.dump_id)]}
        choice = TableSelection(command.matching, self._database)
        read = {TableName.parse(table.table) for dump in dumps for table in dump.tables}
        unmatched = choice.patterns_without_table(command.tables, read)
        cancelled: list[str] = []
        found = False
        for dump in dumps:
            tables = [TableName.parse(table.table) for table in dump.tables]
            names = [str(table) for table in choice.select(command.tables, tables)]
            if names:
                found = True
                cancelled += self._coordinator.cancel(dump.dump_id, names)
        if not found:
            raise UsageError(f"no dump reads a table that matches {', '.join(command.tables)}")
        details: dict[str, Any] = {"dumps": cancelled}
        if unmatched:
            reason = "no dump reads a table that matches"
            details["rejected"] = [_rejection(name, reason) for name in unmatched]
        return details


def _rejection(table: str, reason: str) -> dict[str, str]:
    return {"table": table, "reason": reason}


def _details(dump: DumpState) -> dict[str, Any]:
    return {"dump_id": dump.dump_id, "tables": [table.table for table in dump.tables]}


def _key_columns(
    table: TableName, schema: TableSchema, order: tuple[str, ...] | None
) -> tuple[str, ...]:
    """The columns of the table's keys, in the given order; the table's key if None."""
    columns = order or schema.key
    if sorted(columns) not in (sorted(schema.key), sorted(schema.match_key)):
        raise UsageError(f"a key of {table} is ({', '.join(schema.key)}): give these columns")
    return columns


def _ordered_keys(
    table: TableName, schema: TableSchema, command: StartDump
) -> tuple[list[Key], tuple[str, ...]]:
    """The command's keys and their columns, in order: the table's key, or its match key."""
    order = _key_columns(table, schema, command.key_columns)
    key = schema.match_key if sorted(order) == sorted(schema.match_key) else schema.key
    assert command.keys is not None
    if any(len(k) != len(key) for k in command.keys):
        raise UsageError(f"a key of {table} is ({', '.join(key)}): give these columns")
    places = [order.index(name) for name in key]
    return [tuple(k[place] for place in places) for k in command.keys], key


def _count(state: StateStore, set_id: str) -> int:
    """The number of keys in a stored set."""
    pieces = (state.get(name) for name in state.keys(f"{KEY_SETS}{set_id}/"))
    return sum(len(piece.value) for piece in pieces if piece is not None)
