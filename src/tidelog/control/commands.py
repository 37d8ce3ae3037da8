"""Commands to a running capture, as values that every channel parses into, and their tables.

As JSON a command is ``{"type": …, "data": {…}}`` with the type name of Debezium's signal where
there is one. Handlers must be idempotent: after a crash a command may be handled again.

A command names tables by patterns or by Debezium's regular expressions. Debezium matches an
expression against a table's full name, and takes one that matches nothing as a name (its
``AbstractIncrementalSnapshotChangeEventSource``). There a name with special characters is quoted as
in SQL: ``public."My.Table"``. Expressions come from anyone who may write a signal. Python's `re`
may take very long for one, and blocks all other threads during that time; RE2 takes time in
proportion to the name, and in return has no look-around and no back-references.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, Any, ClassVar, Literal

import re2
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from tidelog.control.conditions import check_condition
from tidelog.errors import UsageError
from tidelog.model import patterns as table_patterns
from tidelog.model.dump_options import DumpMode, RunTimeOptions
from tidelog.model.patterns import EXCLUDE, all_but, check_listed, excludes, matches
from tidelog.model.schema import TableName, double_quoted
from tidelog.model.units import parse_bytes, parse_milliseconds, printable


def digest(text: str | bytes, length: int = 16) -> str:
    """Return a digest of what was sent, for a key or an id."""
    data = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
    return hashlib.sha256(data).hexdigest()[:length]


# The tables of a command.

Matching = Literal["glob", "regex"]
MAX_PATTERN = 1000  # characters
MAX_PATTERNS = 1000  # of one command

_OPTIONS = re2.Options()
_OPTIONS.log_errors = False
_OPTIONS.max_mem = 1 << 20


@dataclass(frozen=True, slots=True)
class TableSelection:
    """Matches patterns with tables.

    Args:
        matching: ``glob``: ``namespace.table`` with ``*``; ``regex``: see above.
        database: the tables' database, which expressions may put in front; None: they may not.
    """

    matching: Matching = "glob"
    database: str | None = None

    def is_match(self, pattern: str, table: TableName) -> bool:
        """Does the pattern match the table?"""
        if self.matching == "glob":
            return matches([pattern], table)
        spellings = _spellings(table, self.database)
        if pattern in spellings:
            return True
        expression = _compiled(pattern)
        return expression is not None and any(expression.fullmatch(text) for text in spellings)

    def select(self, patterns: Sequence[str], tables: Iterable[TableName]) -> list[TableName]:
        """The tables that the patterns select, in the order of the patterns; no pattern: all."""
        known = list(tables)
        if not patterns:
            return known
        naming = list(patterns)
        if self.matching == "glob":
            naming = [p for p in all_but(patterns) if not self.excludes(p)]
            known = [table for table in known if not excludes(patterns, table)]
        named = (table for p in naming for table in known if self.is_match(p, table))
        return list(dict.fromkeys(named))

    def first_match(self, conditions: Mapping[str, str], table: TableName) -> str | None:
        """The value of the first pattern that matches the table."""
        for pattern, condition in conditions.items():
            if self.is_match(pattern, table):
                return condition
        return None

    def patterns_without_table(
        self, patterns: Iterable[str], tables: Iterable[TableName]
    ) -> list[str]:
        """The patterns that match none of the tables, each once."""
        if self.matching == "glob":
            return table_patterns.patterns_without_table(patterns, tables)
        known = list(tables)
        distinct = dict.fromkeys(patterns)
        return [p for p in distinct if not any(self.is_match(p, table) for table in known)]

    def excludes(self, pattern: str) -> bool:
        """Does the pattern exclude tables, rather than name them?"""
        return self.matching == "glob" and pattern.startswith(EXCLUDE)

    def advice(self, pattern: str) -> str:
        """How to write the pattern, if it has another tool's syntax; else empty."""
        if self.matching == "regex":
            return ""
        try:
            check_listed(pattern)
        except ValueError as error:
            return str(error)
        return ""


def any_case(pattern: str) -> str:
    """The expression, made case-insensitive."""
    return f"(?i:{pattern})"


def without_any_case(pattern: str) -> str:
    """The expression that was passed to `any_case`."""
    return pattern[4:-1] if pattern.startswith("(?i:") and pattern.endswith(")") else pattern


def is_expression(pattern: str) -> bool:
    """Is it a valid expression of RE2?"""
    return _compiled(pattern) is not None


