"""Creates a Spark session that is good for Tidelog on one machine; any other session works too."""

from __future__ import annotations

import logging
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import threading
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final, cast

from pyspark.logger import PySparkLogger
from pyspark.sql import DataFrame

from tidelog.errors import UsageError
from tidelog.spark.sessions.class_archive import ClassArchive
from tidelog.spark.sessions.connect import RETRIES, RemoteSession, current_session, is_remote
from tidelog.spark.sessions.errors import start_failed_error
from tidelog.spark.sessions.installation import check_spark_runs, use_java, write_script
from tidelog.spark.sessions.jars import S3_LOG_STORE, delta_jars, iceberg_jars
from tidelog.spark.sessions.local import LocalSession
from tidelog.spark.sessions.versions import is_local, master_of
from tidelog.system import version
from tidelog.system.private_files import temporary_directory

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

EXACT_NAMES = {"spark.sql.caseSensitive": "true"}
_CONF = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.ansi.enabled": "true",
    **EXACT_NAMES,
}

# PySpark logs each error of a query itself, with all of its text, which may have values of rows.
for _name in ("DataFrameQueryContextLogger", "SQLQueryContextLogger"):
    PySparkLogger.getLogger(_name).disabled = True

_lock = threading.Lock()
_start_lock = threading.Lock()
_sessions: dict[str, SparkSession] = {}


def exact_session(spark: SparkSession) -> SparkSession:
    """Return ``spark`` if its names are exact, or one beside it, the same for all sessions of a
    driver.
    """
    if is_remote(spark):
        return spark
    if isinstance(spark, LocalSession):
        return cast("SparkSession", spark.beside(exact_session))
    if str(spark.conf.get("spark.sql.caseSensitive")).lower() == "true":
        return spark
    application = spark.sparkContext.applicationId
    with _lock:
        if application not in _sessions:
            _sessions.clear()  # of a driver's context that has ended
            session = spark.newSession()
            for name, value in _CONF.items():
                session.conf.set(name, value)
            _sessions[application] = session
        return _sessions[application]


def in_session(frame: DataFrame, session: SparkSession) -> DataFrame:
    """Return the same rows as a DataFrame of another session of the same driver."""
    if is_remote(session):
        return frame
    session = current_session(session)
    if frame.sparkSession is session:
        return frame
    java = session._jvm
    assert java is not None
    datasets = getattr(getattr(java.org.apache.spark.sql.classic, "Dataset$"), "MODULE$")
    plan = frame._jdf.queryExecution().analyzed()
    return DataFrame(datasets.ofRows(session._jsparkSession, plan), session)


def remote_session(
    remote: str, conf: Mapping[str, str], token_file: Path | None = None, retries: int = RETRIES
) -> SparkSession:
    """Return a session of a Spark Connect server, with ``conf`` besides ours. Raises as
    `RemoteSession` does, and UsageError if ``conf`` changes ours: all outputs share the session.
    """
    for name, value in _CONF.items():
        if conf.get(name, value).lower() != value.lower():
            raise UsageError(
                f"pipeline.conf: over Spark Connect all outputs share a session, where {name} must "
                f"be {value}: leave it out"
            )
    return cast("SparkSession", RemoteSession(remote, {**_CONF, **conf}, token_file, retries))


_SCRIPT = """#!/bin/sh
# Written by Tidelog: starts Python without PySpark's archives on its path. It is installed.
set -f
path= IFS=:
for part in $PYTHONPATH; do
  case $part in
    */pyspark.zip | */py4j-*-src.zip) ;;
    *) path="$path${{path:+:}}$part" ;;
  esac
done
PYTHONPATH=$path exec {python} "$@"
"""


def python_program(master: str) -> str:
    """Return the program for ``PYSPARK_PYTHON``, unless the user has set one: a script that starts
    this interpreter; or this interpreter itself where Spark runs elsewhere, is another one than the
    installed PySpark, or no script can be started.
    """
    given = os.environ.get("PYSPARK_PYTHON", sys.executable)
    if given != sys.executable and Path(given).parent != _directory():
        return given
    import pyspark

    installed = Path(pyspark.__file__).parent
    home = os.environ.get("SPARK_HOME")
    own = installed.is_dir() and (home is None or Path(home) == installed)
    if not (is_local(master) and own):
        return sys.executable
    try:
        return str(_script())
    except OSError:  # a home that can't be written to, or starts no programs
        return sys.executable


def _directory() -> Path:
    """Return a directory for scripts. Not a temporary one: systems delete files there that were
    not used for long, and a pipeline runs for long.
    """
    return Path.home() / ".cache" / "tidelog" / "python"


def _script() -> Path:
    script = _directory() / f"python-{zlib.crc32(sys.executable.encode()):08x}"
    write_script(script, _SCRIPT.format(python=shlex.quote(sys.executable)))
    return script


# What any session needs that runs Delta's own library.
DELTA_CONF = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    "spark.delta.logStore.s3a.impl": S3_LOG_STORE,
    "spark.delta.logStore.s3.impl": S3_LOG_STORE,
}
_ONE_LOG_STORE = "spark.delta.logStore.class"
"""A user's log store for all file systems: Delta refuses others for single ones beside it."""

