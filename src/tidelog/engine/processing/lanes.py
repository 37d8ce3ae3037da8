"""Which events must follow one another if order is kept by key; pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from tidelog.engine.events import Event
from tidelog.model.schema import TableName

Lanes = list[list[Event]]


def stages(events: Sequence[Event]) -> Iterator[Lanes]:
    """The events as stages after one another, each of lanes that may run at once.

    A lane keeps its events in order. It holds all of a key's events, those of keys that one change
    connects (a row that moved from key to key), and all of a table that has no key. A truncate is a
    stage alone: it concerns every key of its table. Behind a change of a table's schema another
    stage begins, because a key may be spelled differently from there on.
    """
    low = 0
    schemas: dict[TableName, int] = {}
    for at, event in enumerate(events):
        number = event.schema.schema_id
        alone = event.op == "t"
        if alone or schemas.get(event.table, number) != number:
            if low < at:
                yield _lanes(events[low:at])
            low, schemas = at, {}
        schemas[event.table] = number
        if alone:
            yield [[event]]
            low, schemas = at + 1, {}
    if low < len(events):
        yield _lanes(events[low:])


def _lanes(events: Sequence[Event]) -> Lanes:
    names = [_name(event) for event in events]
    leader: dict[Any, Any] = {name: name for name in names}

    def find(name: Any) -> Any:
        while leader[name] != name:
            leader[name] = name = leader[leader[name]]
        return name

    for place in range(1, len(events)):
        # The two halves of a key change have one version.
        if events[place].version == events[place - 1].version:
            leader[find(names[place])] = find(names[place - 1])
    lanes: dict[Any, list[Event]] = {}
    for name, event in zip(names, events, strict=True):
        lanes.setdefault(find(name), []).append(event)
    return list(lanes.values())


def _name(event: Event) -> tuple[Any, ...]:
    key = event.key
    values = () if key is None else tuple(map(_value, key.values()))
    return (event.table, *values)


def _value(value: Any) -> Any:
    # NaN is a key like any other, but not equal to itself.
    return "NaN" if isinstance(value, float) and value != value else value
