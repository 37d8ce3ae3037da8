"""Compares the catalogue with a stored fingerprint to find changed rows that the log does not show.

ADD COLUMN with a default, rewrites, attached or detached partitions and a truncate of a partition
change a table's rows without row events (docs/explanation/schema-changes.md). The catalogue shows
them: a difference between a table's storage now and its stored fingerprint requests a dump. The
fingerprints are stored, so changes made while capture was down count too. New tables, and tables
that were not captured for a while, are dumped too.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tidelog.capture.capture_scope import CaptureScope
from tidelog.capture.source_monitor import UnansweredRequests
from tidelog.capture.unsupported_tables import UnsupportedTables
from tidelog.errors import SourceError, TidelogError
from tidelog.model.patterns import matches
from tidelog.model.records import Snapshot
from tidelog.model.schema import TableName, TableSchema
from tidelog.ports import (
    Catalogue,
    LeftOutColumns,
    Published,
    SchemaSeen,
    StateStore,
    TableShape,
    UnsupportedReason,
)
from tidelog.system.processes import unix_ms

logger = logging.getLogger(__name__)

REPORT_AFTER_S = 30.0
"""A longer wait is logged, once for each change of a table."""


@dataclass(slots=True)
class _Wait:
    fingerprint: str
    snapshot: Snapshot
    began: float
    since_ms: int
    reported: bool = False


class TransactionWait:
    """Delays a table's dump until older transactions have ended. Used by one thread, except
    `summary`.

    Args:
        snapshot: returns a current snapshot.
        who_is_open: returns a sentence about the oldest open transactions, without values; empty if
            not known.
    """

    def __init__(self, snapshot: Callable[[], Snapshot], who_is_open: Callable[[], str]) -> None:
        self._snapshot = snapshot
        self._who_is_open = who_is_open
        self._waits: dict[str, _Wait] = {}

    def have_ended(self, table: str, fingerprint: str) -> bool:
        """Have all transactions ended that ran when the table was first seen like this? Poll it."""
        wait = self._waits.get(table)
        if wait is None or wait.fingerprint != fingerprint:
            now_ms = unix_ms()
            self._waits[table] = _Wait(fingerprint, self._snapshot(), time.monotonic(), now_ms)
            return False
        if self._snapshot().follows(wait.snapshot):
            return True
        if not wait.reported and time.monotonic() - wait.began > REPORT_AFTER_S:
            wait.reported = True
            logger.warning("%s: %s", table, self._reason())
        return False

    def is_waiting(self, table: str) -> bool:
        return table in self._waits

    def forget(self, table: str) -> None:
        """End the wait: the table's dump was requested or is not needed."""
        self._waits.pop(table, None)

    def keep_only(self, tables: Collection[str]) -> None:
        """Forget all other tables: they no longer exist."""
        for table in self._waits.keys() - tables:
            del self._waits[table]

    def summary(self) -> list[dict[str, Any]]:
        """For status: tables whose wait was logged. Callable from any thread."""
        return [
            {"table": table, "since_ms": wait.since_ms}
            for table, wait in sorted(self._waits.copy().items())
            if wait.reported
        ]

    def _reason(self) -> str:
        reason = "its dump waits until all transactions have ended that ran before"
        try:
            open_now = self._who_is_open()
        except TidelogError:
            open_now = ""
        return f"{reason}. {open_now}" if open_now else reason


SHAPES_KEY = "table-shapes"
VERSIONS_KEY = "table-versions"
"""What `Catalogue.versions` gave of each table before its shape was judged."""
WHOLE_EVERY_S = 600.0
"""Seconds between two comparisons of everything, whatever the catalogue's stamp says: a role's
rights may have changed.
"""

MAX_MISSING = 10_000
"""Number of names of tables that do not exist which are remembered."""

UNSEEN = "the account may no longer see it"
_UNKNOWN = ""  # a fingerprint that differs from any other
_NOT_READ = "?"  # older than the log, but unsupported: its state of then needs no dump


