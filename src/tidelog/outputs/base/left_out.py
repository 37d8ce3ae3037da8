"""The tables that an output leaves out: the errors that say why, the document that stores them, and
the dumps that bring the missing rows.

All outputs use these parts, whichever base they derive from.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Final
from zlib import crc32

from tidelog.codecs.wire_formats import add_key_sql, wire_format
from tidelog.errors import (
    DecodeError,
    KeyMissingError,
    KeyRequiredError,
    NameRefusedError,
    OutputRefusedError,
    RowsLeftOutError,
    StateConflictError,
    TableLeftOutError,
    ValueRefusedError,
)
from tidelog.model.patterns import dump_command, exclusion, pattern_of
from tidelog.model.schema import TableName, TableSchema
from tidelog.outputs.base.sections import KeylessPolicy
from tidelog.ports import DumpCompleted, OutputBatch, StateStore, TargetTable

logger = logging.getLogger(__name__)

# Why a table is left out, and what the user can do.

_NAME_BYTES = 255  # of file systems


def route_step(table: TableName) -> str:
    """Return the advice for a table whose name the destination can't have."""
    step = f"{{route: SCHEMA.OTHER, tables: [{_text(pattern_of(table))}]}}"
    return f"Send the table elsewhere by a step: {step}"


def rename_step(table: TableName, *columns: str) -> str:
    """Return the advice for columns whose names the destination can't have."""
    names = ", ".join(f"{_text(column)}: OTHER{n or ''}" for n, column in enumerate(columns))
    step = f"{{rename: {{{names}}}, tables: [{_text(pattern_of(table))}]}}"
    return f"Rename {'them' if len(columns) > 1 else 'it'} by a step: {step}"


def check_columns_differ(
    table: TargetTable, ours: Collection[str], product: str, *, ignores_case: bool
) -> None:
    """Raise NameRefusedError if columns have names of ``ours``, those that the output adds, or that
    ``product`` can't distinguish.
    """

    def folded(name: str) -> str:
        return name.lower() if ignores_case else name

    added, seen, faults = set(map(folded, ours)), dict[str, str](), dict[str, str]()
    for name in table.columns.names:
        other = seen.setdefault(folded(name), name)
        if folded(name) in added:
            faults[name] = f"a column {name}, the name of a column that Tidelog adds"
        elif other is not name:
            faults[name] = f"columns {other} and {name}, which {product} can't distinguish"
    if faults:
        what = "; ".join(faults.values())
        raise NameRefusedError(f"{table.source} has {what}. {rename_step(table.source, *faults)}")


def _text(value: object) -> str:
    """Return the value as a YAML string."""
    return "'" + str(value).replace("'", "''") + "'"


def shared_address_error(
    output: str, owner: TableName, table: TableName, address: str
) -> NameRefusedError:
    """Return the error for two tables that would go to one place of the destination."""
    return NameRefusedError(
        f"output {output}: {owner} and {table} both go to {address}. {route_step(table)}"
    )


def check_directory(output: str, table: TableName, place: str) -> None:
    """Raise NameRefusedError if no directory can have the name that ``place`` gives the table."""
    if any(len(part.encode()) > _NAME_BYTES for part in place.split("/")):
        raise NameRefusedError(
            f"output {output}: the directory of {table} has a name of more than {_NAME_BYTES} "
            f"bytes, which file systems refuse. {route_step(table)}"
        )


def check_has_columns(schema: TableSchema) -> None:
    """Raise TableLeftOutError for a table without columns, which PostgreSQL allows: neither Arrow
    nor Parquet has a struct without members.
    """
    if not schema.columns:
        raise TableLeftOutError(
            f"{schema.table} has no columns: this output delivers it once it has one"
        )


def refused_names(
    output: str,
    tables: Sequence[TargetTable],
    check: Callable[[TargetTable], object],
    address: Callable[[TargetTable], str | None] = lambda _table: None,
) -> Iterator[str]:
    """Yield the errors of ``check`` for each table, and an error for each table whose ``address``
    belongs to one before it.
    """
    from tidelog.spark.transforms import check_source_names

    owners: dict[str, TableName] = {}
    for table in tables:
        try:
            check_source_names(table.schema)
            check(table)
            table_address = address(table)
        except NameRefusedError as error:
            yield str(error)
            continue
        if table_address is None:
            continue
        owner = owners.setdefault(table_address, table.source)
        if owner != table.source:
            yield str(shared_address_error(output, owner, table.source, table_address))


