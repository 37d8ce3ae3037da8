"""A Kafka broker of one's own: Kafka 4.1 in KRaft mode, one node, jars from Maven Central."""

from __future__ import annotations

import atexit
import base64
import os
import shutil
import signal
import subprocess
import time
import uuid
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tidelog.errors import TidelogError, UsageError
from tidelog.maven import fetch
from tidelog.testing.kafka_jars import KAFKA_JARS, KAFKA_VERSION
from tidelog.testing.unprivileged import (
    free_port,
    identity,
    reachable_directory,
    server_cache,
    unprivileged_account,
)

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
_START_TIMEOUT_S = 120
_SASL_USER = "tidelog"


class KafkaServer:
    """One broker that is its own controller. Use it as a context manager.

    Args:
        settings: broker properties over those of ours.
        sasl_password: if given, there is a second listener, `sasl_servers`, that wants
            SASL/PLAIN with the user ``tidelog`` and this password.
        jvm: the JVM's options in place of ours (benchmarks).
    """

    def __init__(
        self,
        settings: Mapping[str, Any] | None = None,
        *,
        sasl_password: str | None = None,
        jvm: list[str] | None = None,
    ) -> None:
        self._account = unprivileged_account()
        self._jvm = jvm or _JVM
        self.settings = _DEFAULT_SETTINGS | dict(settings or {})
        self._sasl_password = sasl_password
        self._base = reachable_directory(self._account, "tidelog-kafka-")
        self.data_dir = self._base / "data"
        self.log_file = self._base / "server.log"
        self._properties = self._base / "server.properties"
        self.port, self._controller_port, self._sasl_port = 0, 0, 0
        self._process: subprocess.Popen[bytes] | None = None
        self._watcher: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def servers(self) -> str:
        """For ``bootstrap.servers``."""
        return f"127.0.0.1:{self.port}"

    @property
    def sasl_servers(self) -> str:
        """The listener that asks for a user and password."""
        return f"127.0.0.1:{self._sasl_port}"

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        if self._process is None:
            raise UsageError("the embedded Kafka server is not started")
        return self._process.pid

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

    def stop(self) -> None:
        """Shut down in order."""
        process = self._process
        if process is not None and process.poll() is None:
            process.send_signal(signal.SIGCONT)
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(timeout=60)
            except subprocess.TimeoutExpired:
                self.kill()
        self._ended()

    def kill(self) -> None:
        """SIGKILL, as a crash of the broker would; `start` recovers."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(timeout=30)
        self._ended()

    def pause(self) -> None:
        """SIGSTOP: connections stay open and nothing is answered, until `resume`."""
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        """SIGCONT after `pause`."""
        os.kill(self.pid, signal.SIGCONT)

    def restart(self) -> None:
        """Stop and start again on the same ports."""
        self.stop()
        self.start()

    def close(self) -> None:
        """Stop, and remove everything."""
        atexit.unregister(self.close)
        self.kill()
        shutil.rmtree(self._base, ignore_errors=True)

    def log_tail(self, lines: int = 20) -> str:
        """The last lines of the broker's log."""
        try:
            text = self.log_file.read_text(errors="replace")
        except FileNotFoundError:
            return "(no server log)"
        return "\n".join(text.splitlines()[-lines:])

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
            if self._account is not None:
                os.chown(path, self._account.pw_uid, self._account.pw_gid)

    def _format(self) -> None:
        if (self.data_dir / "meta.properties").exists():
            return
        cluster = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        command = self._java("kafka.tools.StorageTool", "format", f"--cluster-id={cluster}", "-c")
        done = subprocess.run(  # noqa: S603
            [*command, str(self._properties)],
            cwd=self._base,
            capture_output=True,
            text=True,
            check=False,
            **identity(self._account),
        )
        if done.returncode:
            raise TidelogError(f"Kafka's storage could not be formatted:\n{done.stderr[-2000:]}")

    def _start_once(self) -> bool:
        with self.log_file.open("wb") as log:
            self._process = subprocess.Popen(  # noqa: S603
                self._java("kafka.Kafka", str(self._properties)),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=self._base,
                # Ctrl-C at a terminal must reach us alone: we stop the server in order.
                start_new_session=True,
                **identity(self._account),
            )
        # If this process is killed, the pipe to a shell closes, and the shell stops the broker.
        self._watcher = subprocess.Popen(  # noqa: S603
            ["/bin/sh", "-c", f"read _; kill -KILL {self.pid} 2>/dev/null"],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        deadline = time.monotonic() + _START_TIMEOUT_S
        while time.monotonic() < deadline:
            if not self.running:
                self._ended()
                return False
            # The broker opens its port before it is part of its own cluster.
            if "Kafka Server started" in self.log_tail(200):
                return True
            time.sleep(0.05)
        self.kill()
        raise TidelogError(f"Kafka was not ready in {_START_TIMEOUT_S} s:\n{self.log_tail()}")

    def _ended(self) -> None:
        self._process = None
        watcher, self._watcher = self._watcher, None
        if watcher is not None:
            watcher.kill()
            watcher.wait()
            if watcher.stdin is not None:
                watcher.stdin.close()

    def _java(self, *arguments: str) -> list[str]:
        home = os.environ.get("JAVA_HOME")
        java = str(Path(home) / "bin" / "java") if home else shutil.which("java")
        if java is None:
            raise UsageError("Kafka needs Java 17 or later: install it, or set JAVA_HOME")
        jars = server_cache(self._account) / f"kafka-{KAFKA_VERSION}"
        if not jars.exists() or len(list(jars.iterdir())) < len(KAFKA_JARS):
            jars.mkdir(mode=0o755, exist_ok=True)
            for jar in fetch(KAFKA_JARS, "Kafka's jars"):
                scratch = jars / f".{jar.name}-{os.getpid()}"
                shutil.copyfile(jar, scratch)
                scratch.chmod(0o644)
                scratch.replace(jars / jar.name)
        return [java, *self._jvm, "-cp", f"{jars}/*", *arguments]


def _setting(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
