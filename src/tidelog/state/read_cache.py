"""The documents of a moment, for who looks at many of them where each request is paid for."""

from __future__ import annotations

from typing import Any

from tidelog.ports import Document, StateStore


class StateReadCache:
    """A state store as ``state`` is when this is made: it is listed once, each document is read
    once, and none that the list lacks. What is changed through this goes to ``state`` alone.
    """

    def __init__(self, state: StateStore) -> None:
        self._state = state
        self._names = state.keys("")
        self._known = frozenset(self._names)
        self._read: dict[str, Document | None] = {}

    def get(self, key: str) -> Document | None:
        if key not in self._known:
            return None
        if key not in self._read:
            self._read[key] = self._state.get(key)
        return self._read[key]

    def put(self, key: str, value: Any, expected_version: int | None) -> int:
        return self._state.put(key, value, expected_version)

    def delete(self, key: str) -> None:
        self._state.delete(key)

    def keys(self, prefix: str) -> list[str]:
        return [name for name in self._names if name.startswith(prefix)]

    def close(self) -> None:
        """Whoever opened the store closes it."""
