"""A Kafka broker of one's own: Kafka 4.1 in KRaft mode, one node, jars from Maven Central."""

from __future__ import annotations

import atexit
import base64
import shutil
import subprocess
import uuid
from collections.abc import Mapping
from typing import Any

from tests.support.kafka_jars import KAFKA_JARS, KAFKA_VERSION
from tests.support.opensearch import install_jars, java

from tidelog.demo.servers.embedded import EmbeddedServer, free_port, process_identity
from tidelog.errors import TidelogError

_DEFAULT_SETTINGS: dict[str, Any] = {
    "process.roles": "broker,controller",
    "node.id": 1,
    "controller.listener.names": "CONTROLLER",
    "inter.broker.listener.name": "PLAINTEXT",
    "auto.create.topics.enable": False,
    "num.partitions": 1,
    "default.replication.factor": 1,
    "offsets.topic.num.partitions": 1,
    "offsets.topic.replication.factor": 1,
    "transaction.state.log.num.partitions": 1,
    "transaction.state.log.replication.factor": 1,
    "transaction.state.log.min.isr": 1,
    "share.coordinator.state.topic.num.partitions": 1,
    "share.coordinator.state.topic.replication.factor": 1,
    "share.coordinator.state.topic.min.isr": 1,
    "group.initial.rebalance.delay.ms": 0,
    # A killed broker may register again only when its session is over.
    "broker.session.timeout.ms": 2000,
    "broker.heartbeat.interval.ms": 300,
    "log.cleaner.dedupe.buffer.size": 8 << 20,
    "num.network.threads": 2,
    "num.io.threads": 2,
    "controlled.shutdown.enable": False,
}
_JVM = ["-Xmx256m", "-Xms64m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto"]
_SASL_USER = "tidelog"


class KafkaServer(EmbeddedServer):
    """One broker that is its own controller. Use it as a context manager.

    Args:
        settings: broker properties over those of ours.
        sasl_password: if given, there is a second listener, `sasl_servers`, that wants
            SASL/PLAIN with the user ``tidelog`` and this password.
        jvm: the JVM's options in place of ours (benchmarks).
    """

    title = "Kafka"

    def __init__(
        self,
        settings: Mapping[str, Any] | None = None,
        *,
        sasl_password: str | None = None,
        jvm: list[str] | None = None,
    ) -> None:
        super().__init__("tidelog-kafka-")
        self._jvm = jvm or _JVM
        self.settings = _DEFAULT_SETTINGS | dict(settings or {})
        self._sasl_password = sasl_password
        self.data_dir = self._base / "data"
        self._properties = self._base / "server.properties"
        self.port, self._controller_port, self._sasl_port = 0, 0, 0

    @property
    def servers(self) -> str:
        """For ``bootstrap.servers``."""
        return f"127.0.0.1:{self.port}"

    @property
    def sasl_servers(self) -> str:
        """The listener that asks for a user and password."""
        return f"127.0.0.1:{self._sasl_port}"

    def start(self) -> None:
        """Format the data directory if need be, start, return once the broker answers."""
        if self.running:
            return
        fixed = self.port != 0
        for attempt in range(5):
            if not fixed:
                self.port, self._controller_port, self._sasl_port = (free_port() for _ in "123")
            self._write_properties()
            self._format()
            if self._start_once():
                break
            # Another process may have taken a port between our choice and the broker's bind.
            if fixed or attempt == 4 or "in use" not in self.log_tail(200):
                raise TidelogError(f"Kafka did not start:\n{self.log_tail()}")
            shutil.rmtree(self.data_dir, ignore_errors=True)
        atexit.register(self.close)

    def restart(self) -> None:
        """Stop and start again on the same ports."""
        self.stop()
        self.start()

    def _write_properties(self) -> None:
        listeners = [
            f"PLAINTEXT://127.0.0.1:{self.port}",
            f"CONTROLLER://127.0.0.1:{self._controller_port}",
        ]
        protocols = ["PLAINTEXT:PLAINTEXT", "CONTROLLER:PLAINTEXT", "SASL:SASL_PLAINTEXT"]
        settings = self.settings | {
            "controller.quorum.voters": f"1@127.0.0.1:{self._controller_port}",
            "log.dirs": self.data_dir,
            "listener.security.protocol.map": ",".join(protocols),
        }
        if self._sasl_password is not None:
            listeners.append(f"SASL://127.0.0.1:{self._sasl_port}")
            settings["sasl.enabled.mechanisms"] = "PLAIN"
            settings["listener.name.sasl.plain.sasl.jaas.config"] = (
                "org.apache.kafka.common.security.plain.PlainLoginModule required "
                f'user_{_SASL_USER}="{self._sasl_password}";'
            )
        settings["listeners"] = ",".join(listeners)
        text = "".join(f"{name}={_setting(value)}\n" for name, value in settings.items())
        self._properties.write_text(text)
        self._base.chmod(0o755)
        for path in (self._base, self._properties):
            self._own(path)

    def _format(self) -> None:
        if (self.data_dir / "meta.properties").exists():
            return
        cluster = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        command = self._java("kafka.tools.StorageTool", "format", f"--cluster-id={cluster}", "-c")
        done = subprocess.run(
            [*command, str(self._properties)],
            cwd=self._base,
            capture_output=True,
            text=True,
            check=False,
            **process_identity(self._account),
        )
        if done.returncode:
            raise TidelogError(f"Kafka's storage could not be formatted:\n{done.stderr[-2000:]}")

    def _start_once(self) -> bool:
        with self.log_file.open("wb") as log:
            command = self._java("kafka.Kafka", str(self._properties))
            self._spawn(command, log, process_identity(self._account))
        # The broker opens its port before it is part of its own cluster.
        return self._is_ready(lambda: "Kafka Server started" in self.log_tail(200))

    def _java(self, *arguments: str) -> list[str]:
        jars = install_jars(KAFKA_JARS, f"kafka-{KAFKA_VERSION}", self.title, self._account)
        return [java(self.title), *self._jvm, "-cp", f"{jars}/*", *arguments]


def _setting(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
