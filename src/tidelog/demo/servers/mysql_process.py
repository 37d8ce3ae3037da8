"""Life of a MySQL or MariaDB server process: started, stopped, killed, stopped for a while."""

from __future__ import annotations

import atexit
import os
import secrets
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import pymysql

from tidelog.demo.servers import mysql_binaries, mysql_data
from tidelog.demo.servers.certificates import write_certificates
from tidelog.demo.servers.embedded import EmbeddedServer
from tidelog.demo.servers.mysql_settings import settings_of
from tidelog.demo.servers.unprivileged import free_port, identity
from tidelog.errors import TidelogError

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
        # First: if there is none, no directory is left behind.
        self.installation = self._find(version or self.default_version)
        super().__init__(f"tidelog-{self.flavour}-")
        self.title = self.flavour
        self.user = "root"
        durable = {
            "sync_binlog": 1 if fsync else 0,
            "innodb_flush_log_at_trx_commit": 1 if fsync else 2,
            "server_id": secrets.randbelow(2**31 - 2) + 1,
        }
        self.settings: dict[str, Any] = DEFAULT_SETTINGS | self.flavour_settings | durable
        self.settings |= settings or {}
        self._base.chmod(0o755)  # clients of any user may enter, for the socket and ca.pem
        self._keep_data = data_dir is not None
        self.data_dir = Path(data_dir).absolute() if data_dir is not None else self._base / "data"
        self.socket = self._base / "server.sock"
        self.ca_file = self._base / "ca.pem"
        self.port = port or 0
        self._port_is_fixed = port is not None
        self.primary: MySqlProcess | None = None

    # ------------------------------------------------------------------ life cycle

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
        atexit.register(self.close)
        if new and self.primary is not None:
            self._follow(self.primary)

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

    # ------------------------------------------------------------------ what flavours differ in

    def _find(self, version: str) -> mysql_binaries.Installation:
        raise NotImplementedError

    def _follow(self, primary: MySqlProcess) -> None:
        raise NotImplementedError

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
        for name, value in settings_of(found, settings).items():
            for item in value if isinstance(value, list | tuple) else [value]:
                if item is not None:
                    command.append(f"--{name}={_setting_text(item)}")
        return command

    def _start_once(self) -> bool:
        self.log_file.unlink(missing_ok=True)
        self.socket.unlink(missing_ok=True)
        rights = identity(self._account)
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
