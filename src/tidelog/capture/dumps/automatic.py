"""Dumps that capture requests itself: if rows changed without row events, or a dump failed.

Both the log (`RowsUnlogged`, `SchemaSeen`) and the catalogue (`CatalogueWatch`) show a change
without row events, in either order. One dump covers it if it begins after the change, so

- a change in the log waits briefly until a dump that begins now also covers the catalogue's
  difference;
- a difference in the catalogue waits until the log was read up to it, which may show more;
- a change that the log shows after its dump was requested needs no other dump if a snapshot taken
  before the request sees it;
- a schema that the log shows later is compared with the table's schema before the request.

In doubt a table is dumped twice.

Failed dumps that capture needs are requested again, at growing intervals: only capture knows of
them, and the cause may be gone (a missing function, a busy server, a damaged block). A table that
is read for hours rests in proportion, so that reading it takes at most a twentieth of the time; so
does a table that statements without row events change again and again. A change while such a dump
reads the table waits for its end, and then as long as the dump took: else changes one after the
other would have the table read all the time. All is derived from the stored dumps, so a restart
changes nothing.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import asdict, dataclass
from itertools import islice, takewhile
from typing import Any

import numpy as np

from tidelog.capture.capture_scope import RelationNames
from tidelog.capture.catalogue_watch import CatalogueWatch, changes_rows, stored_entries
from tidelog.capture.dumps.coordinator import DumpCoordinator
from tidelog.capture.dumps.state import (
    TABLE_GONE,
    DumpState,
    TableProgress,
    TableStatus,
    asks_for_all,
    whole_table,
)
from tidelog.capture.dumps.store import AUTOMATIC, is_own
from tidelog.errors import (
    ConnectionLostError,
    GapError,
    SourceChangedError,
    SourceError,
    UnsupportedTableError,
)
from tidelog.model.records import Snapshot
from tidelog.model.schema import TableName, TableSchema
from tidelog.ports import (
    Catalogue,
    RelationNamed,
    RowsUnlogged,
    SchemaSeen,
    StateStore,
    TableRenamed,
)
from tidelog.system import failpoints
from tidelog.system.backoff import Backoff
from tidelog.system.processes import unix_ms

# Failed dumps. Pure.

REPEAT_MS = Backoff(first=60_000, longest=3_600_000)
REST_FACTOR = 20
"""A table rests between automatic dumps for this many times the time that reading it took."""
LEAST_REST_MS = 10_000
"""The shortest rest after a dump that did not fail."""


@dataclass(frozen=True, slots=True)
class DueDump:
    """A dump of ``table`` is due at ``at_ms``; ``failed``: why the last one failed."""

    table: str
    at_ms: int
    failed: str

    def summary(self) -> dict[str, Any]:
        """For status."""
        return {"table": self.table, "at_ms": self.at_ms, "failed": self.failed}


def dumps_to_repeat(dumps: Iterable[DumpState]) -> list[DueDump]:
    """The dumps to request again, now or later, from each table's last dumps. A table is left out
    if a later dump reads all of it, if its last dump was cancelled by a user, or if the catalogue
    will show that the cause has gone.
    """
    by_table = _newest_first(dumps)
    due = (_due_dump(table, newest_first) for table, newest_first in sorted(by_table.items()))
    return [again for again in due if again is not None]


def last_failed(dumps: Iterable[DumpState]) -> dict[str, str]:
    """Tables whose last dump failed, however long ago and whoever requested it: table → reason."""
    last = {
        table: dumps_of_table[0][1]
        for table, dumps_of_table in sorted(_newest_first(dumps).items())
    }
    return {
        table: progress.reason
        for table, progress in last.items()
        if progress.status is TableStatus.FAILED and progress.reason != TABLE_GONE
    }


def _newest_first(dumps: Iterable[DumpState]) -> dict[str, list[tuple[DumpState, TableProgress]]]:
    """The dumps of each whole table, newest first."""
    by_table: dict[str, list[tuple[DumpState, TableProgress]]] = {}
    for dump in sorted(dumps, key=lambda dump: dump.number, reverse=True):
        for progress in dump.tables:
            if asks_for_all(progress):
                by_table.setdefault(progress.table, []).append((dump, progress))
    return by_table


def _due_dump(table: str, newest_first: list[tuple[DumpState, TableProgress]]) -> DueDump | None:
    failures = list(takewhile(lambda one: one[1].status is TableStatus.FAILED, newest_first))
    if not any(progress.due or is_own(dump) for dump, progress in failures):
        return None
    _, last = failures[0]
    if not last.may_pass:
        return None
    ended = last.finished_ms or 0
    took = ended - (last.started_ms or ended)
    pause = max(int(REPEAT_MS.after(len(failures))), REST_FACTOR * took)
    return DueDump(table, ended + pause, last.reason)


def _last_due(newest_first: list[tuple[DumpState, TableProgress]]) -> TableProgress | None:
    """A table's last dump that capture itself needed."""
    return next((one for dump, one in newest_first if one.due or is_own(dump)), None)


