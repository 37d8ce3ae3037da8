"""Stores sets of keys by name in the state store: keys to dump, and keys that were not found."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from tidelog.capture.dumps.state import Key
from tidelog.ports import StateStore

KEY_SETS = "key-set/"
PIECE_KEYS = 10_000


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
        while piece := list(islice(fresh, PIECE_KEYS)):
            self._state.put(_name(set_id, count // PIECE_KEYS), [list(k) for k in piece], None)
            count += len(piece)
        return count

    def slice(self, set_id: str, first: int, count: int) -> tuple[Key, ...]:
        """The keys ``first`` to ``first + count``, fewer at the end."""
        keys: list[Key] = []
        while len(keys) < count:
            at = first + len(keys)
            document = self._state.get(_name(set_id, at // PIECE_KEYS))
            start = at % PIECE_KEYS
            piece: Sequence[list[str | None]] = [] if document is None else document.value
            part = piece[start : start + count - len(keys)]
            if not part:
                break
            keys.extend(tuple(key) for key in part)
        return tuple(keys)

    def put_piece(self, set_id: str, number: int, keys: Iterable[Key], covers: int = 1) -> None:
        """Store a piece of `PIECE_KEYS` keys; one that is only read by `all` may have another size
        and stand for ``covers`` numbers: it replaces all pieces with these numbers, even if it is
        empty.
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
