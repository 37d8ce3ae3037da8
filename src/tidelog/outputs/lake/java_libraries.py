"""The JVM in which lakes call Java libraries: Iceberg's, and the client of the Hive Metastore.

A Spark session lends its own. Where there is none, over Spark Connect or before Spark has started,
a Java process of ours runs the libraries: it is there after a second, and ends with this process.
"""

from __future__ import annotations

import logging
import os
import shlex
import signal
import subprocess
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from glob import glob
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

from tidelog.errors import OutputError, UsageError
from tidelog.spark.session import HADOOP_DEFAULTS
from tidelog.spark.sessions.connect import is_remote
from tidelog.spark.sessions.installation import check_java, java_program
from tidelog.spark.sessions.local import LocalSession

if TYPE_CHECKING:
    from py4j.java_gateway import JavaGateway
    from pyspark.sql import SparkSession

_OPTIONS: Final = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
_SERVER: Final = ("py4j.GatewayServer", "--die-on-broken-pipe", "--enable-auth", "0")
_JMX: Final = "com.sun.management"
_CLASS_PATH_VARIABLES: Final = ("HADOOP_CONF_DIR", "YARN_CONF_DIR", "SPARK_DIST_CLASSPATH")
_HADOOP: Final = "spark.hadoop."
_BY_SPARK_ALONE: Final = ("spark.jars.packages", "spark.kerberos.keytab")
"""Settings for which Spark does something when it starts."""
_FETCHED: Final = ("http:", "https:", "hdfs:", "s3:", "s3a:", "gs:")
"""Where Spark fetches jars from."""

_processes: dict[str, tuple[JavaGateway, subprocess.Popen[bytes]]] = {}
"""By jars and settings."""
_lock = threading.Lock()


@dataclass(frozen=True, slots=True)
class JavaLibraries:
    """A JVM with the libraries.

    Attributes:
        gateway: to the JVM.
        hadoop: the settings of Hadoop's clients there, a Java object of its own.
        settings: of Spark.
        process: ours; None: the JVM is that of a session.
    """

    gateway: Any
    hadoop: Any
    settings: Mapping[str, str]
    process: subprocess.Popen[bytes] | None = None

    @property
    def ended(self) -> bool:
        """Whether the process has ended, e.g. was killed: `java_libraries` starts another one."""
        return self.process is not None and self.process.poll() is not None


def java_libraries(
    spark: SparkSession, conf: Mapping[str, Any], jars: Callable[[], Sequence[Path]] = tuple
) -> JavaLibraries:
    """Return the JVM for a session.

    Args:
        spark: the session.
        conf: the settings of Spark for which a process of ours is started.
        jars: returns what it has besides Spark's jars, which may be downloaded. Not called for a
            session, which has them already.

    Raises UsageError, MissingProgramError as `check_java_libraries`.
    """
    fetched = any(store in str(conf.get("spark.jars", "")) for store in _FETCHED)
    by_spark = fetched or any(name in conf for name in _BY_SPARK_ALONE)
    of_spark = by_spark and not is_remote(spark)
    if not of_spark and (is_remote(spark) or isinstance(spark, LocalSession)):
        return _own_libraries(conf, jars())
    session = cast("Any", spark)
    gateway = session.sparkContext._gateway
    hadoop = gateway.jvm.org.apache.hadoop.conf.Configuration(session._jsc.hadoopConfiguration())
    return JavaLibraries(gateway, hadoop, dict(session.sparkContext.getConf().getAll()))


def _own_libraries(conf: Mapping[str, Any], jars: Sequence[Path]) -> JavaLibraries:
    settings = HADOOP_DEFAULTS | {name: str(value) for name, value in conf.items()}
    key = repr((jars, sorted(settings.items())))
    with _lock:
        if key not in _processes or _processes[key][1].poll() is not None:
            _processes[key] = start_java(settings, jars)
        gateway, process = _processes[key]
    return JavaLibraries(gateway, hadoop_settings(gateway, settings), settings, process)


