"""An S3 server of one's own: S3Proxy over a directory of files, jars from Maven Central.

It makes conditional puts atomic (by a hard link) for ``If-None-Match: *``; ``If-Match`` it checks
right before it writes.
"""

from __future__ import annotations

import atexit
import secrets
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
from pyarrow import fs
from tests.support.opensearch import install_jars, java
from tests.support.s3_jars import S3PROXY_JARS, S3PROXY_VERSION

from tidelog.demo.servers.embedded import EmbeddedServer, free_port, process_identity
from tidelog.errors import TidelogError
from tidelog.eventlog.storage import provide_options
from tidelog.spark.sessions.jars import fetch_jars, installed_spark

_JVM = ["-Xms32m", "-Xmx192m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto"]
_LOGGING = """<configuration>
<appender name="console" class="ch.qos.logback.core.ConsoleAppender">
<encoder><pattern>%d %p %m%n</pattern></encoder></appender>
<root level="warn"><appender-ref ref="console"/></root>
</configuration>
"""


def hadoop_aws_jars() -> list[Path]:
    """What Spark needs to read and write ``s3a://``."""
    return fetch_jars(["s3"], installed_spark())


class S3Server(EmbeddedServer):
    """One server with one bucket, which this process can open by its URL once the server runs. Use
    it as a context manager.

    Its objects are files below `directory`: tests may look at them and damage them.
    """

    title = "S3Proxy"

    def __init__(self) -> None:
        super().__init__("tidelog-s3-")
        self.bucket = f"tidelog-{secrets.token_hex(4)}"
        self.access_key_id = "tidelog"
        self.secret_access_key = secrets.token_hex(16)
        self.directory = self._base / "data" / self.bucket
        self.port = 0

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def options(self) -> dict[str, str]:
        """For `tidelog.eventlog.storage.provide_options` and ``log.storage_options``."""
        return {
            "endpoint": self.endpoint,
            "allow_http": "true",
            "region": "us-east-1",
            "access_key_id": self.access_key_id,
            "secret_access_key": self.secret_access_key,
        }

    @property
    def hadoop_settings(self) -> dict[str, str]:
        """For Hadoop's client."""
        return {
            "fs.s3a.endpoint": self.endpoint,
            "fs.s3a.endpoint.region": self.options["region"],
            "fs.s3a.path.style.access": "true",
            "fs.s3a.access.key": self.access_key_id,
            "fs.s3a.secret.key": self.secret_access_key,
        }

    @property
    def pyiceberg_properties(self) -> dict[str, str]:
        return {
            "s3.endpoint": self.endpoint,
            "s3.access-key-id": self.access_key_id,
            "s3.secret-access-key": self.secret_access_key,
            "s3.region": self.options["region"],
        }

    def new_bucket(self) -> str:
        """One more, for a test of its own: Hadoop has one client for each in a JVM."""
        name = f"tidelog-{secrets.token_hex(4)}"
        path = self.directory.parent / name
        path.mkdir()
        self._own(path)
        return name

    def url(self, prefix: str) -> str:
        return f"s3://{self.bucket}/{prefix}"

    def files(self, prefix: str) -> Path:
        """Where the objects below ``prefix`` are kept."""
        return self.directory / prefix

    def parquet(self, prefix: str) -> Any:
        """The table in the Parquet files below ``prefix``, as another client of S3 reads it."""
        client = fs.S3FileSystem(
            access_key=self.access_key_id,
            secret_key=self.secret_access_key,
            endpoint_override=f"127.0.0.1:{self.port}",
            scheme="http",
            region=self.options["region"],
        )
        return ds.dataset(f"{self.bucket}/{prefix}", filesystem=client, format="parquet").to_table()

    def start(self) -> None:
        """Start, return once it answers; on the same port as before."""
        if self.running:
            return
        self.directory.mkdir(parents=True, exist_ok=True)
        self._base.chmod(0o755)
        for path in (self._base, self.directory.parent, self.directory):
            self._own(path)
        fixed = self.port
        for attempt in range(5):
            self.port = fixed or free_port()
            with self.log_file.open("wb") as log:
                self._spawn(self._command(), log, process_identity(self._account))
            if self._is_ready(self._answers):
                break
            # Another process may have taken the port between our choice and the server's bind.
            if fixed or attempt == 4 or "in use" not in self.log_tail(200):
                raise TidelogError(f"S3Proxy did not start:\n{self.log_tail()}")
        atexit.register(self.close)
        provide_options(self.url(""), self.options)

    def _command(self) -> list[str]:
        settings = {
            "s3proxy.authorization": "aws-v2-or-v4",
            "s3proxy.endpoint": self.endpoint,
            "s3proxy.identity": self.access_key_id,
            "s3proxy.credential": self.secret_access_key,
            "jclouds.provider": "filesystem-nio2",
            "jclouds.filesystem.basedir": str(self.directory.parent),
        }
        properties, logging = self._base / "s3proxy.properties", self._base / "logback.xml"
        properties.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
        logging.write_text(_LOGGING)
        for path in (properties, logging):
            self._own(path)
        jars = install_jars(S3PROXY_JARS, f"s3proxy-{S3PROXY_VERSION}", self.title, self._account)
        arguments = [f"-Dlogback.configurationFile={logging}", "-cp", f"{jars}/*"]
        main = ["org.gaul.s3proxy.Main", "--properties", str(properties)]
        return [java(self.title), *_JVM, *arguments, *main]

    def _answers(self) -> bool:
        try:
            urllib.request.urlopen(self.endpoint, timeout=10).close()
        except urllib.error.HTTPError as refused:  # it wants a signature
            refused.close()
            return True
        except OSError:
            return False
        return True
