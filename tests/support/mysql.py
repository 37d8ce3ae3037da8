"""MySQL and MariaDB servers with what only tests need: replicas, accounts, and the binlog's end."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Self

import pymysql
from tests.support.certificates import write_certificates

from tidelog.demo.servers import mysql
from tidelog.demo.servers.mysql import Installation, version_of
from tidelog.errors import MissingProgramError, TidelogError, UsageError
from tidelog.model.schema import backticked

_FOLLOW_OLD: Final = (
    "CHANGE MASTER TO MASTER_HOST = '127.0.0.1', MASTER_PORT = %s, MASTER_USER = 'root', "
    "MASTER_AUTO_POSITION = 1, MASTER_CONNECT_RETRY = 1, GET_MASTER_PUBLIC_KEY = 1",
    "START SLAVE",
)
_FOLLOW: Final = (
    "CHANGE REPLICATION SOURCE TO SOURCE_HOST = '127.0.0.1', SOURCE_PORT = %s, "
    "SOURCE_USER = 'root', SOURCE_AUTO_POSITION = 1, SOURCE_CONNECT_RETRY = 1, "
    "GET_SOURCE_PUBLIC_KEY = 1",
    "START REPLICA",
)


def replica_statements(installation: Installation) -> tuple[str, str]:
    """Return the statements that make a MySQL server a replica; the first takes the port."""
    return _FOLLOW if version_of(installation) >= (8, 0, 23) else _FOLLOW_OLD


def end_replica_statements(installation: Installation) -> tuple[str, str]:
    """Return the statements that end replication."""
    word = (
        "REPLICA"
        if version_of(installation) >= (8, 0, 22) and installation.flavor == "mysql"
        else "SLAVE"
    )
    return f"STOP {word}", f"RESET {word} ALL"


def binlog_program(installation: Installation) -> Path:
    """Return a ``mysqlbinlog`` that reads from servers of ``installation``'s flavor.

    MariaDB's, which Debian has, refuses MySQL 8: it queries the server's version and accepts only
    first digits that it knows. Its ``--raw`` copies bytes, whatever the version. So for MySQL it is
    patched with another query of the same length.
    """
    program = installation.program("mariadb-binlog", "mysqlbinlog")
    if installation.flavor == "mariadb" or b"mariadb" not in program.read_bytes().lower():
        return program
    patched = installation.cache / "mysqlbinlog"
    if not patched.exists():
        content = program.read_bytes().replace(b"SELECT VERSION()\0", b"SELECT '5.7.99' \0")
        installation.cache.mkdir(parents=True, exist_ok=True)
        scratch = patched.with_name(f".mysqlbinlog-{os.getpid()}")
        scratch.write_bytes(content)
        scratch.chmod(0o755)
        scratch.replace(patched)
    return patched


class MySqlFamilyServer(mysql.MySqlFamilyServer):
    """The common part of both flavors, with replication."""

    primary: MySqlFamilyServer | None = None

    @property
    def ca_file(self) -> Path:
        """The certificate of the authority that signed the server's."""
        return self._base / "ca.pem"

    def start(self) -> None:
        """As of every server, with TLS; a new replica begins to follow its primary."""
        new = not (self.data_dir / "mysql").exists()
        if not self.ca_file.exists():
            write_certificates(self._base)
            files = {"ssl_ca": "ca.pem", "ssl_cert": "server-cert.pem", "ssl_key": "server-key.pem"}
            for setting, name in files.items():
                self._own(self._base / name)
                self.settings[setting] = self._base / name
        super().start()
        if new and self.primary is not None:
            self._follow(self.primary)

    def restart(self, settings: Mapping[str, Any] | None = None) -> None:
        """Stop and start again on the same port, with further settings if given."""
        self.stop()
        self.settings |= settings or {}
        self.start()

    @classmethod
    def replica_of(cls, primary: Self, settings: Mapping[str, Any] | None = None) -> Self:
        """Return a server, not started yet, that follows ``primary`` by GTID and is read-only. It
        copies nothing: the primary must be running when it starts, with all its binlogs.
        """
        version = primary.installation.version if primary.flavor == "mysql" else None
        server = cls(
            cls._wanted_version(primary, version), {"read_only": True} | dict(settings or {})
        )
        server.primary = primary
        return server

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
        return self.flavor == "mysql" and self.version >= (8, 2)

    def drop_database(self, name: str) -> None:
        self.execute(f"DROP DATABASE IF EXISTS {backticked(name)}")

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
        """Return a ``mysqlbinlog`` for this server, see `binlog_program`."""
        return binlog_program(self.installation)

    def program(self, *names: str) -> Path:
        """Return the path of a client program, the first existing one of these names."""
        return self.installation.program(*names)

    # ------------------------------------------------------------------ differences of the flavors

    @classmethod
    def _wanted_version(cls, primary: MySqlFamilyServer, version: str | None) -> str:
        raise NotImplementedError

    def _identified(self, plugin: str | None) -> str:
        raise NotImplementedError

    def _follow(self, primary: MySqlFamilyServer) -> None:
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
        self.wait_for(self.primary.gtid_position(), timeout_s)


class MySqlServer(MySqlFamilyServer, mysql.MySqlServer):
    """MySQL, see `tidelog.demo.servers.mysql.MySqlServer`."""

    @classmethod
    def _wanted_version(cls, primary: MySqlFamilyServer, version: str | None) -> str:
        return "8.0.15" if version == "8.0.15" else cls.default_version

    def _identified(self, plugin: str | None) -> str:
        return f"IDENTIFIED {f'WITH {plugin} ' if plugin else ''}BY %s"

    def _follow(self, primary: MySqlFamilyServer) -> None:
        change, start = replica_statements(self.installation)
        self.execute(change, arguments=(primary.port,))
        self.execute(start)

    def gtid_position(self) -> str:
        return str(self.execute("SELECT @@GLOBAL.gtid_executed")[0][0]).replace("\n", "")

    def wait_for(self, position: str, timeout_s: float = 30) -> None:
        wait = "SELECT WAIT_FOR_EXECUTED_GTID_SET(%s, %s)"
        if self.execute(wait, arguments=(position, timeout_s)) != [(0,)]:
            raise TidelogError(f"the replica did not reach {position} in {timeout_s} s")


class MariaDbServer(MySqlFamilyServer, mysql.MariaDbServer):
    """MariaDB, see `tidelog.demo.servers.mysql.MariaDbServer`."""

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