@lru_cache(maxsize=MAX_PATTERNS)
def _compiled(pattern: str) -> Any:
    """The compiled expression; None: it is not valid."""
    try:
        return re2.compile(pattern, _OPTIONS)
    except (re2.error, UnicodeEncodeError):
        return None


@lru_cache(maxsize=10_000)
def _spellings(table: TableName, database: str | None) -> tuple[str, ...]:
    """How users write the table: plain, with parts quoted as in SQL, with its database in front."""
    namespaces, names = ({part, double_quoted(part)} for part in (table.namespace, table.name))
    short = [f"{namespace}.{name}" for namespace in namespaces for name in names]
    fronts = () if database is None else (database, double_quoted(database))
    spellings = (*short, *(f"{front}.{text}" for front in fronts for text in short))
    # RE2 takes UTF-8 only; a database without an encoding may have other names.
    return tuple(text.encode("utf-8", "replace").decode() for text in spellings)


# The commands.

Key = tuple[str, ...]
DumpId = Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]{1,64}$")]
Priority = Annotated[int, Field(ge=-100, le=100)]
PipelineName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,64}$")]
# Ids of dumps, chunks and key sets that capture itself uses.
OUR_IDS = re.compile(r"initial|reread|(auto|gap|start|missing|given)-.*")
TablePattern = Annotated[str, Field(min_length=1, max_length=MAX_PATTERN)]


class Command(BaseModel):
    """Base of all commands.

    Attributes:
        type: its name in JSON.
        on_page: whether the web page may send it.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)
    type: ClassVar[str]
    on_page: ClassVar[bool] = True

    def __init__(self, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise UsageError(f"{type(self).__name__}: {_problems(error)}") from None

    def subject(self) -> str:
        """What it is about, for the page's audit list; of most commands: the dump."""
        return getattr(self, "dump_id", None) or "all dumps"

    def to_json(self) -> dict[str, Any]:
        """The document that `command_from_json` reads."""
        return {"type": self.type, "data": self.model_dump(mode="json", exclude_none=True)}


class StartDump(Command):
    """Start a dump.

    Attributes:
        dump_id: id of the dump; the same command again does nothing, another one of the
            id is refused.
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
    mode: DumpMode = "incremental"
    priority: Priority = 0

    surrogate_key: str | None = None
    signal_id: str | None = None
    plain: bool = False

    def subject(self) -> str:
        return ", ".join(self.tables) or "all tables"

    @field_validator("dump_id")
    @classmethod
    def _is_not_ours(cls, value: str) -> str:
        if OUR_IDS.fullmatch(value):
            raise ValueError("this name is used by capture itself: choose another")
        return value

    @model_validator(mode="after")
    def _scope_is_of_one_table(self) -> StartDump:
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
            check_condition(where)
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


class CancelDump(Command):
    """Cancel a dump, or some of its tables; completed progress is kept. ``dump_id`` None: all
    dumps; with ``mode``: all of that mode.
    """

    type: ClassVar[str] = "stop-snapshot"
    dump_id: DumpId | None = None
    tables: tuple[TablePattern, ...] = ()
    matching: Matching = "glob"
    mode: DumpMode | None = None

    @model_validator(mode="after")
    def _patterns_can_match(self) -> CancelDump:
        _check_patterns(self.matching, self.tables, "tables")
        return self


class PauseDump(Command):
    """Start no more chunks until resumed, also after a restart. ``dump_id`` None: all dumps.
    ``by``: the requester, for status.
    """

    type: ClassVar[str] = "pause-snapshot"
    dump_id: DumpId | None = None
    by: str = Field(default="", max_length=200)


class ResumeDump(Command):
    """Resume a paused dump. ``dump_id`` None: all dumps."""

    type: ClassVar[str] = "resume-snapshot"
    dump_id: DumpId | None = None


class _LogCommand(Command):
    def subject(self) -> str:
        return "the source's log"


class _PipelineCommand(Command):
    pipeline: PipelineName = "pipeline"

    def subject(self) -> str:
        return f"pipeline {self.pipeline}"


class PauseLog(_LogCommand):
    """Stop reading the source's log until resumed, also after a restart. The source retains its log
    in the meantime, within its limits. ``by``: the requester, for status.
    """

    type: ClassVar[str] = "pause-log"
    by: str = Field(default="", max_length=200)


class ResumeLog(_LogCommand):
    """Resume reading the source's log."""

    type: ClassVar[str] = "resume-log"


class PausePipeline(_PipelineCommand):
    """Stop delivering to a pipeline's outputs until resumed, also after a restart. ``by``: the
    requester, for status.
    """

    type: ClassVar[str] = "pause-pipeline"
    by: str = Field(default="", max_length=200)


