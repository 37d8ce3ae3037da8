"""Real MySQL and MariaDB servers for tests, benchmarks and ``tidelog demo``.

For their programs, see `tidelog.demo.servers.mysql_binaries`. The servers log rows with GTIDs,
refuse to run as root (so as root they run as an unprivileged user) and need little memory.
"""

from __future__ import annotations

import atexit
import contextlib
import hashlib
import os
import pwd
import secrets
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import quote

import pymysql

from tidelog.demo.servers import mysql_binaries
from tidelog.demo.servers.embedded import (
    EmbeddedServer,
    free_port,
    process_identity,
    reachable_directory,
    traversable,
    unprivileged_account,
)
from tidelog.demo.servers.mysql_binaries import (
    Installation,
    settings_of,
    version_of,
)
from tidelog.errors import TidelogError, UsageError
from tidelog.model.schema import backticked

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

    flavor: ClassVar[mysql_binaries.Flavor]
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

    def _find(self, version: str) -> mysql_binaries.Installation:
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

    def _find(self, version: str) -> mysql_binaries.Installation:
        return mysql_binaries.mysql(version, unprivileged_account())


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

    def _find(self, version: str) -> mysql_binaries.Installation:
        return mysql_binaries.mariadb(version, unprivileged_account())
