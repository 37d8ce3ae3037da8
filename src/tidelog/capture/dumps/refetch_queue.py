"""Stores keys durably: a queue of keys whose rows must be read again, and sets of keys of dumps.

The keys are stored in pieces, each a document of the state store: a request for keys costs as much
as these keys, however many wait, and only keys being read are in memory. Pieces hold key values and
are never shown.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice

from tidelog.capture.dumps.state import Key
from tidelog.capture.state_writes import DeferredWrites
from tidelog.model.schema import TableSchema
from tidelog.ports import KeyExtractor, StateStore

REFETCH_KEY = "dump-reread"
REFETCH_DUMP_ID = "reread"  # the dump id of chunks that read missing rows
RETRY_KEY_S = 10.0
"""Seconds between two attempts to read a quarantined key of a table."""
PIECE_KEYS = 5_000
OPEN_KEYS = 500
"""A smaller piece takes further keys, and is stored again with each of them."""


@dataclass(frozen=True, slots=True)
class RefetchTable:
    """A table with keys to read again, and the columns of these keys."""

    table: str
    columns: tuple[str, ...]


@dataclass(slots=True)
class KeyPiece:
    """Keys that are stored together.

    Attributes:
        name: name of their document, which may still hold keys that were read by now.
        count: number of waiting keys.
        oldest, newest: numbers of the first and the last request for them.
        keys: the waiting keys; None while they are only stored.
        reading: the keys being read.
    """

    name: str
    count: int
    oldest: int
    newest: int
    keys: dict[Key, None] | None = None
    reading: set[Key] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class KeysToRead:
    """Keys to read now, and their pieces; each key is in one or more of these."""

    refetch_table: RefetchTable
    pieces: tuple[KeyPiece, ...]
    keys: tuple[Key, ...]


class RefetchQueue:
    """The keys to read again. Those of a table are read in the order of the requests; a key that
    was requested again may be read twice.

    A key that can't be read is quarantined, so that it blocks no other.

    Thread-safe by its own lock, under which no other lock is taken and the state store is not
    called: the loop's thread adds keys without waiting for the coordinator, and the coordinator
    decides without waiting for the loop's thread to store them.
    """

    def __init__(self, keys: KeyExtractor, state: StateStore) -> None:
        self._keys = keys
        self._state = state
        self._changes = DeferredWrites(state)
        self.flush = self._changes.flush
        """Make all changes durable."""
        self._lock = threading.Lock()
        self._pieces: dict[RefetchTable, dict[str, KeyPiece]] = {}
        self._open: dict[RefetchTable, KeyPiece] = {}  # those that take further keys
        # Each in its own piece; the one tried longest ago comes first.
        self._quarantined: dict[RefetchTable, dict[Key, KeyPiece]] = {}
        self._again_at: dict[RefetchTable, float] = {}
        self._number = 0  # of the newest request
        self._next_piece = 0

    def load(self) -> None:
        """Load the list of stored pieces. Call it first; it calls the state store."""
        for name in self._state.keys(f"{REFETCH_KEY}/"):
            stored = self._state.get(name)
            if stored is not None:
                value = stored.value
                refetch_table = RefetchTable(value["table"], tuple(value["columns"]))
                piece = KeyPiece(name, len(value["keys"]), 0, 0)
                self._pieces.setdefault(refetch_table, {})[name] = piece
                self._next_piece = int(name.rpartition("/")[2]) + 1

    def add(self, schema: TableSchema, keys: Iterable[bytes]) -> None:
        """Request these match keys; stored when this returns."""
        refetch_table = RefetchTable(str(schema.table), schema.match_key)
        texts = dict.fromkeys(self._keys.texts(encoded, schema) for encoded in keys)
        with self._lock:
            self._add(refetch_table, texts)
        self.flush()

    def _add(self, refetch_table: RefetchTable, texts: dict[Key, None]) -> None:
        self._number += 1
        quarantined = self._quarantined.get(refetch_table, {})
        piece = self._open.get(refetch_table)
        known = {} if piece is None or piece.keys is None else piece.keys
        for key in quarantined.keys() & texts.keys():
            quarantined[key].newest = self._number
        fresh = [key for key in texts if key not in known and key not in quarantined]
        if piece is not None and len(known) + len(fresh) <= OPEN_KEYS:
            piece.newest = self._number
            if fresh:
                self._put(refetch_table, piece, dict.fromkeys([*known, *fresh]))
            return
        self._close(refetch_table)
        for at in range(0, len(fresh), PIECE_KEYS):
            self._close(refetch_table)
            some = dict.fromkeys(fresh[at : at + PIECE_KEYS])
            piece = self._open[refetch_table] = self._new()
            self._put(refetch_table, piece, some)
            self._pieces.setdefault(refetch_table, {})[piece.name] = piece
            if piece.count >= OPEN_KEYS:
                self._close(refetch_table)

    def fetch(self, limit: int) -> None:
        """Load what `take` returns next, up to ``limit`` keys. Calls the state store."""
        with self._lock:
            wanted = self._next_stored(limit)
        if wanted:
            self.flush()  # the pieces may not be stored yet
        for refetch_table, piece in wanted:
            keys = self._load(piece.name)
            with self._lock:
                piece.keys = keys
                if not keys:  # an earlier leader deleted the piece late: all were read
                    self._forget(refetch_table, piece)

    def _next_stored(self, limit: int) -> list[tuple[RefetchTable, KeyPiece]]:
        """The pieces of the next table in turn that are not in memory."""
        for refetch_table, pieces in self._pieces.items():
            wanted, count = [], 0
            for piece in pieces.values():
                waiting = piece.count - len(piece.reading)
                if waiting and piece.keys is None:
                    wanted.append((refetch_table, piece))
                count += waiting
                if count >= limit:
                    break
            if count:
                return wanted
        return []

    def take(self, limit: int, now: float) -> KeysToRead | None:
        """Up to ``limit`` keys to read next, in memory (`fetch`) and not being read; each table in
        turn. A quarantined key comes alone. Finish each result with `done` or `quarantine`.
        """
        with self._lock:
            for refetch_table in dict.fromkeys((*self._pieces, *self._quarantined)):
                quarantined = self._quarantined.get(refetch_table)
                if quarantined and now >= self._again_at[refetch_table]:
                    key, piece = next(iter(quarantined.items()))
                    self._again_at[refetch_table] = now + RETRY_KEY_S
                    return KeysToRead(refetch_table, (piece,), (key,))
                taken = self._take(refetch_table, limit)
                if taken is not None:
                    self._pieces[refetch_table] = self._pieces.pop(refetch_table)
                    return taken
            return None

    def _take(self, refetch_table: RefetchTable, limit: int) -> KeysToRead | None:
        keys: dict[Key, None] = {}
        pieces: list[KeyPiece] = []
        for piece in self._pieces.get(refetch_table, {}).values():
            if len(piece.reading) == piece.count:
                continue
            if piece.keys is None:
                break
            free = [key for key in piece.keys if key not in piece.reading][:limit]
            if keys and len(keys) + len(free) > limit:
                break
            if self._open.get(refetch_table) is piece:
                del self._open[refetch_table]
            pieces.append(piece)
            piece.reading.update(free)
            keys.update(dict.fromkeys(free))
        return KeysToRead(refetch_table, tuple(pieces), tuple(keys)) if keys else None

    def _load(self, name: str) -> dict[Key, None]:
        stored = self._state.get(name)
        return {} if stored is None else dict.fromkeys(map(tuple, stored.value["keys"]))

    @property
    def number(self) -> int:
        """The number of the newest request."""
        with self._lock:
            return self._number

    @property
    def wanted(self) -> bool:
        """Is any key waiting?"""
        with self._lock:
            return bool(self._pieces or self._quarantined)

    def has_pending(self, table: str, upto: int | None = None) -> bool:
        """Is a request of the table, with a number up to ``upto``, not answered yet? Quarantined
        keys are counted by `unread`.
        """
        with self._lock:
            return any(
                upto is None or piece.oldest <= upto
                for refetch_table, pieces in self._pieces.items()
                if refetch_table.table == table
                for piece in pieces.values()
            )

    def unread(self, table: str, since: int) -> int:
        """The number of quarantined keys of the table requested after the request ``since``."""
        with self._lock:
            return sum(piece.newest > since for _, _, piece in self._quarantined_of(table))

    def quarantine(self, taken: KeysToRead) -> None:
        """Set the only key of ``taken`` aside: it could not be read."""
        with self._lock:
            refetch_table, [key] = taken.refetch_table, taken.keys
            quarantined = self._quarantined.setdefault(refetch_table, {})
            alone = quarantined.pop(key, None)
            for piece in taken.pieces:
                if piece is alone:
                    continue
                if alone is None:
                    alone = self._new()
                    self._put(refetch_table, alone, {key: None})
                    alone.oldest, alone.newest = piece.oldest, piece.newest
                alone.newest = max(alone.newest, piece.newest)
                self._remove(refetch_table, piece, taken.keys)
            if alone is not None:
                quarantined[key] = alone
            self._again_at[refetch_table] = time.monotonic() + RETRY_KEY_S

    def done(self, taken: KeysToRead, unread: Collection[Key] = ()) -> None:
        """Remove the keys that were read; ``unread`` ones keep waiting."""
        with self._lock:
            refetch_table, read = (
                taken.refetch_table,
                [key for key in taken.keys if key not in unread],
            )
            quarantined = self._quarantined.get(refetch_table, {})
            if any(quarantined.get(key) in taken.pieces for key in read):
                # The obstacle may be gone for the others, too.
                pieces = self._pieces.setdefault(refetch_table, {})
                pieces |= {piece.name: piece for piece in quarantined.values()}
                del self._quarantined[refetch_table]
            for piece in taken.pieces:
                piece.reading.difference_update(taken.keys)
                self._remove(refetch_table, piece, read)

    def on_table_dumped(self, table: str, since: int) -> None:
        """Remove quarantined keys requested up to the request ``since``: all rows of the table were
        read after it.
        """
        with self._lock:
            for refetch_table, key, piece in list(self._quarantined_of(table)):
                if piece.newest <= since:
                    self._changes.delete(piece.name)
                    del self._quarantined[refetch_table][key]
                    if not self._quarantined[refetch_table]:
                        del self._quarantined[refetch_table]

    def tables(self) -> set[str]:
        """The tables with waiting keys."""
        with self._lock:
            return {each.table for each in (*self._pieces, *self._quarantined)}

    def leave_out(self, tables: Collection[str]) -> None:
        """Forget the keys of these tables. Call it before any are taken."""
        with self._lock:
            for refetch_table in [each for each in self._pieces if each.table in tables]:
                self._open.pop(refetch_table, None)
                for piece in self._pieces.pop(refetch_table).values():
                    self._changes.delete(piece.name)

    # ------------------------------------------------------------ pieces; the lock is held

    def _new(self) -> KeyPiece:
        self._next_piece += 1
        return KeyPiece(f"{REFETCH_KEY}/{self._next_piece - 1:012d}", 0, self._number, self._number)

    def _put(self, refetch_table: RefetchTable, piece: KeyPiece, keys: dict[Key, None]) -> None:
        self._store(piece.name, refetch_table, keys)
        piece.keys, piece.count = keys, len(keys)

    def _store(self, name: str, refetch_table: RefetchTable, keys: Iterable[Key]) -> None:
        value = {
            "table": refetch_table.table,
            "columns": refetch_table.columns,
            "keys": [list(key) for key in keys],
        }
        self._changes.put(name, value)

    def _close(self, refetch_table: RefetchTable) -> None:
        """Close the piece: it takes no further keys, and is not needed in memory."""
        piece = self._open.pop(refetch_table, None)
        if piece is not None:
            piece.keys = None

    def _remove(self, refetch_table: RefetchTable, piece: KeyPiece, keys: Iterable[Key]) -> None:
        """Forget these keys. Their document stays until all its keys were read: reading keys again
        after a crash does no harm.
        """
        assert piece.keys is not None
        for key in keys:
            piece.keys.pop(key, None)
            piece.reading.discard(key)
        piece.count = len(piece.keys)
        if not piece.keys:
            self._changes.delete(piece.name)
            self._forget(refetch_table, piece)

    def _forget(self, refetch_table: RefetchTable, piece: KeyPiece) -> None:
        pieces = self._pieces.get(refetch_table, {})
        pieces.pop(piece.name, None)
        if not pieces:
            self._pieces.pop(refetch_table, None)

    def _quarantined_of(self, table: str) -> Iterator[tuple[RefetchTable, Key, KeyPiece]]:
        for refetch_table, quarantined in self._quarantined.items():
            if refetch_table.table == table:
                yield from ((refetch_table, key, piece) for key, piece in quarantined.items())


# Sets of keys by name: keys to dump, and keys that were not found.

KEY_SETS = "key-set/"
KEYS_PER_DOCUMENT = 10_000


def missing_set(dump_id: str) -> str:
    """The name of the set of keys that the dump's table did not have."""
    return f"missing-{dump_id}"


