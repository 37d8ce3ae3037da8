"""An engine's task that has some partitions of the keys: the others of its name have the rest."""

from __future__ import annotations

import threading
import time
import unicodedata
import zlib
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa

from tidelog.app.async_engine.group_members import GroupMembers
from tidelog.app.async_engine.log_task import LogTask, StartingOffset
from tidelog.engine.event_batches import EventBatch
from tidelog.engine.events import Events
from tidelog.errors import EventLogError
from tidelog.eventlog.consumers import Consumers
from tidelog.model.records import Int64s
from tidelog.outputs.base.sections import StepSection


class GroupTask(LogTask):
    """A `LogTask` that gives the events of its partitions of the keys, and every truncate.

    Partitions move when all that was given is done and committed, or when their owner's lease
    ended: so events of a key are never given by two members at once, unless one was frozen for
    longer.

    Args:
        members: of the group.
        partitions: into which the keys are divided: so many members get any, at most.
    """

    def __init__(
        self,
        path: str,
        name: str,
        members: GroupMembers,
        *,
        partitions: int,
        batch_size: int = 8192,
        steps: Sequence[StepSection] = (),
        starting_offset: StartingOffset = "earliest",
    ) -> None:
        super().__init__(
            path, name, batch_size=batch_size, steps=steps, starting_offset=starting_offset
        )
        self._members, self._partitions = members, partitions
        self._begins: dict[int, int] = {}  # of our partitions, where each begins
        self._given: int | None = None
        self._done: int | None = None

    def start(self, cancelled: threading.Event) -> None:
        super().start(cancelled)
        generation = self._opened().generation
        self._members.join(self._partitions, generation, self._next)
        if self._members.document["generation"] != generation:
            raise EventLogError(
                f"{self._path}: the group {self.name} has offsets of another event log: it was "
                "recreated. Give the engines another name."
            )

    def poll(self, timeout_s: float) -> Events | None:
        self._members.check()
        if self._members.target() != sorted(self._begins):
            if self._given != self._done:  # what is under way is done and committed first
                time.sleep(min(timeout_s, 0.01))
                return None
            self._rebalance()
        if not self._begins:
            time.sleep(timeout_s)
            return None
        polled = super().poll(timeout_s)
        self._members.check()
        if polled is None:
            return None
        self._given = polled.end
        return Events(list(map(self._ours, polled.parts)), polled.end, polled.generation)

    def commit(self, offset: int) -> None:
        """Raises LeaseLostError: other members have these keys by now."""

        def move(found: dict[str, Any]) -> None:
            for partition in self._begins:
                before = found["offsets"].get(str(partition), found["start"])
                found["offsets"][str(partition)] = max(before, offset)

        self._members.change(move)
        self._done = offset
        found = self._members.document
        offsets = [
            found["offsets"].get(str(each), found["start"]) for each in range(self._partitions)
        ]
        Consumers(self._opened().storage).register(self.name, min(offsets), engine=True)

    def stop(self) -> None:
        self._members.leave()

    def _rebalance(self) -> None:
        self._members.rebalance()
        found = self._members.document
        self._begins = {
            partition: found["offsets"].get(str(partition), found["start"])
            for partition in self._members.owned()
        }
        self._given = self._done = None
        self._reading, self._left, self._untouched = iter(()), None, False
        if self._begins:
            self._next = self._until = min(self._begins.values())
            self._opened().segments(self._next)  # raises if retention has taken it

    def _ours(self, part: EventBatch) -> EventBatch:
        partitions = self._partitions_of(part)
        begins = np.full(self._partitions + 1, np.iinfo(np.int64).max)
        for partition, offset in self._begins.items():
            begins[partition] = offset
        begins[-1] = min(self._begins.values())  # of truncates, which are everybody's
        kept = part.versions >= begins[partitions]
        if kept.all():
            return part
        return EventBatch(part.schema, part.origin, part.data.filter(pa.array(kept)))

    def _partitions_of(self, part: EventBatch) -> Int64s:
        table = str(part.schema.table)
        names = part.schema.match_key
        places = [part.schema.column_index(name) for name in names]
        found = np.empty(len(part), np.int64)
        for row in range(len(part)):
            if part.value("op", row) == "t":
                found[row] = self._partitions
                continue
            before, after = part.value("before", row), part.value("after", row)
            missing = part.value("missing", row) or ()
            key = [table]
            for name, at in zip(names, places, strict=True):
                told = after is not None and not (before is not None and name in missing)
                key.append(_text((after if told else before)[at]))
            found[row] = (
                zlib.crc32("\0".join(key).encode("utf-8", "surrogatepass")) % self._partitions
            )
        return found


def _text(value: Any) -> str:
    """Alike for all values that a database may take for one key."""
    if isinstance(value, str):
        folded = value.casefold().rstrip()
        if folded.isascii():
            return folded
        parts = unicodedata.normalize("NFKD", folded)
        return "".join(each for each in parts if not unicodedata.combining(each))
    if isinstance(value, Decimal):
        return str(value.normalize() + 0)
    return str(value + 0.0) if isinstance(value, float) else str(value)