def _is_automatic(dump: DumpState, progress: TableProgress) -> bool:
    return bool(progress.due) or dump.dump_id.startswith(AUTOMATIC)


def _is_dumped(newest_first: list[tuple[DumpState, TableProgress]]) -> bool:
    """Is the last dump that capture itself needed done, or one that was requested later?"""
    for dump, progress in newest_first:
        if progress.status is TableStatus.DONE or progress.due or is_own(dump):
            return progress.status is TableStatus.DONE
    return True


def _is_being_read(newest_first: list[tuple[DumpState, TableProgress]]) -> bool:
    """Has a dump that capture itself needed begun to read the table, and not ended?"""
    last = _last_due(newest_first)
    return last is not None and last.status is TableStatus.RUNNING


def _rests(newest_first: list[tuple[DumpState, TableProgress]], since_ms: int, now_ms: int) -> bool:
    """Is it too early for another dump? Those count that were requested since statements change the
    table.
    """
    last = _last_due([one for one in newest_first if one[0].requested_ms >= since_ms])
    if last is None or last.status is TableStatus.CANCELLED:
        return False
    failed = last.status is TableStatus.FAILED
    if last.finished_ms is None:
        return not failed
    took_ms = last.finished_ms - (last.started_ms or last.finished_ms)
    least_ms = int(REPEAT_MS.first) if failed else LEAST_REST_MS
    return now_ms < last.finished_ms + max(REST_FACTOR * took_ms, least_ms)


def _was_just_read(newest_first: list[tuple[DumpState, TableProgress]], now_ms: int) -> bool:
    """Is it less time since the last dump of a change that the log does not show than it took?"""
    last = _last_due([one for one in newest_first if _is_automatic(*one)])
    if last is None or last.status in (TableStatus.CANCELLED, TableStatus.FAILED):
        return False
    ended_ms = last.finished_ms
    return ended_ms is not None and now_ms < 2 * ended_ms - (last.started_ms or ended_ms)


def tables_failed(dumps: Sequence[DumpState]) -> list[str]:
    """Tables that failed in the newest of these dumps that has them, each with the reason."""
    newest = {table.table: table for dump in dumps for table in dump.tables}
    return [
        f"{table.table} ({table.reason})"
        for table in newest.values()
        if table.status is TableStatus.FAILED
    ]


# Changes without row events.

logger = logging.getLogger(__name__)

