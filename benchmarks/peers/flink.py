"""Flink CDC's source for PostgreSQL into a table of Paimon or Iceberg, one job in one JVM."""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.peers.java import class_path, version
from benchmarks.peers.peer import FRESHNESS_S
from benchmarks.peers.source import COLUMNS, Mark, Source

_ROW = (
    "id BIGINT, customer INT, status STRING, amount DECIMAL(12, 2), quantity INT, "
    "placed TIMESTAMP_LTZ(6), updated TIMESTAMP(6), note STRING, reference STRING, "
    "active BOOLEAN, PRIMARY KEY (id) NOT ENFORCED"
)
_SETTINGS = {
    "execution.target": "local",
    "parallelism.default": "2",
    "pipeline.object-reuse": "true",
    "table.local-time-zone": "UTC",
    "execution.checkpointing.interval": f"{FRESHNESS_S} s",
    "execution.checkpointing.externalized-checkpoint-retention": "RETAIN_ON_CANCELLATION",
}
# The offset of a checkpoint is confirmed at once, and not three checkpoints later: it tells us
# what the copy has. `upsert`: the table has a key and the default replica identity.
_SOURCE = {
    "connector": "postgres-cdc",
    "hostname": "127.0.0.1",
    "username": "postgres",
    "password": "postgres",
    "database-name": "postgres",
    "schema-name": "public",
    "table-name": "orders",
    "decoding.plugin.name": "pgoutput",
    "changelog-mode": "upsert",
    "scan.incremental.snapshot.enabled": "true",
    "scan.lsn-commit.checkpoints-num-delay": "0",
    "debezium.publication.autocreate.mode": "filtered",
}
# What Flink's own start scripts open to it in Java 17.
_OPENED = (
    *("java.lang", "java.lang.reflect", "java.net", "java.io", "java.nio", "java.math"),
    *("java.text", "java.time", "java.util", "java.util.concurrent"),
    *("java.util.concurrent.atomic", "java.util.concurrent.locks", "sun.nio.ch"),
)
_LOGGING = """rootLogger.level = WARN
rootLogger.appenderRef.console.ref = console
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d %p %c: %m%n
"""


_CDC = (
    f"Flink CDC {version('flink', 'flink-sql-connector-postgres-cdc')} (Flink "
    f"{version('flink', 'flink-runtime')})"
)


@dataclass(frozen=True)
class Lake:
    """``catalog``: its options; ``table``: the table's; ``commits``: a pattern of files in the
    warehouse, of which a commit writes one."""

    title: str
    jars: str
    slot: str
    catalog: str
    table: str
    database: str
    commits: str


PAIMON = Lake(
    title=f"{_CDC} → Paimon {version('paimon', 'paimon-flink-1.20')}",
    jars="paimon",
    slot="flink",
    catalog="'type' = 'paimon'",
    table="'bucket' = '2'",
    database="default",
    commits="default.db/orders/snapshot/snapshot-*",
)
ICEBERG = Lake(
    title=f"{_CDC} → Iceberg {version('iceberg', 'iceberg-flink-runtime-1.20')}",
    jars="iceberg",
    slot="flink_iceberg",
    catalog="'type' = 'iceberg', 'catalog-type' = 'hadoop'",
    table="'format-version' = '2', 'write.upsert.enabled' = 'true'",
    database="lake",
    commits="lake/orders/metadata/v*.metadata.json",
)


class FlinkJob:
    def __init__(self, lake: Lake, source: Source, directory: Path) -> None:
        self.title, self.slot, self.directory = lake.title, lake.slot, directory
        self._lake = lake
        self._source = source
        self._class_path = class_path(["flink", lake.jars], "FlinkJob", directory)
        self._checkpoints = directory / "checkpoints"
        self._catalog = f"CREATE CATALOG lake WITH ({lake.catalog}, 'warehouse' = '{directory}')"
        self._table = f"lake.`{lake.database}`.orders"
        (directory / "log4j.properties").write_text(_LOGGING)

    def commands(self) -> Sequence[Sequence[str]]:
        options = {**_SOURCE, "port": str(self._source.port), "slot.name": self.slot}
        options["debezium.publication.name"] = self.slot
        settings = {**_SETTINGS, "execution.checkpointing.dir": self._checkpoints.as_uri()}
        last = max(self._metadata(), key=_modified, default=None)
        if last is not None:
            settings["execution.state-recovery.path"] = last.parent.as_uri()
        written = ", ".join(f"'{name}' = '{value}'" for name, value in options.items())
        return [
            self._command(
                settings,
                f"CREATE TEMPORARY TABLE orders ({_ROW}) WITH ({written})",
                self._catalog,
                f"CREATE DATABASE IF NOT EXISTS lake.`{self._lake.database}`",
                f"CREATE TABLE IF NOT EXISTS {self._table} ({_ROW}) WITH ({self._lake.table})",
                f"INSERT INTO {self._table} SELECT * FROM orders",
            )
        ]

    def reached(self, mark: Mark) -> bool:
        """A checkpoint has it, and the lake has a commit since: it follows a checkpoint."""
        if not self._source.confirmed(self.slot, mark.lsn):
            return False
        commits = self.directory.glob(self._lake.commits)
        return max(map(_modified, commits), default=0) > max(
            map(_modified, self._metadata()), default=math.inf
        )

    def lines(self) -> Iterator[bytes]:
        """Read by a job of Flink that writes the table as text."""
        row = _ROW.replace(", PRIMARY KEY (id) NOT ENFORCED", "")
        for name in ("placed TIMESTAMP_LTZ(6)", "updated TIMESTAMP(6)"):
            row = row.replace(name, f"{name.split()[0]} STRING")
        chosen = ", ".join(
            f"CAST({name} AS STRING)" if name in ("placed", "updated") else name for name in COLUMNS
        )
        text = self.directory / "text"
        command = self._command(
            {**_SETTINGS, "execution.runtime-mode": "batch"},
            self._catalog,
            f"CREATE TEMPORARY TABLE text ({row}) WITH ('connector' = 'filesystem', "
            f"'path' = '{text.as_uri()}', 'format' = 'csv', "
            "'csv.disable-quote-character' = 'true')",
            f"INSERT INTO text SELECT {chosen} FROM {self._table}",
        )
        log = self.directory / "read.log"
        with log.open("wb") as said:
            done = subprocess.run(command, cwd=self.directory, stdout=said, stderr=said)
        if done.returncode:
            sys.exit(f"the copy of {self.title} can't be read: see {log}")
        for file in sorted(path for path in text.rglob("*") if path.is_file()):
            with file.open("rb") as rows:
                yield from rows

    def _metadata(self) -> Iterator[Path]:
        """Of the checkpoints: it is the last file that Flink writes of one."""
        return self._checkpoints.glob("*/chk-*/_metadata")

    def _command(self, settings: dict[str, str], *statements: str) -> list[str]:
        (self.directory / "config.yaml").write_text(
            "".join(f"{name}: {value}\n" for name, value in settings.items())
        )
        (self.directory / "job.sql").write_text("".join(f"{each};\n" for each in statements))
        opened = [f"--add-opens=java.base/{name}=ALL-UNNAMED" for name in _OPENED]
        logging = f"-Dlog4j.configurationFile={self.directory}/log4j.properties"
        options = [*opened, logging, "-Xmx2g", "-cp", self._class_path]
        return ["java", *options, "FlinkJob", str(self.directory)]


def _modified(file: Path) -> float:
    try:
        return file.stat().st_mtime
    except FileNotFoundError:  # an old one, removed just now
        return 0
