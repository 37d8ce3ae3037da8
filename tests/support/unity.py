"""A server of Unity Catalog, and DuckDB as a reader by it.

Not each package index has the server: ``UNITY_CATALOG_CLASSPATH`` names its jars (CONTRIBUTING.md).
"""

from __future__ import annotations

import atexit
import importlib.util
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.support.delta_readers import duckdb_extension

from tidelog.demo.servers.embedded import EmbeddedServer, free_port, process_identity
from tidelog.errors import TidelogError
from tidelog.system.java import find_java

_JVM = ["-Xmx384m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto"]
_DATABASE = """hibernate.connection.driver_class=org.h2.Driver
hibernate.connection.url=jdbc:h2:file:./etc/db/h2db;DB_CLOSE_DELAY=-1
hibernate.hbm2ddl.auto=update
"""


class UnityServer(EmbeddedServer):
    """One that asks for a token, with the catalog ``main``. Use it as a context manager."""

    title = "Unity Catalog"

    def __init__(self) -> None:
        super().__init__("tidelog-unity-")
        self.port = 0

    @property
    def uri(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def token(self) -> str:
        """The administrator's; the server writes it when it starts first."""
        return (self._base / "etc/conf/token.txt").read_text().strip()

    def start(self) -> None:
        """On the same port and with the same tables as before."""
        classpath = os.environ.get("UNITY_CATALOG_CLASSPATH")
        if not classpath:
            pytest.skip("no server of Unity Catalog: UNITY_CATALOG_CLASSPATH (CONTRIBUTING.md)")
        again = self.port != 0
        self.port = self.port or free_port()
        settings = self._base / "etc/conf"
        settings.mkdir(parents=True, exist_ok=True)
        (settings / "server.properties").write_text("server.authorization=enable\n")
        (settings / "hibernate.properties").write_text(_DATABASE)
        java = find_java(17)
        assert java is not None
        main = ["io.unitycatalog.server.UnityCatalogServer", "-p", str(self.port)]
        command = [java, *_JVM, "-cp", classpath, *main]
        with self.log_file.open("wb") as log:
            self._spawn(command, log, process_identity(None))
        atexit.register(self.close)
        if not self._is_ready(self._answers):
            raise TidelogError(f"Unity Catalog did not start:\n{self.log_tail()}")
        if not again:
            self.ask("POST", "catalogs", {"name": "main"})

    def ask(self, method: str, path: str, body: object = None) -> Any:
        """What it answers; None: there is no such thing."""
        url = f"{self.uri}/api/2.1/unity-catalog/{path}"
        headers = {"Authorization": f"Bearer {self.token}"}
        answer = httpx.request(method, url, json=body, headers=headers, timeout=30)
        if answer.status_code == 404:
            return None
        assert answer.status_code < 300, answer.text
        return answer.json() if answer.text.startswith("{") else {}

    def _answers(self) -> bool:
        with suppress(OSError, httpx.HTTPError):
            return self.ask("GET", "catalogs") is not None
        return False


def by_duckdb(server: UnityServer, statement: str) -> list[tuple[Any, ...]]:
    """The rows, as DuckDB finds them by the catalog, which is ``unity`` there."""
    import duckdb

    files = [duckdb_extension(), *(_extension(name) for name in ("httpfs", "unity_catalog"))]
    secret = f"TOKEN '{server.token}', ENDPOINT '{server.uri}', AWS_REGION 'us-east-1'"
    with duckdb.connect() as connection:
        for file in files:
            connection.execute(f"LOAD '{file}'")
        connection.execute(f"CREATE SECRET (TYPE unity_catalog, {secret})")
        connection.execute("ATTACH 'main' AS unity (TYPE unity_catalog)")
        return connection.execute(statement).fetchall()


def _extension(name: str) -> Path:
    package = f"duckdb_extension_{name}"
    pytest.importorskip(package, reason=f"pip install {package.replace('_', '-')}")
    found = importlib.util.find_spec(package)
    assert found is not None
    assert found.origin is not None
    (extension,) = Path(found.origin).parent.rglob(f"{name}.duckdb_extension")
    return extension
