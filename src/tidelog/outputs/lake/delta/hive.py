"""Entries of Delta tables in a Hive Metastore.

An entry is what Spark's ``CREATE TABLE … USING delta LOCATION …`` makes: a name and a location. The
columns are in Delta's log alone, so an entry never has to follow them. Nothing here changes or
removes an entry that exists.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import pyspark

from tidelog.errors import OutputError
from tidelog.model.schema import TableName
from tidelog.outputs.base.left_out import route_step
from tidelog.outputs.lake.delta.registration import Entry, another_table
from tidelog.outputs.lake.java_libraries import JavaLibraries, java_libraries
from tidelog.spark.sessions.errors import Py4JError, Py4JJavaError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

logger = logging.getLogger(__name__)

_TIMEOUT: Final = ("hive.metastore.client.socket.timeout", "30s")  # Hive's default: 10 minutes
_PROVIDER: Final = "spark.sql.sources.provider"
_NAME: Final = re.compile(r"\w+", re.ASCII)
"""Names that Hive and Spark take without quotes."""
_FORMAT: Final = {
    "setInputFormat": "org.apache.hadoop.mapred.SequenceFileInputFormat",
    "setOutputFormat": "org.apache.hadoop.hive.ql.io.HiveSequenceFileOutputFormat",
}
_SERDE: Final = "org.apache.hadoop.hive.serde2.lazy.LazySimpleSerDe"


def _url(entry: Entry) -> str:
    """Return the location as Hadoop names it."""
    if "://" in entry.location:
        return entry.location
    return f"file:{os.path.abspath(entry.location)}"  # noqa: PTH100 - it removes `..`


class HiveCatalog:
    """A Hive Metastore, through the client in Spark's jars.

    Args:
        spark: a session; its settings ``spark.hadoop.hive.*`` count.
        uri: ``thrift://host:port``; several, separated by commas: one that answers.
        conf: see `tidelog.outputs.lake.java_libraries.java_libraries`.
    """

    def __init__(
        self, spark: SparkSession, uri: str, conf: Mapping[str, Any] | None = None
    ) -> None:
        self._spark, self._conf = spark, conf or {}
        self._java: JavaLibraries | None = None
        self.uri = uri

    def refused_name(self, entry: Entry) -> str | None:
        """See `Catalog`."""
        if _NAME.fullmatch(entry.database) and _NAME.fullmatch(entry.name):
            return None
        return (
            f"{entry} can't be a name in the Hive Metastore, where names have letters (of ASCII), "
            f"digits and _ alone. {route_step(entry.table)}"
        )

    def register(self, entries: Sequence[Entry]) -> dict[TableName, str]:
        """See `Catalog`."""
        with self._errors():
            client = self._connect()
            try:
                found = {each.table: self._register(client, each) for each in entries}
            finally:
                client.close()
        return {table: why for table, why in found.items() if why is not None}

    def _libraries(self) -> JavaLibraries:
        if self._java is None or self._java.ended:
            self._java = java_libraries(self._spark, self._conf)
        return self._java

    def _connect(self) -> Any:
        libraries = self._libraries()
        settings, hadoop = libraries.hadoop, libraries.gateway.jvm.org.apache.hadoop
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
        java = self._libraries().gateway.jvm
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
        java = self._libraries().gateway.jvm
        api = java.org.apache.hadoop.hive.metastore.api
        serde = api.SerDeInfo()
        serde.setSerializationLib(_SERDE)
        serde.setParameters(_java_map(java, {"path": _url(entry), "serialization.format": "1"}))
        storage = api.StorageDescriptor()
        # As Spark has it for tables whose columns the metastore does not know.
        columns = java.java.util.ArrayList()
        columns.add(api.FieldSchema("col", "array<string>", "from deserializer"))
        storage.setCols(columns)
        storage.setLocation(_url(entry))
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
            "spark.sql.create.version": pyspark.__version__,
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
            raise OutputError(
                f"the JVM of its client does not answer: {type(error).__name__}"
            ) from None


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
    """Return why the table that the metastore has is not the entry's; None: it is."""
    storage, parameters = found.getSd(), found.getParameters()
    serde = storage.getSerdeInfo()
    where = (serde.getParameters().get("path") if serde is not None else None) or (
        storage.getLocation() or ""
    )
    is_delta = str(parameters.get(_PROVIDER) or "").lower() == "delta"
    name, title = str(entry), "the Hive Metastore"
    return another_table(entry, name, title, _url(entry), str(where) if is_delta else None)
