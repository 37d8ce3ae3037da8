"""Jars of the peers and the small programs that start them."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from tidelog.system.maven import fetch, parse_jar_list

HERE = Path(__file__).parent
PROGRAMS = HERE / "programs"


def version(name: str, artifact: str) -> str:
    """The version of an artifact that ``NAME.jars`` lists."""
    jars = parse_jar_list((HERE / f"{name}.jars").read_text())
    return next(jar.version for jar in jars if jar.artifact == artifact)


def class_path(names: Sequence[str], program: str, directory: Path) -> str:
    """The jars of each ``NAME.jars``, kept where Tidelog keeps its own, and the program, compiled
    into the directory.

    Raises UsageError if a jar can't be had, RuntimeError without the compiler of a JDK.
    """
    lists = [(name, parse_jar_list((HERE / f"{name}.jars").read_text())) for name in names]
    jars = [str(path) for name, listed in lists for path in fetch(listed, name)]
    compiler = shutil.which("javac")
    if compiler is None:
        raise RuntimeError("javac is not on the PATH: apt-get install openjdk-17-jdk-headless")
    classes = directory / "classes"
    subprocess.run(
        [compiler, "-cp", ":".join(jars), "-d", str(classes), str(PROGRAMS / f"{program}.java")],
        check=True,
    )
    return ":".join([str(classes), *jars])
