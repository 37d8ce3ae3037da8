"""A Hive Metastore of one's own, from Spark's jars, on Derby; and a Spark session that uses it."""

from __future__ import annotations

import atexit
import json
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyspark

from tidelog.demo.servers.embedded import EmbeddedServer, free_port, process_identity
from tidelog.errors import TidelogError
from tidelog.spark.session import spark_session
from tidelog.system.java import find_java

_JVM = ["-Xmx256m", "-Xms64m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto"]
_JARS = Path(pyspark.__file__).parent / "jars"


class HiveMetastore(EmbeddedServer):
    """Use it as a context manager."""

    title = "Hive Metastore"

    def __init__(self) -> None:
        super().__init__("tidelog-hive-")
        self.port = 0
        self.warehouse = self._base / "warehouse"

    @property
    def uri(self) -> str:
        return f"thrift://127.0.0.1:{self.port}"

    def start(self) -> None:
        """On the same port and with the same tables as before."""
        self.port = self.port or free_port()
        self._write_settings()
        java = find_java(17)
        assert java is not None
        command = [java, *_JVM, f"-Dderby.stream.error.file={self._base}/derby.log"]
        command += ["-cp", f"{self._base}:{_JARS}/*"]
        command += ["org.apache.hadoop.hive.metastore.HiveMetaStore", "-p", str(self.port)]
        with self.log_file.open("wb") as log:
            self._spawn(command, log, process_identity(None))
        atexit.register(self.close)
        if not self._is_ready(self._answers):
            raise TidelogError(f"the Hive Metastore did not start:\n{self.log_tail()}")

    def _answers(self) -> bool:
        with suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1):
            return True
        return False

    def _write_settings(self) -> None:
        settings = {
            "hive.async.log.enabled": "false",  # Spark's jars lack what it needs
            "hive.metastore.warehouse.dir": f"file:{self.warehouse}",
            "javax.jdo.option.ConnectionURL": (
                f"jdbc:derby:;databaseName={self._base}/derby;create=true"
            ),
            "hive.metastore.schema.verification": "false",
            "datanucleus.schema.autoCreateAll": "true",
        }
        text = "".join(
            f"<property><name>{name}</name><value>{value}</value></property>"
            for name, value in settings.items()
        )
        (self._base / "hive-site.xml").write_text(f"<configuration>{text}</configuration>")


class HiveReader:
    """A user's Spark session in an own process: with Delta, and the metastore as its catalog."""

    def __init__(self, uri: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, __file__, uri],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def __enter__(self) -> HiveReader:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(30)

    def sql(self, statement: str) -> Any:
        """Return the rows, as lists; or the error, as a text."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(json.dumps(statement), file=self._process.stdin, flush=True)
        while line := self._process.stdout.readline():
            if line.startswith("="):
                return json.loads(line[1:])
        raise AssertionError("the reader has ended")


def _read() -> None:
    conf = {
        "spark.sql.catalogImplementation": "hive",
        "spark.hadoop.hive.metastore.uris": sys.argv[1],
        "spark.sql.shuffle.partitions": "2",
    }
    spark = spark_session("local[2]", conf=conf, source=False)
    for line in sys.stdin:
        try:
            found: Any = [list(row) for row in spark.sql(json.loads(line)).collect()]
        except Exception as error:  # noqa: BLE001 - a test looks at it
            found = str(error)
        print("=" + json.dumps(found, default=str), flush=True)


if __name__ == "__main__":
    _read()
