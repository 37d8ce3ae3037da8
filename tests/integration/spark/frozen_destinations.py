"""Destinations of each kind, seen by whoever reads them, and where a batch of theirs is frozen."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, QueryBuilder
from pyspark.errors import AnalysisException
from tests.behaviours.outputs import activity_files, api, kafka_topics, search_index
from tests.behaviours.outputs.database_tables import dialect, live_rows
from tests.support.faulty_network import on_the_way
from tests.support.iceberg_sql import SPARK_OF_ICEBERG, spark_catalog_conf
from tests.support.s3 import S3Server, hadoop_aws_jars

from tidelog.outputs.opensearch.indices import index_name
from tidelog.spark.sessions.versions import SPARK_VERSION

Change = tuple[str, int, str | None]
"""As format ``flat`` has it: c, u or d; the key, and the value."""

FROZEN: list[Change] = [
    ("u", 1, "frozen"),
    ("d", 2, None),
    *(("c", n, "frozen") for n in range(11, 21)),
]
"""The batch amid which the leader is frozen."""
_WAITING = {
    "PostgreSQL": "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'",
    **dict.fromkeys(
        ("MySQL", "MariaDB"),
        "SELECT count(*) FROM information_schema.innodb_trx WHERE trx_state = 'LOCK WAIT'",
    ),
}


@dataclass
class Place:
    """A destination.

    Attributes:
        output: its section of the configuration.
        found: by whoever reads it: of a copy the rows, of a stream the changes, sorted.
        seen: all that is there, also what no reader looks at; None: a stream that may hold
            messages of `FROZEN` twice, which `found` passes over.
        point: a failpoint behind the last look at the lease; "": `stall` has the batch wait.
        stall: as long as it is entered the destination keeps a batch waiting; what it yields
            tells whether one waits.
        release: lets go what of the frozen leader has been on its way; called before it wakes up.
        conf: settings for its Spark sessions.
        stream: it is told each change.
        late_s: what a worker or Spark does late is done by then.
    """

    output: dict[str, Any]
    found: Callable[[], list[tuple[Any, ...]]]
    seen: Callable[[], Any] | None
    point: str = "output.task.commit"
    stall: Callable[[], AbstractContextManager[Callable[[], bool]]] | None = None
    release: Callable[[], object] = bool
    conf: dict[str, str] = field(default_factory=dict)
    stream: bool = False
    late_s: float = 1.0

    def wanted(self, changes: list[Change]) -> list[tuple[Any, ...]]:
        if self.stream:
            return sorted(changes, key=str)
        rows = {key: value for _, key, value in changes}
        return sorted((key, value) for key, value in rows.items() if value is not None)


class Places:
    """Makes destinations, by name. ``root``: the directory of the configuration."""

    def __init__(self, request: pytest.FixtureRequest, root: Path) -> None:
        self._request = request
        self._root = root

    def make(self, name: str) -> Place:
        made: Place = getattr(self, name)()
        return made

    def delta(self) -> Place:
        """Its driver is about to begin a MERGE."""
        log = self._root / "lake/public/t/_delta_log"

        def read(spark: Any) -> Any:
            return spark.read.format("delta").load(str(log.parent))

        def commits() -> list[tuple[str, str]]:
            return sorted((each.name, each.read_text()) for each in log.glob("*.json"))

        output = {"kind": "delta", "path": "lake"}
        return Place(output, lambda: self._lake(log, read), commits, "lake.table.write")

    def delta_merge(self) -> Place:
        """A task reads for a MERGE, which Spark commits while the driver stands still."""
        made = self.delta()
        made.point, made.late_s = "output.read", 10.0
        return made

    def delta_s3(self) -> Place:
        """Its driver has sent a commit, which is still on its way when another has made the same
        one. A put that does not ask whether there is one, as Delta's own log store for Spark sends
        it, replaces that, and what the other delivered is in no version of the table.
        """
        s3: S3Server = self._request.getfixturevalue("s3")
        stack = ExitStack()
        self._request.addfinalizer(stack.close)
        patch = self._request.getfixturevalue("monkeypatch")
        network = stack.enter_context(on_the_way(s3, s3.url(""), patch))
        log = s3.files("lake/public/t/_delta_log")

        def found() -> list[tuple[Any, ...]]:
            if not any(log.glob("*.json")):
                return []
            table = DeltaTable(s3.url("lake/public/t"), storage_options=s3.options)
            read = QueryBuilder().register("t", table).execute("SELECT id, v FROM t")
            rows = pa.table(read.read_all()).to_pylist()
            return sorted((row["id"], row["v"]) for row in rows)

        def commits() -> list[tuple[str, str]]:
            return sorted((each.name, each.read_text()) for each in log.glob("*.json"))

        @contextmanager
        def stall() -> Iterator[Callable[[], bool]]:
            newest = max(int(each.stem) for each in log.glob("*.json"))
            network.arm("hold", f"PUT /{s3.bucket}/lake/public/t/_delta_log/{newest + 1:020d}.json")
            yield lambda: network.struck == 1

        settings = {
            "endpoint": f"http://127.0.0.1:{network.port}",
            "access.key": s3.access_key_id,
            "secret.key": s3.secret_access_key,
            "path.style.access": "true",
        }
        conf = {f"spark.hadoop.fs.s3a.{name}": value for name, value in settings.items()}
        conf["spark.jars"] = ",".join(map(str, hadoop_aws_jars()))
        output = {"kind": "delta", "path": f"s3a://{s3.bucket}/lake"}
        return Place(
            output, found, commits, "", stall, release=network.deliver, conf=conf, late_s=10.0
        )

    def iceberg(self) -> Place:
        """Its driver has written files, and not committed them."""
        if SPARK_VERSION != SPARK_OF_ICEBERG:
            pytest.skip(f"Iceberg needs Spark {SPARK_OF_ICEBERG}: make test-iceberg")
        metadata = self._root / "lake/public/t/metadata"

        def read(spark: Any) -> Any:

            session = spark.newSession()
            catalog = {"type": "hadoop", "warehouse": str(self._root / "lake")}
            for name, value in spark_catalog_conf("lake", catalog).items():
                session.conf.set(name, value)
            with suppress(AnalysisException):  # it is being made
                return session.table("lake.public.t")
            return session.createDataFrame([], "id int, v string")

        def commits() -> list[tuple[str, str]]:
            files = metadata.glob("*.metadata.json")
            return sorted((each.name, each.read_text()) for each in files)

        output = {"kind": "iceberg", "path": "lake"}
        return Place(output, lambda: self._lake(metadata, read), commits, "iceberg.written")

    def _lake(self, metadata: Path, read: Callable[[Any], Any]) -> list[tuple[Any, ...]]:
        if not any(metadata.glob("*.json")):
            return []
        frame = read(self._request.getfixturevalue("spark"))
        return sorted(map(tuple, frame.select("id", "v").collect()))

    def files(self) -> Place:
        """Its driver is about to commit what the tasks have staged."""
        path = self._root / "activity"

        def found() -> list[tuple[Any, ...]]:
            read = activity_files.read(path)
            told = [(r["op"], r["key"]["id"], (r["after"] or {}).get("v")) for r in read]
            return sorted(told, key=str)

        def seen() -> list[tuple[str, bytes]]:
            commits = path.glob("_tidelog/files/commits/*")
            every = [*activity_files.visible(path), *commits] if path.exists() else []
            return sorted((str(each), each.read_bytes()) for each in every)

        output = {"kind": "files", "path": "activity"}
        return Place(output, found, seen, "files.commit.before", stream=True)

    def postgres(self) -> Place:
        return self._database("postgres")

    def mysql(self) -> Place:
        return self._database("mysql")

    def mariadb(self) -> Place:
        return self._database("mariadb")

    def postgres_transaction(self) -> Place:
        return self._transaction("postgres")

    def mysql_transaction(self) -> Place:
        return self._transaction("mysql")

    def mariadb_transaction(self) -> Place:
        return self._transaction("mariadb")

    def _transaction(self, kind: str) -> Place:
        """A worker's transaction has written rows, and holds its locks until the server ends it."""
        made = self._database(kind)

        @contextmanager
        def stall() -> Iterator[Callable[[], bool]]:
            holder, watcher = self._dialect.connect("test"), self._dialect.connect("test")
            table = self._dialect.quoted(*self._table)
            holder.begin()
            holder.rows(f"SELECT * FROM {table} WHERE id = 1 FOR UPDATE")
            try:
                yield lambda: watcher.rows(_WAITING[watcher.product]) != [(0,)]
            finally:
                holder.close()
                watcher.close()

        made.point, made.stall = "", stall
        return made

    def _database(self, kind: str) -> Place:
        """A worker has its rows, and no transaction yet."""
        place: Any = dialect(kind)
        output = {"kind": "postgres" if kind == "postgres" else "mysql", "url": place.url}
        namespace, own = "public", "tidelog"
        if kind != "postgres":
            namespace = place.url.rpartition("/")[2].partition("?")[0]
            own = f"own_{namespace}"
            output |= {"database": namespace, "own_database": own}
        self._dialect, self._table = place, (namespace, "t")

        def found() -> list[tuple[Any, ...]]:
            return [(row["id"], row["v"]) for row in live_rows(place, namespace, "t")]

        def seen() -> list[Any]:
            session = place.connect("test")
            tables = [(namespace, "t"), (own, "outputs"), (own, f"deleted.{namespace}.t")]
            try:
                every = [session.rows(f"SELECT * FROM {place.quoted(*each)}") for each in tables]
            finally:
                session.close()
            return [sorted(rows) for rows in every]

        return Place(output, found, seen)

    def kafka(self) -> Place:
        """A worker has yet to begin."""
        made = self._kafka(transactions=False)
        made.point = "output.task.open"
        return made

    def kafka_handed_over(self) -> Place:
        """librdkafka has its messages, and no broker: the page says that these may come again."""
        made = self._kafka(transactions=False)
        made.seen = None
        return made

    def kafka_transactions(self) -> Place:
        return self._kafka(transactions=True)

    def _kafka(self, *, transactions: bool) -> Place:
        broker, topic = kafka_topics.broker(), f"frozen-{self._root.name}"
        output = {
            "kind": "kafka", "servers": broker.servers, "topic": topic, "format": "flat",
            "tombstones": False, "partitions": 1, "transactions": transactions,
        }  # fmt: skip

        def read(*, committed: bool) -> list[kafka_topics.Read]:
            try:
                return kafka_topics.read(topic, committed=committed)
            except KeyError:
                return []

        def found() -> list[tuple[Any, ...]]:
            """By who passes over what is not above its key's greatest version."""
            told, last = [], dict[str | None, int]()
            for each in read(committed=True):
                if each.version > last.get(each.key, 0):
                    last[each.key] = each.version
                    told.append(_change(each.value))
                else:
                    assert made.seen is None, f"{each} came again"
                    assert _change(each.value) in FROZEN, "no other message comes again"
            return sorted(told, key=str)

        def seen() -> list[kafka_topics.Read]:
            return read(committed=False)

        made = Place(output, found, seen, stream=True)
        return made

    def http(self) -> Place:
        """No request was sent."""
        return self._http(1)

    def http_request(self) -> Place:
        """A request is on its way behind the last look at the lease: it comes again, as it was."""
        made = self._http(2)
        made.point, made.seen = "output.request", made.found
        return made

    def _http(self, times: int) -> Place:
        receiver, path = api.receiver(), f"/events/{self._root.name}"
        output = {
            "kind": "http", "url": receiver.url + path, "format": "flat", "connections": 1
        }  # fmt: skip

        def found() -> list[tuple[Any, ...]]:
            """By an API that minds keys."""
            sent = [each for each in receiver.requests() if each.path == path]
            assert max((each.times for each in sent), default=0) <= times
            return sorted((_change(each.event) for each in receiver.events(path)), key=str)

        def seen() -> list[Any]:
            return [each for each in receiver.requests() if each.path == path]

        return Place(output, found, seen, stream=True)

    def opensearch(self) -> Place:
        """A bulk request is on its way behind the last look at the lease."""
        name = f"frozen-{self._root.name}"
        settings = search_index.SETTINGS
        urls = [search_index.node().url]
        output = {"kind": "opensearch", "urls": urls, "index": name, "settings": settings}
        alias = index_name(name)

        def found() -> list[tuple[Any, ...]]:
            return sorted((row["id"], row["v"]) for row in search_index.found(alias).values())

        def seen() -> Any:
            query = {"size": 1000, "version": True}
            hits = search_index.ask("POST", f"/{alias}-000001/_search", query)["hits"]["hits"]
            return sorted(hits, key=lambda each: str(each["_id"]))

        return Place(output, found, seen, "output.request")

    def own(self) -> Place:
        """A class that asks before it writes, and that executors import."""
        path = self._request.getfixturevalue("monkeypatch")
        path.setenv("PYTHONPATH", str(Path(__file__).parents[3]), prepend=os.pathsep)
        file = self._root / "lines"
        output = {
            "kind": "python", "class": "tests.behaviours.outputs.kept_rows:Lines",
            "options": {"path": str(file)}, "delivery": "ordered", "format": "flat",
        }  # fmt: skip

        def seen() -> list[str]:
            return file.read_text().splitlines() if file.exists() else []

        def found() -> list[tuple[Any, ...]]:
            return sorted((_change(json.loads(line)) for line in seen()), key=str)

        return Place(output, found, seen, stream=True)


def _change(event: Any) -> tuple[Any, ...]:
    """Of an event in format ``flat``."""
    return event["__op"], event["id"], None if event["__deleted"] else event["v"]