class CatalogueWatch:
    """Compares the catalogue with the stored fingerprints. Used by one thread.

    A dump is requested only once every transaction has ended that ran when the change was seen:
    PostgreSQL publishes no change that a transaction made before its table joined the publication,
    so a chunk read earlier could miss rows that the log will never show.

    Args:
        catalogue: the source's.
        state: store of the fingerprints.
        patterns: the tables that are captured.
        unsupported: registry of the tables that can't be captured or dumped as they are.
        publish: updates the publication to match the patterns; called before tables are compared.
        snapshot: returns a current snapshot.
        request_dump: called with a table and a reason; must be idempotent. Returns False if not
            now: the difference is checked again.
        dump_new: whether new tables get a dump. Without it only those get one whose first rows the
            log may not have, see `tidelog.ports.Published.holds_new_tables`.
        who_is_open: see `TransactionWait`.
        scope: the tables captured before; None: a scope without notifications.
    """

    def __init__(
        self,
        catalogue: Catalogue,
        state: StateStore,
        patterns: Sequence[str],
        *,
        unsupported: UnsupportedTables,
        publish: Callable[[], Published],
        snapshot: Callable[[], Snapshot],
        request_dump: Callable[[TableName, str], bool],
        dump_new: bool,
        who_is_open: Callable[[], str] = lambda: "",
        scope: CaptureScope | None = None,
    ) -> None:
        self._catalogue = catalogue
        self._state = state
        self._patterns = patterns
        self._unsupported = unsupported
        self._publish = publish
        self._request_dump = request_dump
        self._dump_new = dump_new
        self._log_holds_new = False
        self.scope = scope or CaptureScope(catalogue, state, patterns)
        self.earlier_writers = TransactionWait(snapshot, who_is_open)
        self.on_relations: Callable[[Mapping[str, int], Collection[str]], None] = (
            lambda relations, captured: None
        )
        """Called with the relation numbers of the compared tables, by table, and the names of all
        captured tables.
        """
        self.on_gone: Callable[[Collection[str], Collection[str]], None] = lambda gone, captured: (
            None
        )
        """Called with tables of the last comparison that are not captured by their name now, and
        with the names of all captured tables.
        """
        self.on_present: Callable[[Collection[str]], None] = lambda tables: None
        """Called with all existing tables, if any other table would be dumped as new."""
        self.inserts_only: Mapping[TableName, UnsupportedReason] = {}
        """Tables whose updates and deletes could not be published at the last comparison."""
        self.left_out_columns: Mapping[TableName, LeftOutColumns] = {}
        """Columns that the log did not have at the last comparison."""
        self.polls = UnansweredRequests()
        self._begun = False
        self._captured: Collection[str] = ()
        self._versions: Mapping[TableName, str] = {}
        self._kept: dict[str, str] | None = None
        self._stamp: str | None = None
        self._whole_at = 0.0

    def begin(self) -> None:
        """Store the fingerprints, if none are stored, and the tables left out from now on. Call it
        before the first dump and before the log is read: later changes are then noticed, also
        during the dump.
        """
        if self._begun:
            return
        if self._state.get(SHAPES_KEY) is None:
            self.scope.begin()
            added = set(self._published())  # these count as new: `poll` waits for their writers
            versions = self._catalogue.versions(self._patterns)
            self._accept({t: version for t, version in versions.items() if t not in added})
        else:
            known = self._known()
            change = self.scope.store_choice(known.keys())
            if change is not None:
                known = {
                    n: fingerprint
                    for n, fingerprint in known.items()
                    if not self.scope.is_left_out(n)
                }
                # The next comparison judges the tables that are published again.
                if not self._dump_new:
                    again = {str(table) for table in self._published()}
                    known |= dict.fromkeys(again & known.keys(), _UNKNOWN)
                self._keep(known)
                if not self._dump_new:
                    self._accept({t: change.captured[t] for t in change.never_captured})
        self._begun = True

    def _accept(self, versions: Mapping[TableName, str]) -> None:
        """Store the fingerprints of these tables: their rows of now are no change."""
        shapes = self._shapes(list(versions))
        fingerprints = {
            str(t): _fingerprint(shape)
            for t, shape in shapes.items()
            if self._unsupported.find_reason(t) is None
        }
        self._report_relations(shapes.values())
        stored = {str(t): version for t, version in versions.items() if str(t) in fingerprints}
        if not self._dump_new:
            fingerprints |= {str(t): _NOT_READ for t in versions if t not in shapes}
        self._keep({**self._known(), **fingerprints})
        self._state.put(VERSIONS_KEY, {**stored_entries(self._state, VERSIONS_KEY), **stored}, None)

    def poll(self) -> list[TableName]:
        """Compare once; returns the tables whose dump was requested. If the catalogue's stamp is
        the same as at the last comparison, nothing else is read.
        """
        try:
            requested = self._poll()
        except SourceError as error:
            self.polls.failed(error)
            raise
        self.polls.answered()
        return requested

    def _poll(self) -> list[TableName]:
        self.begin()
        stamp, now = self._catalogue.stamp(), time.monotonic()
        fresh = stamp is not None and stamp == self._stamp
        if fresh and now < self._whole_at + WHOLE_EVERY_S and not self._unsupported.any_left:
            return []
        self._stamp = None
        requested, complete = self._compare()
        if complete:
            self._stamp, self._whole_at = stamp, now
        return requested

    def _compare(self) -> tuple[list[TableName], bool]:
        """Compare every table; returns the requested dumps, and whether no other is still due."""
        stored, judged = self._known(), stored_entries(self._state, VERSIONS_KEY)
        known = dict(stored)
        versions = self._catalogue.versions(self._patterns)
        self._captured = {str(table) for table in versions}
        for table in self._published():
            if str(table) in known:  # for a while it was not published, or only in part
                known[str(table)] = _UNKNOWN
        current = {} if self._dump_new else self._missing(stored, versions)
        current_versions: dict[str, str] = {}
        requested: list[TableName] = []
        unseen = self._note_unseen(stored, current)
        self._unsupported.keep_only([*versions, *unseen])
        self.earlier_writers.keep_only(self._captured)
        before, self._versions = self._versions, versions
        self._unsupported.retry_due({str(t) for t in versions if before.get(t) != versions[t]})
        unjudged = {
            table: None
            for table, version in versions.items()
            if not self._is_judged(table, known, judged.get(str(table)) == version)
        }
        shapes = self._shapes(list(unjudged))
        complete = True
        for table, version in versions.items():
            name, shape = str(table), shapes.get(table)
            if table not in unjudged:
                current[name], current_versions[name] = known[name], version
                continue
            if self._unsupported.find_reason(table) is not None:
                complete = False
                if name in known:
                    current[name] = known[name]
                continue
            if shape is None:
                continue
            fingerprint = _fingerprint(shape)
            new, is_owed = name not in known, self._unsupported.needs_dump(table)
            left_out = self.scope.is_left_out(name)
            if not (is_owed or left_out) and not self._is_due(known.get(name), fingerprint):
                current[name], current_versions[name] = fingerprint, version
                self.earlier_writers.forget(name)
                continue
            if left_out:
                reason = self.scope.reason(name)
            elif is_owed:
                reason = "it could not be captured or dumped before"
            elif new:
                reason = "the table is new"
                if not self._dump_new:
                    reason += ", and the log may lack its first rows"
            else:
                reason = "its rows may have changed without row events"
            if self._is_settled(name, fingerprint) and self._request_dump(table, reason):
                requested.append(table)
                self._unsupported.dump_requested(table)
                current[name], current_versions[name] = fingerprint, version
                self.earlier_writers.forget(name)
                continue
            complete = False
            if not new:
                current[name] = known[name]
        self._report_relations(shapes.values())
        seen = {*self._captured, *map(str, unseen)}
        if gone := [name for name in stored if name not in seen]:
            self.on_gone(gone, self._captured)
        if self._dump_new:
            self.on_present(self._captured)
        if current != stored:
            self._keep(current)
        self.scope.note_dumps([str(table) for table in requested])
        if current_versions != judged:  # last: a stored version must not be newer than its shape
            self._state.put(VERSIONS_KEY, current_versions, None)
        return requested, complete

    def _note_unseen(
        self, stored: Mapping[str, str], current: dict[str, str]
    ) -> Collection[TableName]:
        """Report the known tables that the account may no longer see, and keep them in ``current``:
        the log is decoded without their columns, so each is owed a dump. Returns them.
        """
        gone = [TableName.parse(name) for name in stored if name not in self._captured]
        unseen = self._catalogue.unseen(gone, self._patterns, self._state)
        why = {table: UnsupportedReason(UNSEEN, grant) for table, grant in unseen.items()}
        self._unsupported.set_all("rights", why)
        for table in unseen:
            current[str(table)] = stored[str(table)]
            self._unsupported.require_dump(table)
        return unseen

    def _is_due(self, known: str | None, fingerprint: str) -> bool:
        """Is a dump due for ``fingerprint``? ``known``: the stored one; None: a new table."""
        if known is None:
            return self._dumps_new
        return known != _NOT_READ and self._differ(known, fingerprint)

    @property
    def _dumps_new(self) -> bool:
        """Does a new table get a dump, by configuration or because the log may lack its rows?"""
        return self._dump_new or not self._log_holds_new

    def _missing(self, stored: Mapping[str, str], there: Mapping[TableName, str]) -> dict[str, str]:
        """Known tables that do not exist now. The log may not show what happens to their rows in
        the meantime, so they are dumped when they exist again, even if new tables are not.
        """
        names = {str(table) for table in there}
        missing = [name for name in stored if name not in names]
        return dict.fromkeys(missing[-MAX_MISSING:], _UNKNOWN)

    def _is_judged(self, table: TableName, known: Mapping[str, str], same_version: bool) -> bool:
        """Was the table compared in this version, with nothing left to do for it?"""
        return (
            same_version
            and known.get(str(table), _UNKNOWN) not in (_UNKNOWN, _NOT_READ)
            and not self.scope.is_left_out(str(table))
            and not self.earlier_writers.is_waiting(str(table))
            and self._unsupported.find_reason(table) is None
            and not self._unsupported.needs_dump(table)
        )

    def _report_relations(self, shapes: Iterable[TableShape]) -> None:
        numbers = {
            str(s.schema.table): s.schema.relation_id for s in shapes if s.schema.relation_id
        }
        if numbers:
            self.on_relations(numbers, self._captured)

    def is_new(self, table: TableName) -> bool:
        """Would the table be dumped as a new one if it existed?"""
        return self._dumps_new and str(table) not in self._known()

    def left_out_of(self, tables: Collection[str]) -> list[str]:
        """Those of the tables that are not captured now. One that does not exist may be captured
        once it does.
        """
        if not tables:
            return []
        captured = {str(table) for table in self._catalogue.tables(self._patterns)}
        there = {str(table) for table in self._catalogue.tables(["*"])}
        return [
            name
            for name in tables
            if name not in captured
            and (name in there or not matches(self._patterns, TableName.parse(name)))
        ]

    def leaves_out(self, table: str) -> bool:
        """Was the table captured once and not at the last comparison?"""
        return self.scope.is_left_out(table) and table not in self._captured

    def known(self) -> Collection[str]:
        """The tables that existed at the last comparison."""
        return self._last_known().keys()

    def is_settled(self, table: TableName, shape: TableShape) -> bool:
        """Would a dump that begins now cover everything that the catalogue shows of the table?
        False while transactions run that may have begun before the change: poll it.
        """
        known, name, fingerprint = self._known(), str(table), _fingerprint(shape)
        if name in known and not self._differ(known[name], fingerprint):
            return True
        return self._is_settled(name, fingerprint)

    def note_dump(self, table: TableName, shape: TableShape) -> None:
        """Note that a dump was requested after ``shape`` was read and found settled."""
        known, name = self._known(), str(table)
        self.earlier_writers.forget(name)
        if known.get(name) != _fingerprint(shape):
            self._keep({**known, name: _fingerprint(shape)})
        self.scope.note_dumps([name])

    def _published(self) -> Sequence[TableName]:
        published = self._publish()
        self._unsupported.set_all("publication", published.refused)
        self.inserts_only = published.inserts_only
        self.left_out_columns = published.left_out_columns
        self._log_holds_new = published.holds_new_tables
        return published.added

    def _shapes(self, tables: Sequence[TableName]) -> dict[TableName, TableShape]:
        """The catalogue's shape of each table; unsupported ones are reported."""
        shapes: dict[TableName, TableShape] = {}
        refused: dict[TableName, UnsupportedReason] = {}
        for table, found in self._catalogue.shapes(tables).items():
            if isinstance(found, UnsupportedReason):
                refused[table] = found
            else:
                shapes[table] = found
                self._unsupported.resolve("log", table)
        self._unsupported.set_all("catalogue", refused)
        return shapes

    def _known(self) -> dict[str, str]:
        self._kept = stored_entries(self._state, SHAPES_KEY)
        return dict(self._kept)

    def _last_known(self) -> Mapping[str, str]:
        """As `_known`, but cached: only the leader writes it."""
        return self._known() if self._kept is None else self._kept

    def _keep(self, shapes: dict[str, str]) -> None:
        self._state.put(SHAPES_KEY, shapes, None)
        self._kept = shapes

    def _differ(self, known: str, fingerprint: str) -> bool:
        storage, _, key = known.partition(" ")
        storage_now, _, key_now = fingerprint.partition(" ")
        return key != key_now or self._catalogue.rows_may_differ(storage, storage_now)

    def _is_settled(self, name: str, fingerprint: str) -> bool:
        return self.earlier_writers.have_ended(name, fingerprint)


