"""Stores keys that are given to a dump, and keys that it did not find, in the state store.

A command with a million keys would be a document of many megabytes; so keys are stored first, in
pieces under a new name, and the command has the name.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from tidelog.app.base.table_patterns import choose_tables
from tidelog.app.sources.kinds import source_kind
from tidelog.capture.dumps.refetch_queue import KEYS_PER_DOCUMENT, KeySets
from tidelog.capture.dumps.store import DUMP_PREFIX
from tidelog.config import AnyConfig, Config, as_config
from tidelog.control.commands import Command, Key, StartDump
from tidelog.control.key_files import read_key_file
from tidelog.control.mailbox import id_time_ms, new_id
from tidelog.errors import UsageError
from tidelog.model.schema import TableName, TableSchema
from tidelog.ports import StateStore
from tidelog.results import StoredKeys
from tidelog.state.opening import ReadOnlyStateStore, open_state

KEEP_MS = 7 * 86_400_000
GIVEN = "given-"  # the prefix of key sets that come with a command
MISSING = "missing-"  # followed by a dump's id: the keys that it did not find


@dataclass(frozen=True, slots=True)
class KeyScope:
    """The table of the given keys, and the columns of these keys."""

    schema: TableSchema

    @property
    def table(self) -> TableName:
        return self.schema.table

    @property
    def key(self) -> tuple[str, ...]:
        return self.schema.key

    @property
    def match_key(self) -> tuple[str, ...]:
        return self.schema.match_key

    def columns_among(self, names: Sequence[str]) -> tuple[str, ...]:
        """Return the key's columns, in its order. Raises UsageError if ``names`` lacks one."""
        for columns in (self.key, self.match_key):
            if set(columns) <= set(names):
                return columns
        absent = ", ".join(name for name in self.key if name not in names)
        # The given names are not shown: a file without a header line has keys there.
        raise UsageError(
            f"a key of {self.table} is ({', '.join(self.key)}): give these columns by name; there "
            f"is no {absent}"
        )


def key_scope(config: Config, tables: Sequence[str]) -> KeyScope:
    """Return the captured table that ``tables`` names, as the source has it now.

    Raises:
        UsageError: ``tables`` names none or several, or the table has no key.
    """
    catalogue = source_kind(config).catalogue()
    try:
        captured = catalogue.tables(config.source.tables)
        chosen = choose_tables(catalogue, captured, tables)
        if len(tables) != 1 or len(chosen) != 1:
            raise UsageError("keys need exactly one table; more are named or match")
        shape = catalogue.shape(chosen[0])
    finally:
        catalogue.close()
    if shape is None or not shape.schema.key:
        raise UsageError(
            f"{chosen[0]} has no primary key: add one, or name a unique key of it in source.keys"
        )
    return KeyScope(shape.schema)


def store_keys(config: Config, keys: Iterable[Key], *, distinct: bool = False) -> tuple[str, int]:
    """Store the distinct keys under a new name; return the name, and their number.

    ``keys`` are read 10,000 at a time. Memory has these, and each key once to find duplicates,
    unless ``distinct`` says that there are none. If ``keys`` raises, nothing stays stored.
    """
    name = GIVEN + new_id().lower()
    state = open_state(config.state.location)
    try:
        sets = KeySets(state)
        try:
            if distinct:
                return name, _put_distinct(sets, name, map(_check_key, keys))
            return name, sets.put(name, map(_check_key, keys))
        except BaseException:
            sets.delete(name)
            raise
    finally:
        state.close()


def _put_distinct(sets: KeySets, name: str, keys: Iterator[Key]) -> int:
    count = 0
    while piece := list(islice(keys, KEYS_PER_DOCUMENT)):
        sets.put_piece(name, count // KEYS_PER_DOCUMENT, piece)
        count += len(piece)
    return count


def _check_key(key: Key) -> Key:
    for text in key:
        if "\0" in text or (not text.isascii() and _has_surrogate(text)):
            raise UsageError("keys must be text without NUL characters")
    return key


def _has_surrogate(text: str) -> bool:
    return any("\ud800" <= character <= "\udfff" for character in text)


def store_key_file(config: Config, path: Path, tables: Sequence[str]) -> StoredKeys:
    """Store the keys of a file; return the fields of `StartDump` for them.

    Raises:
        UsageError: the file or its keys can't be used, or ``tables`` is not one table with a key.
    """
    scope = key_scope(config, tables)
    given = read_key_file(path, source_kind(config).key_texts, scope.columns_among)
    columns = given.columns or scope.key

    def keys() -> Iterator[Key]:
        for key in given.keys:
            if len(key) != len(columns):
                raise UsageError(
                    f"keys: a key of {scope.table} is ({', '.join(columns)}), {len(columns)} "
                    f"columns; one with {len(key)} is given"
                )
            yield key

    name, count = store_keys(config, keys())
    if not count:
        raise UsageError(f"keys: {path.name} holds no keys")
    return StoredKeys((str(scope.table),), name, tuple(columns))


def discard_unused(state: StateStore, used: Collection[str], now_ms: int) -> None:
    """Delete keys older than a week that no dump uses."""
    key_sets = KeySets(state)
    for name in key_sets.names() - set(used):
        given = name.removeprefix(GIVEN).upper()
        given_ms = id_time_ms(given) if name.startswith(GIVEN) else now_ms
        if given_ms < now_ms - KEEP_MS:
            key_sets.delete(name)


def discard_keys(state: StateStore, command: Command) -> None:
    """Delete the keys that came with a command that was refused."""
    if isinstance(command, StartDump) and (command.key_set or "").startswith(GIVEN):
        KeySets(state).delete(str(command.key_set))


def missing_keys(config: AnyConfig, dump_id: str) -> Iterator[tuple[str | None, ...]]:
    """Yield the keys that a dump with ``missing="list"`` did not find in its table.

    Each is a tuple of texts, in the order of the dump's ``key_columns`` (in its status). They
    appear as the dump runs, and are complete when it has ended; a few thousand are in memory at a
    time.

    Raises:
        UsageError: there is no such dump (any more), or it does not list missing keys.
    """
    state = ReadOnlyStateStore(as_config(config).state.location)
    try:
        document = state.get(DUMP_PREFIX + dump_id)
        if document is None:
            raise UsageError(f"there is no dump {dump_id} (any more)")
        if not any(table.get("missing") == "list" for table in document.value["tables"]):
            raise UsageError(f"dump {dump_id} was not asked to list missing keys (--missing list)")
        yield from KeySets(state).all(MISSING + dump_id)
    finally:
        state.close()
