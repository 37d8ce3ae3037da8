"""Registers Delta tables in a Hive Metastore, by which people query them as ``shop.orders``.

An entry is what Spark's ``CREATE TABLE … USING delta LOCATION …`` makes: a name and a location. The
columns are in Delta's log alone, so an entry never has to follow them. Nothing here changes or
removes an entry that exists.
"""

from __future__ import annotations

import logging
import os
import re
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from tidelog.errors import OutputError, TidelogError
from tidelog.model.schema import TableName
from tidelog.outputs.base.sections import normal_directory
from tidelog.outputs.base.targets import route_step
from tidelog.outputs.lake.table import parts_of
from tidelog.spark.sessions.errors import Py4JError, Py4JJavaError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

logger = logging.getLogger(__name__)

_RETRY_S: Final = 30.0
_CLOSE_S: Final = 2.0
_TIMEOUT: Final = ("hive.metastore.client.socket.timeout", "30s")  # Hive's default: 10 minutes
_PROVIDER: Final = "spark.sql.sources.provider"
_NAME: Final = re.compile(r"\w+", re.ASCII)
"""Names that Hive and Spark take without quotes."""
_FORMAT: Final = {
    "setInputFormat": "org.apache.hadoop.mapred.SequenceFileInputFormat",
    "setOutputFormat": "org.apache.hadoop.hive.ql.io.HiveSequenceFileOutputFormat",
}
_SERDE: Final = "org.apache.hadoop.hive.serde2.lazy.LazySimpleSerDe"


@dataclass(frozen=True)
class Entry:
    """A table to register.

    Attributes:
        table: the source's table.
        database, name: the names in the catalog.
        location: directory, or URL.
    """

    table: TableName
    database: str
    name: str
    location: str

    @property
    def url(self) -> str:
        """The location as Hadoop names it."""
        if "://" in self.location:
            return self.location
        return f"file:{os.path.abspath(self.location)}"  # noqa: PTH100 - it removes `..`

    def __str__(self) -> str:
        return f"{self.database}.{self.name}"


def entry_of(table: TableName, name: str, location: str) -> Entry:
    """Returns the entry of a table whose destination's name is ``name``."""
    *database, own = parts_of(table, name)
    return Entry(table, "".join(database) or "default", own, location)


def refused_name(entry: Entry) -> str | None:
    """Returns why the catalog can't have a table of that name; None: it can."""
    if _NAME.fullmatch(entry.database) and _NAME.fullmatch(entry.name):
        return None
    return (
        f"{entry} can't be a name in the Hive Metastore, where names have letters (of ASCII), "
        f"digits and _ alone. {route_step(entry.table)}"
    )


