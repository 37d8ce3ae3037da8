"""What an Iceberg table's metadata say, and commits that fail if they changed before.

By Iceberg's Java classes, which Spark has loaded: SQL has no statement that moves a branch and sets
properties in one commit. Only public methods are used (`TableOperations`, `TableMetadata.Builder`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from py4j.protocol import Py4JJavaError

from tidelog.errors import OutputBusyError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MAIN = "main"
_COMMIT_FAILED = "org.apache.iceberg.exceptions.CommitFailedException"


class IcebergCatalog:
    """A catalog that ``spark`` knows by ``name``."""

    def __init__(self, spark: SparkSession, name: str) -> None:
        self.name = name
        self._jvm: Any = cast(Any, spark._jvm)
        self._gateway = cast(Any, spark.sparkContext._gateway)
        session = cast(Any, spark._jsparkSession)
        sessions = self._jvm.org.apache.spark.sql.classic.SparkSession
        before = sessions.getActiveSession()
        sessions.setActiveSession(session)  # whose settings say what the catalog is
        try:
            find = self._jvm.org.apache.iceberg.spark.Spark3Util.loadIcebergCatalog
            self._catalog = find(session, name)
        finally:
            if before.isDefined():
                sessions.setActiveSession(before.get())

    def load(self, parts: Sequence[str]) -> IcebergState | None:
        """The table of this namespace and name; None if there is none."""
        names = self._gateway.new_array(self._jvm.String, len(parts))
        for index, part in enumerate(parts):
            names[index] = part
        identifier = self._jvm.org.apache.iceberg.catalog.TableIdentifier.of(names)
        if not self._catalog.tableExists(identifier):
            return None
        return IcebergState(self._jvm, self._catalog.loadTable(identifier))


class IcebergState:
    """A table as it was when it was read last; used by one thread at a time."""

    def __init__(self, jvm: Any, table: Any) -> None:
        self._jvm = jvm
        self._table = table
        self._operations = table.operations()
        self._base = self._operations.refresh()

    def refresh(self) -> None:
        """Read it again."""
        self._base = self._operations.refresh()

    def property(self, name: str) -> str | None:
        found = self._base.properties().get(name)
        return None if found is None else str(found)

    def properties(self, prefix: str) -> dict[str, str]:
        """The properties whose names begin with ``prefix``."""
        return {n: v for n, v in dict(self._base.properties()).items() if n.startswith(prefix)}

    def branches(self) -> list[str]:
        """Names of branches and tags."""
        return [str(name) for name in self._base.refs()]

    def head(self, branch: str = MAIN) -> int | None:
        """The branch's newest snapshot; None if there is none, or no such branch."""
        found = self._base.ref(branch)
        return None if found is None else int(found.snapshotId())

    def parent(self, snapshot: int) -> int | None:
        """The snapshot before; None also of one that is gone."""
        found = self._base.snapshot(snapshot)
        parent = None if found is None else found.parentId()
        return None if parent is None else int(parent)

    def summary(self, snapshot: int) -> dict[str, str]:
        """What Iceberg counted."""
        found = self._base.snapshot(snapshot)
        return {} if found is None else dict(found.summary())

    def sequence(self, snapshot: int) -> int:
        """Its number among all that were ever committed."""
        return int(self._base.snapshot(snapshot).sequenceNumber())

    def column_types(self) -> dict[str, str]:
        """Names and Spark SQL types of the columns, in order."""
        convert = self._jvm.org.apache.iceberg.spark.SparkSchemaUtil.convert
        fields = convert(self._base.schema()).fields()
        return {field.name(): field.dataType().simpleString() for field in fields}

    def partitions(self) -> list[tuple[str, str]]:
        """Names of columns, and their transforms as Iceberg spells them."""
        fields = self._base.spec().fields()
        schema = self._base.schema()
        return [
            (str(schema.findColumnName(field.sourceId())), str(field.transform().toString()))
            for field in fields
        ]

    def begin(self) -> None:
        """Give the table a first snapshot, without rows: only then it can have branches."""
        self._table.newAppend().commit()
        self.refresh()

    def commit(
        self,
        *,
        properties: Mapping[str, str] | None = None,
        branches: Mapping[str, int] | None = None,
        removed: Sequence[str] = (),
        columns: SchemaChange | None = None,
    ) -> bool:
        """All of this at once, if the table is what it was when it was read; else False.

        Args:
            properties: to be set.
            branches: what becomes their newest snapshot.
            removed: names of branches.
            columns: what becomes of columns.
        """
        builder = self._jvm.org.apache.iceberg.TableMetadata.buildFrom(self._base)
        for name in removed:
            builder.removeRef(name)
        for name, snapshot in (branches or {}).items():
            builder.setBranchSnapshot(snapshot, name)
        if properties:
            given = self._jvm.java.util.HashMap()
            for name, value in properties.items():
                given[name] = value
            builder.setProperties(given)
        if columns is not None:
            schema = columns.apply(self._jvm, self._table.updateSchema())
            newest = max(int(self._base.lastColumnId()), int(schema.highestFieldId()))
            builder.setCurrentSchema(schema, newest)
        try:
            self._operations.commit(self._base, builder.build())
        except Py4JJavaError as error:
            if error.java_exception.getClass().getName() == _COMMIT_FAILED:
                return False
            raise
        self.refresh()
        return True


class SchemaChange:
    """Columns to remove, to add and to widen, in this order; types in Spark SQL."""

    def __init__(
        self, removed: Sequence[str], added: Mapping[str, str], widened: Mapping[str, str]
    ) -> None:
        self._removed, self._added, self._widened = removed, added, widened

    def __bool__(self) -> bool:
        return bool(self._removed or self._added or self._widened)

    def apply(self, jvm: Any, update: Any) -> Any:
        """The new schema."""
        parse = jvm.org.apache.spark.sql.types.DataType.fromDDL
        convert = jvm.org.apache.iceberg.spark.SparkSchemaUtil.convert
        for name in self._removed:
            update = update.deleteColumn(name)
        for name, kind in self._added.items():
            update = update.addColumn(None, name, convert(parse(kind)))
        for name, kind in self._widened.items():
            update = update.updateColumn(name, convert(parse(kind)))
        return update.apply()


def conflict(location: str) -> OutputBusyError:
    """The batch comes again."""
    return OutputBusyError(
        f"{location} was changed by another writer meanwhile: the batch comes again"
    )
