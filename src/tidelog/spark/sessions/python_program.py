"""The program that Spark starts its Python processes with, on this machine.

Spark puts ``pyspark.zip`` first on their path, so each of them compiles PySpark anew: 0.6 s of CPU.
Where PySpark is installed it lies beside, compiled.
"""

from __future__ import annotations

import os
import shlex
import sys
import zlib
from pathlib import Path

from tidelog.spark.sessions.cluster import is_local

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
    """For ``PYSPARK_PYTHON``, unless the program of a user stands there: a script that starts this
    interpreter; or this interpreter itself where Spark runs elsewhere, is another one than the
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
    """Not a temporary one, where what is not used for long goes, and a pipeline runs for long."""
    return Path.home() / ".cache" / "tidelog" / "python"


def _script() -> Path:
    text = _SCRIPT.format(python=shlex.quote(sys.executable))
    script = _directory() / f"python-{zlib.crc32(sys.executable.encode()):08x}"
    if not script.exists() or script.read_text() != text:
        script.parent.mkdir(parents=True, exist_ok=True)
        fresh = script.with_suffix(f".{os.getpid()}")
        fresh.write_text(text)
        fresh.chmod(0o700)
        fresh.replace(script)
    if os.statvfs(script).f_flag & os.ST_NOEXEC or not os.access(script, os.X_OK):
        raise PermissionError(script)
    return script
