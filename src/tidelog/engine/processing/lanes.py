"""Which events must follow one another if order is kept by key; pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

from tidelog.engine.events import Event
from tidelog.engine.ports import Message
from tidelog.model.schema import TableName

T = TypeVar("T", Event, Message, Event | Message)


def stages(events: Sequence[T]) -> Iterator[list[list[T]]]:
    """The events, or messages of them, as stages after one another, each of lanes that may run at
    once.

    A lane keeps its events in order. It holds all of a key's events, those of keys that one change
    connects (a row that moved from key to key), and all of a table that has no key. A truncate is a
    stage alone: it concerns every key of its table. Behind a change of a table's schema another
    stage begins, because a key may be spelled differently from there on.
    """
    low = 0
    schemas: dict[TableName, int] = {}
    for at, each in enumerate(events):
        event = _event(each)
        number = event.schema.schema_id
        alone = event.op == "t"
        if alone or schemas.get(event.table, number) != number:
            if low < at:
                yield _lanes(events[low:at])
            low, schemas = at, {}
        schemas[event.table] = number
        if alone:
            yield [[each]]
            low, schemas = at + 1, {}
    if low < len(events):
        yield _lanes(events[low:])


def _lanes(events: Sequence[T]) -> list[list[T]]:
    names = [_name(_event(each)) for each in events]
    leader: dict[Any, Any] = {name: name for name in names}

    def find(name: Any) -> Any:
        while leader[name] != name:
            leader[name] = name = leader[leader[name]]
        return name

    for place in range(1, len(events)):
        # The two halves of a key change have one version.
        if _event(events[place]).version == _event(events[place - 1]).version:
            leader[find(names[place])] = find(names[place - 1])
    lanes: dict[Any, list[T]] = {}
    for name, each in zip(names, events, strict=True):
        lanes.setdefault(find(name), []).append(each)
    return list(lanes.values())


def _event(of: Event | Message) -> Event:
    return of.event if isinstance(of, Message) else of


def _name(event: Event) -> tuple[Any, ...]:
    key = event.key
    values = () if key is None else tuple(map(_value, key.values()))
    return (event.table, *values)


def _value(value: Any) -> Any:
    # NaN is a key like any other, but not equal to itself.
    return "NaN" if isinstance(value, float) and value != value else value