class HiveCatalog:
    """A Hive Metastore, through the client in Spark's jars.

    Args:
        spark: a session whose driver has a JVM; its settings ``spark.hadoop.hive.*`` count.
        uri: ``thrift://host:port``; several, separated by commas: one that answers.
    """

    def __init__(self, spark: SparkSession, uri: str) -> None:
        self._spark = spark
        self.uri = uri

    def register(self, entries: Sequence[Entry]) -> dict[TableName, str]:
        """Create the entries that are missing. Returns why some were not, and what to do. Raises
        OutputError if the metastore does not answer.
        """
        with self._errors():
            client = self._connect()
            try:
                found = {each.table: self._register(client, each) for each in entries}
            finally:
                client.close()
        return {table: why for table, why in found.items() if why is not None}

    def _connect(self) -> Any:
        java: Any = self._spark._jvm
        hadoop = java.org.apache.hadoop
        settings = self._spark.sparkContext._jsc.hadoopConfiguration()
        try:
            conf = hadoop.hive.conf.HiveConf(settings, hadoop.hive.conf.HiveConf().getClass())
        except TypeError:
            raise OutputError(
                "this Spark has no Hive in its jars, by which tables are registered in a Hive "
                "Metastore: take one that has, as PySpark of the package index"
            ) from None
        conf.set("hive.metastore.uris", self.uri)
        if settings.get(_TIMEOUT[0]) is None:
            conf.set(*_TIMEOUT)
        return hadoop.hive.metastore.HiveMetaStoreClient(conf)

    def _register(self, client: Any, entry: Entry) -> str | None:
        try:
            if not client.tableExists(entry.database, entry.name):
                self._create(client, entry)
            return _why_different(client.getTable(entry.database, entry.name), entry)
        except Py4JJavaError as error:
            if _is_lost(error):
                raise
            return f"{entry} can't be registered in the Hive Metastore: {_message(error)}"

    def _create(self, client: Any, entry: Entry) -> None:
        """Create the entry, and its database, unless somebody else does at the same time."""
        java: Any = self._spark._jvm
        api = java.org.apache.hadoop.hive.metastore.api
        if entry.database.lower() not in client.getAllDatabases():
            database = api.Database()
            database.setName(entry.database)  # at the metastore's own location
            database.setParameters(java.java.util.HashMap())
            with _suppress_existing():
                client.createDatabase(database)
        # Else the metastore counts all files of the location.
        how = api.EnvironmentContext(_java_map(java, {"DO_NOT_UPDATE_STATS": "true"}))
        with _suppress_existing():
            client.createTable(self._table(entry), how)
            logger.info("%s is registered as %s in the Hive Metastore", entry.location, entry)

    def _table(self, entry: Entry) -> Any:
        java: Any = self._spark._jvm
        api = java.org.apache.hadoop.hive.metastore.api
        serde = api.SerDeInfo()
        serde.setSerializationLib(_SERDE)
        serde.setParameters(_java_map(java, {"path": entry.url, "serialization.format": "1"}))
        storage = api.StorageDescriptor()
        # As Spark has it for tables whose columns the metastore does not know.
        columns = java.java.util.ArrayList()
        columns.add(api.FieldSchema("col", "array<string>", "from deserializer"))
        storage.setCols(columns)
        storage.setLocation(entry.url)
        for setter, name in _FORMAT.items():
            getattr(storage, setter)(name)
        storage.setNumBuckets(-1)
        storage.setSerdeInfo(serde)
        for setter in ("setBucketCols", "setSortCols"):
            getattr(storage, setter)(java.java.util.ArrayList())
        storage.setParameters(java.java.util.HashMap())
        table = api.Table()
        table.setDbName(entry.database)
        table.setTableName(entry.name)
        table.setOwner(java.java.lang.System.getProperty("user.name"))
        table.setTableType("EXTERNAL_TABLE")  # DROP TABLE leaves the files
        table.setPartitionKeys(java.java.util.ArrayList())
        table.setSd(storage)
        parameters = {
            "EXTERNAL": "TRUE",
            _PROVIDER: "delta",
            "spark.sql.sources.schema": '{"type":"struct","fields":[]}',
            "spark.sql.partitionProvider": "catalog",
            "spark.sql.create.version": self._spark.version,
        }
        table.setParameters(_java_map(java, parameters))
        return table

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except Py4JJavaError as error:
            raise OutputError(
                f"the Hive Metastore at {self.uri} does not answer: {_message(error)}"
            ) from None
        except (Py4JError, OSError) as error:
            raise OutputError(f"Spark's JVM does not answer: {type(error).__name__}") from None


def _java_map(java: Any, values: Mapping[str, str]) -> Any:
    found = java.java.util.HashMap()
    for name, value in values.items():
        found.put(name, value)
    return found


@contextmanager
def _suppress_existing() -> Iterator[None]:
    try:
        yield
    except Py4JJavaError as error:
        if error.java_exception.getClass().getSimpleName() != "AlreadyExistsException":
            raise


def _is_lost(error: Py4JJavaError) -> bool:
    """Was the connection lost?"""
    cause = error.java_exception
    while cause is not None:
        if cause.getClass().getSimpleName() == "TTransportException":
            return True
        cause = cause.getCause()
    return False


def _message(error: Py4JJavaError) -> str:
    java = error.java_exception
    text = str(java.getMessage() or "").strip().partition("\n")[0][:300]
    name = java.getClass().getSimpleName()
    return f"{name}: {text}" if text else str(name)


