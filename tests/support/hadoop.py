"""Hadoop of one's own: the programs of HDFS and YARN from its minicluster, a jar of Maven Central,
with the client's jars that pyspark brings.
"""

from __future__ import annotations

import atexit
import grp
import importlib.util
import json
import os
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final
from xml.sax.saxutils import escape

from tests.support.opensearch import install_jars, java

from tidelog.demo.servers.embedded import (
    EmbeddedServer,
    free_port,
    process_identity,
    server_cache,
    unprivileged_account,
)
from tidelog.errors import TidelogError
from tidelog.system.maven import Jar

VERSION: Final = "3.5.0"
NAME_NODE: Final = "org.apache.hadoop.hdfs.server.namenode.NameNode"
DATA_NODE: Final = "org.apache.hadoop.hdfs.server.datanode.DataNode"
RESOURCE_MANAGER: Final = "org.apache.hadoop.yarn.server.resourcemanager.ResourceManager"
NODE_MANAGER: Final = "org.apache.hadoop.yarn.server.nodemanager.NodeManager"
_JARS: Final = (
    Jar("org.apache.hadoop", "hadoop-client-minicluster", VERSION,
        "06772d24529e59939915979b3edba204d367750ef7dc5120411f35221dd4818c"),
    Jar("org.bouncycastle", "bcprov-jdk18on", "1.82",
        "14cde2fdfaa8890480a8e5b67aceef0c90f96682c1e23c133bafdc9e0b3255ce"),
    Jar("org.bouncycastle", "bcpkix-jdk18on", "1.82",
        "bdc723e20834832ac6af136cb5b5ff05e43b71d4fa151cc6510d9212ee086e63"),
    Jar("org.bouncycastle", "bcutil-jdk18on", "1.82",
        "4420691958ad1c0ba275a6d6d8a6317adbdbdc9277055b6a72aa89c88cda8c7d"),
)  # fmt: skip
_OF_PYSPARK: Final = ("hadoop-client-", "slf4j-api", "log4j-", "jcl-over-slf4j", "javax.servlet")
_JVM: Final = ("-Xms32m", "-Xmx192m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
_LOGGING: Final = """rootLogger.level = warn
rootLogger.appenderRef.stderr.ref = console
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{HH:mm:ss} %p %c{1}: %m%n
"""


def write_settings(directory: Path, settings: Mapping[str, Mapping[str, object]]) -> None:
    """Write Hadoop's files of these names, such as ``core-site``, and that of their logging."""
    directory.mkdir(exist_ok=True)
    for name, values in settings.items():
        found = "".join(
            f"<property><name>{key}</name><value>{escape(str(value))}</value></property>\n"
            for key, value in values.items()
        )
        (directory / f"{name}.xml").write_text(f"<configuration>\n{found}</configuration>\n")
    (directory / "log4j2.properties").write_text(_LOGGING)


def command(program: str, settings: Path, scratch: Path, *arguments: str) -> list[str]:
    """A program of Hadoop with the files of ``settings``; its logs are in ``scratch``."""
    spark = importlib.util.find_spec("pyspark")
    assert spark is not None
    assert spark.origin is not None
    account = unprivileged_account()
    ours = install_jars(_JARS, f"hadoop-{VERSION}", "Hadoop", account)
    folder = server_cache(account) / f"hadoop-client-{VERSION}"
    _copy(Path(spark.origin).parent / "jars", folder)
    path = f"{settings}:{ours}/*:{folder}/*"
    logs = [f"-D{name}.log.dir={scratch}" for name in ("hadoop", "yarn")]
    logs.append(f"-Dlog4j2.configurationFile={settings}/log4j2.properties")
    return [java("Hadoop"), *_JVM, *logs, "-cp", path, program, *arguments]


def _copy(jars: Path, folder: Path) -> None:
    """Where a server's user can read them."""
    folder.mkdir(mode=0o755, exist_ok=True)
    for jar in jars.glob("*.jar"):
        if jar.name.startswith(_OF_PYSPARK) and not (folder / jar.name).exists():
            part = folder / f".{jar.name}.part"
            part.write_bytes(jar.read_bytes())
            part.chmod(0o644)
            part.replace(folder / jar.name)


class _Daemon(EmbeddedServer):
    title = "Hadoop"

    def __init__(
        self, program: str, name_node: str, settings: Mapping[str, Mapping[str, object]]
    ) -> None:
        super().__init__("tidelog-hadoop-")
        self._program, self._name_node = program, name_node
        own = {"fs.defaultFS": name_node, "hadoop.tmp.dir": self._base / "tmp"}
        self._settings = {"core-site": own, **settings}

    def start(self) -> None:
        (self._base / "tmp").mkdir()
        write_settings(self._base / "settings", self._settings)
        for path in (self._base, self._base / "tmp"):
            self._own(path)
        for arguments in self._runs():
            whole = command(self._program, self._base / "settings", self._base, *arguments)
            with self.log_file.open("ab") as log:
                self._spawn(whole, log, process_identity(self._account))
            if arguments:
                assert self._process is not None
                self._process.wait(120)
                self._ended()
        if not self._is_ready(self._answers):
            raise TidelogError(f"{self._program} did not start:\n{self.log_tail()}")
        atexit.register(self.close)

    def _runs(self) -> Iterator[Sequence[str]]:
        """The arguments of each run, of which the last one goes on."""
        if self._program == NAME_NODE:
            yield ("-format", "-force", "-nonInteractive")
        yield ()

    def _answers(self) -> bool:
        raise NotImplementedError


class _NameNode(_Daemon):
    def __init__(self, port: int, web: int) -> None:
        us = grp.getgrgid(os.getegid()).gr_name
        at = {
            "dfs.namenode.http-address": f"127.0.0.1:{web}",
            "dfs.permissions.superusergroup": us,
        }
        super().__init__(NAME_NODE, f"hdfs://127.0.0.1:{port}", {"hdfs-site": at})
        self._web = web

    def _answers(self) -> bool:
        return data_nodes(f"127.0.0.1:{self._web}") is not None


class _DataNode(_Daemon):
    def __init__(self, port: int, web: int) -> None:
        at = {
            f"dfs.datanode.{name}": "127.0.0.1:0"
            for name in ("address", "http.address", "ipc.address")
        }
        super().__init__(DATA_NODE, f"hdfs://127.0.0.1:{port}", {"hdfs-site": at})
        self._web = web

    def _answers(self) -> bool:
        return bool(data_nodes(f"127.0.0.1:{self._web}"))


def data_nodes(address: str) -> int | None:
    """How many data nodes a name node has; None: it does not answer, or is in safe mode."""
    state = _bean(address, "service=NameNode,name=FSNamesystemState")
    if state is None or state["FSState"] != "Operational":
        return None
    return int(state["NumLiveDataNodes"])


def _bean(address: str, name: str) -> dict[str, Any] | None:
    """What a daemon says of itself; None: it does not answer, or not yet of that."""
    try:
        with urllib.request.urlopen(f"http://{address}/jmx?qry=Hadoop:{name}", timeout=10) as read:
            found: list[dict[str, Any]] = json.load(read)["beans"]
    except (OSError, ValueError):
        return None
    return found[0] if found else None


@contextmanager
def hdfs_server() -> Iterator[str]:
    """A name node with one data node: its URL, without a slash at its end."""
    port, web = free_port(), free_port()
    with _NameNode(port, web), _DataNode(port, web):
        yield f"hdfs://127.0.0.1:{port}"


class _Yarn(_Daemon):
    """As ourselves: what runs in its containers is our Python, which others may not reach."""

    def __init__(self, program: str, name_node: str, settings: Mapping[str, object]) -> None:
        super().__init__(program, name_node, {"yarn-site": settings})
        self._account = None
        self._web = str(settings["yarn.resourcemanager.webapp.address"])

    def _active_nodes(self) -> int | None:
        found = _bean(self._web, "service=ResourceManager,name=ClusterMetrics")
        return None if found is None else int(found["NumActiveNMs"])


class _ResourceManager(_Yarn):
    def _answers(self) -> bool:
        return self._active_nodes() is not None


class _NodeManager(_Yarn):
    def _answers(self) -> bool:
        return bool(self._active_nodes())


@contextmanager
def yarn_cluster(name_node: str, settings_of_clients: Path) -> Iterator[None]:
    """A resource manager and a node manager, on this HDFS; ``settings_of_clients`` is written."""
    ports = {
        f"yarn.resourcemanager.{name}": f"127.0.0.1:{free_port()}"
        for name in (
            "address", "scheduler.address", "resource-tracker.address", "admin.address",
            "webapp.address",
        )
    }  # fmt: skip
    package = RESOURCE_MANAGER.rpartition(".")[0]
    settings: dict[str, object] = ports | {
        "yarn.resourcemanager.scheduler.class": f"{package}.scheduler.fifo.FifoScheduler",
        "yarn.scheduler.minimum-allocation-mb": 128,
        "yarn.nodemanager.resource.memory-mb": 6144,
        "yarn.nodemanager.resource.cpu-vcores": 4,
        "yarn.nodemanager.address": "127.0.0.1:0",
        "yarn.nodemanager.localizer.address": "127.0.0.1:0",
        "yarn.nodemanager.webapp.address": "127.0.0.1:0",
        "yarn.nodemanager.vmem-check-enabled": "false",
        "yarn.nodemanager.disk-health-checker.max-disk-utilization-per-disk-percentage": 100,
    }
    write_settings(
        settings_of_clients, {"core-site": {"fs.defaultFS": name_node}, "yarn-site": settings}
    )
    with (
        _ResourceManager(RESOURCE_MANAGER, name_node, settings),
        _NodeManager(NODE_MANAGER, name_node, settings),
    ):
        yield