def hadoop_settings(gateway: Any, settings: Mapping[str, Any]) -> Any:
    """Return the settings of Hadoop's clients, a Java object, that are among those of Spark."""
    hadoop = gateway.jvm.org.apache.hadoop.conf.Configuration()
    for name, value in settings.items():
        if name.startswith(_HADOOP):
            hadoop.set(name.removeprefix(_HADOOP), str(value))
    gateway.jvm.org.apache.hadoop.security.UserGroupInformation.setConfiguration(hadoop)
    return hadoop


def check_java_libraries() -> None:
    """Raise MissingProgramError without Java, UsageError without Spark's jars, which have what the
    libraries need.
    """
    if find_spec("py4j") is None or not _spark_jars().is_dir():
        raise UsageError(
            "Iceberg, and the Hive Metastore, need Spark's jars on this host, which pyspark-client "
            "does not have: pip uninstall pyspark-client, and pip install 'pyspark[connect]'"
        )
    check_java()


def start_java(
    settings: Mapping[str, Any], jars: Sequence[Path], options: Sequence[str] = ()
) -> tuple[JavaGateway, subprocess.Popen[bytes]]:
    """Start a Java process with these jars and Spark's; it ends when this process does.

    ``settings``: of Spark. Raises as `check_java_libraries`; OutputError if Java does not start.
    """
    check_java_libraries()
    from py4j.java_gateway import GatewayParameters, JavaGateway

    # py4j logs errors that it raises as well, one of them by the root logger.
    logging.getLogger("py4j.java_gateway").setLevel(logging.CRITICAL)
    logging.getLogger().addFilter(_is_not_raised)
    given = shlex.split(str(settings.get("spark.driver.extraJavaOptions", "")))
    # Others are for one JVM: a port to listen at, or a garbage collector.
    properties = [each for each in given if each.startswith("-D") and _JMX not in each]
    java = [java_program() or "java", "-classpath", _class_path(settings, jars)]
    process = subprocess.Popen(  # noqa: S603
        [*java, *_OPTIONS, *options, *properties, *_SERVER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        preexec_fn=_ignore_signals,
    )
    assert process.stdout is not None
    said = iter(process.stdout.readline, b"")  # also what Java's own options print
    port = next((line for line in said if line.strip().isdigit()), None)
    if port is None:
        process.kill()
        process.wait()
        raise OutputError(
            "Java does not start: see that spark.driver.extraJavaOptions in pipeline.conf has "
            "options that it knows, and that the host has enough memory"
        )
    token = next(said, b"").decode().strip()
    threading.Thread(target=deque, args=(said, 0), name="tidelog-java-output", daemon=True).start()
    parameters = GatewayParameters(port=int(port), auth_token=token, auto_convert=True)
    return JavaGateway(gateway_parameters=parameters), process


def _is_not_raised(record: logging.LogRecord) -> bool:
    return record.module != "java_gateway"


def _ignore_signals() -> None:
    """Those that end this process, once the batch under way has ended."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)


def _class_path(settings: Mapping[str, Any], jars: Sequence[Path]) -> str:
    found = list(map(str, jars))
    for each in str(settings.get("spark.jars", "")).split(","):
        if path := each.strip().removeprefix("file://").removeprefix("file:"):
            found += sorted(glob(path)) or [path]  # noqa: PTH207 - of any folder
    found.append(str(settings.get("spark.driver.extraClassPath", "")))
    found.append(f"{_spark_jars()}/*")
    home = _spark_jars().parent
    conf = os.environ.get("SPARK_CONF_DIR") or str(home / "conf")
    found += [conf, *(os.environ.get(name, "") for name in _CLASS_PATH_VARIABLES)]
    return ":".join(each for each in found if each)


def _spark_jars() -> Path:
    import pyspark

    return Path(os.environ.get("SPARK_HOME") or str(Path(pyspark.__file__).parent)) / "jars"