def _why_different(found: Any, entry: Entry) -> str | None:
    """Returns why the table that the metastore has is not the entry's; None: it is."""
    storage, parameters = found.getSd(), found.getParameters()
    serde = storage.getSerdeInfo()
    where = (serde.getParameters().get("path") if serde is not None else None) or (
        storage.getLocation() or ""
    )
    if str(parameters.get(_PROVIDER) or "").lower() != "delta":
        what = f"{entry} of the Hive Metastore is no Delta table"
    elif _normal(where) != _normal(entry.url):
        what = f"{entry} of the Hive Metastore is the Delta table at {where}"
    else:
        return None
    return (
        f"{what}, so the one at {entry.url} is not registered. Remove that entry (DROP TABLE "
        f"{entry}) and it will be. {route_step(entry.table)}"
    )


def _normal(url: str) -> str:
    """Returns a URL as other writers of the same location may have it."""
    scheme, _, path = url.partition(":")
    if scheme == "file":
        return f"file:/{path.strip('/')}"
    return normal_directory(url) if "://" in url else url


class Registration:
    """Registers an output's tables, in a thread beside the batches; what fails is tried again.

    Args:
        catalog: where.
        name: the thread's name.
    """

    def __init__(self, catalog: HiveCatalog, name: str) -> None:
        self._catalog = catalog
        self._name = name
        self._lock = threading.Lock()
        self._changed = threading.Event()
        self._stopped = threading.Event()
        self._known: set[TableName] = set()
        self._waiting: dict[TableName, Entry] = {}
        self._why: dict[TableName, str] = {}
        self._failed = ""  # why the metastore did not answer, as it was logged last
        self._thread: threading.Thread | None = None

    def knows(self, table: TableName) -> bool:
        """Was the table added?"""
        return table in self._known

    def add(self, entry: Entry) -> None:
        """Register the table soon; returns at once."""
        with self._lock:
            self._known.add(entry.table)
            why = refused_name(entry)
            if why is not None:
                logger.warning("%s: %s", entry.table, why)
                self._why[entry.table] = why
                return
            self._waiting[entry.table] = entry
            self._changed.set()
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                self._thread.start()

    def messages(self) -> dict[str, str]:
        """Returns why tables are not registered, and what to do."""
        with self._lock:
            return {str(table): why for table, why in sorted(self._why.items())}

    def finish(self, stop: threading.Event) -> None:
        """Return once each table was tried, or at ``stop``."""
        while self._changed.is_set() and not stop.wait(0.05):
            pass

    def close(self) -> None:
        """End the thread, which may wait for the metastore for a while."""
        self._stopped.set()
        self._changed.set()
        if self._thread is not None:
            self._thread.join(_CLOSE_S)

    def _run(self) -> None:
        while not self._stopped.is_set():
            with self._lock:
                entries = list(self._waiting.values())
            self._try(entries)
            with self._lock:
                if len(self._waiting.keys() - {each.table for each in entries}) == 0:
                    self._changed.clear()
            if not self._stopped.is_set():
                self._changed.wait(_RETRY_S if self._waiting else None)

    def _try(self, entries: Sequence[Entry]) -> None:
        try:
            why = self._catalog.register(entries)
        except Exception as error:  # noqa: BLE001 - nobody reads the thread's result
            text = str(error) if isinstance(error, TidelogError) else type(error).__name__
            why = {each.table: f"{each} waits: {text}" for each in entries}
            if self._failed != text:
                logger.warning("%d tables are not registered yet: %s", len(entries), text)
            self._failed = text
        else:
            self._failed = ""
            for table, found in why.items():
                if self._why.get(table) != found:
                    logger.warning("%s: %s", table, found)
        if self._stopped.is_set():
            return
        with self._lock:
            for each in entries:
                if each.table in why:
                    self._why[each.table] = why[each.table]
                else:
                    self._waiting.pop(each.table)
                    self._why.pop(each.table, None)
