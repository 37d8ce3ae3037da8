"""Notices what changes rows without row events, and tables that are new.

ADD COLUMN with a default, rewrites, attached or detached partitions and a truncate of a partition
change a table's rows, but the log says nothing of it (DESIGN.md §4). The catalogue does: what it
says of the table's storage is compared with what is stored, and a difference asks for a dump of the
table. The fingerprints are stored, so that changes made while capture was down count too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tidelog.model.records import Snapshot
from tidelog.model.schema import TableName, TableSchema
from tidelog.ports import Catalogue, SchemaSeen, StateStore, TableShape

SHAPES_KEY = "table-shapes"

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
        publish: brings the publication in step with the patterns and tells what it added; called
            before tables are judged.
        snapshot: takes a snapshot of now.
        request_dump: called with a table and why; must be safe to call twice. False: not now; the
            difference is looked at again.
        dump_new: whether tables that are new get a dump.
    """

    def __init__(
        self,
        catalogue: Catalogue,
        state: StateStore,
        patterns: Sequence[str],
        *,
        publish: Callable[[], Sequence[TableName]],
        snapshot: Callable[[], Snapshot],
        request_dump: Callable[[TableName, str], bool],
        dump_new: bool,
    ) -> None:
        self._catalogue = catalogue
        self._state = state
        self._patterns = patterns
        self._publish = publish
        self._snapshot = snapshot
        self._request_dump = request_dump
        self._dump_new = dump_new
        self._waiting: dict[str, tuple[str, Snapshot]] = {}

    def begin(self) -> None:
        """Store what the tables are like now, if nothing is stored. Must precede the first dump:
        what changes later is then noticed, also while the dump runs.
        """
        if self._state.get(SHAPES_KEY) is None:
            added = set(self._publish())  # these count as new: `look` waits for their writers
            tables = [t for t in self._catalogue.tables(self._patterns) if t not in added]
            shapes = {table: self._catalogue.shape(table) for table in tables}
            found = {str(t): _fingerprint(shape) for t, shape in shapes.items() if shape}
            self._state.put(SHAPES_KEY, found, None)

    def look(self) -> list[TableName]:
        """Compare once; the tables whose dump was asked for."""
        self.begin()
        stored = self._known()
        known = dict(stored)
        tables = self._catalogue.tables(self._patterns)
        for table in self._publish():
            if str(table) in known:  # it was not published, or not whole, for a while
                known[str(table)] = _UNKNOWN
        current: dict[str, str] = {}
        asked: list[TableName] = []
        for table in tables:
            shape = self._catalogue.shape(table)
            if shape is None:
                continue
            name = str(table)
            found = _fingerprint(shape)
            new = name not in known
            if (new and not self._dump_new) or not (new or self._differ(known[name], found)):
                current[name] = found
                self._waiting.pop(name, None)
            elif self._settled(name, found):
                reason = (
                    "the table is new" if new else "its rows may have changed without row events"
                )
                if not shape.schema.key or self._request_dump(table, reason):
                    if shape.schema.key:
                        asked.append(table)
                    current[name] = found
                    self._waiting.pop(name, None)
                elif not new:
                    current[name] = known[name]
            elif not new:
                current[name] = known[name]
        if current != stored:
            self._state.put(SHAPES_KEY, current, None)
        return asked

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
        self._waiting.pop(name, None)
        if known.get(name) != _fingerprint(shape):
            self._state.put(SHAPES_KEY, {**known, name: _fingerprint(shape)}, None)

    def _known(self) -> dict[str, str]:
        stored = self._state.get(SHAPES_KEY)
        return {} if stored is None else dict(stored.value)

    def _differ(self, known: str, found: str) -> bool:
        storage, _, key = known.partition(" ")
        storage_now, _, key_now = found.partition(" ")
        return key != key_now or self._catalogue.rows_may_differ(storage, storage_now)

    def _settled(self, name: str, found: str) -> bool:
        """Have all transactions ended that ran when the difference was first seen?"""
        waiting = self._waiting.get(name)
        if waiting is None or waiting[0] != found:
            self._waiting[name] = (found, self._snapshot())
            return False
        return self._snapshot().follows(waiting[1])


def _fingerprint(shape: TableShape) -> str:
    return f"{shape.storage} {','.join(shape.schema.match_key)}"


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
