"""Real MySQL and MariaDB servers for tests, benchmarks and ``tidelog demo``.

For their programs, see `tidelog.demo.servers.mysql_binaries`. The servers log rows with GTIDs,
refuse to run as root (so as root they run as an unprivileged user) and need little memory.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Self
from urllib.parse import quote

import pymysql

from tidelog.demo.servers import mysql_binaries
from tidelog.demo.servers.mysql_process import MySqlProcess
from tidelog.demo.servers.mysql_settings import (
    end_replica_statements,
    replica_statements,
    version_of,
)
from tidelog.demo.servers.unprivileged import unprivileged_account
from tidelog.errors import MissingProgramError, TidelogError, UsageError


class MySqlFamilyServer(MySqlProcess):
    """The common part of both flavours. A context manager; for the arguments see `MySqlProcess`.

    ``root`` needs no password, by the socket and from 127.0.0.1.
    """

    @classmethod
    def replica_of(cls, primary: Self, settings: Mapping[str, Any] | None = None) -> Self:
        """Return a server, not started yet, that follows ``primary`` by GTID and is read-only.

        It copies nothing: the primary must be running when it starts, with all its binlogs.
        """
        version = primary.installation.version if primary.flavour == "mysql" else None
        server = cls(
            cls._wanted_version(primary, version), {"read_only": True} | dict(settings or {})
        )
        server.primary = primary
        return server

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
        """Open a connection by TCP in autocommit; ``options`` are PyMySQL's and override ours.

        Without TLS (which PyMySQL would prefer) unless an option whose name begins with ``ssl`` is
        given, e.g. ``ssl={"ca": str(server.ca_file)}``.
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

    def binlog_end(self) -> tuple[str, int]:
        """Return the current binlog file, and its length."""
        named = "SHOW BINARY LOG STATUS" if self._has_new_names else "SHOW MASTER STATUS"
        name, offset = self.execute(named)[0][:2]
        return str(name), int(offset)

    def reset_binlog(self) -> None:
        """Restart the binlog, and GTIDs with it."""
        self.execute("RESET BINARY LOGS AND GTIDS" if self._has_new_names else "RESET MASTER")

    @property
    def _has_new_names(self) -> bool:
        """Whether it has MySQL 8.2's names of statements about the binlog."""
        return self.flavour == "mysql" and self.version >= (8, 2)

    def create_database(self, name: str) -> str:
        """Create a database; return its dsn."""
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
        """Create a user for any host; return its dsn.

        Args:
            name: the user's name, at any host.
            password: the password in clear text.
            plugin: ``mysql_native_password``; MySQL: ``caching_sha2_password`` (its default),
                ``sha256_password``; MariaDB: ``ed25519``. None: the server's default.
            privileges: the privileges to grant, e.g. ``["SELECT", "REPLICATION SLAVE"]``.
            on: the object of the grant, e.g. ``*.*`` or ``` `shop`.* ```.
            require_tls: whether to refuse connections without TLS.
        """
        self.execute(
            f"CREATE USER %s@'%%' {self._identified(plugin)}"
            + (" REQUIRE SSL" if require_tls else ""),
            arguments=(name, password),
        )
        if privileges:
            self.execute(f"GRANT {', '.join(privileges)} ON {on} TO %s@'%%'", arguments=(name,))
        return self.dsn(user=name, password=password)

    def offers(self, plugin: str) -> bool:
        """Return whether accounts can use this plugin: it is loaded, or its file is there."""
        loaded = "SELECT 1 FROM information_schema.PLUGINS WHERE PLUGIN_NAME = %s"
        files = self.installation.plugins
        return bool(self.execute(loaded, arguments=(plugin,))) or (
            files is not None and (files / f"auth_{plugin}.so").exists()
        )

    @property
    def bin(self) -> Path:
        """The directory of ``mysqlbinlog`` and ``mysql``, which may be those of MariaDB."""
        return self.program("mariadb-binlog", "mysqlbinlog").parent

    def binlog_program(self) -> Path:
        """Return a ``mysqlbinlog`` for this server, see `mysql_binaries.binlog_program`."""
        return mysql_binaries.binlog_program(self.installation)

    def program(self, *names: str) -> Path:
        """Return the path of a client program, the first existing one of these names."""
        return self.installation.program(*names)

    # ------------------------------------------------------------------ differences of the flavours

    @classmethod
    def _wanted_version(cls, primary: MySqlFamilyServer, version: str | None) -> str:
        raise NotImplementedError

    def _identified(self, plugin: str | None) -> str:
        raise NotImplementedError

    def gtid_position(self) -> str:
        """Return the executed GTID set (MySQL) or the position of the binlog's end (MariaDB)."""
        raise NotImplementedError

    def follow_no_more(self) -> None:
        """Stop to be a replica."""
        for statement in end_replica_statements(self.installation):
            self.execute(statement)

    def wait_for(self, position: str, timeout_s: float = 30) -> None:
        """Wait until the server (a replica) has everything up to a `gtid_position`."""
        raise NotImplementedError

    def caught_up(self, timeout_s: float = 30) -> None:
        """Wait until the server has everything that the primary has committed by now."""
        if self.primary is None:
            raise UsageError("this server is no replica")
        assert isinstance(self.primary, MySqlFamilyServer)
        self.wait_for(self.primary.gtid_position(), timeout_s)


class MySqlServer(MySqlFamilyServer):
    """MySQL "8.0" (8.0.12, or ``TIDELOG_MYSQLD``) or "8.0.15".

    The packages have no plugin files (no semi-sync) and no client programs: `program` returns
    MariaDB's from the machine, which work with MySQL, too.
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
        return mysql_binaries.mysql(version, unprivileged_account())

    @classmethod
    def _wanted_version(cls, primary: MySqlFamilyServer, version: str | None) -> str:
        return "8.0.15" if version == "8.0.15" else cls.default_version

    def _identified(self, plugin: str | None) -> str:
        return f"IDENTIFIED {f'WITH {plugin} ' if plugin else ''}BY %s"

    def _follow(self, primary: MySqlProcess) -> None:
        change, start = replica_statements(self.installation)
        self.execute(change, arguments=(primary.port,))
        self.execute(start)

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
        return mysql_binaries.mariadb(version, unprivileged_account())

    @classmethod
    def _wanted_version(cls, primary: MySqlFamilyServer, version: str | None) -> str:
        return ".".join(primary.installation.version.split(".")[:2])

    def _identified(self, plugin: str | None) -> str:
        if plugin == "ed25519":
            if not self.offers(plugin):
                raise MissingProgramError(
                    f"MariaDB {self.installation.version} has no file of the plugin ed25519 here: "
                    "apt-get install mariadb-server"
                )
            with contextlib.suppress(pymysql.err.MySQLError):  # loaded already
                self.execute("INSTALL SONAME 'auth_ed25519'")
        return f"IDENTIFIED VIA {plugin} USING PASSWORD(%s)" if plugin else "IDENTIFIED BY %s"

    def _follow(self, primary: MySqlProcess) -> None:
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
    """Return an identifier in backticks."""
    return "`" + name.replace("`", "``") + "`"
