"""A ZooKeeper of one's own: one server, of the jars that pyspark brings."""

from __future__ import annotations

import atexit
import importlib.util
import secrets
import shutil
import socket
from pathlib import Path

from cryptography.hazmat.primitives import serialization
from tests.support.certificates import write_certificates
from tests.support.opensearch import java

from tidelog.demo.servers.embedded import EmbeddedServer, free_port, process_identity, server_cache
from tidelog.errors import TidelogError

_JVM = ["-Xms16m", "-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto"]
_JARS = ("zookeeper", "netty", "slf4j-api", "log4j", "metrics-core", "snappy", "commons-")
_USER = "tidelog"


class ZooKeeperServer(EmbeddedServer):
    """One server, also over TLS, that knows one user by SASL. Use it as a context manager."""

    title = "ZooKeeper"
    _main = "ZooKeeperServerMain"

    def __init__(self) -> None:
        super().__init__("tidelog-zookeeper-")
        self.port, self.tls_port = 0, 0
        self.user, self.password = _USER, secrets.token_hex(8)

    @property
    def hosts(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def ca(self) -> Path:
        """The certificate of the authority that the server's is of."""
        return self._base / "ca.pem"

    def start(self) -> None:
        """Start, return once it answers; on the same ports and with the same data as before."""
        if self.running:
            return
        fixed = self.port
        if not (self._base / "data").exists():
            (self._base / "data").mkdir()
            for path in (self._base, self._base / "data"):
                self._own(path)
            self._write_keys()
        for attempt in range(5):
            if not fixed:
                self.port, self.tls_port = free_port(), free_port()
            with self.log_file.open("wb") as log:
                self._spawn(self._command(), log, process_identity(self._account))
            if self._is_ready(self._answers):
                break
            # Another process may have taken the port between our choice and the server's bind.
            if fixed or attempt == 4 or "in use" not in self.log_tail(200):
                raise TidelogError(f"ZooKeeper did not start:\n{self.log_tail()}")
        atexit.register(self.close)

    def _write_keys(self) -> None:
        write_certificates(self._base)
        key = serialization.load_pem_private_key(
            (self._base / "server-key.pem").read_bytes(), password=None
        )
        pkcs8 = key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        both = self._base / "server.pem"
        both.write_bytes(pkcs8 + (self._base / "server-cert.pem").read_bytes())
        self._own(both)

    def _command(self) -> list[str]:
        settings = {
            "tickTime": 500,
            "maxSessionTimeout": 20_000,
            "maxClientCnxns": 0,
            "dataDir": self._base / "data",
            "clientPort": self.port,
            "clientPortAddress": "127.0.0.1",
            "secureClientPort": self.tls_port,
            "secureClientPortAddress": "127.0.0.1",
            "serverCnxnFactory": "org.apache.zookeeper.server.NettyServerCnxnFactory",
            "ssl.keyStore.location": self._base / "server.pem",
            "ssl.trustStore.location": self.ca,
            "ssl.clientAuth": "none",
            "authProvider.sasl": "org.apache.zookeeper.server.auth.SASLAuthenticationProvider",
            "admin.enableServer": "false",
            "4lw.commands.whitelist": "ruok,srvr",
            **self._of_ensemble(),
        }
        configuration, jaas = self._base / "zoo.cfg", self._base / "jaas.conf"
        configuration.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
        module = "org.apache.zookeeper.server.auth.DigestLoginModule"
        jaas.write_text(f'Server {{ {module} required user_{_USER}="{self.password}"; }};\n')
        for path in (configuration, jaas, self.ca):
            self._own(path)
        arguments = [f"-Djava.security.auth.login.config={jaas}", "-cp", f"{self._jars()}/*"]
        main = [f"org.apache.zookeeper.server.{self._main}", str(configuration)]
        return [java(self.title), *_JVM, *arguments, *main]

    def _of_ensemble(self) -> dict[str, object]:
        """Further settings."""
        return {}

    def _jars(self) -> Path:
        """Where the server's user may read them."""
        found = importlib.util.find_spec("pyspark")
        assert found is not None
        assert found.origin is not None
        from_spark = Path(found.origin).parent / "jars"
        version = next(from_spark.glob("zookeeper-3*.jar")).stem
        directory = server_cache(self._account) / version
        if not directory.exists():
            scratch = directory.with_name(f".{version}-{secrets.token_hex(4)}")
            scratch.mkdir(mode=0o755)
            for jar in from_spark.iterdir():
                if jar.name.startswith(_JARS):
                    shutil.copyfile(jar, scratch / jar.name)
                    (scratch / jar.name).chmod(0o644)
            try:
                scratch.rename(directory)
            except OSError:  # another process was quicker
                shutil.rmtree(scratch)
        return directory

    def _answers(self) -> bool:
        return self._asked(b"ruok").startswith(b"imok")

    def _asked(self, word: bytes) -> bytes:
        """The beginning of its answer; nothing: there is none."""
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=5) as client:
                client.sendall(word)
                return client.recv(4096)
        except OSError:
            return b""
