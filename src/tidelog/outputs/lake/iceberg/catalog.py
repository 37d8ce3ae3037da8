"""An Iceberg catalog, by Iceberg's Java library.

A JDBC catalog keeps the tables of many catalogs, each under a name: that of the option
``catalog_name``; else the output's own, if it has tables there; else the only other one, which
other engines made.
"""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing, suppress
from typing import TYPE_CHECKING, Any, Final

from py4j.java_gateway import JavaPackage
from py4j.protocol import Py4JError, Py4JJavaError

from tidelog.errors import AccessRefusedError, TableLeftOutError, UsageError
from tidelog.eventlog.storage import provide_options
from tidelog.model.option_values import is_jdbc_catalog, is_object_store
from tidelog.outputs.base.hadoop_settings import s3a_settings, store_options
from tidelog.outputs.lake.errors import error_class_of
from tidelog.outputs.lake.iceberg.state import (
    EXCEPTIONS,
    IcebergLibrary,
    IcebergState,
    class_of,
    library_errors,
)
from tidelog.outputs.lake.java_libraries import JavaLibraries
from tidelog.spark.datasource.source import prepare_workers

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_ABSENT: Final = (f"{EXCEPTIONS}NoSuchTableException", f"{EXCEPTIONS}NoSuchNamespaceException")
_OTHER: Final = f"{EXCEPTIONS}NoSuchIcebergTableException"  # of a Hive Metastore
_EXISTS: Final = f"{EXCEPTIONS}AlreadyExistsException"
_UNKNOWN: Final = f"{EXCEPTIONS}ValidationException"  # see ``CommitCalls.java``
_OWN: Final = "tidelog_"
# The tables of a JDBC catalog (`org.apache.iceberg.jdbc.JdbcUtil`), in a database that keeps names.
_JDBC_TABLES: Final = ("iceberg_tables", "iceberg_namespace_properties")

_NOT_CREATED: Final = "tidelog_check"  # a table
_ONE_COLUMN: Final = {
    "type": "struct",
    "fields": [{"id": 1, "name": "id", "required": False, "type": "int"}],
}

REOPEN_S: Final = 60.0
"""Seconds between two attempts to log in again."""
ANSWER_S: Final = 120
"""Seconds to wait for an answer of a catalog, unless its properties say so. Its clients wait
forever by default, or for ten minutes, and so would the pipeline, though the answer was lost on its
way.
"""
_HIVE_TIMEOUT: Final = "hive.metastore.client.socket.timeout"


def _with_timeouts(properties: Mapping[str, str]) -> dict[str, str]:
    kind, uri = properties.get("type", "").lower(), properties.get("uri", "")
    if kind == "rest" or properties.get("catalog-impl", "").endswith(".RESTCatalog"):
        defaults = {"rest.client.socket-timeout-ms": str(1000 * ANSWER_S)}
    elif uri.startswith("jdbc:postgresql:"):
        defaults = {"jdbc.socketTimeout": str(ANSWER_S)}
    elif uri.startswith(("jdbc:mysql:", "jdbc:mariadb:")):
        defaults = {"jdbc.socketTimeout": str(1000 * ANSWER_S)}
    else:
        defaults = {}
    return {**defaults, **properties}


def own_catalog_name(output: str) -> str:
    """Return the name of a catalog that is an output's alone."""
    return _OWN + re.sub(r"[^a-z0-9]", "_", output.lower())


def catalog_of(
    spark: SparkSession,
    java: JavaLibraries,
    output: str,
    properties: Mapping[str, str],
    name: str | None,
    storage_options: Mapping[str, str],
) -> IcebergCatalog:
    """Return a catalog. ``java``: the JVM, with `iceberg_jars`. ``storage_options``: of the object
    store of the tables; empty: what the settings of Hadoop's client say, else the environment.
    """
    provided = set[str]()

    def provide(location: str) -> None:
        """Give this process and Spark's tasks the options of the store at a table's location, which
        only the catalog knows. Tables of a namespace are below one folder.
        """
        folder = location.rstrip("/").rpartition("/")[0]
        if folder in provided or not is_object_store(location):
            return
        try:
            provide_options(folder, storage_options or store_options(location, java.settings))
        except ValueError as error:  # a setting of the session that is not supported
            raise UsageError(str(error)) from error
        prepare_workers(spark)
        provided.add(folder)

    for key, value in s3a_settings(storage_options).items():
        java.hadoop.set(key, value)
    return IcebergCatalog(java.gateway, java.hadoop, output, properties, name, provide)


