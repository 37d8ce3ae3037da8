"""Notices what changes rows without row events, and tables that are new.

ADD COLUMN with a default, rewrites, attached or detached partitions and a truncate of a partition
change a table's rows, but the log says nothing of it (docs/explanation/schema-changes.md).
The catalogue does: what it says of the table's storage is compared with what is stored, and a
difference asks for a dump of the table. The fingerprints are stored, so that changes made while
capture was down count too.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from tidelog.capture.catalogue.earlier_writers import EarlierWriters
from tidelog.capture.catalogue.refused_tables import RefusedTables
from tidelog.errors import TableRefusedError
from tidelog.model.records import Snapshot
from tidelog.model.schema import TableName, TableSchema
from tidelog.ports import (
    Catalogue,
    Published,
    Refusal,
    SchemaSeen,
    StateStore,
    TableShape,
)

SHAPES_KEY = "table-shapes"
VERSIONS_KEY = "table-versions"
"""What `Catalogue.versions` gave of each table before its shape was judged."""
WHOLE_EVERY_S = 600.0
"""Seconds between two comparisons of everything, whatever the catalogue's stamp says: a role's
rights may have changed.
"""

MAX_AWAY = 10_000
"""How many names of tables that do not exist are remembered."""

_UNKNOWN = ""  # a fingerprint that any other differs from


class CatalogueWatch:
    """Compares the catalogue with what was stored. Used by one thread.

    A dump is asked for only once every transaction has ended that ran when the change was seen:
    PostgreSQL publishes no change that a transaction made before its table joined the publication,
    so a chunk read earlier could miss what the log will never show.

    Args:
        catalogue: of the source.
        state: keeps the fingerprints.
        patterns: the tables that are captured.
        refused: told which tables can't be captured or dumped as they are; these wait.
        publish: brings the publication in step with the patterns; called before tables are judged.
        snapshot: takes a snapshot of now.
        request_dump: called with a table and why; must be safe to call twice. False: not now; the
            difference is looked at again.
        dump_new: whether tables that are new get a dump.
        who_is_open: see `EarlierWriters`.
    """

    def __init__(
        self,
        catalogue: Catalogue,
        state: StateStore,
        patterns: Sequence[str],
        *,
        refused: RefusedTables,
        publish: Callable[[], Published],
        snapshot: Callable[[], Snapshot],
        request_dump: Callable[[TableName, str], bool],
        dump_new: bool,
        who_is_open: Callable[[], str] = lambda: "",
    ) -> None:
        self._catalogue = catalogue
        self._state = state
        self._patterns = patterns
        self._refused = refused
        self._publish = publish
        self._request_dump = request_dump
        self._dump_new = dump_new
        self.earlier_writers = EarlierWriters(snapshot, who_is_open)
        self.on_relations: Callable[[Mapping[str, int]], None] = lambda relations: None
        """Called with the relation numbers of tables whose shapes were judged, by table."""
        self.on_present: Callable[[Collection[str]], None] = lambda tables: None
        """Called with all existing tables, where any other table would be dumped as new."""
        self.inserts_only: Mapping[TableName, Refusal] = {}
        """At the last look: tables whose updates and deletes can't be published."""
        self._begun = False
        self._kept: dict[str, str] | None = None
        self._stamp: str | None = None
        self._whole_at = 0.0

    def begin(self) -> None:
        """Store what the tables are like now, if nothing is stored. Must precede the first dump:
        what changes later is then noticed, also while the dump runs.
        """
        if self._begun:
            return
        if self._state.get(SHAPES_KEY) is None:
            added = set(self._published())  # these count as new: `look` waits for their writers
            versions = self._catalogue.versions(self._patterns)
            shapes = self._shapes([t for t in versions if t not in added])
            found = {
                str(t): _fingerprint(shape)
                for t, shape in shapes.items()
                if self._refused.of(t) is None
            }
            self._learn(shapes.values())
            self._keep(found)
            stored = {str(t): v for t, v in versions.items() if str(t) in found}
            self._state.put(VERSIONS_KEY, stored, None)
        self._begun = True

    def look(self) -> list[TableName]:
        """Compare once; the tables whose dump was asked for.

        If the catalogue bears the stamp that it had before the last look, nothing else is read.
        """
        self.begin()
        stamp, now = self._catalogue.stamp(), time.monotonic()
        fresh = stamp is not None and stamp == self._stamp
        if fresh and now < self._whole_at + WHOLE_EVERY_S and not self._refused.any_left:
            return []
        self._stamp = None
        asked, complete = self._compare()
        if complete:
            self._stamp, self._whole_at = stamp, now
        return asked

    def _compare(self) -> tuple[list[TableName], bool]:
        """Compare every table; the dumps asked for, and whether nothing is left to be asked for."""
        stored, judged = self._known(), self._stored(VERSIONS_KEY)
        known = dict(stored)
        versions = self._catalogue.versions(self._patterns)
        for table in self._published():
            if str(table) in known:  # it was not published, or not whole, for a while
                known[str(table)] = _UNKNOWN
        current = {} if self._dump_new else self._away(stored, versions)
        current_versions: dict[str, str] = {}
        asked: list[TableName] = []
        self._refused.keep(list(versions))
        self.earlier_writers.keep({str(table) for table in versions})
        self._refused.retry_due()
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
            if self._refused.of(table) is not None:
                complete = False
                if name in known:
                    current[name] = known[name]
                continue
            if shape is None:
                continue
            found = _fingerprint(shape)
            new, owed = name not in known, self._refused.owed(table)
            if not owed and (
                (new and not self._dump_new) or not (new or self._differ(known[name], found))
            ):
                current[name], current_versions[name] = found, version
                self.earlier_writers.forget(name)
                continue
            if owed:
                reason = "it could not be captured or dumped before"
            elif new:
                reason = "the table is new"
            else:
                reason = "its rows may have changed without row events"
            # The dump of a new table without a key fails, which says that it can't be dumped.
            wanted = new or bool(shape.schema.key)
            if self._settled(name, found) and (not wanted or self._request_dump(table, reason)):
                if wanted:
                    asked.append(table)
                    self._refused.paid(table)
                current[name], current_versions[name] = found, version
                self.earlier_writers.forget(name)
                continue
            complete = False
            if not new:
                current[name] = known[name]
        self._learn(shapes.values())
        if self._dump_new:
            self.on_present({str(table) for table in versions})
        if current != stored:
            self._keep(current)
        if current_versions != judged:  # last: a version must not outrun what was judged
            self._state.put(VERSIONS_KEY, current_versions, None)
        return asked, complete

    def _away(self, stored: Mapping[str, str], there: Mapping[TableName, str]) -> dict[str, str]:
        """Tables that were known and are not there: what becomes of their rows meanwhile is in no
        log, so they are dumped once they are back, though new ones are not.
        """
        names = {str(table) for table in there}
        away = [name for name in stored if name not in names]
        return dict.fromkeys(away[-MAX_AWAY:], _UNKNOWN)

    def _is_judged(self, table: TableName, known: Mapping[str, str], same_version: bool) -> bool:
        """Was the table judged as it is now, with nothing left to do for it?"""
        return (
            same_version
            and known.get(str(table), _UNKNOWN) != _UNKNOWN
            and not self.earlier_writers.waits(str(table))
            and self._refused.of(table) is None
            and not self._refused.owed(table)
        )

    def _learn(self, shapes: Iterable[TableShape]) -> None:
        numbers = {
            str(s.schema.table): s.schema.relation_id for s in shapes if s.schema.relation_id
        }
        if numbers:
            self.on_relations(numbers)

    def is_new(self, table: TableName) -> bool:
        """Would the table be dumped as a new one, if it were there?"""
        return self._dump_new and str(table) not in self._known()

    def known(self) -> Collection[str]:
        """The tables that were there at the last look."""
        return self._last_known().keys()

    def undumpable(self) -> set[str]:
        """The tables without a key, where every table gets a dump."""
        known = self._last_known().items() if self._dump_new else ()
        return {name for name, found in known if found != _UNKNOWN and found.endswith(" ")}

    def settled(self, table: TableName, shape: TableShape) -> bool:
        """Would a dump that begins now make good whatever the catalogue shows of the table?

        False: transactions run that may have begun before; then it is to be asked again.
        """
        known, name, found = self._known(), str(table), _fingerprint(shape)
        if name in known and not self._differ(known[name], found):
            return True
        return self._settled(name, found)

    def dumped(self, table: TableName, shape: TableShape) -> None:
        """A dump of the table was asked for after ``shape`` was read, and was `settled`."""
        known, name = self._known(), str(table)
        self.earlier_writers.forget(name)
        if known.get(name) != _fingerprint(shape):
            self._keep({**known, name: _fingerprint(shape)})

    def _published(self) -> Sequence[TableName]:
        published = self._publish()
        self._refused.hold("publication", published.refused)
        self.inserts_only = published.inserts_only
        return published.added

    def _shapes(self, tables: Sequence[TableName]) -> dict[TableName, TableShape]:
        """What the catalogue says of each; those that it refuses are noted."""
        shapes: dict[TableName, TableShape] = {}
        refused: dict[TableName, Refusal] = {}
        for table in tables:
            try:
                shape = self._catalogue.shape(table)
            except TableRefusedError as error:
                refused[table] = Refusal(error.reason, error.remedy)
            else:
                if shape is not None:
                    shapes[table] = shape
                    self._refused.mend("log", table)
        self._refused.hold("catalogue", refused)
        return shapes

    def _known(self) -> dict[str, str]:
        self._kept = self._stored(SHAPES_KEY)
        return dict(self._kept)

    def _last_known(self) -> Mapping[str, str]:
        """As `_known`, without a request to the store: only the leader writes it."""
        return self._known() if self._kept is None else self._kept

    def _keep(self, shapes: dict[str, str]) -> None:
        self._state.put(SHAPES_KEY, shapes, None)
        self._kept = shapes

    def _stored(self, key: str) -> dict[str, str]:
        stored = self._state.get(key)
        return {} if stored is None else dict(stored.value)

    def _differ(self, known: str, found: str) -> bool:
        storage, _, key = known.partition(" ")
        storage_now, _, key_now = found.partition(" ")
        return key != key_now or self._catalogue.rows_may_differ(storage, storage_now)

    def _settled(self, name: str, found: str) -> bool:
        return self.earlier_writers.have_ended(name, found)


def _fingerprint(shape: TableShape) -> str:
    # By an identity's index alone rows are matched but not dumped: a key may come to it later.
    key = shape.schema.match_key if shape.schema.key else ()
    return f"{shape.storage} {','.join(key)}"


def changes_rows(seen: SchemaSeen) -> str | None:
    """Why a schema change calls for a dump of the table; None if it does not.

    Dropped columns and added ones that are NULL everywhere need none; whether an added column has a
    default is the catalogue's to say (`CatalogueWatch`), as are rewrites.
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
    if any(c.name in before and before[c.name].logical != c.logical for c in schema.columns):
        return "a column's type changed"
    return None


def _dropped(previous: TableSchema, schema: TableSchema) -> bool:
    return any(name not in schema.column_names for name in previous.column_names)
