"""Commands to a running capture, as values. Every channel (CLI, and later others) parses into them.

As JSON a command is ``{"type": …, "data": {…}}`` with the type names of Debezium's signals where
there is one. Handlers must be idempotent: after a crash a command may be handled again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from tidelog.errors import UsageError

Key = tuple[str, ...]
DumpId = Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]{1,64}$")]
TablePattern = Annotated[str, Field(min_length=3, pattern=r"^.+\..+$")]


class Command(BaseModel):
    """Base of all commands."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)
    type: ClassVar[str]

    def to_json(self) -> dict[str, Any]:
        """As a document that `from_json` reads."""
        return {"type": self.type, "data": self.model_dump(mode="json", exclude_none=True)}


class ExecuteSnapshot(Command):
    """Start a dump.

    Attributes:
        dump_id: names the dump; a second command with the same id does nothing.
        tables: patterns; empty: all captured tables.
        where: SQL condition on the rows of all of them; with patterns of one table, as a rule.
        conditions: table pattern → SQL condition on that table's rows, before ``where``.
        keys: keys of the one table, each the texts of its key columns.
        key_set: in place of ``keys``: names keys that were stored before (`KeySets`).
        key_columns: what order ``keys`` are in; None: the table's own key order.
        missing: what of given keys that the table lacks: ``delete`` (a delete event each) or
            ``list`` (no event; they are listed with the dump).
        mode: ``incremental`` (chunks between watermarks) or ``blocking`` (one exported snapshot).
    """

    type: ClassVar[str] = "execute-snapshot"
    dump_id: DumpId
    tables: tuple[TablePattern, ...] = ()
    where: str | None = Field(default=None, min_length=1)
    conditions: dict[TablePattern, str] = Field(default={})
    key_set: str | None = None
    missing: Literal["delete", "list"] = "delete"
    keys: tuple[Key, ...] | None = None
    key_columns: Key | None = None
    mode: Literal["incremental", "blocking"] = "incremental"

    @field_validator("where")
    @classmethod
    def _one_expression(cls, where: str | None) -> str | None:
        if where is not None and ";" in where:
            raise ValueError("one SQL condition without ';' is expected")
        return where

    @model_validator(mode="after")
    def _scope_is_of_one_table(self) -> ExecuteSnapshot:
        if (self.keys is not None or self.where is not None) and len(self.tables) != 1:
            raise ValueError("keys and where need exactly one table")
        if self.keys is not None and self.where is not None:
            raise ValueError("give keys or where, not both")
        texts = [self.where or "", *(text for key in self.keys or () for text in key)]
        if any("\0" in text or _has_surrogate(text) for text in texts):
            raise ValueError("keys and where must be text without NUL characters")
        if self.keys is not None:
            if not self.keys:
                raise ValueError("no keys are given")
            if len({len(key) for key in self.keys} | {len(self.key_columns or self.keys[0])}) > 1:
                raise ValueError("keys differ in their number of columns")
        if self.mode == "blocking" and (self.keys is not None or self.where is not None):
            raise ValueError("a blocking dump reads whole tables: no keys or where")
        return self


def _has_surrogate(text: str) -> bool:
    """Half of a UTF-16 pair, or a byte of a command line that is not UTF-8."""
    return any("\ud800" <= character <= "\udfff" for character in text)


class StopSnapshot(Command):
    """Cancel a dump, or some of its tables; what is done stays. ``dump_id`` None: all dumps."""

    type: ClassVar[str] = "stop-snapshot"
    dump_id: DumpId | None = None
    tables: tuple[TablePattern, ...] = ()


class PauseSnapshot(Command):
    """Stop starting chunks, also after a restart, until resumed. ``dump_id`` None: all dumps."""

    type: ClassVar[str] = "pause-snapshot"
    dump_id: DumpId | None = None


class ResumeSnapshot(Command):
    """Go on with a paused dump. ``dump_id`` None: all dumps."""

    type: ClassVar[str] = "resume-snapshot"
    dump_id: DumpId | None = None


class SetDumpOptions(Command):
    """Change how running and later dumps read; None: unchanged."""

    type: ClassVar[str] = "set-dump-options"
    chunk_rows: int | None = Field(default=None, ge=1, le=1_000_000)
    delay_ms: int | None = Field(default=None, ge=0)
    parallelism: int | None = Field(default=None, ge=1, le=64)
    rows_per_second: int | None = Field(default=None, ge=0)
    max_lag_bytes: int | None = Field(default=None, ge=0)
    max_replica_lag_ms: int | None = Field(default=None, ge=0)
    max_select_ms: int | None = Field(default=None, ge=0)

    @model_validator(mode="after")
    def _changes_something(self) -> SetDumpOptions:
        if not self.model_fields_set:
            raise ValueError(f"give at least one of {', '.join(SetDumpOptions.model_fields)}")
        return self


class LogMessage(Command):
    """Write ``message`` to capture's own log lines: shows that a channel works."""

    type: ClassVar[str] = "log"
    message: str = Field(max_length=1000)


_TYPES: dict[str, type[Command]] = {
    command.type: command
    for command in (
        ExecuteSnapshot,
        StopSnapshot,
        PauseSnapshot,
        ResumeSnapshot,
        SetDumpOptions,
        LogMessage,
    )
}


def from_json(document: Any) -> Command:
    """The command that ``document`` describes.

    Raises:
        UsageError: names what is wrong, never a key's or condition's value.
    """
    if not isinstance(document, Mapping) or not isinstance(document.get("type"), str):
        raise UsageError('a command is {"type": …, "data": {…}}')
    command = _TYPES.get(document["type"])
    if command is None:
        raise UsageError(f"unknown command; known are {', '.join(_TYPES)}")
    return build(command, document.get("data", {}))


def build(command: type[Command], data: Any) -> Command:
    """``command`` with the values of ``data``; raises UsageError like `from_json`."""
    try:
        return command.model_validate(data)
    except ValidationError as error:
        problems = []
        for details in error.errors(include_input=False):
            name = ".".join(str(part) for part in details["loc"])
            text = details["msg"].removeprefix("Value error, ")
            problems.append(f"{name}: {text}" if name else text)
        raise UsageError(f"{command.type}: {'; '.join(problems)}") from None