HADOOP_DEFAULTS: Final = {
    # s3:// is s3a://: Spark has no other client of S3.
    "spark.hadoop.fs.s3.impl": "org.apache.hadoop.fs.s3a.S3AFileSystem",
    "spark.hadoop.fs.AbstractFileSystem.s3.impl": "org.apache.hadoop.fs.s3a.S3A",
    # By default Hadoop's client of S3 retries for many minutes, in which it reports no reason.
    "spark.hadoop.fs.s3a.attempts.maximum": "3",
    "spark.hadoop.fs.s3a.retry.limit": "3",
    "spark.hadoop.fs.s3a.connection.establish.timeout": "5s",
}
"""Of Hadoop's clients, as Spark has them."""

_DEFAULT_CONF = {
    "spark.app.name": "tidelog",
    "spark.driver.memory": "2g",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
    # Forked workers inherit what this daemon has imported (numba, the decoder), so no worker pays
    # for it again: the difference between 2 s and 0.1 s at every first use.
    "spark.python.daemon.module": "tidelog.spark.datasource.daemon",
    # Delta reads a table's log with 50 tasks by default; ours are small and there are two cores.
    "spark.databricks.delta.snapshotPartitions": "1",
    # Dates and timestamps are proleptic Gregorian everywhere; Spark must not rebase or refuse them.
    "spark.sql.parquet.datetimeRebaseModeInWrite": "CORRECTED",
    "spark.sql.parquet.datetimeRebaseModeInRead": "CORRECTED",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    **HADOOP_DEFAULTS,
    # A stopped query is stopped on purpose.
    "spark.sql.streaming.stopTimeout": "30s",
}

# Settings that are lists, and the separators of their parts.
_LISTS = {"spark.jars": ",", "spark.sql.extensions": ",", "spark.driver.extraJavaOptions": " "}

# The JVM compiles code with its optimising compiler after 5,000 runs; most of Spark's and Delta's
# code never pays that back: it took a third of the CPU of the first minutes. With 32 times the
# threshold, the hot loops are still compiled and the rest is not (benchmarks/bench_start.py,
# bench_spark.py).
_JIT_OPTIONS = (
    "-XX:Tier4InvocationThreshold=160000 -XX:Tier4MinInvocationThreshold=20000 "
    "-XX:Tier4CompileThreshold=480000 -XX:Tier4BackEdgeThreshold=1280000"
)

_LOG4J = """rootLogger.level = LEVEL
rootLogger.appenderRef.stderr.ref = console
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{HH:mm:ss} %p %c{1}: %m%n
logger.gateway.name = org.apache.spark.api.python.PythonGatewayServer
logger.gateway.level = LEVEL
"""
"""Sets the gateway's level: otherwise PySpark sets it, and logs that, at each start."""
_REPORTED_IN_PYTHON = """logger.executor.name = org.apache.spark.executor.Executor
logger.executor.level = off
logger.tasks.name = org.apache.spark.scheduler.TaskSetManager
logger.tasks.level = off
logger.streaming.name = org.apache.spark.sql.execution.streaming
logger.streaming.level = off
"""
"""Errors of a job are raised in Python, and reported there in a sentence. Spark's loggers would
write the same three times, with a hundred lines of stack each, at every retry. They are shown with
``--log-level info`` or a level of Spark's log."""


def spark_session(
    master: str | None = None,
    *,
    conf: Mapping[str, str] | None = None,
    delta: bool = True,
    iceberg: bool = False,
    source: bool = True,
    log_level: str | None = None,
) -> SparkSession:
    """Return a session with Delta and the ``tidelog`` source; the running one if there is one.

    Args:
        master: a Spark master; by default ``$SPARK_MASTER`` or all cores of this machine.
        conf: settings that override our defaults; lists, such as ``spark.jars``, continue ours.
        delta: whether to download (once) and load Delta's jars, by which Spark itself reads and
            writes Delta tables. Tidelog's Delta output needs none.
        iceberg: whether to load those of Iceberg; never both.
        source: whether to register the source, which takes a second of CPU. What Tidelog reads by
            it registers it.
        log_level: of Spark's own log, on standard error: ``error``, ``warn``, ``info`` or
            ``debug``; by default errors, but not of jobs.

    Raises UsageError if Delta's jars can't be downloaded or there are none for this Spark, there is
    no Java or sessions are those of Spark Connect, MissingExtraError without pyspark.
    """
    check_spark_runs()
    from pyspark.sql import SparkSession

    from tidelog.spark.datasource.source import prepare_workers, register

    make_ready = register if source else prepare_workers

    running = SparkSession.getActiveSession()
    if running is not None:
        make_ready(running)
        return running
    use_java()
    settings = dict(_DEFAULT_CONF)
    cores = os.cpu_count() or 1
    settings["spark.sql.shuffle.partitions"] = str(cores)
    # Not below the current directory, where Spark would make it.
    settings["spark.sql.warehouse.dir"] = str(scratch_directory() / "warehouse")
    options = (f"-Dlog4j2.configurationFile={_log_configuration(log_level)}", _JIT_OPTIONS)
    archived = ClassArchive(conf or {}).java_options()
    settings["spark.driver.extraJavaOptions"] = " ".join((*options, archived))
    if delta:
        settings.update(DELTA_CONF)
        settings["spark.jars"] = ",".join(str(path) for path in delta_jars())
    elif iceberg:
        settings["spark.jars"] = ",".join(str(path) for path in iceberg_jars())
    settings = _merge_conf(settings, conf or {})
    master = master_of(master)
    builder = SparkSession.builder.master(master)
    for name, value in settings.items():
        builder = builder.config(name, value)
    _add_to_python_path(master)
    session = _started(builder, master)
    make_ready(session)
    return session