JUDGED_KEY = "judged-schemas"
"""The last schema of each table that the log showed and that was compared."""
DUMPED_KEY = "dumped-schemas"
"""The schema that a table had when its dump was requested, and where the log ended then: what the
log shows after that is compared with it."""
UNLOGGED_KEY = "unlogged-rows"
"""Tables whose rows changed without row events, and why, until their dumps are stored."""
UNLOGGED_CAUSES_KEY = "unlogged-rows-causes"
"""Tables whose rows changed without row events by a cause that the operator can remove: the reason,
the remedy, the time of the last such change and of the first."""
CAUSE_STORED_EVERY_MS = 10_000
SETTLE_S = 5.0
"""How long a dump waits for transactions that matter only for a difference in the catalogue."""
LOG_WAIT_S = 0.5
ABSENT_S = 2.0
"""How often it checks whether a missing table exists again."""
FAILED_SHOWN = 100
REPEAT_EVERY_S, FAILED_EVERY_S = 10.0, 2.0
"""How often it checks for failed dumps, without and with one that is reported."""
TURN_S = 0.02


class AutomaticDumps:
    """Used by the maintenance thread, except `on_schema`, `on_relation` and `on_unlogged`.

    Args:
        coordinator: executes the dumps.
        catalogue, state: ports.
        watch: builds the watch; its argument is called with a table and a reason.
        snapshot: returns a current snapshot.
        reached: the position up to which all commits have been read from the log.
        repeats: whether failed dumps are requested again.
    """

    def __init__(
        self,
        *,
        coordinator: DumpCoordinator,
        catalogue: Catalogue,
        state: StateStore,
        watch: Callable[[Callable[[TableName, str], bool]], CatalogueWatch],
        snapshot: Callable[[], Snapshot],
        reached: Callable[[], int],
        repeats: bool = True,
    ) -> None:
        self._coordinator = coordinator
        self._catalogue = catalogue
        self._state = state
        self._snapshot = snapshot
        self._reached = reached
        self._schemas_seen: list[tuple[SchemaSeen, int]] = []
        self._lock = threading.Lock()
        self._known_unlogged: dict[str, Any] | None = None  # a cache: nobody else writes it
        self._known_causes: dict[str, Any] | None = None  # likewise
        self._asked: dict[TableName, tuple[str, Snapshot]] = {}
        self._waits_since: dict[TableName, float] = {}
        self._log_ends: dict[TableName, int] = {}
        self._names = RelationNames(state)
        self._absent_until: dict[str, float] = {}
        self._repeats = repeats
        self._repeat_at = 0.0
        self.to_repeat: list[DueDump] = []
        """Failed dumps that will be requested again."""
        self.failed: dict[str, str] = {}
        """Captured tables whose last dump failed, and the reason."""
        self.watch = watch(self._dump_differing)
        self.watch.on_relations = self._names.add_new
        self.watch.on_gone = self._report_gone
        self.watch.on_present = self._names.keep_only

    def summary(self) -> dict[str, Any]:
        """For status: tables of which only inserts are seen, columns that are left out, tables no
        longer captured, waiting dumps and failed ones.
        """
        return {
            "inserts_only": [
                {"table": str(table), "reason": refusal.reason, "remedy": refusal.remedy}
                for table, refusal in sorted(self.watch.inserts_only.items())
            ],
            "left_out_columns": [
                {"table": str(table), **asdict(found)}
                for table, found in sorted(self.watch.left_out_columns.items())
            ],
            "looks_unanswered": self.watch.polls.summary(),
            "left_out": self.watch.scope.summary(),
            "waiting": self.watch.earlier_writers.summary(),
            "to_repeat": [again.summary() for again in self.to_repeat],
            "failed": [
                {"table": table, "reason": why}
                for table, why in islice(self.failed.items(), FAILED_SHOWN)
            ],
            "tables_failed": len(self.failed),
            "unlogged": self._unlogged_summary(),
            "renamed": self._names.renamed(),
        }

    def _unlogged_summary(self) -> list[dict[str, Any]]:
        waiting, dumps = self._unlogged(), _newest_first(self._coordinator.dumps())
        newest_first = sorted(self._causes().items(), key=lambda cause: -cause[1][2])
        return [
            {
                "table": table,
                "reason": reason,
                "remedy": remedy,
                "at_ms": at_ms,
                "dumped": table not in waiting and _is_dumped(dumps.get(table, [])),
            }
            for table, (reason, remedy, at_ms, _) in islice(newest_first, FAILED_SHOWN)
            if not self.watch.leaves_out(table)
        ]

    def begin(self) -> None:
        """Compare the choice of tables with the last one, and stop reading what is left out. Call
        it before the log and the first chunk are read.
        """
        self.watch.begin()
        left_out = self.watch.left_out_of(self._coordinator.to_read())
        if left_out:
            self._coordinator.leave_out(left_out)

    # ------------------------------------------------------------ called by the loop

    def on_schema(self, seen: SchemaSeen) -> None:
        """Queue a schema change; `request_due` requests the dump if one is due."""
        self._schemas_seen.append((seen, self._reached()))

    def on_unlogged(self, seen: Sequence[RowsUnlogged]) -> None:
        """Store the changes before the log is read on: otherwise a crash could leave a change
        durable and its dump forgotten.
        """
        now_ms = unix_ms()
        with self._lock:
            waiting, causes = dict(self._unlogged()), dict(self._causes())
            for each in seen:
                name = str(each.table)
                reason, xid = waiting.get(name, (each.reason, None))
                last = max((x for x in (xid, each.xid) if x is not None), default=None)
                waiting[name] = [reason, last]
                if each.remedy is None:
                    continue
                known, _, at_ms, since_ms = causes.get(name, ("", "", 0, now_ms))
                if known != each.reason or now_ms - at_ms >= CAUSE_STORED_EVERY_MS:
                    causes[name] = [each.reason, each.remedy, now_ms, since_ms]
            if waiting != self._unlogged():
                self._put_unlogged(waiting)
            if causes != self._causes():
                self._state.put(UNLOGGED_CAUSES_KEY, causes, None)
                self._known_causes = causes

    def on_relation(self, named: RelationNamed) -> None:
        """Note the tables that were written to under another name; they are dumped."""
        self.on_unlogged(self._names.find_wrong_rows(named))
        self._names.store_name(named)

    def on_renamed(self, seen: TableRenamed) -> None:
        """Note for status that a table got another name, or that its name is in use again."""
        self._names.note_renamed(seen)

    # ------------------------------------------------------------ maintenance

    def _report_gone(self, tables: Collection[str], captured: Collection[str]) -> None:
        """Report those of the tables that exist by another name, which is not captured."""
        numbers = self._names.relation_ids(tables)
        if not numbers:
            return
        for number, now in self._catalogue.names(list(numbers)).items():
            if str(now) not in {numbers[number], *captured}:
                self._names.note_renamed(TableRenamed(TableName.parse(numbers[number]), now))

    def request_due(self) -> None:
        """Request the dumps that are due. On SourceError, call it again later."""
        self._dump_unlogged()
        self._repeat_failed()
        waiting: list[tuple[SchemaSeen, int]] = []
        try:
            while self._schemas_seen:
                seen, reached = self._schemas_seen[0]
                before = any(one.schema.table == seen.schema.table for one, _ in waiting)
                if before or not self._judge(seen, reached):
                    waiting.append((seen, reached))
                self._schemas_seen.pop(0)
        finally:
            self._schemas_seen[:0] = waiting

    def _dump_unlogged(self) -> None:
        """Request a dump once the change is visible: a transaction is in the log before it is
        visible, and nothing in the log would supersede what a chunk read too early.
        """
        resting = self._resting()
        waiting = {name: each for name, each in self._unlogged().items() if name not in resting}
        if not waiting:
            return
        snapshot = self._snapshot() if any(xid is not None for _, xid in waiting.values()) else None
        for name, (reason, xid) in waiting.items():
            if xid is not None and (snapshot is None or not _sees(snapshot, xid)):
                continue
            table = TableName.parse(name)
            if self.watch.leaves_out(name):
                continue  # it is dumped once it is captured again
            if self._is_absent(table):
                if self.watch.is_new(table):
                    self._forget_unlogged(name, [reason, xid])
                continue
            failpoints.hit("unlogged.due")
            if self._covers(table, xid) or self._dump_if_settled(table, reason):
                failpoints.hit("unlogged.requested")
                self._forget_unlogged(name, [reason, xid])

    def _resting(self) -> set[str]:
        """Tables that it is too early to read again: the last of these dumps still reads them, or
        has just done so.
        """
        causes, waiting = self._causes(), self._unlogged()
        dumps = _newest_first(self._coordinator.dumps()) if waiting else {}
        now_ms = unix_ms()
        return {
            each
            for each in waiting
            if _is_being_read(dumps.get(each, []))
            or (
                _rests(dumps.get(each, []), causes[each][3], now_ms)
                if each in causes
                else _was_just_read(dumps.get(each, []), now_ms)
            )
        }

    def _repeat_failed(self) -> None:
        now = time.monotonic()
        if now < self._repeat_at:
            return
        dumps = self._coordinator.dumps()
        failed = last_failed(dumps)
        known = self.watch.known()
        self.failed = {table: why for table, why in failed.items() if table in known}
        self._repeat_at = now + (FAILED_EVERY_S if self.failed else REPEAT_EVERY_S)
        if not self._repeats:
            return
        reported = {(again.table, again.at_ms) for again in self.to_repeat}
        self.to_repeat = [again for again in dumps_to_repeat(dumps) if again.table in known]
        now_ms = unix_ms()
        for again in self.to_repeat:
            if (again.table, again.at_ms) not in reported:
                wait_s = max(0, again.at_ms - now_ms) // 1000
                logger.warning("%s is dumped again in %d s: %s", again.table, wait_s, again.failed)
            table = TableName.parse(again.table)
            try:
                if again.at_ms <= now_ms and not self._is_absent(table):
                    self._dump_if_settled(table, "the last dump failed")
            except (GapError, SourceChangedError, ConnectionLostError):
                raise
            except SourceError:
                continue  # it concerns this table only

    def _is_absent(self, table: TableName) -> bool:
        """Does the table not exist now? A renamed one may come back: its dump waits until the
        catalogue watch would dump it as new.
        """
        name, now = str(table), time.monotonic()
        if now < self._absent_until.get(name, 0.0):
            return True
        try:
            absent = self._catalogue.shape(table) is None
        except UnsupportedTableError:
            absent = False  # an unsupported table delays its own dump only
        if not absent:
            self._absent_until.pop(name, None)
            return False
        self._absent_until[name] = now + ABSENT_S
        return True

    def _forget_unlogged(self, name: str, dumped: list[Any]) -> None:
        """Forget the change as of ``dumped``; a later change of the table needs another dump."""
        with self._lock:
            waiting = self._unlogged()
            if waiting[name] == dumped:
                self._put_unlogged(
                    {table: entry for table, entry in waiting.items() if table != name}
                )

    def _judge(self, seen: SchemaSeen, reached: int) -> bool:
        """Request a dump if the schema change calls for one; False: not yet.

        The schema is compared with the version judged last, which is stored after the dump was
        requested: so neither a crash in between nor a chunk that met the earlier version hides the
        change. ``reached``: a position before the change in the log.
        """
        name, schema = str(seen.schema.table), seen.schema
        previous = seen.previous
        judged, dumped = (
            stored_entries(self._state, JUDGED_KEY).get(name),
            stored_entries(self._state, DUMPED_KEY).get(name),
        )
        if judged is not None:
            previous = TableSchema.from_json(judged)
        behind = dumped is not None and reached >= dumped[1]
        if dumped is not None:
            at_dump = TableSchema.from_json(dumped[0])
            # Of the earlier schemas, only this one is certainly no newer than the dump.
            if behind or at_dump.fingerprint == schema.fingerprint:
                previous = at_dump
        reason = None
        if previous is None or previous.fingerprint != schema.fingerprint:
            reason = changes_rows(SchemaSeen(schema, previous))
        if reason is not None and name in self._unlogged():
            return False
        if reason is not None and not self._dump_if_settled(schema.table, reason):
            return False
        self._put(JUDGED_KEY, name, schema.to_json())
        if reason is not None or behind:
            self._put(DUMPED_KEY, name, None)
        return True

    def _dump_differing(self, table: TableName, reason: str) -> bool:
        """Request a dump for the catalogue watch; False: not yet."""
        end = self._log_ends.setdefault(table, self._catalogue.position())
        deadline = time.monotonic() + LOG_WAIT_S
        while self._reached() < end:
            if time.monotonic() > deadline:
                return False
            time.sleep(TURN_S)
        pending = {seen.schema.table for seen, _ in self._schemas_seen}
        if table in pending or str(table) in self._unlogged():
            return False
        self._request(table, reason)
        return True

    # ------------------------------------------------------------ dumps

    def _covers(self, table: TableName, xid: int | None) -> bool:
        """Does an earlier requested dump of the table see the changes of transaction ``xid``?"""
        if xid is None or table not in self._asked:
            return False
        dump_id, snapshot = self._asked[table]
        progress = self._progress(dump_id, table)
        return (
            progress is not None
            and progress.status not in ("failed", "cancelled")
            and whole_table(progress)
            and _sees(snapshot, xid)
        )

    def _dump_if_settled(self, table: TableName, reason: str) -> bool:
        """Request a dump that also covers what the catalogue shows; False: not yet."""
        try:
            shape = self._catalogue.shape(table)
        except UnsupportedTableError:
            return False  # `status` shows it
        settled = shape is None or self.watch.is_settled(table, shape)
        now = time.monotonic()
        if not settled and now - self._waits_since.setdefault(table, now) < SETTLE_S:
            return False
        self._waits_since.pop(table, None)
        self._request(table, reason)
        if settled and shape is not None:
            self.watch.note_dump(table, shape)
        return True

    def _request(self, table: TableName, reason: str) -> None:
        """Queue a dump of the table, unless a queued one has not begun to read it."""
        snapshot, shape = self._snapshot(), self._catalogue.shape(table)
        end = self._catalogue.position()
        dump_id = self._coordinator.request_due(table, reason, unix_ms())
        logger.info("%s is dumped again: %s", table, reason)
        self._asked[table] = (dump_id, snapshot)
        self._log_ends.pop(table, None)
        if shape is not None:
            if shape.schema.relation_id:
                self._names.note_dump(table, shape.schema.relation_id)
            self._put(DUMPED_KEY, str(table), [shape.schema.to_json(), end])

    def _progress(self, dump_id: str, table: TableName) -> TableProgress | None:
        tables = [t for d in self._coordinator.dumps() if d.dump_id == dump_id for t in d.tables]
        return next((t for t in tables if t.table == str(table)), None)

    # ------------------------------------------------------------ state

    def _unlogged(self) -> dict[str, Any]:
        if self._known_unlogged is None:
            self._known_unlogged = stored_entries(self._state, UNLOGGED_KEY)
        return self._known_unlogged

    def _causes(self) -> dict[str, Any]:
        if self._known_causes is None:
            self._known_causes = stored_entries(self._state, UNLOGGED_CAUSES_KEY)
        return self._known_causes

    def _put_unlogged(self, waiting: dict[str, Any]) -> None:
        self._state.put(UNLOGGED_KEY, waiting, None)
        self._known_unlogged = waiting

    def _put(self, key: str, name: str, value: Any) -> None:
        """Store a table's value; None removes it."""
        stored = stored_entries(self._state, key)
        if stored.get(name) != value:
            stored[name] = value
            known = {name: value for name, value in stored.items() if value is not None}
            self._state.put(key, known, None)


def _sees(snapshot: Snapshot, xid: int) -> bool:
    return bool(snapshot.visible(np.array([xid], dtype=np.int64))[0])
