"""Commands to a running capture, as values that every channel parses into.

As JSON a command is ``{"type": …, "data": {…}}`` with the type name of Debezium's signal where
there is one. Handlers must be idempotent: after a crash a command may be handled again.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    field_validator,
    model_validator,
)

from tidelog.control.conditions import checked
from tidelog.control.table_selection import MAX_PATTERN, MAX_PATTERNS, Matching, is_expression
from tidelog.errors import UsageError
from tidelog.model import patterns as table_patterns
from tidelog.model.dump_options import RunTimeOptions
from tidelog.model.printable import printable

Key = tuple[str, ...]
DumpId = Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]{1,64}$")]
Priority = Annotated[int, Field(ge=-100, le=100)]
PipelineName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,64}$")]
# Ids of dumps, chunks and key sets that capture itself uses.
OUR_IDS = re.compile(r"initial|reread|(auto|gap|start|missing|given)-.*")
TablePattern = Annotated[str, Field(min_length=1, max_length=MAX_PATTERN)]


class Command(BaseModel):
    """Base of all commands."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)
    type: ClassVar[str]

    def to_json(self) -> dict[str, Any]:
        """The document that `from_json` reads."""
        return {"type": self.type, "data": self.model_dump(mode="json", exclude_none=True)}


class ExecuteSnapshot(Command):
    """Start a dump.

    Attributes:
        dump_id: id of the dump; a second command with the same id does nothing.
        tables: patterns; empty: all captured tables; only patterns that exclude: all but these.
        matching: kind of the patterns: ``glob``: ``namespace.table`` with ``*``, and with ``!`` in
            front to exclude; ``regex``.
        where: SQL condition on the rows of the one table; not together with keys.
        conditions: table pattern → SQL condition on that table's rows; the first that matches it.
        keys: keys of the one table, each as the texts of its key columns.
        key_set: in place of ``keys``: name of keys that were stored before (`KeySets`).
        key_columns: order of the columns in ``keys``; None: the order in the table's key.
        missing: for keys that the table does not have: ``delete`` (a delete event each) or ``list``
            (no event; they are listed with the dump).
        mode: ``incremental`` (chunks between watermarks) or ``blocking`` (one exported snapshot).
        priority: dumps with the highest one are read first.
        surrogate_key: from a Debezium signal; tables are read in the order of their own key.
        signal_id: from a Debezium signal. Signals may use an id again, for another dump.
        plain: whether the conditions' author may have fewer privileges than capture: then they are
            `plain_conditions`, and the source checks what they name.
    """

    type: ClassVar[str] = "execute-snapshot"
    dump_id: DumpId
    tables: tuple[TablePattern, ...] = ()
    matching: Matching = "glob"
    where: str | None = Field(default=None, min_length=1)
    conditions: dict[TablePattern, str] = Field(default={})
    key_set: str | None = None
    missing: Literal["delete", "list"] = "delete"
    keys: tuple[Key, ...] | None = None
    key_columns: Key | None = None
    mode: Literal["incremental", "blocking"] = "incremental"
    priority: Priority = 0

    surrogate_key: str | None = None
    signal_id: str | None = None
    plain: bool = False

    @field_validator("dump_id")
    @classmethod
    def _is_not_ours(cls, value: str) -> str:
        if OUR_IDS.fullmatch(value):
            raise ValueError("this name is used by capture itself: choose another")
        return value

    @model_validator(mode="after")
    def _scope_is_of_one_table(self) -> ExecuteSnapshot:
        _check_patterns(self.matching, self.tables, "tables")
        _check_patterns(self.matching, tuple(self.conditions), "conditions")
        given = self.keys is not None or self.key_set is not None
        if (given or self.where is not None) and len(self.tables) != 1:
            raise ValueError("keys and where need exactly one table")
        if given and (self.where is not None or self.conditions):
            raise ValueError("give keys or a condition, not both")
        if self.keys is not None and self.key_set is not None:
            raise ValueError("give keys or key_set, not both")
        wheres = [*self.conditions.values(), *([self.where] if self.where is not None else ())]
        for where in wheres:
            checked(where)
        texts = [*wheres, *(text for key in self.keys or () for text in key)]
        if any("\0" in text or _has_surrogate(text) for text in texts):
            raise ValueError("keys and where must be text without NUL characters")
        if self.keys is not None:
            if not self.keys:
                raise ValueError("no keys are given")
            if len({len(key) for key in self.keys} | {len(self.key_columns or self.keys[0])}) > 1:
                raise ValueError("keys differ in their number of columns")
        if self.mode == "blocking" and given:
            raise ValueError("a blocking dump reads whole tables: no keys")
        return self


def _check_patterns(matching: Matching, patterns: tuple[str, ...], field: str) -> None:
    if len(patterns) > MAX_PATTERNS:
        raise ValueError(f"{field}: more than {MAX_PATTERNS} patterns")
    for pattern in patterns:
        if matching == "glob":
            try:
                table_patterns.require_pattern(pattern)
            except ValueError as error:
                raise ValueError(f"{field}: {error}, not '{printable(pattern)}'") from None
        elif not is_expression(pattern):
            raise ValueError(
                f"{field}: '{printable(pattern)}' is not a regular expression as RE2 has them (it "
                "knows neither look-around nor back-references)"
            )


