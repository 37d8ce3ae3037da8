"""Real MySQL and MariaDB servers for tests, benchmarks and ``tidelog demo``.

Where the programs come from: `tidelog.testing.mysql_binaries`. The servers log rows with GTIDs,
refuse to run as root (so as root they run as an unprivileged user) and need little memory.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import secrets
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, Self
from urllib.parse import quote

import pymysql

from tidelog.errors import TidelogError, UsageError
from tidelog.testing import mysql_binaries, mysql_data
from tidelog.testing.certificates import write_certificates
from tidelog.testing.unprivileged import (
    free_port,
    identity,
    reachable_directory,
    unprivileged_account,
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


class MySqlFamilyServer:
    """One server with its own data directory, port and socket. Use it as a context manager.

    ``root`` needs no password, by the socket and from 127.0.0.1.

    Args:
        version: see the subclasses; default `default_version`.
        settings: server variables over `DEFAULT_SETTINGS` and the flavour's; True and False become
            ON and OFF, a list repeats the option, None takes a default of ours away.
        data_dir: where the data live; created if missing, kept on exit. None: a temporary
            directory, removed on exit.
        fsync: False trades durability at power failures for speed (tests); a `kill` loses nothing
            either way. Benchmarks and the demo use True.
        port: a TCP port on 127.0.0.1; None picks a free one, which stays over restarts.
    """

    flavour: ClassVar[mysql_binaries.Flavour]
    default_version: ClassVar[str]
    flavour_settings: ClassVar[dict[str, Any]]

    def __init__(
        self,
        version: str | None = None,
        settings: Mapping[str, Any] | None = None,
        data_dir: str | os.PathLike[str] | None = None,
        *,
        fsync: bool = False,
        port: int | None = None,
    ) -> None:
        self.user = "root"
        self._account = unprivileged_account()
        self.installation = self._find(version or self.default_version)
        durable = {
            "sync_binlog": 1 if fsync else 0,
            "innodb_flush_log_at_trx_commit": 1 if fsync else 2,
            "server_id": secrets.randbelow(2**31 - 2) + 1,
        }
        self.settings: dict[str, Any] = DEFAULT_SETTINGS | self.flavour_settings | durable
        self.settings |= settings or {}
        self._base = reachable_directory(self._account, f"tidelog-{self.flavour}-")
        self._base.chmod(0o755)  # clients of any user may enter, for the socket and ca.pem
        self._keep_data = data_dir is not None
        self.data_dir = Path(data_dir).absolute() if data_dir is not None else self._base / "data"
        self.socket = self._base / "server.sock"
        self.log_file = self._base / "server.log"
        self.ca_file = self._base / "ca.pem"
        self.port = port or 0
        self._port_is_fixed = port is not None
        self.primary: MySqlFamilyServer | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._watcher: subprocess.Popen[bytes] | None = None

    @classmethod
    def replica_of(cls, primary: Self, settings: Mapping[str, Any] | None = None) -> Self:
        """A server, not started yet, that follows ``primary`` by GTID and is read-only.

        It copies nothing: the primary must be running when it starts, with all its binlogs.
        """
        version = primary.installation.version if primary.flavour == "mysql" else None
        server = cls(
            cls._wanted_version(primary, version), {"read_only": True} | dict(settings or {})
        )
        server.primary = primary
        return server

    # ------------------------------------------------------------------ life cycle

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        """The server's process id."""
        if self._process is None:
            raise UsageError(f"the embedded {self.flavour} server is not started")
        return self._process.pid

    def start(self) -> None:
        """Make the data directory if need be, start, return once clients are accepted."""
        if self.running:
            return
        new = not (self.data_dir / "mysql").exists()
        if new:
            mysql_data.create(self.installation, self._account, self.data_dir)
        if not self.ca_file.exists():
            write_certificates(self._base)
            for name in ("ca.pem", "server-cert.pem", "server-key.pem"):
                self._own(self._base / name)
        self._own(self._base)
        for attempt in range(5):
            self.port = self.port or free_port()
            if self._start_once():
                break
            # Another process may have taken the port between our choice and the server's bind.
            if self._port_is_fixed or attempt == 4 or "in use" not in self.log_tail():
                raise TidelogError(f"{self.flavour} did not start:\n{self.log_tail()}")
            self.port = 0
        self._port_is_fixed = True
        self._watch()
        atexit.register(self.close)
        if new and self.primary is not None:
            self._follow(self.primary)

    def stop(self) -> None:
        """Shut down in order: transactions are rolled back, everything is written."""
        self._unwatch()
        process = self._process
        if process is None:
            return
        if process.poll() is None:
            process.send_signal(signal.SIGCONT)
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(timeout=60)
            except subprocess.TimeoutExpired:
                self.kill()
        self._process = None

    def kill(self) -> None:
        """SIGKILL, as a crash of the server would; `start` recovers."""
        self._unwatch()
        process = self._process
        if process is None:
            return
        process.kill()
        process.wait(timeout=30)
        self._process = None

    def pause(self) -> None:
        """SIGSTOP: connections stay open and nothing is answered, until `resume`."""
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        """SIGCONT after `pause`."""
        os.kill(self.pid, signal.SIGCONT)

    def restart(self, settings: Mapping[str, Any] | None = None) -> None:
        """Stop and start again on the same port, with further settings if given."""
        self.stop()
        self.settings |= settings or {}
        self.start()

    def close(self) -> None:
        """Stop, and remove everything that is temporary."""
        atexit.unregister(self.close)
        if self._keep_data:
            self.stop()
        else:
            self.kill()
        shutil.rmtree(self._base, ignore_errors=True)

    # ------------------------------------------------------------------ use

    @property
    def url(self) -> str:
        """The server's URL without a database."""
        return self.dsn()

    def dsn(self, database: str = "", *, user: str | None = None, password: str = "") -> str:
        """``mysql://root@127.0.0.1:PORT/database``, or ``mariadb://…``."""
        login = quote(user or self.user, safe="") + (
            ":" + quote(password, safe="") if password else ""
        )
        return f"{self.flavour}://{login}@127.0.0.1:{self.port}/{quote(database, safe='')}"

    def connect(self, database: str | None = None, **options: Any) -> pymysql.Connection[Any]:
        """A connection by TCP in autocommit; ``options`` are PyMySQL's and win over ours.

        Without TLS (which PyMySQL would prefer) unless an option whose name begins with ``ssl``
        is given, e.g. ``ssl={"ca": str(server.ca_file)}``.
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
        """Run one statement in autocommit, by a connection of its own; its rows, if any."""
        with self.connect(database) as connection, connection.cursor() as cursor:
            cursor.execute(sql, arguments)
            return list(cursor.fetchall())

    def create_database(self, name: str) -> str:
        """Create a database; its dsn."""
        self.execute(f"CREATE DATABASE {quoted(name)}")
        return self.dsn(name)

    def drop_database(self, name: str) -> None:
        self.execute(f"DROP DATABASE IF EXISTS {quoted(name)}")

    def create_user(
        self,
        name: str,
        password: str,
        *,
        plugin: str | None = None,
        privileges: Sequence[str] = (),
        on: str = "*.*",
        require_tls: bool = False,
    ) -> str:
        """Create a user for any host; its dsn.

        Args:
            name: the user's name, at any host.
            password: in clear text.
            plugin: ``mysql_native_password``; MySQL: ``caching_sha2_password`` (its default),
                ``sha256_password``; MariaDB: ``ed25519``. None: the server's default.
            privileges: what to grant, e.g. ``["SELECT", "REPLICATION SLAVE"]``.
            on: where, e.g. ``*.*`` or ``` `shop`.* ```.
            require_tls: refuse connections without TLS.
        """
        self.execute(
            f"CREATE USER %s@'%%' {self._identified(plugin)}"
            + (" REQUIRE SSL" if require_tls else ""),
            arguments=(name, password),
        )
        if privileges:
            self.execute(f"GRANT {', '.join(privileges)} ON {on} TO %s@'%%'", arguments=(name,))
        return self.dsn(user=name, password=password)

    @property
    def bin(self) -> Path:
        """The directory of ``mysqlbinlog`` and ``mysql``, which may be those of MariaDB."""
        return self.program("mariadb-binlog", "mysqlbinlog").parent

    def program(self, *names: str) -> Path:
        """The path of a client program, the first of these names that there is."""
        return self.installation.program(*names)

    def log_tail(self, lines: int = 20) -> str:
        """The last lines of the server's log."""
        try:
            text = self.log_file.read_text(errors="replace")
        except FileNotFoundError:
            return "(no server log)"
        return "\n".join(text.splitlines()[-lines:])

    # ------------------------------------------------------------------ what flavours differ in

    def _find(self, version: str) -> mysql_binaries.Installation:
        raise NotImplementedError

    @classmethod
    def _wanted_version(cls, primary: MySqlFamilyServer, version: str | None) -> str:
        raise NotImplementedError

    def _identified(self, plugin: str | None) -> str:
        raise NotImplementedError

    def _follow(self, primary: MySqlFamilyServer) -> None:
        raise NotImplementedError

    def gtid_position(self) -> str:
        """MySQL: the executed GTID set. MariaDB: the position of the binlog's end."""
        raise NotImplementedError

    def wait_for(self, position: str, timeout_s: float = 30) -> None:
        """Return once the server (a replica) has everything up to a `gtid_position`."""
        raise NotImplementedError

    def caught_up(self, timeout_s: float = 30) -> None:
        """Return once everything that the primary has committed by now is here."""
        if self.primary is None:
            raise UsageError("this server is no replica")
        self.wait_for(self.primary.gtid_position(), timeout_s)

    # ------------------------------------------------------------------ internals

    def _command(self) -> list[str]:
        found = self.installation
        settings = self.settings | {
            "port": self.port,
            "socket": self.socket,
            "pid_file": self._base / "server.pid",
            "log_error": self.log_file,
            "tmpdir": self._base,
            "ssl_ca": self.ca_file,
            "ssl_cert": self._base / "server-cert.pem",
            "ssl_key": self._base / "server-key.pem",
        }
        if found.plugins is not None:
            settings.setdefault("plugin_dir", found.plugins)
        command = [str(found.server), "--no-defaults", f"--basedir={found.base}"]
        command.append(f"--datadir={self.data_dir}")
        for name, value in settings.items():
            for item in value if isinstance(value, list | tuple) else [value]:
                if item is not None:
                    command.append(f"--{name}={_setting_text(item)}")
        return command

    def _start_once(self) -> bool:
        self.log_file.unlink(missing_ok=True)
        self.socket.unlink(missing_ok=True)
        rights = identity(self._account)
        rights["env"] |= self.installation.environment()
        self._process = subprocess.Popen(  # noqa: S603
            self._command(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd=self._base,
            # Ctrl-C at a terminal must reach us alone: we stop the server in order.
            start_new_session=True,
            **rights,
        )
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline:
            if self._process.poll() is not None:
                self._process = None
                return False
            if self.socket.exists():
                try:
                    pymysql.connect(
                        unix_socket=str(self.socket), user=self.user, ssl_disabled=True
                    ).close()
                except pymysql.err.OperationalError as error:
                    if error.args[0] not in _NOT_YET:
                        raise
                else:
                    return True
            time.sleep(0.03)
        self.kill()
        raise TidelogError(f"{self.flavour} was not ready in 120 s:\n{self.log_tail()}")

    def _watch(self) -> None:
        """Let a shell stop the server if this process is killed: its pipe then closes."""
        self._watcher = subprocess.Popen(  # noqa: S603
            ["/bin/sh", "-c", f"read _; kill -KILL {self.pid} 2>/dev/null"],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def _unwatch(self) -> None:
        watcher, self._watcher = self._watcher, None
        if watcher is not None:
            watcher.kill()
            watcher.wait()
            assert watcher.stdin is not None
            watcher.stdin.close()

    def _own(self, path: Path) -> None:
        if self._account is not None:
            os.chown(path, self._account.pw_uid, self._account.pw_gid)


class MySqlServer(MySqlFamilyServer):
    """MySQL "8.0" (8.0.12) or "8.0.15".

    The packages hold no plugin files (no semi-sync) and no client programs: `program` gives
    MariaDB's from the machine, which speak to MySQL too.
    """

    flavour = "mysql"
    default_version = "8.0"
    flavour_settings: ClassVar[dict[str, Any]] = {
        "gtid_mode": True,
        "enforce_gtid_consistency": True,
        "mysqlx": False,
        "innodb_log_file_size": "16M",
        "auto_generate_certs": False,
        "information_schema_stats_expiry": 0,
    }

    def _find(self, version: str) -> mysql_binaries.Installation:
        return mysql_binaries.mysql(version, self._account)

    @classmethod
    def _wanted_version(cls, primary: MySqlFamilyServer, version: str | None) -> str:
        return "8.0.15" if version == "8.0.15" else cls.default_version

    def _identified(self, plugin: str | None) -> str:
        return f"IDENTIFIED {f'WITH {plugin} ' if plugin else ''}BY %s"

    def _follow(self, primary: MySqlFamilyServer) -> None:
        self.execute(
            "CHANGE MASTER TO MASTER_HOST = '127.0.0.1', MASTER_PORT = %s, MASTER_USER = 'root', "
            "MASTER_AUTO_POSITION = 1, MASTER_CONNECT_RETRY = 1, GET_MASTER_PUBLIC_KEY = 1",
            arguments=(primary.port,),
        )
        self.execute("START SLAVE")

    def gtid_position(self) -> str:
        return str(self.execute("SELECT @@GLOBAL.gtid_executed")[0][0]).replace("\n", "")

    def wait_for(self, position: str, timeout_s: float = 30) -> None:
        wait = "SELECT WAIT_FOR_EXECUTED_GTID_SET(%s, %s)"
        if self.execute(wait, arguments=(position, timeout_s)) != [(0,)]:
            raise TidelogError(f"the replica did not reach {position} in {timeout_s} s")


class MariaDbServer(MySqlFamilyServer):
    """MariaDB "10.11" or "11.4", or any version that the machine has.

    Semi-sync is built in, e.g. ``rpl_semi_sync_master_enabled=True`` and
    ``rpl_semi_sync_master_wait_point="AFTER_SYNC"`` on the primary,
    ``rpl_semi_sync_slave_enabled=True`` on the replica. ``ed25519`` is a plugin file that only the
    machine's package has.
    """

    flavour = "mariadb"
    default_version = "10.11"
    flavour_settings: ClassVar[dict[str, Any]] = {
        "innodb_log_file_size": "16M",
        "aria_pagecache_buffer_size": "2M",
        "gtid_domain_id": 0,
    }

    def _find(self, version: str) -> mysql_binaries.Installation:
        return mysql_binaries.mariadb(version, self._account)

    @classmethod
    def _wanted_version(cls, primary: MySqlFamilyServer, version: str | None) -> str:
        return ".".join(primary.installation.version.split(".")[:2])

    def _identified(self, plugin: str | None) -> str:
        if plugin == "ed25519":
            with contextlib.suppress(pymysql.err.MySQLError):  # loaded already
                self.execute("INSTALL SONAME 'auth_ed25519'")
        return f"IDENTIFIED VIA {plugin} USING PASSWORD(%s)" if plugin else "IDENTIFIED BY %s"

    def _follow(self, primary: MySqlFamilyServer) -> None:
        self.execute(
            "CHANGE MASTER TO MASTER_HOST = '127.0.0.1', MASTER_PORT = %s, MASTER_USER = 'root', "
            "MASTER_USE_GTID = slave_pos, MASTER_CONNECT_RETRY = 1, MASTER_SSL = 0",
            arguments=(primary.port,),
        )
        self.execute("START SLAVE")

    def gtid_position(self) -> str:
        return str(self.execute("SELECT @@GLOBAL.gtid_binlog_pos")[0][0])

    def wait_for(self, position: str, timeout_s: float = 30) -> None:
        if self.execute("SELECT MASTER_GTID_WAIT(%s, %s)", arguments=(position, timeout_s)) != [
            (0,)
        ]:
            raise TidelogError(f"the replica did not reach {position} in {timeout_s} s")


def quoted(name: str) -> str:
    """An identifier in backticks."""
    return "`" + name.replace("`", "``") + "`"


def _setting_text(value: Any) -> str:
    if isinstance(value, bool):
        return "ON" if value else "OFF"
    return str(value)
