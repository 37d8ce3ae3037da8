"""Checks that everything is installed that a Spark session needs, before anything else starts.

pyspark is an extra and Java comes from the system, so a new machine may have neither; Spark itself
reports that late, on standard error, and by exceptions that explain little.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Final

from tidelog.errors import MissingProgramError, UsageError
from tidelog.system.extras import check_installed

TESTED: Final = ("4.0", "4.1", "4.2", "4.3")
"""Minor versions of Spark, each in an environment of its own: `make test-sparks`."""
JAVA_MIN = 17
_JAVA_MAX: Final = {"4.0": 23, "4.1": 23}
"""By minor version of Spark. Their Hadoop, 3.4, calls ``Subject.getSubject``, which Java 24 removed
(JEP 486)."""
_REMOTE = frozenset(("SPARK_REMOTE", "SPARK_CONNECT_MODE_ENABLED"))  # as PySpark reads them
_INSTALL_JAVA = (
    f"`apt-get install openjdk-{JAVA_MIN}-jre-headless` (or your system's package of a later Java)"
)
_ANSWER_S = 60.0
_CLASSIFIER: Final = "Programming Language :: Python :: "
_PYTHON: Final = f"{sys.version_info.major}.{sys.version_info.minor}"


def check_pyspark(extra: str = "spark") -> None:
    """Raises MissingExtraError, naming the extra, if pyspark can't be imported."""
    check_installed("pyspark", "py4j", extra=extra)


def check_spark_runs(extra: str = "spark") -> None:
    """Raises MissingExtraError or MissingProgramError unless a session can be started here, or is
    running; UsageError where pyspark is too old, or sessions are those of Spark Connect: outputs
    call Spark's JVM, which these don't reach.
    """
    check_pyspark(extra)
    _check_spark()
    if _REMOTE & os.environ.keys():
        raise UsageError(
            "sessions of this process are of Spark Connect (SPARK_REMOTE, or builder.remote): they "
            "read the event log, and can't write outputs or compare them. Run this in a process "
            "where SPARK_REMOTE is not set (docs/how-to/read-in-spark.md)"
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


def versions() -> str:
    """Returns the versions that sessions use, e.g. ``pyspark 4.2.1, Java 17, Python 3.11``."""
    import pyspark

    java = _version(java_program() or "java")
    return f"pyspark {pyspark.__version__}, Java {java or '(of the session)'}, Python {_PYTHON}"


def untested_versions() -> Iterator[str]:
    """Yields the versions that Tidelog is not tested with, or PySpark is not made for."""
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
    """Raises MissingProgramError unless the Java that Spark would use exists and Spark runs
    on it.
    """
    home, java = os.environ.get("JAVA_HOME"), java_program()
    if java is None:
        raise MissingProgramError(
            f"Spark needs Java {JAVA_MIN} or later, there is none on the PATH, and JAVA_HOME is "
            f"not set: {_INSTALL_JAVA}"
        )
    version = _version(java)
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
    """Returns the Java that Spark uses: ``$JAVA_HOME/bin/java``, else ``java`` from the PATH, as in
    its `bin/spark-class`. None: there is none.
    """
    home = os.environ.get("JAVA_HOME")
    return str(Path(home) / "bin" / "java") if home else shutil.which("java")


def _version(java: str) -> int | None:
    """Returns its feature release, e.g. 17, also for ``1.8.0``; None if it does not run."""
    try:
        done = subprocess.run(  # noqa: S603
            [java, "-version"], capture_output=True, text=True, timeout=_ANSWER_S, check=False
        )
    except (OSError, subprocess.SubprocessError):
        return None
    found = re.search(r'version "(?:1\.)?(\d+)', done.stderr + done.stdout)
    return int(found[1]) if found and not done.returncode else None


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