class ResumePipeline(_PipelineCommand):
    """Resume delivering."""

    type: ClassVar[str] = "resume-pipeline"


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

    def subject(self) -> str:
        return ", ".join(f"{name}={value}" for name, value in self.changes.items())

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
    on_page: ClassVar[bool] = False
    message: str = Field(max_length=1000)


class Handover(Command):
    """Let another capture lead.

    Attributes:
        leader: the leader when this was sent; another leader ignores it.
        to: the next leader; None: any standby.
    """

    type: ClassVar[str] = "hand-over"
    on_page: ClassVar[bool] = False
    leader: str
    to: str | None = None


COMMANDS: Mapping[str, type[Command]] = {
    command.type: command
    for command in (
        StartDump,
        CancelDump,
        PauseDump,
        ResumeDump,
        PauseLog,
        ResumeLog,
        PausePipeline,
        ResumePipeline,
        SetDumpOptions,
        LogMessage,
        Handover,
    )
}
"""All commands by type."""


def command_from_json(document: Any) -> Command:
    """The command that ``document`` describes.

    Raises:
        UsageError: names what is wrong, never a key's or condition's value.
    """
    if not isinstance(document, Mapping) or not isinstance(document.get("type"), str):
        raise UsageError('a command is {"type": …, "data": {…}}')
    command = COMMANDS.get(document["type"])
    if command is None:
        raise UsageError(f"unknown command; known are {', '.join(COMMANDS)}")
    return build_command(command, document.get("data", {}))


def build_command(command: type[Command], data: Any, called: str | None = None) -> Command:
    """``command`` with the values of ``data``. Raises UsageError like `command_from_json`; its
    message uses the name ``called``, which the user knows.
    """
    try:
        return command.model_validate(data)
    except ValidationError as error:
        problems = _problems(error)
    except UsageError as error:
        problems = str(error).removeprefix(f"{command.__name__}: ")
    raise UsageError(f"{called or command.type}: {problems}")


def _problems(error: ValidationError) -> str:
    problems = []
    for details in error.errors(include_input=False):
        name = _option(details["loc"])
        text = details["msg"].removeprefix("Value error, ")
        problems.append(f"{name}: {text}" if name else text)
    return "; ".join(problems)


def _option(location: tuple[int | str, ...]) -> str:
    """The option with the problem, and which of its entries."""
    if not location:
        return ""
    places = [str(part + 1) for part in location[1:] if isinstance(part, int)]
    return str(location[0]) + (f", entry {'.'.join(places)}" if places else "")


_READ = {"ms": parse_milliseconds, "bytes": parse_bytes}
"""The parser of a value, by the unit at the end of the option's name."""


def typed_name(option: str) -> str:
    """The option's name as users type it: without the unit, which is part of the value."""
    name, _, unit = option.rpartition("_")
    return name if unit in _READ else option


_TYPED_OPTIONS = {typed_name(option): option for option in RunTimeOptions.model_fields}


def parse_options(texts: Sequence[str]) -> SetDumpOptions:
    """``chunk_rows=5000``, ``delay=50ms``, ``max_lag=64MiB`` as a command; ``off`` is 0.

    Raises:
        UsageError: names the option that is wrong.
    """
    data: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals:
            raise UsageError(f"{text!r} is not NAME=VALUE, such as chunk_rows=5000")
        option = _TYPED_OPTIONS.get(name, name)
        if option not in RunTimeOptions.model_fields:
            raise UsageError(f"{name!r} is not an option; there are {', '.join(_TYPED_OPTIONS)}")
        read = _READ.get(option.rpartition("_")[2], int)
        if value == "off":
            value = "0"
        try:
            data[option] = int(value) if value.isdigit() else read(value)
        except ValueError as error:
            reason = "expected a whole number" if read is int else error
            raise UsageError(f"{name}: {reason}") from None
    command = build_command(SetDumpOptions, data)
    assert isinstance(command, SetDumpOptions)
    return command


def parse_conditions(texts: Sequence[str]) -> dict[str, str]:
    """``public.orders=placed > '2026-01-01'`` as conditions by table."""
    conditions: dict[str, str] = {}
    for text in texts:
        table, equals, condition = text.partition("=")
        if not equals or not condition.strip():
            raise UsageError("--condition is TABLE=SQL, such as public.orders='id > 5'")
        if table in conditions:
            raise UsageError(f"--condition: {table} has two; join them with AND")
        conditions[table] = condition
    return conditions