def stored_entries(state: StateStore, key: str) -> dict[str, Any]:
    """Return a copy of a stored document; empty if there is none."""
    stored = state.get(key)
    return {} if stored is None else dict(stored.value)


def _fingerprint(shape: TableShape) -> str:
    return f"{shape.storage} {','.join(shape.schema.match_key)}"


def changes_rows(seen: SchemaSeen) -> str | None:
    """Why a schema change calls for a dump of the table; None if it does not.

    Dropped columns and added ones that are NULL everywhere need none. `CatalogueWatch` finds
    rewrites and added columns with a default.
    """
    previous, schema = seen.previous, seen.schema
    if previous is None or previous.schema_id == schema.schema_id:
        return None
    if previous.match_key != schema.match_key:
        return "the key that rows are matched by changed"
    before = {column.name: column for column in previous.columns}
    added = [column for column in schema.columns if column.name not in before]
    if added and _dropped(previous, schema):
        return "columns were renamed, or dropped and added"
    excluded = {each.column.name for each in previous.excluded}
    if any(column.name in excluded for column in added):
        return "columns are no longer excluded"
    if any(c.name in before and before[c.name].logical != c.logical for c in schema.columns):
        return "a column's type changed"
    structures = dict(schema.structures)
    names = schema.column_names
    if any(name in names and structures.get(name) != was for name, was in previous.structures):
        return "attributes of a composite type changed"
    return None


def _dropped(previous: TableSchema, schema: TableSchema) -> bool:
    names = schema.whole.column_names
    return any(name not in names for name in previous.whole.column_names)