def _has_surrogate(text: str) -> bool:
    """Half of a UTF-16 pair, or a byte of a command line that is not UTF-8."""
    return any("\ud800" <= character <= "\udfff" for character in text)


class StopSnapshot(Command):
    """Cancel a dump, or some of its tables; completed progress is kept. ``dump_id`` None: all
    dumps; with ``mode``: all of that mode.
    """

    type: ClassVar[str] = "stop-snapshot"
    dump_id: DumpId | None = None
    tables: tuple[TablePattern, ...] = ()
    matching: Matching = "glob"
    mode: Literal["incremental", "blocking"] | None = None

    @model_validator(mode="after")
    def _patterns_can_match(self) -> StopSnapshot:
        _check_patterns(self.matching, self.tables, "tables")
        return self


class PauseSnapshot(Command):
    """Start no more chunks until resumed, also after a restart. ``dump_id`` None: all dumps.
    ``by``: the requester, for status.
    """

    type: ClassVar[str] = "pause-snapshot"
    dump_id: DumpId | None = None
    by: str = Field(default="", max_length=200)


class ResumeSnapshot(Command):
    """Resume a paused dump. ``dump_id`` None: all dumps."""

    type: ClassVar[str] = "resume-snapshot"
    dump_id: DumpId | None = None


class PauseLog(Command):
    """Stop reading the source's log until resumed, also after a restart. The source retains its log
    in the meantime, within its limits. ``by``: the requester, for status.
    """

    type: ClassVar[str] = "pause-log"
    by: str = Field(default="", max_length=200)


class ResumeLog(Command):
    """Resume reading the source's log."""

    type: ClassVar[str] = "resume-log"


class PausePipeline(Command):
    """Stop delivering to a pipeline's outputs until resumed, also after a restart. ``by``: the
    requester, for status.
    """

    type: ClassVar[str] = "pause-pipeline"
    pipeline: PipelineName = "pipeline"
    by: str = Field(default="", max_length=200)


class ResumePipeline(Command):
    """Resume delivering."""

    type: ClassVar[str] = "resume-pipeline"
    pipeline: PipelineName = "pipeline"


def _without_defaults(schema: dict[str, Any]) -> None:
    for option in schema["properties"].values():
        option.pop("default", None)


class SetDumpOptions(RunTimeOptions, Command):
    """Change the options of running and later dumps; an option that is absent or null is kept."""

    model_config = ConfigDict(json_schema_extra=_without_defaults)
    type: ClassVar[str] = "set-dump-options"

    @property
    def changes(self) -> dict[str, int]:
        """The given options."""
        return self.model_dump(exclude_unset=True)

    def to_json(self) -> dict[str, Any]:
        return {"type": self.type, "data": self.changes}

    def __repr_args__(self) -> Iterable[tuple[str | None, Any]]:
        return self.changes.items()

    @model_validator(mode="before")
    @classmethod
    def _null_changes_nothing(cls, data: Any) -> Any:
        if not isinstance(data, Mapping):
            return data
        return {name: value for name, value in data.items() if value is not None}

    @model_validator(mode="after")
    def _changes_something(self) -> SetDumpOptions:
        if not self.model_fields_set:
            raise ValueError(f"give at least one of {', '.join(SetDumpOptions.model_fields)}")
        return self


class LogMessage(Command):
    """Write ``message`` to capture's log, to show that a channel works. Its author is responsible
    for its contents.
    """

    type: ClassVar[str] = "log"
    message: str = Field(max_length=1000)


class Handover(Command):
    """Let another capture lead.

    Attributes:
        leader: the leader when this was sent; another leader ignores it.
        to: the next leader; None: any standby.
    """

    type: ClassVar[str] = "hand-over"
    leader: str
    to: str | None = None


_TYPES: dict[str, type[Command]] = {
    command.type: command
    for command in (
        ExecuteSnapshot,
        StopSnapshot,
        PauseSnapshot,
        ResumeSnapshot,
        PauseLog,
        ResumeLog,
        PausePipeline,
        ResumePipeline,
        SetDumpOptions,
        LogMessage,
        Handover,
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


def build(command: type[Command], data: Any, called: str | None = None) -> Command:
    """``command`` with the values of ``data``. Raises UsageError like `from_json`; its message uses
    the name ``called``, which the user knows.
    """
    try:
        return command.model_validate(data)
    except ValidationError as error:
        problems = []
        for details in error.errors(include_input=False):
            name = _option(details["loc"])
            text = details["msg"].removeprefix("Value error, ")
            problems.append(f"{name}: {text}" if name else text)
        raise UsageError(f"{called or command.type}: {'; '.join(problems)}") from None


def _option(location: tuple[int | str, ...]) -> str:
    """The option with the problem, and which of its entries."""
    if not location:
        return ""
    places = [str(part + 1) for part in location[1:] if isinstance(part, int)]
    return str(location[0]) + (f", entry {'.'.join(places)}" if places else "")