def key_line(schema: TableSchema) -> str:
    """Return the advice for a table without a key."""
    return (
        f"Give it a key: {add_key_sql(schema.table, wire_format(schema))}; or name columns that "
        f"identify a row by source.keys: {{{_text(pattern_of(schema.table))}: [COLUMN, …]}} "
        "(`tidelog check` proposes those of a unique index)"
    )


def undecodable_rows_error(error: DecodeError) -> RowsLeftOutError:
    """Return the error for rows that can't be decoded, which is of their table alone."""
    return RowsLeftOutError(
        f"{error}. Change the value in the source or exclude the column (source.exclude_columns), "
        "and please report this message"
    )


def missing_key_error(
    schema: TableSchema, output: str, keyless: KeylessPolicy, why: str = "keeps rows by their key"
) -> OutputRefusedError:
    """Return the error for a table without a key: of that table alone, unless the option
    ``keyless`` is ``fail``. ``why`` the output needs a key: words after its name.
    """
    text = f"{schema.table} has no key, and output {output} {why}"
    if keyless == "fail":
        return KeyRequiredError(
            f"{text}. {key_line(schema)}. Or set the output's keyless to skip, or "
            + exclusion(schema.table, of="the tables of the output")
        )
    return KeyMissingError(f"{text}, so it is left out. {key_line(schema)}")


def second_pipeline_error(output: str) -> OutputRefusedError:
    """Return the error for a document of the output that somebody else has changed."""
    return OutputRefusedError(
        f"output {output}: another pipeline advanced its progress at the same time. "
        "Run one pipeline for each output, or give the outputs names of their own."
    )


# The tables that are left out.


@dataclass(frozen=True)
class LeftOutTable:
    """A table that is left out.

    Attributes:
        why: the reason.
        since: rows from this offset on are not in the destination.
        resumed: from this offset on they are again.
        keyless_since: the table has no key, and this is the offset from which on it was left out
            last; None: it is left out for another reason.
        dumped_with: the settings of the output with which a dump of it was requested, if its rows
            could not be written since.
    """

    why: str
    since: int
    resumed: int | None = None
    keyless_since: int | None = None
    dumped_with: int | None = None

    @property
    def is_keyless_now(self) -> bool:
        """Is the table left out because it has no key?"""
        return self.resumed is None and self.keyless_since is not None

    def is_repaired_by(self, dump: DumpCompleted) -> bool:
        """Return True if the dump has all missing rows. One that read the table by its key began
        when it had one: all its rows that come after `keyless_since` are written.
        """
        if self.resumed is None:
            return False
        if dump.rows_ordinal is not None:
            return dump.first_offset >= self.resumed
        needed = self.resumed if self.keyless_since is None else self.keyless_since
        return dump.delete_absent and dump.first_offset >= needed


DUMPED_AT_START = ", or start the pipeline again, which requests that dump once"
"""The end of the reason for a table whose rows can't be written, until that dump was in vain."""