class KeySets:
    """Sets of keys by name, stored in pieces so that a dump may have millions of them.

    A set is written once, before the dump that reads it is requested, and deleted when that has
    ended. Pieces are documents of the state store; they hold key values and are never shown. As
    thread-safe as the state store.
    """

    def __init__(self, state: StateStore) -> None:
        self._state = state

    def put(self, set_id: str, keys: Iterable[Key]) -> int:
        """Store the distinct keys, in order of first appearance; returns their number. Replaces an
        existing set of the name.
        """
        self.delete(set_id)
        count = 0
        seen: set[Key] = set()

        def distinct() -> Iterator[Key]:
            for key in keys:
                if key not in seen:
                    seen.add(key)
                    yield key

        fresh = distinct()
        while piece := list(islice(fresh, KEYS_PER_DOCUMENT)):
            self._state.put(
                _name(set_id, count // KEYS_PER_DOCUMENT), [list(k) for k in piece], None
            )
            count += len(piece)
        return count

    def slice(self, set_id: str, first: int, count: int) -> tuple[Key, ...]:
        """The keys ``first`` to ``first + count``, fewer at the end."""
        keys: list[Key] = []
        while len(keys) < count:
            at = first + len(keys)
            document = self._state.get(_name(set_id, at // KEYS_PER_DOCUMENT))
            start = at % KEYS_PER_DOCUMENT
            piece: Sequence[list[str | None]] = [] if document is None else document.value
            part = piece[start : start + count - len(keys)]
            if not part:
                break
            keys.extend(tuple(key) for key in part)
        return tuple(keys)

    def put_piece(self, set_id: str, number: int, keys: Iterable[Key], covers: int = 1) -> None:
        """Store a piece of `KEYS_PER_DOCUMENT` keys; one that is only read by `all` may have
        another size and stand for ``covers`` numbers: it replaces all pieces with these numbers,
        even if it is empty.
        """
        piece = [list(key) for key in keys]
        for name in self._state.keys(f"{KEY_SETS}{set_id}/") if covers > 1 or not piece else ():
            if number <= int(name.rpartition("/")[2]) < number + covers:
                self._state.delete(name)
        if piece:
            self._state.put(_name(set_id, number), piece, None)

    def all(self, set_id: str) -> Iterator[Key]:
        """Every key of the set, in order of the pieces."""
        for name in self._state.keys(f"{KEY_SETS}{set_id}/"):
            document = self._state.get(name)
            yield from map(tuple, () if document is None else document.value)

    def names(self) -> set[str]:
        return {name.split("/")[1] for name in self._state.keys(KEY_SETS)}

    def delete(self, set_id: str) -> None:
        for name in self._state.keys(f"{KEY_SETS}{set_id}/"):
            self._state.delete(name)


def _name(set_id: str, piece: int) -> str:
    return f"{KEY_SETS}{set_id}/{piece:08d}"


@dataclass(slots=True)
class PrefetchedKeys:
    """The keys of a set that the next chunks read, kept in memory, because the state store is never
    called under a lock.

    Attributes:
        first: index of the first of ``keys``.
        keys: None while they are being fetched.
    """

    first: int = 0
    keys: tuple[Key, ...] | None = ()

    def slice(self, first: int, count: int) -> tuple[Key, ...]:
        """Up to ``count`` keys from index ``first`` on; none if they are not in memory."""
        at = first - self.first
        return () if self.keys is None else self.keys[at : at + count]

    def start_fetch(self, first: int) -> bool:
        """Must keys be fetched from index ``first`` on? True once, until they are there."""
        if self.keys is None or first - self.first < len(self.keys):
            return False
        self.keys = None
        return True
