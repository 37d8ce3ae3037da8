"""An archive of the classes that Spark's JVM loads at its start, which halves the cost of starting.

Class-data sharing (JEP 310 and 350): the JVM maps classes, parsed and verified, from a file. The
file is for one build of Java and one list of jars, about 150 MB, in ``~/.cache/tidelog/classes``,
and created once: after a pipeline's first rows were delivered, by a process in the background at
the lowest priority, which ends with the pipeline. The JVM checks that a file fits, and starts
without it otherwise.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from tidelog.spark.sessions.installation import java_program

logger = logging.getLogger(__name__)

JAVA_OPTIONS: Final = "spark.driver.extraJavaOptions"
_OF_USERS: Final = ("-XX:SharedArchiveFile", "-XX:ArchiveClassesAtExit", "-Xshare")
"""Options with which the user configures an archive of their own."""
_CLASS_PATH: Final = ("SPARK_DIST_CLASSPATH", "SPARK_CONF_DIR", "HADOOP_CONF_DIR", "YARN_CONF_DIR")
"""Variables with further parts of the JVM's class path."""
QUIET_JAVA: Final = "-Xlog:cds=off -Xlog:cds+dynamic=off"
_MAKER: Final = "tidelog.spark.archive_maker"
_AGAIN_S: Final = 86_400.0
"""Seconds until the next attempt, after a process that failed to create one."""
_UNUSED_S: Final = 7 * 86_400.0
"""Seconds without a use after which the archive of another Java or Spark is deleted."""


class ClassArchive:
    """The archive for the JVM that PySpark starts in this environment.

    Args:
        conf: configuration of the session to come.
    """

    def __init__(self, conf: Mapping[str, str]) -> None:
        given = conf.get(JAVA_OPTIONS, "")
        self._file: Path | None = None
        self._maker: subprocess.Popen[bytes] | None = None
        own = any(each in given for each in _OF_USERS)
        if not own and "spark.driver.extraClassPath" not in conf:
            with suppress(OSError, RuntimeError):  # no Java, or no home
                self._file = _directory() / f"{_key()}.jsa"

    def java_options(self) -> str:
        """Return the JVM's options to use the archive; empty: there is none."""
        if self._file is None or not self._file.exists():
            return ""
        with suppress(OSError):
            os.utime(self._file)
            size = self._file.stat().st_size
            logger.info("Java reads Spark's classes from %s (%d MB)", self._file, size >> 20)
        return f"-XX:SharedArchiveFile={self._file} {QUIET_JAVA}"

    def make(self) -> None:
        """Start a process that creates the archive, unless it exists or another process creates it;
        delete files of others that are of no use any more. Returns at once.
        """
        if self._file is None:
            return
        try:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            _prune(self._file)
            if self._file.exists() or not _claim(_mark_of(self._file)):
                return
            # Its standard input ends with this process, however that ends; then it ends too. A
            # group of its own, since Ctrl-C is for this process; not a session, in which Linux
            # would give it as much CPU as this process, whatever its priority (autogroup).
            self._maker = subprocess.Popen(  # noqa: S603
                [sys.executable, "-m", _MAKER, str(self._file)],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                process_group=0,
            )
        except OSError as error:
            logger.info("no archive of Java's classes is created: %s", error)

    def close(self) -> None:
        """End the process that creates the archive if it runs; the next start has another."""
        maker, self._maker = self._maker, None
        if maker is None or self._file is None or maker.poll() is not None:
            return
        with suppress(ProcessLookupError):
            os.killpg(maker.pid, signal.SIGKILL)  # with its JVM
        maker.wait()
        with suppress(OSError):
            for file in unfinished_files(self._file, maker.pid):
                file.unlink(missing_ok=True)


def unfinished_files(file: Path, process: int) -> tuple[Path, Path]:
    """Return the archive that this process creates, before it has its name, and the mark that it
    does so.
    """
    return file.with_suffix(f".{process}"), _mark_of(file)


def _mark_of(file: Path) -> Path:
    return file.with_suffix(".making")


def _directory() -> Path:
    return Path.home() / ".cache" / "tidelog" / "classes"


def _key() -> str:
    """Return a digest of everything that an archive must fit. Raises OSError."""
    import pyspark

    home = Path(os.environ.get("SPARK_HOME") or Path(pyspark.__file__).parent)
    java = Path(java_program() or "").resolve(strict=True)
    base = java.parents[1] / "lib" / "server" / "classes.jsa"  # the package's Java has none
    files = [java, base, *sorted((home / "jars").iterdir())]
    known: list[Any] = [pyspark.__version__, *(os.environ.get(each) for each in _CLASS_PATH)]
    for file in files:
        status = file.stat()
        known.append([str(file), status.st_size, status.st_mtime_ns])
    return hashlib.sha256(json.dumps(known).encode()).hexdigest()[:16]


def _prune(own: Path) -> None:
    """Delete archives beside ``own`` that were not used for long, and what others left unfinished.
    Raises OSError.
    """
    for file in own.parent.iterdir():
        with suppress(FileNotFoundError):  # by another process
            unused_s = time.time() - file.stat().st_mtime
            if file != own and unused_s > (_UNUSED_S if file.suffix == own.suffix else _AGAIN_S):
                file.unlink()


def _claim(mark: Path) -> bool:
    """Return True if this process may create the archive: nobody else may until a day after a
    process has begun.
    """
    with suppress(FileNotFoundError):
        if time.time() - mark.stat().st_mtime > _AGAIN_S:
            mark.unlink()
    try:
        mark.touch(exist_ok=False)
    except FileExistsError:
        return False
    return True