class LeftOutTableStore:
    """Stores the tables that an output leaves out because its destination can't have them, or
    because they have no key, in one document of the state store.

    Each stays in the document until a whole dump has delivered the missing rows. Thread-safe.
    Without a state store no table may be left out: the output stops.

    A table whose rows can't be written is dumped again once by a start: further dumps would read
    all of it for the same error, unless ``settings`` have changed or a person requests them.
    """

    def __init__(
        self, state: StateStore | None, generation: str, output: str, settings: object = None
    ) -> None:
        self._state = state
        self._output = output
        self._settings = crc32(repr(settings).encode())
        self._key = f"refused/{generation}/{output}"
        self._lock = threading.Lock()
        found = state.get(self._key) if state else None
        self._version = found.version if found else 0
        self._tables = (
            {name: LeftOutTable(**each) for name, each in found.value.items()} if found else {}
        )
        self._to_dump: set[str] = set()  # resumed; dumps of them were not requested yet

    @cached_property
    def unwritable(self) -> dict[TableName, RowsLeftOutError]:
        """The tables whose rows can't be written until a dump of them begins: at first those of
        which a dump was requested with these settings, in vain.
        """
        return {
            TableName.parse(name): RowsLeftOutError(each.why)
            for name, each in self._tables.items()
            if self._was_in_vain(each)
        }

    def leave_out(
        self, table: TableName, error: TableLeftOutError, since: int, remedy: str
    ) -> None:
        """Leave out the table's rows from ``since`` on. If they could not be written, this is so
        until a dump of it begins or the output starts again: no check sees before what is wrong.
        ``remedy``: what else the user can do about a value that does not fit.
        """
        if isinstance(error, RowsLeftOutError) and table not in self.unwritable:
            more = remedy if isinstance(error, ValueRefusedError) else ""
            error = self.unwritable[table] = type(error)(
                f"{str(error).rstrip('.')}{more}. Then run `{dump_command(table)}`{DUMPED_AT_START}"
            )
        self.add(str(table), error, since)

    def check_rows(self, table: TableName) -> None:
        """Raise RowsLeftOutError if the table's rows can't be written."""
        if table in self.unwritable:
            raise self.unwritable[table]

    def begin_dumps(self, batch: OutputBatch) -> list[TableName]:
        """Resume those tables whose rows can't be written, and of which a dump begins in the batch.
        Returns them.
        """
        begun = [table for table in self.unwritable if str(table) in batch.started]
        for table in begun:
            self.resume(str(table), batch.start, is_dumped=True)
        for table in begun:  # after all are stored: else a batch that fails would not find them
            del self.unwritable[table]
        return begun

    def add(self, table: str, error: TableLeftOutError, since: int) -> None:
        """Store that the table's rows from ``since`` on are left out; durable upon return."""
        if self._state is None:
            raise error
        is_keyless = isinstance(error, KeyMissingError)
        with self._lock:
            known = self._tables.get(table)
            first = since if known is None else min(known.since, since)
            keyless_since = since if is_keyless else None
            if is_keyless and known is not None and known.is_keyless_now:
                keyless_since = known.keyless_since
            by_rows = isinstance(error, RowsLeftOutError)
            dumped_with = known.dumped_with if known is not None and by_rows else None
            wanted = LeftOutTable(str(error), first, None, keyless_since, dumped_with)
            if self._was_in_vain(wanted):
                wanted = replace(wanted, why=wanted.why.removesuffix(DUMPED_AT_START))
            if known != wanted:
                level = logging.WARNING if is_keyless else logging.ERROR
                logger.log(level, "%s is left out: %s", table, wanted.why)
                self._store({**self._tables, table: wanted})

    def with_complete_dumps(self, batch: OutputBatch) -> OutputBatch:
        """Return the batch without dumps of which rows were left out: they must not remove others.
        Tables that are left out until then are written again from its start on.
        """
        with self._lock:
            whole = [each for each in batch.completed if not self._lacks_rows(each, batch.start)]
        return replace(batch, completed=tuple(whole))

    def _lacks_rows(self, dump: DumpCompleted, at: int) -> bool:
        known = self._tables.get(dump.table)
        if known is not None and known.resumed is None:
            known = replace(known, resumed=at)
        return known is not None and not known.is_repaired_by(dump)

    def _was_in_vain(self, table: LeftOutTable) -> bool:
        return table.resumed is None and table.dumped_with == self._settings

    def resume(self, table: str, at: int, *, keyed: bool = True, is_dumped: bool = False) -> None:
        """Store that rows of the table are written again from ``at`` on, if they were not.
        ``keyed``: it has a key. ``is_dumped``: a dump of it has just begun, none is requested.
        """
        with self._lock:
            known = self._tables.get(table)
            if known is None or known.resumed is not None:
                return
            resumed = replace(
                known,
                resumed=at,
                keyless_since=known.keyless_since if keyed else None,
                dumped_with=self._settings,
            )
            # Capture dumps one that has got a key.
            if resumed.keyless_since is None and not is_dumped:
                self._to_dump.add(table)
            logger.warning("output %s: %s", self._output, _missing_rows_message(table))
            self._store({**self._tables, table: resumed})

    def remove_dumped(self, dumps: Iterable[DumpCompleted]) -> None:
        """Remove tables whose missing rows are in these dumps, which are in the destination."""
        with self._lock:
            made_good = {
                dump.table
                for dump in dumps
                if (known := self._tables.get(dump.table)) and known.is_repaired_by(dump)
            }
            if made_good:
                kept = {n: each for n, each in self._tables.items() if n not in made_good}
                self._store(kept)

    def messages(self) -> dict[str, str]:
        """Return, by table, what is wrong and what to do. Tables without a key are not among
        them: see `keyless`.
        """
        return {
            name: each.why if each.resumed is None else _missing_rows_message(name)
            for name, each in sorted(self._tables.items())
            if not each.is_keyless_now
        }

    def why_now(self, table: str) -> str | None:
        """Return why the table is left out; None if its rows are written, some again perhaps."""
        known = self._tables.get(table)
        return None if known is None or known.resumed is not None else known.why

    def taken(self, tables: Collection[str]) -> set[str]:
        """Return those of ``tables`` that are not left out."""
        return {name for name in tables if name not in self._tables}

    def keyless(self) -> dict[str, str]:
        """Return the tables that are left out for want of a key, and what gives them one."""
        return {
            name: each.why for name, each in sorted(self._tables.items()) if each.is_keyless_now
        }

    def take_again(
        self,
        schemas: Iterable[TableSchema],
        check: Callable[[TableSchema], object],
        ask: Callable[[Sequence[str]], None],
        at: int,
    ) -> None:
        """Resume those tables at offset ``at`` that ``check`` does not refuse any more; ``ask``
        requests dumps of them, and of those that have resumed since. Tables that are not among the
        output's any more, whose newest ``schemas`` these are, are removed.

        A table that was left out because it had no key, and has one now, resumes with its first row
        that has it: then capture dumps it.
        """
        known = {str(schema.table): schema for schema in schemas}
        with self._lock:
            kept = {name: each for name, each in self._tables.items() if name in known}
            if kept != self._tables:
                self._store(kept)
        fit = []
        # Not one that was left out again since.
        resumed = sorted(
            name
            for name in self._to_dump & self._tables.keys()
            if self._tables[name].resumed is not None
        )
        for table, each in list(self._tables.items()):
            has_key_now = each.keyless_since is not None and known[table].match_key
            if each.resumed is not None or has_key_now or self._was_in_vain(each):
                continue
            try:
                check(known[table])
            except TableLeftOutError as error:
                self.add(table, error, at)
            else:
                fit.append(table)
        if fit or resumed:
            ask([*resumed, *fit])
            for table in fit:
                self.resume(table, at, keyed=bool(known[table].match_key))
        self._to_dump.clear()

    def _store(self, tables: Mapping[str, LeftOutTable]) -> None:
        assert self._state is not None
        value = {name: asdict(each) for name, each in tables.items()}
        try:
            self._version = self._state.put(self._key, value, self._version)
        except StateConflictError:
            raise second_pipeline_error(self._output) from None
        self._tables = dict(tables)


def _missing_rows_message(table: str) -> str:
    return (
        f"{table} was left out for a while, so rows are missing until a dump of it is done. If "
        f"none is under way, run `{dump_command(TableName.parse(table))}`"
    )


# Dumps of rows that a destination lost.

DROPPED: Final = "output %s: somebody dropped its copies of %s. They are created and dumped again"
"""A warning: output, tables."""
RESTORED: Final = (
    "output %s: its destination lost rows that were written: it was restored to an earlier state, "
    "or failed over without them. Its copies of %s are dumped again"
)
"""A warning: output, tables."""


class DumpRequests:
    """Requests dumps of tables whose rows the destination has lost.

    Attributes:
        ask: requests dumps of tables; None: the pipeline has not said how yet.
    """

    def __init__(self, output: str) -> None:
        self._output = output
        self.ask: Callable[[Sequence[str]], None] | None = None

    def request(self, warning: str, tables: Iterable[str]) -> None:
        """Log the ``warning`` (`DROPPED`, `RESTORED`) and request the dumps."""
        names = sorted(tables)
        logger.warning(warning, self._output, ", ".join(names))
        if self.ask is not None:
            self.ask(names)
