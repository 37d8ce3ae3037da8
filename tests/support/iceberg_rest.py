"""A REST catalog: the server that Iceberg's own tests have, in Jetty, over a catalog in PostgreSQL;
and what stands before it: a token that it wants, and faults of its answers.

The server's classes are in the jar of Iceberg's tests, which Maven Central has up to 1.11; Jetty is
that of Spark.
"""

from __future__ import annotations

import http.client
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Self

import pyspark
from py4j.java_gateway import GatewayParameters, JavaGateway, launch_gateway
from tests.support.opensearch import java
from tests.support.postgres_jdbc import postgres_jdbc_jar
from tests.support.s3 import S3Server, hadoop_aws_jars

from tidelog.demo.servers.embedded import free_port
from tidelog.spark.sessions.jars import iceberg_jars
from tidelog.system.maven import Jar, fetch

_SERVER = Jar(
    "org.apache.iceberg",
    "iceberg-core",
    "1.11.0",
    "4284719a5f0eb7db01e9f784a0ed4ca8bacf7d6f9951924143afc083428d8be3",
    classifier="tests",
    size=1_804_337,
)
_JVM = ["-Xmx192m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]


class RestCatalogServer:
    """The server, in a JVM of its own. Use it as a context manager.

    Args:
        catalog: the properties of the catalog that it serves.
        s3: where its tables are; None: in directories.
    """

    def __init__(self, catalog: Mapping[str, str], s3: S3Server | None = None) -> None:
        self._catalog, self._s3 = dict(catalog), s3
        self.port = free_port()
        self._gateway: JavaGateway | None = None
        self._process: Any = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Start; on the same port as before."""
        spark = Path(pyspark.__file__).parent / "jars"
        jars = [*iceberg_jars(), postgres_jdbc_jar()]
        if self._s3 is not None:
            jars += hadoop_aws_jars()
        # Last: it has a class of Hadoop's, too.
        classes = [*map(str, jars), f"{spark}/*", *map(str, fetch((_SERVER,), "Iceberg's tests"))]
        port, token, self._process = launch_gateway(
            classpath=":".join(classes),
            jarpath=str(next(spark.glob("py4j-*.jar"))),
            javaopts=_JVM,
            java_path=java("Iceberg's REST server"),
            die_on_exit=True,
            enable_auth=True,
            return_proc=True,
        )
        self._gateway = JavaGateway(
            gateway_parameters=GatewayParameters(
                port=port, auth_token=token, auto_convert=True, enable_memory_management=False
            )
        )
        jvm: Any = self._gateway.jvm
        iceberg, jetty = jvm.org.apache.iceberg, jvm.org.sparkproject.jetty
        configuration = jvm.org.apache.hadoop.conf.Configuration()
        if self._s3 is not None:
            configuration.set("fs.s3.impl", "org.apache.hadoop.fs.s3a.S3AFileSystem")
            for name, value in self._s3.hadoop_settings.items():
                configuration.set(name, value)
        served = iceberg.CatalogUtil.buildIcebergCatalog("served", self._catalog, configuration)
        servlet = iceberg.rest.RESTCatalogServlet(iceberg.rest.RESTCatalogAdapter(served))
        server = jetty.server.Server(self.port)
        servlets = jetty.ee10.servlet if _has_ee10(spark) else jetty.servlet
        context = servlets.ServletContextHandler()
        context.addServlet(servlets.ServletHolder(servlet), "/*")
        server.setHandler(context)
        server.start()

    def stop(self) -> None:
        """Kill it: it answers no more."""
        if self._gateway is not None:
            self._process.kill()
            self._process.wait()
            self._gateway.close()
            self._gateway = None


def _has_ee10(spark: Path) -> bool:
    return not list(spark.glob("jakarta.servlet-api-5*.jar"))


Passed = tuple[int, list[tuple[str, str]], bytes]
"""Status, headers and body of an answer."""


@dataclass
class Request:
    """A request of a client. ``forward`` passes it to the server, and returns the answer."""

    method: str
    path: str
    forward: Callable[[], Passed]

    @property
    def is_commit(self) -> bool:
        """Does it change a table that exists?"""
        return self.method == "POST" and self.path.rstrip("/").split("/")[-2] == "tables"


def refused(status: int, kind: str = "ServiceFailureException") -> Passed:
    """An answer as catalogs have them."""
    body = f'{{"error": {{"message": "no", "type": "{kind}", "code": {status}}}}}'
    return status, [("Content-Type", "application/json")], body.encode()


@dataclass
class FaultyCatalog:
    """What clients reach in place of the server. Use it as a context manager.

    Attributes:
        server: the server's port.
        token: what clients must send; "": nothing.
        answer: called for each request; None: the connection ends without an answer.
    """

    server: int
    token: str = ""
    answer: Callable[[Request], Passed | None] = lambda request: request.forward()
    port: int = field(init=False, default=0)

    def __enter__(self) -> Self:
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_: object) -> None:
                pass

            def _serve(self) -> None:
                data = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                sent = {k: v for k, v in self.headers.items() if k.lower() != "accept-encoding"}

                def forward() -> Passed:
                    client = http.client.HTTPConnection("127.0.0.1", outer.server, timeout=60)
                    try:
                        client.request(self.command, self.path, data or None, sent)
                        found = client.getresponse()
                        kind = found.getheader("Content-Type", "application/json")
                        return found.status, [("Content-Type", kind)], found.read()
                    finally:
                        client.close()

                given = self.headers.get("Authorization", "")
                answer: Passed | None
                login = self.path.endswith("/oauth/tokens")
                if outer.token and given != f"Bearer {outer.token}" and not login:
                    answer = refused(401, "NotAuthorizedException")
                else:
                    try:
                        answer = outer.answer(Request(self.command, self.path, forward))
                    except OSError:  # the server is away
                        answer = None
                if answer is None:
                    self.close_connection = True
                    return
                status, headers, body = answer
                self.send_response(status)
                for name, value in headers:
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(body)

            do_GET = do_POST = do_HEAD = do_DELETE = _serve  # noqa: N815

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._http.daemon_threads = True
        self.port = self._http.server_address[1]
        threading.Thread(target=self._http.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._http.shutdown()
        self._http.server_close()

    @property
    def uri(self) -> str:
        """For the catalog's property."""
        return f"http://127.0.0.1:{self.port}"


def once_committed(answer: Callable[[], Passed | None]) -> Callable[[Request], Passed | None]:
    """Answers one commit by ``answer`` once it is made; every other request as the server does."""
    left = [answer]

    def serve(request: Request) -> Passed | None:
        found = request.forward()
        if request.is_commit and left:
            return left.pop()()
        return found

    return serve


def held(seconds: float) -> Callable[[], None]:
    """An answer that does not come: the connection ends after so long."""

    def wait() -> None:
        time.sleep(seconds)

    return wait
