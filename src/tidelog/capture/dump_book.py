"""The dumps that are known, and how chunks are read: loaded, changed, summed up and stored."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from tidelog.capture.dump_state import (
    FINISHED,
    DumpState,
    DumpStatus,
    Key,
    TableProgress,
)
from tidelog.errors import UsageError
from tidelog.model.records import ChunkMeta
from tidelog.model.schema import TableName
from tidelog.ports import StateStore

DUMP_PREFIX = "dump/"
OPTIONS_KEY = "dump-options"
KEEP_FINISHED = 500  # dumps; one whose id is asked for again is not repeated while it is kept


@dataclass(frozen=True, slots=True)
class DumpOptions:
    """How chunks are read; may change while a dump runs."""

    chunk_rows: int = 10_000
    delay_ms: int = 0
    parallelism: int = 1
    windows: int = 2  # chunks read but not yet closed


@dataclass(slots=True)
class Counters:
    """What was done since start, for status and the demo."""

    chunks: int = 0
    rows: int = 0
    superseded: int = 0
    voided: dict[str, int] = field(default_factory=dict)
    last_error: str = ""


class DumpBook:
    """All dumps, as stored. The coordinator's lock guards it."""

    def __init__(self, state: StateStore, options: DumpOptions) -> None:
        self._state = state
        self._defaults = options
        self._dumps: dict[str, DumpState] = {}
        self.options = options
        self.counters = Counters()

    def load(self) -> None:
        stored = self._state.get(OPTIONS_KEY)
        if stored is not None:
            self.options = replace(self._defaults, **stored.value)
        for key in self._state.keys(DUMP_PREFIX):
            document = self._state.get(key)
            if document is not None:
                dump = DumpState.from_json(document.value)
                self._dumps[dump.dump_id] = dump

    def reconcile(self, chunks: Iterable[tuple[int, ChunkMeta]]) -> None:
        """Add the chunks that the event log holds beyond what was stored."""
        changed: dict[str, DumpState] = {}
        for _offset, meta in chunks:
            found = self._dumps.get(meta.dump_id)
            if found is None or found.finished:
                continue
            for progress in found.tables:
                if progress.table == meta.table and progress.keys is None:
                    low, high = _tuple(meta.low_key), _tuple(meta.high_key)
                    if progress.add_range(low, high, meta.order):
                        changed[found.dump_id] = found
        for dump in changed.values():
            self.store(dump)

    def request(
        self,
        dump_id: str,
        tables: list[TableName],
        *,
        where: str | None,
        keys: list[Key] | None,
        key_columns: tuple[str, ...] | None,
        reason: str,
        now_ms: int,
    ) -> DumpState:
        """Queue a dump, or return the one of that id."""
        if dump_id in self._dumps:
            return self._dumps[dump_id]
        number = 1 + max((d.number for d in self._dumps.values()), default=0)
        dump = DumpState(
            dump_id=dump_id,
            number=number,
            tables=[
                TableProgress(
                    str(table),
                    keys=list(keys) if keys is not None else None,
                    key_columns=key_columns,
                )
                for table in dict.fromkeys(tables)
            ],
            where=where,
            reason=reason,
            requested_ms=now_ms,
        )
        self._dumps[dump_id] = dump
        self.store(dump)
        return dump

    def all(self) -> list[DumpState]:
        """In the order they were requested in."""
        return sorted(self._dumps.values(), key=lambda dump: dump.number)

    def selected(self, dump_id: str | None, statuses: set[str]) -> list[DumpState]:
        """The dump of that id, or all if None, that are in one of ``statuses``."""
        if dump_id is not None and dump_id not in self._dumps:
            raise UsageError(f"there is no dump {dump_id!r}; `tidelog status` lists them")
        return [
            d
            for d in self.all()
            if d.status in statuses and (dump_id is None or d.dump_id == dump_id)
        ]

    def pause(self, dump_id: str | None) -> list[str]:
        return self._change(dump_id, {"queued", "running"}, "paused")

    def resume(self, dump_id: str | None) -> list[str]:
        return self._change(dump_id, {"paused"}, "running")

    def set_options(self, **changes: int) -> DumpOptions:
        self.options = replace(self.options, **changes)
        stored = self._state.get(OPTIONS_KEY)
        value = {**(stored.value if stored else {}), **changes}
        self._state.put(OPTIONS_KEY, value, None)
        return self.options

    def finish_if_done(self, dump: DumpState) -> None:
        """Finish the dump if all its tables are, and let the oldest finished ones go."""
        if not dump.finished and all(t.status in FINISHED for t in dump.tables):
            done = any(t.status == "done" for t in dump.tables)
            dump.status = "completed" if done else "aborted"
            dump.finished_ms = int(time.time() * 1000)
            for table in dump.tables:
                table.keys = table.keys and []  # may be many, and are of no use any more
            finished = [d for d in self.all() if d.finished and d.reason != "initial"]
            for old in finished[:-KEEP_FINISHED]:
                del self._dumps[old.dump_id]
                self._state.delete(DUMP_PREFIX + old.dump_id)

    def summary(self, finished: int) -> dict[str, Any]:
        """What status shows: options, counters, unfinished dumps and the last ``finished``."""
        dumps = self.all()
        recent = {dump.dump_id for dump in dumps[-finished:]}
        return {
            "dump_options": asdict(self.options),
            "dump_counters": asdict(self.counters),
            "dumps": [
                dump.summary() for dump in dumps if not dump.finished or dump.dump_id in recent
            ],
        }

    def store(self, dump: DumpState) -> None:
        self._state.put(DUMP_PREFIX + dump.dump_id, dump.to_json(), None)

    def _change(self, dump_id: str | None, statuses: set[str], to: DumpStatus) -> list[str]:
        selected = self.selected(dump_id, statuses)
        for dump in selected:
            dump.status = to
            self.store(dump)
        return [dump.dump_id for dump in selected]


def _tuple(key: list[str | None] | None) -> Key | None:
    return None if key is None else tuple(key)
