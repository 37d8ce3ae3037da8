"""Builds the jar of our log store for Delta tables on S3, which the wheel holds, from its source.

``python tools/s3_log_store.py`` after a change of ``S3LogStore.java``. It needs the javac of a JDK 17, so that
whoever builds it gets the same bytes.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
import zipfile
from pathlib import Path

import pyspark

from tidelog.spark.sessions.jars import DELTA_JARS, S3_LOG_STORE, S3_LOG_STORE_JAR
from tidelog.system.maven import fetch

SOURCE = S3_LOG_STORE_JAR.with_name("S3LogStore.java")
NAME = f"{S3_LOG_STORE.replace('.', '/')}.class"


def javac() -> str | None:
    """The compiler of a JDK 17 on the PATH; None without."""
    found = shutil.which("javac")
    if found is None:
        return None
    said = subprocess.run([found, "-version"], capture_output=True, text=True, check=False)  # noqa: S603
    return found if "javac 17." in said.stdout + said.stderr else None


def compiled(compiler: str) -> bytes:
    """The class, compiled against the pinned Delta and the Hadoop of the installed Spark."""
    hadoop = Path(pyspark.__file__).parent.glob("jars/hadoop-client-api-*.jar")
    path = ":".join(str(jar) for jar in [*fetch(DELTA_JARS, "Delta's jars"), *hadoop])
    with tempfile.TemporaryDirectory() as folder:
        options = ["--release", "17", "-g:source,lines", "-Xlint:all", "-Werror"]
        command = [compiler, *options, "-cp", path, "-d", folder, str(SOURCE)]
        subprocess.run(command, check=True)  # noqa: S603
        return (Path(folder) / NAME).read_bytes()


def write_jar(path: Path, code: bytes) -> None:
    """A jar of this class: no times in it, nothing compressed, so that it is the same anywhere."""
    parts = {"META-INF/MANIFEST.MF": b"Manifest-Version: 1.0\r\n\r\n", NAME: code}
    with zipfile.ZipFile(path, "w") as jar:
        for name, data in parts.items():
            jar.writestr(zipfile.ZipInfo(name), data)


if __name__ == "__main__":
    compiler = javac()
    if compiler is None:
        raise SystemExit(
            "javac of JDK 17 is not on the PATH: apt-get install openjdk-17-jdk-headless"
        )
    write_jar(S3_LOG_STORE_JAR, compiled(compiler))
    print(f"wrote {S3_LOG_STORE_JAR}")
