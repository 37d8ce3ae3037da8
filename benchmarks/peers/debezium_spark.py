"""Debezium's engine into files of JSON, and Spark, which merges them into Delta."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.peers.java import PROGRAMS, class_path, version
from benchmarks.peers.peer import FRESHNESS_S, lines_in_delta, reached_in_delta
from benchmarks.peers.source import Mark, Source
from tidelog.spark.sessions.jars import DELTA_VERSION, delta_jars

# Larger batches than by default (2,048 of 8,192): fewer files for Spark.
PROPERTIES = """
name=peers
topic.prefix=peers
connector.class=io.debezium.connector.postgresql.PostgresConnector
database.hostname=127.0.0.1
database.port={port}
database.user=postgres
database.password=postgres
database.dbname=postgres
table.include.list=public.orders
plugin.name=pgoutput
slot.name=debezium
publication.name=debezium
publication.autocreate.mode=filtered
offset.storage=org.apache.kafka.connect.storage.FileOffsetBackingStore
offset.storage.file.filename={directory}/offsets
offset.flush.interval.ms=1000
decimal.handling.mode=string
tombstones.on.delete=false
converter.schemas.enable=false
max.batch.size=20480
max.queue.size=81920
"""


class DebeziumSpark:
    title = (
        f"Debezium {version('debezium', 'debezium-embedded')} → JSON → Spark, MERGE → "
        f"Delta {DELTA_VERSION}"
    )
    slot = "debezium"

    def __init__(self, source: Source, directory: Path) -> None:
        self.directory = directory
        self._source = source
        self._table = directory / "lake" / "orders"
        self._events = directory / "events"
        self._events.mkdir()
        properties = PROPERTIES.format(port=source.port, directory=directory)
        (directory / "debezium.properties").write_text(properties)
        self._class_path = class_path(["debezium"], "DebeziumFiles", directory)
        self._jars = ",".join(str(jar) for jar in delta_jars())

    def commands(self) -> Sequence[Sequence[str]]:
        engine = ["java", "-Xmx1g", "-cp", self._class_path, "DebeziumFiles"]
        merge = [sys.executable, str(PROGRAMS / "merge_events.py"), str(self._events)]
        merge += [str(self._table), str(self.directory / "checkpoint"), f"{FRESHNESS_S} seconds"]
        return [[*engine, "debezium.properties", "events"], [*merge, self._jars]]

    def reached(self, mark: Mark) -> bool:
        return reached_in_delta(self._table, mark, self._source.rows)

    def lines(self) -> Iterator[bytes]:
        return lines_in_delta(self._table)
