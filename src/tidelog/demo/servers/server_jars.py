"""The jars and the Java of servers that come from Maven Central."""

from __future__ import annotations

import os
import pwd
import shutil
from collections.abc import Sequence
from pathlib import Path

from tidelog.demo.servers.unprivileged import server_cache
from tidelog.errors import MissingProgramError
from tidelog.system.maven import Jar, fetch


def placed(jars: Sequence[Jar], folder: str, title: str, account: pwd.struct_passwd | None) -> Path:
    """The directory ``folder`` that holds the server ``title``'s jars where ``account`` may read
    them; they are fetched if need be.
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
    """``$JAVA_HOME``'s, else the path's. Raises MissingProgramError if there is none."""
    home = os.environ.get("JAVA_HOME")
    found = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    if found is None:
        raise MissingProgramError(
            f"{title} needs Java 17 or later: apt-get install openjdk-17-jre-headless, or set "
            "JAVA_HOME"
        )
    return found
