"""An Iceberg table's metadata and files, and commits that fail if its rows changed before.

By Iceberg's Java library in the JVM of Spark's driver, which needs no certain Spark. Only public
methods are used; what is many (files, columns) goes to and fro as JSON, not by a call for each
value: see ``CommitCalls.java``.
"""

from __future__ import annotations

import json
import logging
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import wraps
from pathlib import Path
from typing import Any, Concatenate, Final, ParamSpec, TypeVar
from weakref import WeakKeyDictionary

from py4j.protocol import Py4JError, Py4JJavaError

from tidelog.errors import AccessRefusedError, OutputError, TableLeftOutError, UsageError
from tidelog.outputs.lake.data_files.data_file import DataFile
from tidelog.outputs.lake.data_files.layout import FileColumn
from tidelog.outputs.lake.errors import error_class_of
from tidelog.outputs.lake.iceberg.files import (
    SPEC,
    DeleteFile,
    IcebergFile,
    data_json,
    delete_file_of,
    delete_json,
    deletes_of,
    file_of,
)
from tidelog.spark.sessions.errors import SparkGoneError, known_error

logger = logging.getLogger(__name__)

_CALLS: Final = Path(__file__).with_name("CommitCalls.java")
_compiling = threading.Lock()
_compiled: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()
"""By JVM, the object of our Java class. A second class in a JVM would be of no use: py4j finds
methods by the name of the class.
"""
_FILES = "org.apache.hadoop.fs."  # in the stack of an error of the storage
EXCEPTIONS = "org.apache.iceberg.exceptions."
_CONFLICTS = (f"{EXCEPTIONS}CommitFailedException", f"{EXCEPTIONS}ValidationException")
_UNKNOWN = f"{EXCEPTIONS}CommitStateUnknownException"
_DENIED = (f"{EXCEPTIONS}NotAuthorizedException", f"{EXCEPTIONS}ForbiddenException")
_LOST = f"{EXCEPTIONS}NotFoundException"
_DAMAGED = "org.apache.avro."  # after a prefix in Iceberg's jars for Spark's SQL
_METADATA = re.compile(r"[^/\s]+\.(?:avro|json)\b")
_SQL_DENIED = "28"  # SQL's class of states "invalid authorization specification"

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


def class_of(error: Py4JJavaError) -> str:
    """Return the name of the Java class of an error."""
    return str(error.java_exception.getClass().getName())


@contextmanager
def library_errors(where: str) -> Iterator[None]:
    """Turns errors of Iceberg's library into TidelogErrors that name ``where``, without their
    texts, which may contain secrets.
    """
    try:
        yield
    except Py4JJavaError as error:
        known = known_error(error)
        if isinstance(known, UsageError | SparkGoneError) or (known and _FILES in str(error)):
            raise known from error
        if _is_denied(error):
            raise AccessRefusedError(
                f"{where}: the catalog denies access ({error_class_of(error)}): check its "
                "credentials, token and rights"
            ) from error
        if (file := _unreadable_file(error)) is not None:
            raise TableLeftOutError(
                f"{where}: {file} of its metadata is missing or damaged: restore it, or roll "
                "the table back to a snapshot before it, or move the table away and dump it again"
            ) from error
        raise OutputError(f"{where}: the catalog failed: {error_class_of(error)}") from error


def _is_denied(error: Py4JJavaError) -> bool:
    for cause in _causes(error):
        if str(cause.getClass().getName()) in _DENIED:
            return True
        with suppress(Py4JError):  # it is no error of SQL
            if str(cause.getSQLState()).startswith(_SQL_DENIED):
                return True
    return False


def _unreadable_file(error: Py4JJavaError) -> str | None:
    """Return the name of a metadata file that is missing or damaged; None: it is another error."""
    causes = list(_causes(error))
    names = [str(each.getClass().getName()) for each in causes]
    if not any(name == _LOST or _DAMAGED in name for name in names):
        return None
    texts = " ".join(str(each.getMessage()) for each in causes)
    found = _METADATA.search(texts)
    return "a file" if found is None else found.group()


def _causes(error: Py4JJavaError) -> Iterator[Any]:
    """Yield the Java exception and its causes."""
    cause = error.java_exception
    while cause is not None:
        yield cause
        cause = cause.getCause()