class IcebergCatalog:
    """A catalog. It is opened when it is made. ``name``: by which a JDBC catalog keeps its tables.

    Args:
        gateway: to a JVM that has Iceberg's library.
        hadoop: the settings of Hadoop's clients there, a Java object of its own.
        output: the name of the output.
        properties: of the catalog, as Iceberg's documentation has them.
        name: by which a JDBC catalog keeps the tables; None: see above.
        on_location: called with the location of each table that is loaded.

    Raises UsageError if the library is missing, or a JDBC catalog's name can't be known.
    """

    def __init__(
        self,
        gateway: Any,
        hadoop: Any,
        output: str,
        properties: Mapping[str, str],
        name: str | None = None,
        on_location: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._on_location = on_location
        self._jvm, self._gateway = gateway.jvm, gateway
        catalogs = self._jvm.org.apache.iceberg.CatalogUtil
        if isinstance(catalogs, JavaPackage):
            raise UsageError(
                "Iceberg's library is missing in this Spark session: create it by "
                "tidelog.spark.spark_session(iceberg=True), or give it the jars that "
                "`tidelog jars --for iceberg` fetches"
            )
        self._library = IcebergLibrary(self._jvm)
        self._properties = _with_timeouts(properties)
        if properties.get("type", "").lower() == "hive" and hadoop.get(_HIVE_TIMEOUT) is None:
            hadoop.set(_HIVE_TIMEOUT, f"{ANSWER_S}s")
        with library_errors(f"output {output}"):
            if name is None and is_jdbc_catalog(properties):
                name = self._jdbc_name(output)
        self.name, self._hadoop = name or own_catalog_name(output), hadoop
        self._output = output
        self._opening = threading.Lock()
        self._open()

    def _open(self) -> None:
        with library_errors(f"output {self._output}"):
            self._catalog = self._build(self.name)
        self._opened = time.monotonic()

    def _build(self, name: str) -> Any:
        return self._library.calls.open(name, self._library.map(self._properties), self._hadoop)

    def _reopen(self) -> bool:
        """Log in again, unless that was just done. The token that the library has may be refused
        before it expires, as after a restart of the catalog, and the library keeps it.
        """
        with self._opening:
            if time.monotonic() - self._opened < REOPEN_S:
                return False
            former = self._catalog
            self._open()
        with suppress(Py4JError):  # a catalog need have no `close`
            former.close()
        return True

    def load(self, parts: Sequence[str]) -> IcebergState | None:
        """The table of this namespace and name; None if there is none."""
        try:
            return self._load(parts)
        except AccessRefusedError:
            if not self._reopen():
                raise
            return self._load(parts)

    def _load(self, parts: Sequence[str]) -> IcebergState | None:
        with library_errors(".".join(parts)):
            try:
                table = self._library.calls.load(self._catalog, self._identifier(parts))
            except Py4JJavaError as error:
                if class_of(error) in _ABSENT:
                    return None
                if class_of(error) == _OTHER:
                    raise TableLeftOutError(
                        f"{'.'.join(parts)} of the catalog is no Iceberg table: drop it, or send "
                        "the table elsewhere by a step `route`"
                    ) from None
                if class_of(error) == _UNKNOWN:
                    raise TableLeftOutError(
                        f"{'.'.join(parts)} of the catalog has metadata that Iceberg's library "
                        f"can't read ({error_class_of(error)}): update Tidelog, or move the table "
                        "away and dump it again"
                    ) from error
                raise
            found = IcebergState(self._library, table)
        self._on_location(found.location)
        return found

    def check_rights(self, namespaces: Callable[[str], bool]) -> list[str]:
        """Return those of the catalog's namespaces that ``namespaces`` chooses, once the catalog
        lets us list their tables and create one, which is not done.

        Raises UsageError that says which right is missing, OutputError.
        """
        where = f"output {self._output}"
        with library_errors(where):
            if is_jdbc_catalog(self._properties) and not self._check_sql_rights():
                return []
            listed = [str(each.toString()) for each in self._catalog.listNamespaces()]
        chosen = sorted(filter(namespaces, listed))
        schema = self._jvm.org.apache.iceberg.SchemaParser.fromJson(json.dumps(_ONE_COLUMN))
        for each in chosen:
            identifier = self._identifier([each, _NOT_CREATED])
            try:
                with library_errors(where):
                    self._catalog.listTables(identifier.namespace())
                    # A REST catalog checks the right here; others need none but for files.
                    self._catalog.buildTable(identifier, schema).createTransaction()
            except AccessRefusedError as error:
                raise UsageError(
                    f"its account may not list or create tables in the namespace {each} of the "
                    "catalog: grant it the rights to list, create, read and change tables there"
                ) from error
        return chosen

    def _check_sql_rights(self) -> bool:
        """Has a JDBC catalog its tables? Raises UsageError if its account may not write them."""
        with closing(self._connection()) as connection:
            for table in _JDBC_TABLES:
                if not connection.getMetaData().getTables(None, None, table, None).next():
                    return False
                for statement in (
                    f"INSERT INTO {table} SELECT * FROM {table} WHERE 1 = 0",  # noqa: S608
                    f"UPDATE {table} SET catalog_name = catalog_name WHERE 1 = 0",  # noqa: S608
                ):
                    try:
                        connection.createStatement().executeUpdate(statement)
                    except Py4JJavaError as error:
                        raise UsageError(
                            f"its account may not write the catalog's table {table} "
                            f"({error_class_of(error)}): GRANT SELECT, INSERT, UPDATE, DELETE ON "
                            f"{table}"
                        ) from error
        return True

    def create(
        self,
        parts: Sequence[str],
        schema: Mapping[str, Any],
        spec: Mapping[str, Any],
        properties: Mapping[str, str],
    ) -> None:
        """Create a table, unless it exists. ``schema`` and ``spec``: as the specification has them
        as JSON.
        """
        api = self._jvm.org.apache.iceberg
        identifier = self._identifier(parts)
        parsed = api.SchemaParser.fromJson(json.dumps(schema))
        by = api.PartitionSpecParser.fromJson(parsed, json.dumps(spec))
        with library_errors(".".join(parts)):
            # Asked first: to make one needs another right than to make a table.
            if len(parts) > 1 and not self._catalog.namespaceExists(identifier.namespace()):
                self._create_namespace(identifier.namespace())
            try:
                self._catalog.createTable(identifier, parsed, by, self._library.map(properties))
            except Py4JJavaError as error:
                if class_of(error) != _EXISTS:
                    raise

    def _create_namespace(self, name: Any) -> None:
        """Create a namespace, which another thread may create at the same time: a JDBC catalog then
        reports the database's error.
        """
        try:
            self._catalog.createNamespace(name)
        except Py4JJavaError:
            if not self._catalog.namespaceExists(name):
                raise

    def _identifier(self, parts: Sequence[str]) -> Any:
        names = self._gateway.new_array(self._jvm.String, len(parts))
        for index, part in enumerate(parts):
            names[index] = part
        return self._jvm.org.apache.iceberg.catalog.TableIdentifier.of(names)

    def _jdbc_name(self, output: str) -> str:
        own, names = own_catalog_name(output), self._jdbc_names()
        others = sorted(name for name in names if not name.startswith(_OWN))
        if own in names or not others:
            return own
        if len(others) == 1:
            return others[0]
        raise UsageError(
            f"output {output}: the database of its catalog has tables of the catalogs "
            f"{', '.join(others)}. Say by catalog_name which of them the output's tables belong "
            f"to; {own} is one of its own"
        )

    def find_elsewhere(
        self, tables: Iterable[Sequence[str]], name: str
    ) -> tuple[str, Sequence[str]] | None:
        """Return the name of another catalog of a JDBC catalog's database, and of one of these
        tables there that has the property ``name`` and that this catalog lacks; None: there is
        none.
        """
        if not is_jdbc_catalog(self._properties):
            return None
        with library_errors(f"output {self._output}"):
            found = self._jdbc_rows(
                _JDBC_TABLES[0], ("catalog_name", "table_namespace", "table_name")
            )
            for parts in tables:
                place = (".".join(parts[:-1]), parts[-1])
                if (self.name, *place) in found:
                    continue
                for catalog in sorted(row[0] for row in found if row[1:] == place):
                    other = self._build(catalog)
                    table = IcebergState(self._library, other.loadTable(self._identifier(parts)))
                    with suppress(Py4JError):
                        other.close()
                    if table.property(name) is not None:
                        return catalog, parts
        return None

    def _jdbc_names(self) -> set[str]:
        """Return the names of the catalogs in a JDBC catalog's database."""
        rows = (self._jdbc_rows(table, ("catalog_name",)) for table in _JDBC_TABLES)
        return {name for each in rows for (name,) in each}

    def _jdbc_rows(self, table: str, columns: Sequence[str]) -> set[tuple[str, ...]]:
        """Return the distinct rows of a table of a database; none if it is missing."""
        with closing(self._connection()) as connection:
            if not connection.getMetaData().getTables(None, None, table, None).next():
                return set()
            rows = connection.createStatement().executeQuery(
                f"SELECT DISTINCT {', '.join(columns)} FROM {table}"  # noqa: S608 - our own names
            )
            found = set()
            while rows.next():
                found.add(tuple(str(rows.getString(at + 1)) for at in range(len(columns))))
            return found

    def _connection(self) -> Any:
        """Return a new connection to a JDBC catalog's database."""
        known = self._jvm.java.util.Properties()
        for name, value in self._properties.items():
            if name.startswith("jdbc."):
                known.setProperty(name.removeprefix("jdbc."), value)
        return self._connect(self._properties.get("uri", ""), known)

    def _connect(self, url: str, properties: Any) -> Any:
        # Not by DriverManager, which knows no driver of ``spark.jars`` where Python is the caller.
        jvm = self._jvm
        loader = jvm.java.lang.Thread.currentThread().getContextClassLoader()
        drivers = jvm.java.util.ServiceLoader.load(
            jvm.java.lang.Class.forName("java.sql.Driver"), loader
        ).iterator()
        while drivers.hasNext():
            driver = drivers.next()
            if driver.acceptsURL(url):
                return driver.connect(url, properties)
        kind = ":".join(url.split(":")[:2])
        raise UsageError(
            f"Spark has no JDBC driver for {kind}: give it the driver's jar by pipeline.conf: "
            "{spark.jars: …} (docs/outputs/iceberg.md)"
        )