def _merge_conf(settings: Mapping[str, str], conf: Mapping[str, str]) -> dict[str, str]:
    """Return ``settings`` and ``conf``, which overrides them; but its lists continue those of
    ``settings``.
    """
    joined = dict(settings)
    if _ONE_LOG_STORE in conf:
        joined = {name: value for name, value in settings.items() if value != S3_LOG_STORE}
    for name, value in conf.items():
        ours = joined.get(name)
        joined[name] = _LISTS[name].join([ours, value]) if ours and name in _LISTS else value
    return joined


def _started(builder: SparkSession.Builder, master: str) -> SparkSession:
    """Raise as `start_failed` has it; the next try starts from nothing."""
    from py4j.protocol import Py4JError
    from pyspark import SparkContext
    from pyspark.errors import PySparkException

    try:
        with _start_lock, _prepared_jvm():  # several pipelines of a process share a session
            return builder.getOrCreate()
    except (Py4JError, PySparkException) as error:
        failed = getattr(SparkContext, "_active_spark_context", None)
        if failed is not None:
            failed.stop()
        raise start_failed_error(master, error) from error


@contextmanager
def _prepared_jvm() -> Iterator[None]:
    """Make the JVM that is started here ignore SIGTERM, as PySpark makes it ignore SIGINT, and
    leave out a warning of its standard error: see `_copy_errors`.

    systemd, and others that end a service, send SIGTERM to all of its processes at once. The JVM
    would end before this process has ended its batches; it ends with this process anyhow, by the
    end of its standard input.
    """
    from pyspark import java_gateway

    gateway: Any = java_gateway
    popen = gateway.Popen

    def deaf(*args: Any, preexec_fn: Callable[[], None] | None = None, **how: Any) -> Any:
        def before() -> None:
            if preexec_fn is not None:
                preexec_fn()
            signal.signal(signal.SIGTERM, signal.SIG_IGN)

        process = popen(*args, preexec_fn=before, **{"stderr": subprocess.PIPE, **how})
        if "stderr" not in how:
            threading.Thread(target=_copy_errors, args=(process.stderr,), daemon=True).start()
        return process

    gateway.Popen = deaf
    try:
        yield
    finally:
        gateway.Popen = popen


_INCUBATOR_WARNING = b"WARNING: Using incubator modules: "


def _copy_errors(source: IO[bytes]) -> None:
    """Write to our standard error what the JVM writes to its own, line by line, without Java's
    warning about a module that Spark always loads (its ``JavaModuleOptions``).
    """
    rest = b""
    while data := os.read(source.fileno(), 1 << 16):
        *lines, rest = (rest + data).split(b"\n")
        text = b"".join(b"%b\n" % line for line in lines if _is_shown(line))
        with suppress(OSError):
            os.write(2, text)
    with suppress(OSError):
        os.write(2, rest)


def _is_shown(line: bytes) -> bool:
    return not line.startswith(_INCUBATOR_WARNING)


def _add_to_python_path(master: str) -> None:
    """Give workers and the planning processes this process's path to tidelog, which they import.

    Spark starts them with the environment's PYTHONPATH, not with ``sys.path``; a checkout that is
    not installed would be missing there.
    """
    root = str(Path(version.__file__).parents[2])
    os.environ["PYSPARK_PYTHON"] = python_program(master)  # the user's, if there is one
    known = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    if root not in known:
        os.environ["PYTHONPATH"] = os.pathsep.join([root, *(part for part in known if part)])


def scratch_directory() -> Path:
    """Return a directory for temporary files, private to this user."""
    try:
        return temporary_directory("tidelog-spark")
    except PermissionError:
        return Path(tempfile.mkdtemp(prefix="tidelog-spark-"))


def _log_configuration(level: str | None) -> Path:
    """Return a file that configures logging: Spark logs its start before the session can set a log
    level.
    """
    verbose = level is not None or logging.getLogger("tidelog").isEnabledFor(logging.INFO)
    if not verbose:
        logging.getLogger("py4j.clientserver").setLevel(logging.CRITICAL)
    text = _LOG4J.replace("LEVEL", level or "error") + ("" if verbose else _REPORTED_IN_PYTHON)
    name = f"-{level}" if level else "-verbose" if verbose else ""
    path = scratch_directory() / f"log4j2{name}.properties"
    if not path.exists() or path.read_text() != text:
        fresh = path.with_suffix(f".{os.getpid()}")
        fresh.write_text(text)
        fresh.replace(path)
    return path
