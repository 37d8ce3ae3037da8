"""A physical standby of an embedded server, for tests of capture from a standby."""

from __future__ import annotations

import itertools
import time
from collections.abc import Mapping
from typing import Any

from tests.support.postgres import PostgresServer

from tidelog.demo.servers.postgres import usable_installation
from tidelog.errors import TidelogError

# A standby refuses to start with fewer of these than its primary.
_AT_LEAST_AS_PRIMARY = (
    "max_connections",
    "max_wal_senders",
    "max_worker_processes",
    "max_prepared_transactions",
    "max_locks_per_transaction",
)

NEWEST = 18

_numbers = itertools.count(1)


class PostgresStandby(PostgresServer):
    """Streams from ``primary`` by a physical slot, and answers queries. Use it as a context
    manager, inside the primary's.

    Args:
        primary: a running server; the copy is taken from it when the standby starts first.
        settings: over the primary's; ``hot_standby_feedback`` is on unless set otherwise.
    """

    def __init__(self, primary: PostgresServer, settings: Mapping[str, Any] | None = None) -> None:
        inherited = {"hot_standby_feedback": "on", **primary.settings}
        super().__init__(primary.version, inherited | dict(settings or {}))
        for name in _AT_LEAST_AS_PRIMARY:
            if name in primary.settings:
                wanted = int(self.settings[name])
                self.settings[name] = str(max(wanted, int(primary.settings[name])))
        self.primary = primary
        self.slot = f"embedded_standby_{next(_numbers)}"

    def replayed(self, timeout_s: float = 30) -> None:
        """Return once everything that the primary has flushed by now is replayed."""
        self._reached("pg_last_wal_replay_lsn()", timeout_s)

    def received(self, timeout_s: float = 30) -> None:
        """Return once it is here, be replay paused or not."""
        self._reached("pg_last_wal_receive_lsn()", timeout_s)

    def _reached(self, place: str, timeout_s: float) -> None:
        ((position,),) = self.primary.execute("SELECT pg_current_wal_flush_lsn()::text")
        deadline = time.monotonic() + timeout_s
        while not self.execute(f"SELECT {place} >= '{position}'")[0][0]:
            if time.monotonic() > deadline:
                raise TidelogError(f"{place} did not come to {position} in {timeout_s} s")
            time.sleep(0.02)

    def promote(self) -> None:
        """Make it a primary of its own; returns when it is."""
        self.execute("SELECT pg_promote(wait => true)")

    def cut_off(self) -> None:
        """Receive nothing more from the primary."""
        self.execute("ALTER SYSTEM SET primary_conninfo = ''")
        self.execute("SELECT pg_reload_conf()")
        deadline = time.monotonic() + 30
        while self.execute("SELECT 1 FROM pg_stat_wal_receiver"):
            if time.monotonic() > deadline:
                raise TidelogError("the standby still receives")
            time.sleep(0.02)

    def close(self) -> None:
        super().close()
        if self.primary.running:
            unused = f"slot_name = '{self.slot}' AND NOT active"
            drop = "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE "
            self.primary.execute(drop + unused)

    def _initialise(self) -> None:
        """Copy the primary instead of making a new cluster."""
        program = self.binary("pg_basebackup")
        if not program.exists():  # a newer one copies older servers, too
            program = usable_installation(NEWEST, self._account) / "bin" / program.name
        done = self._run(
            str(program),
            f"--pgdata={self.data_dir}",
            f"--host={self.primary.socket_dir}",
            f"--port={self.primary.port}",
            f"--username={self.primary.user}",
            "--checkpoint=fast",
            "--wal-method=stream",
            "--no-sync",
            "--create-slot",
            f"--slot={self.slot}",
            "--write-recovery-conf",
            # With a database in primary_conninfo a standby can copy slots (17 and later).
            "--dbname=dbname=postgres",
        )
        if done.returncode != 0:
            raise TidelogError(f"pg_basebackup of {self.version} failed:\n{done.stdout}")
        if self.version < NEWEST:
            # It may have written options that this version does not know. The last line counts.
            conninfo = (
                f"host={self.primary.socket_dir} port={self.primary.port} "
                f"user={self.primary.user} dbname=postgres"
            )
            with (self.data_dir / "postgresql.auto.conf").open("a") as file:
                file.write(f"primary_conninfo = '{conninfo}'\n")
