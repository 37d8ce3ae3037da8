"""The messages of a batch, stored in columns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import repeat
from typing import overload

from tidelog.engine.events import Events
from tidelog.engine.ports import Message


class Messages(Sequence[Message]):
    """A sequence that creates each message on access: thousands of objects that live as long as a
    batch would make Python's garbage collector scan the program's objects again and again.

    Args:
        events: the events of the messages.
        keys, values, headers, topics: columns, one entry for each message.
    """

    def __init__(
        self,
        events: Events,
        keys: Sequence[bytes | None],
        values: Sequence[bytes | None],
        headers: Sequence[dict[str, str] | None],
        topics: Sequence[str],
    ) -> None:
        self._events = events
        self._columns = keys, values, headers, topics

    def __len__(self) -> int:
        return len(self._events)

    def __iter__(self) -> Iterator[Message]:
        # As `Message(…)`, in a third of the time.
        return map(tuple.__new__, repeat(Message), zip(*self._columns, self._events, strict=True))

    @overload
    def __getitem__(self, at: int) -> Message: ...
    @overload
    def __getitem__(self, at: slice) -> Sequence[Message]: ...
    def __getitem__(self, at: int | slice) -> Message | Sequence[Message]:
        if isinstance(at, slice):
            return list(self)[at]
        keys, values, headers, topics = self._columns
        return Message(keys[at], values[at], headers[at], topics[at], self._events[at])