def _named(
    method: Callable[Concatenate[IcebergState, Arguments], Result],
) -> Callable[Concatenate[IcebergState, Arguments], Result]:
    """Wraps a method in `library_errors` of the table."""

    @wraps(method)
    def call(state: IcebergState, /, *args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        with library_errors(state.location):
            return method(state, *args, **kwargs)

    return call


@dataclass(frozen=True)
class TableChange:
    """What a commit does to a table's files.

    Attributes:
        added, removed: data files.
        marked: pairs of a data file before, and the same file with its new deletes.
        order: id of the sort order of the added files.
        same_rows: whether the rows stay as they are: small files were put together.
        summary: what the snapshot's summary has besides what Iceberg counts.
    """

    added: Sequence[DataFile] = ()
    removed: Sequence[DataFile] = ()
    marked: Sequence[tuple[DataFile, DataFile]] = ()
    order: int = 0
    same_rows: bool = False
    summary: Mapping[str, str] = field(default_factory=dict)

    @property
    def added_deletes(self) -> list[DeleteFile]:
        return [
            each
            for before, after in self.marked
            for each in deletes_of(after)
            if each not in deletes_of(before)
        ]

    @property
    def removed_deletes(self) -> list[DeleteFile]:
        """Those that others replace, and those of removed files; not those of several files."""
        replaced = [
            each
            for before, after in self.marked
            for each in deletes_of(before)
            if each not in deletes_of(after)
        ]
        whole = [each for file in self.removed for each in deletes_of(file)]
        return [each for each in (*replaced, *whole) if each.data_file]


class IcebergLibrary:
    """Classes and methods of Iceberg's library in a JVM, each looked up once: py4j asks the JVM for
    each part of a name. Maps and lists go to and fro as JSON: py4j asks for each entry, and learns
    by an exception that there is no further one.
    """

    def __init__(self, jvm: Any) -> None:
        iceberg = jvm.org.apache.iceberg
        self.jvm = jvm
        with _compiling:
            if jvm not in _compiled:
                _compiled[jvm] = _compile(jvm)
            self.calls = _compiled[jvm]
        self.schema_to_json = iceberg.SchemaParser.toJson
        self.spec_to_json = iceberg.PartitionSpecParser.toJson
        self.file_to_json = iceberg.ContentFileParser.toJson
        self.build_from = iceberg.TableMetadata.buildFrom
        self.mapper = iceberg.util.JsonUtil.mapper()
        self._map_class = jvm.java.lang.Class.forName("java.util.HashMap")

    def map(self, values: Mapping[str, str]) -> Any:
        """Return a Java map."""
        return self.mapper.readValue(json.dumps(dict(values)), self._map_class)


def _compile(jvm: Any) -> Any:
    """Return an object of our Java class."""
    compiler = jvm.org.codehaus.janino.SimpleCompiler()
    compiler.setParentClassLoader(jvm.java.lang.Thread.currentThread().getContextClassLoader())
    compiler.cook(_CALLS.read_text())
    return compiler.getClassLoader().loadClass("tidelog.iceberg.CommitCalls").newInstance()


class IcebergState:
    """A table as it was when it was read last; used by one thread at a time."""

    def __init__(self, library: IcebergLibrary, table: Any) -> None:
        self._library = library
        self._table = table
        self._operations = table.operations()
        self._specs: dict[int, Mapping[str, Any]] = {}  # by id: they never change
        self._set_base(self._operations.current())

    def _set_base(self, base: Any) -> None:
        self._base = base
        self._parts = self._described(base)

    def _described(self, base: Any) -> dict[str, Any]:
        parts: dict[str, Any] = json.loads(self._library.calls.describe(base))
        return parts

    @_named
    def refresh(self) -> None:
        """Read it again."""
        self._set_base(self._library.calls.refresh(self._operations))

    def follow(self) -> bool:
        """Read what was committed since. False: the table is gone, or another one is in its place,
        or the catalog does not answer.
        """
        try:
            self._set_base(self._library.calls.refresh(self._operations))
        except Py4JError:
            return False
        return True

    @property
    def uuid(self) -> str:
        return str(self._parts["uuid"])

    @property
    def location(self) -> str:
        return str(self._parts["location"])

    @property
    def metadata_file(self) -> str:
        """The name of the file that the metadata were read from."""
        return str(self._base.metadataFileLocation()).rpartition("/")[2]

    @property
    def format_version(self) -> int:
        return int(self._parts["format"])

    def property(self, name: str) -> str | None:
        value: str | None = self._parts["properties"].get(name)
        return value

    def properties(self, prefix: str) -> dict[str, str]:
        """The properties whose names begin with ``prefix``."""
        return {n: v for n, v in self._parts["properties"].items() if n.startswith(prefix)}

    def is_encrypted(self) -> bool:
        return bool(self._parts["encrypted"]) or self.property("encryption.key-id") is not None

    def head(self) -> int | None:
        """The newest snapshot that readers see; None if there is none."""
        found: int | None = self._parts["head"]
        return found

    def lineage_of_head(self) -> Iterator[int]:
        """Yield the newest snapshot that readers see, and those before it, while there are any."""
        at = self.head()
        while at is not None:
            yield at
            parent = self._base.snapshot(at).parentId()
            at = None if parent is None or self._base.snapshot(parent) is None else int(parent)

    def summary(self, snapshot: int, name: str) -> str | None:
        """A value of the snapshot's summary."""
        is_head = snapshot == self.head()
        found = self._parts["summary"] if is_head else self._base.snapshot(snapshot).summary()
        return None if found is None else found.get(name)

    def sequence(self, snapshot: int) -> int:
        """The number of one that is there, among all that were ever committed."""
        if snapshot == self.head():
            return int(self._parts["sequence"])
        return int(self._base.snapshot(snapshot).sequenceNumber())

    def schema_id(self) -> int:
        return int(self._parts["schema"])

    def schema(self) -> Mapping[str, Any]:
        """The columns, as the specification has them as JSON."""
        found = self._library.schema_to_json(self._base.schema())
        parsed: Mapping[str, Any] = json.loads(found)
        return parsed

    def spec(self) -> Mapping[str, Any]:
        """What the table is partitioned by, as the specification has it as JSON."""
        number = int(self._parts["spec"])
        if number not in self._specs:
            self._specs[number] = json.loads(self._library.spec_to_json(self._base.spec()))
        return self._specs[number]

    def order(self) -> Mapping[str, Any]:
        """The order of rows in files, as the specification has it as JSON."""
        found: Mapping[str, Any] = json.loads(self._parts["order"])
        return found

    # ------------------------------------------------ files

    @_named
    def files(self, columns: Mapping[int, FileColumn]) -> dict[str, IcebergFile]:
        """Reads the files of the newest snapshot, by their paths, with statistics of ``columns``,
        which are given by their field ids.

        Raises TableLeftOutError if rows are deleted by equality.
        """
        if self.head() is None:
            return {}
        to_json, has_ids = self._library.file_to_json, self.format_version >= 3
        fields: dict[int, list[int]] = {}
        for spec in _items(self._base.specs()):
            fields[int(spec.specId())] = [int(each.fieldId()) for each in _items(spec.fields())]
        specs = self._table.specs()
        location = self.location
        deletes: dict[tuple[str, str], DeleteFile] = {}
        found: dict[str, IcebergFile] = {}
        scan = self._table.newScan().useSnapshot(self.head()).includeColumnStats().planFiles()
        try:
            for task in _each(scan):
                file, of_file = task.file(), []
                for deleting in _items(task.deletes()):
                    key = str(deleting.location()), str(deleting.contentOffset())
                    if key not in deletes:
                        text = to_json(deleting, specs[deleting.specId()])
                        deletes[key] = delete_file_of(json.loads(text), fields, location)
                    of_file.append(deletes[key])
                parsed = json.loads(to_json(file, specs[file.specId()]))
                sequence = file.dataSequenceNumber() if has_ids else None
                one = file_of(parsed, tuple(of_file), fields, columns, location, sequence)
                found[one.path] = one
        finally:
            scan.close()
        return found

    # ------------------------------------------------ commits

    @_named
    def commit_files(
        self,
        change: TableChange,
        columns: Mapping[str, FileColumn],
        *,
        properties: Mapping[str, str],
        expected: Mapping[str, str | None],
        sequences: Sequence[str] = (),
        retired: str = "",
    ) -> int | None:
        """Commit changes of files and properties at once, and return the new snapshot; None, and
        nothing is changed, if readers see another snapshot than when the table was read last, or if
        a property is not as ``expected``.

        Args:
            change: the changes.
            columns: by name, those whose statistics are kept.
            properties: to be set.
            expected: by name, the values of properties; None: not set.
            sequences: the properties that get the snapshot's sequence number.
            retired: branches whose names begin with this are removed; "": none.
        """
        head = self.head()
        operation = self._operation(change, columns, head)
        try:
            snapshot = operation.apply()
        except Py4JJavaError as error:
            if class_of(error) in _CONFLICTS:
                return None
            raise
        base = self._operations.current()
        number, parent = int(snapshot.snapshotId()), snapshot.parentId()
        known = self._described(base)
        now = {name: known["properties"].get(name) for name in expected}
        if (None if parent is None else int(parent)) != head or now != dict(expected):
            self._discard(snapshot)
            return None
        properties = {**properties, **dict.fromkeys(sequences, str(snapshot.sequenceNumber()))}
        gone = [name for name in known["branches"] if retired and name.startswith(retired)]
        given = json.dumps(dict(properties)), json.dumps(gone)
        after = self._library.calls.withSnapshot(base, snapshot, *given)
        try:
            self._operations.commit(base, after)
        except Py4JJavaError as error:
            refused = class_of(error) in _CONFLICTS
            if not refused and class_of(error) != _UNKNOWN:
                raise
            self.refresh()
            if not self._is_seen(number):
                if refused and self._base.snapshot(number) is None:
                    self._discard(snapshot)
                return None
            # A client that sends a request again, as its answer got lost, is refused then.
            logger.info("%s: the catalog's answer got lost, and the commit is there", self.location)
        self._set_base(self._operations.current())  # a REST catalog has answered with it
        return number

    def _operation(
        self, change: TableChange, columns: Mapping[str, FileColumn], head: int | None
    ) -> Any:
        location = self.location
        files = [
            [data_json(each, columns, location, change.order) for each in change.added],
            [data_json(each, columns, location) for each in change.removed],
            [delete_json(each) for each in change.added_deletes],
            [delete_json(each) for each in change.removed_deletes],
        ]
        table = self._table
        operation = table.newRewrite() if change.same_rows else table.newRowDelta()
        self._library.calls.change(operation, json.dumps(files), table.specs())
        if head is not None:
            operation.validateFromSnapshot(head)
        for name, value in change.summary.items():
            operation.set(name, value)
        return operation

    @_named
    def lineage(self, snapshot: int) -> Mapping[str, tuple[int | None, int]]:
        """Return of each data file that a snapshot added, by its path, the id of its first row and
        its sequence number.
        """
        added = self._library.calls.lineage(self._table, self._base.snapshot(snapshot))
        return {path: tuple(found) for path, found in json.loads(added).items()}

    def _is_seen(self, snapshot: int) -> bool:
        return snapshot in self.lineage_of_head()

    def _discard(self, snapshot: Any) -> None:
        """Remove the metadata files of a snapshot that was not committed, as far as possible."""
        io = self._operations.io()
        try:
            number = int(snapshot.snapshotId())
            for manifest in snapshot.allManifests(io):
                if int(manifest.snapshotId()) == number:
                    io.deleteFile(manifest.path())
            io.deleteFile(snapshot.manifestListLocation())
        except Py4JJavaError as error:
            logger.info(
                "%s: manifests of a refused commit stay: %s", self.location, class_of(error)
            )

    @_named
    def commit(
        self,
        *,
        properties: Mapping[str, str] | None = None,
        columns: SchemaChange | None = None,
    ) -> bool:
        """All of this at once, if the table is what it was when it was read; else False. Also if
        readers see another snapshot afterwards: rows may have come or gone beside it.

        Args:
            properties: to be set.
            columns: what becomes of columns.
        """
        head = self.head()
        builder = self._library.build_from(self._base)
        if properties:
            builder.setProperties(self._library.map(properties))
        if columns is not None:
            schema = columns.apply(self._library.jvm, self._table.updateSchema())
            newest = max(int(self._base.lastColumnId()), int(schema.highestFieldId()))
            builder.setCurrentSchema(schema, newest)
        try:
            self._operations.commit(self._base, builder.build())
        except Py4JJavaError as error:
            if class_of(error) == _CONFLICTS[0]:
                return False
            raise
        self.refresh()
        return self.head() == head

    @_named
    def expire(self, before_ms: int) -> None:
        """Remove snapshots that are older, since 1970, UTC, and the files that no other needs;
        those of branches and tags stay.
        """
        old = self._table.expireSnapshots().expireOlderThan(before_ms).apply()
        if not old.isEmpty():
            # With the id of one of them the library looks which files are needed still. Without,
            # it removes a file with deletion vectors once one of these was replaced.
            expiry = self._table.expireSnapshots().expireOlderThan(before_ms)
            expiry.expireSnapshotId(old[0].snapshotId()).commit()

    @_named
    def thin(self, before_ms: int) -> None:
        """Remove `snapshots_to_thin`, if they are many, and the files that no other needs; nothing
        of a table that shares its files (``gc.enabled``).
        """
        if self.property("gc.enabled") == "false":
            return
        parser = self._library.jvm.org.apache.iceberg.TableMetadataParser
        metadata = json.loads(parser.toJson(self._operations.current()))
        found = snapshots_to_thin(metadata, before_ms)
        if len(found) < LEAST_THINNED:
            return
        expiry = self._table.expireSnapshots().expireOlderThan(0)  # no other by its age
        for snapshot in found:
            expiry.expireSnapshotId(snapshot)
        expiry.commit()


LEAST_THINNED: Final = 100
_HOUR_MS = 3_600_000


def snapshots_to_thin(metadata: Mapping[str, Any], before_ms: int) -> list[int]:
    """Return the ids of snapshots that Tidelog made before ``before_ms``, but for the newest of
    each hour. Those of other writers, of branches and of tags stay.

    Args:
        metadata: of the table, as the specification has it as JSON.
        before_ms: since 1970, UTC.
    """
    stays = {each["snapshot-id"] for each in metadata.get("refs", {}).values()}
    ours = [
        each
        for each in metadata.get("snapshots", ())
        if each["timestamp-ms"] < before_ms
        and any(name.startswith("tidelog/") for name in each.get("summary", {}))
    ]
    ours.sort(key=lambda each: (each["timestamp-ms"], each.get("sequence-number", 0)))
    stays.update({each["timestamp-ms"] // _HOUR_MS: each["snapshot-id"] for each in ours}.values())
    return [each["snapshot-id"] for each in ours if each["snapshot-id"] not in stays]


def with_spec(file: DataFile, spec: int) -> DataFile:
    """Return a file that was written now, with the id of the table's partition spec."""
    if SPEC in file.partition_values:
        return file
    return replace(file, partition_values={SPEC: str(spec), **file.partition_values})


def _items(values: Any) -> list[Any]:
    return [values.get(at) for at in range(values.size())]


def _each(scan: Any) -> Iterable[Any]:
    tasks = scan.iterator()
    while tasks.hasNext():
        yield tasks.next()


@dataclass(frozen=True)
class AddedColumn:
    """A column to add. ``within``: the struct that it is a member of; "": the table. ``type``: as
    the specification has it as JSON.
    """

    name: str
    type: Any
    within: str = ""


class SchemaChange:
    """Columns to remove, to add and to widen, in this order. ``widened``: primitive types, by the
    name of a column, or by ``struct.member``.
    """

    def __init__(
        self, removed: Sequence[str], added: Sequence[AddedColumn], widened: Mapping[str, str]
    ) -> None:
        self._removed, self._added, self._widened = removed, added, widened

    def __bool__(self) -> bool:
        return bool(self._removed or self._added or self._widened)

    def apply(self, jvm: Any, update: Any) -> Any:
        """The new schema."""
        parse = jvm.org.apache.iceberg.types.Types.fromPrimitiveString
        for name in self._removed:
            update = update.deleteColumn(name)
        for each in self._added:
            column = {"id": 1, "name": "c", "required": False, "type": each.type}
            schema = json.dumps({"type": "struct", "schema-id": 0, "fields": [column]})
            kind = jvm.org.apache.iceberg.SchemaParser.fromJson(schema).findType("c")
            update = update.addColumn(each.within or None, each.name, kind)
        for name, kind in self._widened.items():
            update = update.updateColumn(name, parse(kind))
        return update.apply()
