"""Change events: a small object for each, created from Arrow on access.

Arrow holds them in batches of one table's schema version (`tidelog.engine.event_batches`).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from itertools import accumulate, chain, repeat
from typing import Any, NoReturn, overload

import pyarrow as pa

from tidelog.engine.event_batches import EventBatch, Share, group_by_schema, runs
from tidelog.model.schema import TableName, TableSchema
from tidelog.ports import SourceId


class RowImage(dict[str, Any]):
    """A row before or after its change, by column. Read-only: changes to it would have no
    effect.
    """

    __slots__ = ()

    def _refuse(self, *_values: Any, **_named: Any) -> NoReturn:
        raise TypeError(
            "an event's images are read-only. A transform returns a changed event: "
            "event.replace(after={**event.after, 'column': value}); dict(event.after) is a copy"
        )

    __setitem__ = __delitem__ = __ior__ = _refuse
    clear = pop = popitem = setdefault = update = _refuse

    def __reduce__(self) -> tuple[type[RowImage], tuple[dict[str, Any]]]:
        return RowImage, (dict(self),)


class Event:
    """One change of one row. Its images and its key are read-only.

    An update that changes the key is two events of one version: the old key's delete, and the new
    key's create.
    """

    __slots__ = ("_batch", "_changed", "_row")

    def __init__(
        self, batch: EventBatch, row: int, changed: Mapping[str, Any] | None = None
    ) -> None:
        self._batch = batch
        self._row = row
        self._changed = changed

    @property
    def op(self) -> str:
        """c, u, d, r (a dump's row) or t (truncate)."""
        op: str = self._batch.value("op", self._row)
        return op

    @property
    def table(self) -> TableName:
        return self._batch.schema.table

    @property
    def schema(self) -> TableSchema:
        """The schema version of the table under which it was written."""
        return self._batch.schema

    @property
    def version(self) -> int:
        """A number that grows with the log; it orders events."""
        version: int = self._batch.value("version", self._row)
        return version

    @property
    def position(self) -> int:
        """The position of its transaction in the source's log."""
        position: int = self._batch.value("position", self._row)
        return position

    @property
    def xid(self) -> int:
        """The source's number of its transaction; 0 for a dump's row."""
        xid: int = self._batch.value("xid", self._row)
        return xid

    @property
    def source(self) -> SourceId:
        return self._batch.origin

    @property
    def ts(self) -> Any:
        """Commit time: a `datetime.datetime` in UTC."""
        return self._batch.value("ts", self._row)

    @property
    def missing(self) -> tuple[str, ...]:
        """Columns that `after` does not have, because the log does not (they did not change), or a
        transform removed them.
        """
        changed = None if self._changed is None else self._changed.get("after")
        if changed is not None:
            return tuple(name for name in self._batch.schema.column_names if name not in changed)
        return self._log_missing

    @property
    def _log_missing(self) -> tuple[str, ...]:
        return tuple(self._batch.value("missing", self._row) or ())

    @property
    def before(self) -> RowImage | None:
        """The old row, by column, as far as the log has it: at least the key. None if the log has
        nothing of it.
        """
        if self._changed is not None and "before" in self._changed:
            return _image(self._changed["before"])
        row = self._batch.value("before", self._row)
        if row is None:
            return None
        names = self._batch.old_names
        named = zip(self._batch.schema.column_names, row, strict=True)
        return RowImage(named if names is None else (each for each in named if each[0] in names))

    @property
    def after(self) -> RowImage | None:
        """The new row, by column, without `missing`; None for a delete and a truncate."""
        if self._changed is not None and "after" in self._changed:
            return _image(self._changed["after"])
        row = self._batch.value("after", self._row)
        if row is None:
            return None
        named = zip(self._batch.schema.column_names, row, strict=True)
        missing = self._log_missing
        return RowImage((each for each in named if each[0] not in missing) if missing else named)

    @property
    def key(self) -> RowImage | None:
        """The row's key; None for a truncate, and for a table without a key. A transform does not
        change it.
        """
        names = self._batch.schema.match_key
        old, row = (self._batch.value(name, self._row) for name in ("before", "after"))
        if not names or (old is None and row is None):
            return None
        missing = self._log_missing if row is not None and old is not None else ()
        index = self._batch.schema.column_index
        return RowImage(
            (name, (old if row is None or name in missing else row)[index(name)]) for name in names
        )

    @property
    def number(self) -> int:
        """Its number among all events of its task in this run."""
        return self._batch.first + self._row

    @property
    def share(self) -> Share | None:
        """If a transform made several events of one: this one's index, and their number."""
        return self._batch.share

    def as_share(self, share: Share) -> Event:
        """This event as one of several that were made of one."""
        batch = self._batch.slice(self._row, self._row + 1)
        batch.share = share
        return Event(batch, 0, self._changed)

    @property
    def replaced(self) -> Mapping[str, Any] | None:
        """The images that `replace` set; None: the event is unchanged."""
        return self._changed

    def replace(self, **images: Mapping[str, Any] | None) -> Event:
        """The same event with another ``before`` or ``after``, for transforms.

        A column that the new row does not have counts as one of `missing`. With ``after=None`` the
        message of a format has no new row: ``after`` is null, and so is the whole value of
        ``flat``, which has nothing besides the row.
        """
        unknown = images.keys() - {"before", "after"}
        if unknown:
            raise TypeError(f"an event's {', '.join(sorted(unknown))} can't be replaced")
        changed = {name: _image(image) for name, image in images.items()}
        return Event(self._batch, self._row, {**(self._changed or {}), **changed})

    def to_dict(self) -> dict[str, Any]:
        """The event as plain Python values."""
        return {
            "table": str(self.table),
            "op": self.op,
            "key": _plain(self.key),
            "before": _plain(self.before),
            "after": _plain(self.after),
            "missing": list(self.missing),
            "version": self.version,
            "schema_version": self.schema.schema_id,
            "position": self.position,
            "xid": self.xid,
            "ts": self.ts,
        }

    def to_batch(self) -> EventBatch:
        """This event alone, as Arrow.

        Raises:
            ValueError: if a replaced image has columns that the table does not have.
        """
        data = self._batch.data.slice(self._row, 1)
        for name, image in (self._changed or {}).items():
            kind = data.schema.field(name).type
            foreign = (image or {}).keys() - {field.name for field in kind}
            if foreign:
                raise ValueError(f"{self.table} has no column {', '.join(sorted(foreign))}")
            data = _with(data, name, image)
        if self._changed is not None:
            data = _with(data, "missing", self.missing or None)
        batch = EventBatch(self.schema, self.source, data, self.number)
        batch.share = self.share
        return batch

    def __repr__(self) -> str:
        # No values: this appears in logs.
        return f"<Event {self.op} of {self.table}, version {self.version}>"


class Events(Sequence[Event]):
    """Events of one task, in the log's order.

    Args:
        parts: runs of one schema version each.
        end: offset after them. Stored together with the events' results, it says where to resume.
        generation: generation of the event log that ``end`` belongs to.
    """

    def __init__(self, parts: Sequence[EventBatch], end: int, generation: str = "") -> None:
        self.parts = [part for part in parts if len(part)]
        self.end = end
        self.generation = generation

    @classmethod
    def of(cls, events: Sequence[Event], end: int, generation: str = "") -> Events:
        """These events as `Events`; some may be changed or left out."""
        if isinstance(events, Events):
            result = cls(events.parts, end, generation)
            result._made = events._made
        else:
            result = cls(list(runs(_regroup(events))), end, generation)
            result._made = list(events)
        return result

    _made: list[Event] | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        # As Arrow messages, which include replaced images.
        batches, places = group_by_schema(self.parts)
        runs = [(at, len(part), part.first) for at, part in zip(places, self.parts, strict=True)]
        return _events_of, (batches, runs, self.end, self.generation)

    @cached_property
    def _ends(self) -> list[int]:
        """The number of events up to each part's end."""
        return list(accumulate(map(len, self.parts)))

    def __len__(self) -> int:
        return self._ends[-1] if self.parts else 0

    def __iter__(self) -> Iterator[Event]:
        if self._made is not None:
            return iter(self._made)
        return chain.from_iterable(
            map(Event, repeat(part), range(len(part))) for part in self.parts
        )

    @overload
    def __getitem__(self, at: int) -> Event: ...
    @overload
    def __getitem__(self, at: slice) -> Sequence[Event]: ...
    def __getitem__(self, at: int | slice) -> Event | Sequence[Event]:
        if isinstance(at, slice):
            return list(self)[at]
        if self._made is not None:
            return self._made[at]
        place = at + len(self) if at < 0 else at
        which = bisect_right(self._ends, place)
        if place < 0 or which == len(self._ends):
            raise IndexError(at)
        part = self.parts[which]
        return Event(part, place - self._ends[which] + len(part))

    def pieces(self, size: int) -> Iterator[Events]:
        """The events in pieces of at most ``size``, over the same memory."""
        parts: list[EventBatch] = []
        room = size
        for part in self.parts:
            low = 0
            while low < len(part):
                high = min(len(part), low + room)
                parts.append(part.slice(low, high))
                room -= high - low
                low = high
                if not room:
                    yield Events(parts, self.end, self.generation)
                    parts, room = [], size
        if parts:
            yield Events(parts, self.end, self.generation)

    def runs(self) -> Iterator[tuple[TableSchema, pa.RecordBatch]]:
        """Each run of one schema version as Arrow, in the log's order."""
        return ((part.schema, part.data) for part in self.parts)

    def to_arrow(self) -> pa.Table:
        """All events as one table, with the columns of `EventBatch`.

        Raises:
            ValueError: if they are of several tables or schema versions, or there are none: see
                `runs`.
        """
        versions = {part.schema.schema_id: part.schema for part in self.parts}
        if len(versions) != 1:
            names = sorted(f"{s.table} (schema {i})" for i, s in versions.items())
            raise ValueError(
                f"one Arrow table holds one schema version, these events are of "
                f"{', '.join(names) or 'none'}: take runs()"
            )
        return pa.Table.from_batches([part.data for part in self.parts])

    def to_pylist(self) -> list[dict[str, Any]]:
        """`Event.to_dict` of each."""
        return [event.to_dict() for event in self]

    def to_pandas(self) -> Any:
        """`to_arrow` as a pandas DataFrame; pandas must be installed."""
        return self.to_arrow().to_pandas()


def _events_of(
    batches: Sequence[EventBatch],
    runs: Sequence[tuple[int, int, int]],
    end: int,
    generation: str,
) -> Events:
    offsets = [0] * len(batches)
    parts = []
    for at, length, first in runs:
        part = batches[at].slice(offsets[at], offsets[at] + length)
        part.first = first
        offsets[at] += length
        parts.append(part)
    return Events(parts, end, generation)


def _regroup(events: Sequence[Event]) -> Iterator[EventBatch]:
    """The events as Arrow; adjacent unchanged ones remain slices."""
    low = 0
    while low < len(events):
        first, high = events[low], low + 1
        if first._changed is not None:
            yield first.to_batch()
        else:
            while (
                high < len(events)
                and events[high]._changed is None
                and events[high]._batch is first._batch
                and events[high]._row == first._row + high - low
            ):
                high += 1
            yield first._batch.slice(first._row, first._row + high - low)
        low = high


def _with(data: pa.RecordBatch, name: str, value: Any) -> pa.RecordBatch:
    at = data.schema.get_field_index(name)
    field = data.schema.field(at)
    return data.set_column(at, field, pa.array([value], field.type))


def _image(image: Mapping[str, Any] | None) -> RowImage | None:
    return image if image is None or isinstance(image, RowImage) else RowImage(image)


def _plain(image: RowImage | None) -> dict[str, Any] | None:
    return None if image is None else dict(image)
