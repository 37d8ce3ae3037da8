"""Stores how far an output is, for destinations that can't report it: one document of the state
store.

``{"done": offset, "begun": offset, "columns": {table: [[name, type], …]}, "rejected": count,
"written": offset}``:
everything below ``done`` is in the destination, except for ``rejected`` records, which are in its
dead letters; a batch up to ``begun`` was begun; a destination that stores offsets has stored
``written``. After a failure no shorter batch is written, so
that a key whose newest state is already there never gets an older state from a batch with another
end. The document is written by compare-and-set: of two pipelines with one output's name, one stops.
But if there was no document, an earlier leader of the same pipeline may have created it late: then
it is read again, and the batch is retried.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Final
from zlib import crc32

from tidelog.errors import (
    KeyMissingError,
    OutputError,
    OutputRefusedError,
    RowsLeftOutError,
    StateConflictError,
    TableLeftOutError,
)
from tidelog.model.patterns import dump_command
from tidelog.model.schema import TableName
from tidelog.ports import DumpCompleted, LogExtent, StateStore
from tidelog.system.version import check_format

logger = logging.getLogger(__name__)

DROPPED: Final = "output %s: somebody dropped its copies of %s. They are created and dumped again"
"""A warning: output, tables."""
RESTORED: Final = (
    "output %s: its destination lost rows that were written: it was restored to an earlier state, "
    "or failed over without them. Its copies of %s are dumped again"
)
"""A warning: output, tables."""

Columns = list[list[str]]  # name and type of each


class OutputProgress:
    """The progress of one output in one generation of the log. Used by one thread."""

    def __init__(self, state: StateStore, generation: str, output: str) -> None:
        self._state = state
        self._output = output
        self._key = f"output/{generation}/{output}"
        self.done: int | None
        self.begun: int
        self.columns: dict[str, Columns]
        self.rejected: int
        self.written: int
        """An offset that the destination stored with rows; the next call of `finish` stores it."""
        self._read()

    def _read(self) -> None:
        found = self._state.get(self._key)
        value: dict[str, Any] = found.value if found else {}
        check_format(value.get("format"), f"the progress of output {self._output}")
        self._version = found.version if found else 0
        self.done = value.get("done")
        self.begun = value.get("begun", 0)
        self.columns = value.get("columns", {})
        self.rejected = value.get("rejected", 0)
        self.written = value.get("written", 0)

    def begin(self, end: int) -> None:
        """Store that a batch up to ``end`` begins, durably, before its first record is written."""
        if end > self.begun:
            self._store(self.done, end, self.columns, self.rejected)

    def finish(self, end: int, rejected: int = 0) -> None:
        """Store that all below ``end`` is in the destination, but for ``rejected`` more records."""
        if self.done is None or end > self.done:
            self._store(end, self.begun, self.columns, self.rejected + rejected)

    def forget_written(self) -> None:
        """Store that what was written was lost at the destination, and is dumped again."""
        self.written = 0
        self._store(self.done, self.begun, self.columns, self.rejected)

    def store_columns(self, table: str, columns: Sequence[Sequence[str]]) -> None:
        """Store which columns the destination's table has."""
        wanted = [list(column) for column in columns]
        if self.columns.get(table) != wanted:
            self._store(self.done, self.begun, {**self.columns, table: wanted}, self.rejected)

    def _store(
        self, done: int | None, begun: int, columns: dict[str, Columns], rejected: int
    ) -> None:
        """Store the document. If that fails, the next call stores it."""
        value: dict[str, Any] = {"done": done, "begun": begun, "columns": columns}
        if rejected:
            value["rejected"] = rejected
        if self.written:
            value["written"] = self.written
        try:
            self._version = self._state.put(self._key, value, self._version)
        except StateConflictError:
            if not self._version:
                self._read()
                raise OutputError(
                    f"output {self._output}: another process stored its progress late, where there "
                    "was none. This process continues from that progress"
                ) from None
            raise OutputRefusedError(
                f"output {self._output}: another pipeline advanced its progress at the same time. "
                "Run one pipeline for each output, or give the outputs names of their own."
            ) from None
        self.done, self.begun, self.columns, self.rejected = done, begun, columns, rejected


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

    def complete_dumps(self, dumps: Iterable[DumpCompleted], at: int) -> tuple[DumpCompleted, ...]:
        """Return the dumps without those of which rows were left out: they must not remove others.
        ``at``: the offset from which on tables are written again that are left out until then.
        """
        with self._lock:
            return tuple(dump for dump in dumps if not self._lacks_rows(dump, at))

    def _lacks_rows(self, dump: DumpCompleted, at: int) -> bool:
        known = self._tables.get(dump.table)
        if known is not None and known.resumed is None:
            known = replace(known, resumed=at)
        return known is not None and not known.is_repaired_by(dump)

    def dumped_in_vain(self) -> dict[TableName, RowsLeftOutError]:
        """Return the tables of which a dump was requested with these settings, and whose rows
        still could not be written.
        """
        return {
            TableName.parse(name): RowsLeftOutError(each.why)
            for name, each in self._tables.items()
            if self._was_in_vain(each)
        }

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
        tables: Collection[str],
        check: Callable[[str], None],
        ask: Callable[[Sequence[str]], None],
        at: int,
        keyless: Collection[str] = (),
    ) -> None:
        """Resume those tables at offset ``at`` that ``check`` does not refuse any more; ``ask``
        requests dumps of them, and of those that have resumed since. Tables that are not among the
        output's ``tables`` any more are removed.

        ``keyless``: the tables that have no key now. One that was left out for that and has one now
        resumes with its first row that has it: then capture dumps it.
        """
        with self._lock:
            kept = {name: each for name, each in self._tables.items() if name in tables}
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
            has_key_now = each.keyless_since is not None and table not in keyless
            if each.resumed is not None or has_key_now or self._was_in_vain(each):
                continue
            try:
                check(table)
            except TableLeftOutError as error:
                self.add(table, error, at)
            else:
                fit.append(table)
        if fit or resumed:
            ask([*resumed, *fit])
            for table in fit:
                self.resume(table, at, keyed=table not in keyless)
        self._to_dump.clear()

    def _store(self, tables: Mapping[str, LeftOutTable]) -> None:
        assert self._state is not None
        value = {name: asdict(each) for name, each in tables.items()}
        try:
            self._version = self._state.put(self._key, value, self._version)
        except StateConflictError:
            raise OutputRefusedError(
                f"output {self._output}: another pipeline advanced its progress at the same time. "
                "Run one pipeline for each output, or give the outputs names of their own."
            ) from None
        self._tables = dict(tables)


def has_whole_log(log: LogExtent, output: str) -> bool:
    """Does the state say that the output has all of the log and nothing beyond it, with no batch
    begun but not done, and no table left out?
    """
    try:
        check_generation(log.state, log.generation, output)
    except OutputRefusedError:
        return False
    progress = OutputProgress(log.state, log.generation, output)
    left_out = LeftOutTableStore(log.state, log.generation, output)
    return progress.done == log.end and progress.begun <= log.end and not left_out.messages()


def check_generation(state: StateStore, generation: str, output: str) -> None:
    """Raise OutputRefusedError if the output was filled from another log."""
    for key in state.keys("output/"):
        _, other, name = key.split("/")[:3]
        if name == output and other != generation:
            raise OutputRefusedError(
                f"output {output} was filled from generation {other} of the event log, this log "
                f"is generation {generation}: it was recreated. Empty the destination and give the "
                "output another name, then dump the tables again."
            )


def _missing_rows_message(table: str) -> str:
    return (
        f"{table} was left out for a while, so rows are missing until a dump of it is done. If "
        f"none is under way, run `{dump_command(TableName.parse(table))}`"
    )
