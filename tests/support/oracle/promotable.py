"""Sources of two servers under the history oracle: the first is lost once, and the one that follows
it takes its place, at the address that all clients have.
"""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Callable, Iterator, Sequence, Set

import psycopg
import pymysql
from tests.campaign.paths import PathProxy
from tests.support.mysql import MariaDbServer, MySqlFamilyServer, MySqlServer
from tests.support.oracle import mysql, postgres
from tests.support.oracle import workload_postgres as workload
from tests.support.oracle.mysql import MySqlOracle
from tests.support.oracle.postgres import PostgresOracle
from tests.support.oracle.values import Change, Transaction
from tests.support.postgres import PostgresServer
from tests.support.standby import PostgresStandby

from tidelog.codecs.mysql.binlog.items import pack_position, parse_file_name
from tidelog.errors import TidelogError

BEHIND_S = 1.5
"""For so long at most the standby gets nothing any more, before its primary is lost."""
READY_S = 5.0
CAUGHT_UP_S = 120.0
COPIED_S = 60.0
FIRST_FILE = 1000
"""Of a replica's binlog: positions there lie above all of its primary's."""

_COPIED = """
SELECT count(*) FROM pg_replication_slots
WHERE slot_name IN ('{}') AND synced AND NOT temporary AND invalidation_reason IS NULL
"""
_CLIENTS = """
SELECT id FROM information_schema.processlist WHERE user <> 'system user' AND id <> CONNECTION_ID()
AND command NOT IN ('Daemon', 'Binlog Dump', 'Binlog Dump GTID')
"""


class PromotablePostgres(PostgresOracle):
    """A primary, and a standby that has copies of its slots. What is written while the standby gets
    nothing is lost with the primary.
    """

    def __init__(self, primary: PostgresServer, standby: PostgresStandby, front: PathProxy) -> None:
        super().__init__(primary)
        self._standby = standby
        self._front = front

    @property
    def port(self) -> int:
        return self._front.port

    def _set_up(self) -> None:
        """Nothing is written before the truth's slot is copied: it is never read on, and the
        standby copies none that begins before what it could decode itself.
        """
        workload.set_up(self._dsn, copied=True)
        if not self._await_copies((workload.TRUTH,), COPIED_S, self._read_truth_on):
            raise TidelogError(f"the standby has no copy of the slot {workload.TRUTH}")

    def _read_truth_on(self) -> None:
        self.server.execute(
            f"SELECT pg_replication_slot_advance('{workload.TRUTH}', pg_current_wal_flush_lsn())",
            self._name,
        )

    def promote(self, rng: random.Random) -> str:
        primary, standby = self.server, self._standby
        if primary is standby or not self._await_copies((workload.TRUTH, self._slot), READY_S):
            return ""
        if rng.random() < 0.5:
            standby.cut_off()
            time.sleep(rng.random() * BEHIND_S)
        ((flushed,),) = primary.execute("SELECT pg_current_wal_flush_lsn()::text")
        primary.kill()
        self._front.refuse()
        received = f"pg_wal_lsn_diff('{flushed}', pg_last_wal_receive_lsn())::bigint"
        ((lost,),) = standby.execute(f"SELECT greatest({received}, 0)")
        begun = time.monotonic()
        standby.promote()
        self.server = standby
        self._front.lead_to(standby.port)
        self._front.heal()
        return f"{lost} bytes and more are lost, within {time.monotonic() - begun:.1f} s"

    def _await_copies(
        self, slots: Sequence[str], most_s: float, meanwhile: Callable[[], None] = lambda: None
    ) -> bool:
        """Has the standby copies that outlive a promotion, within this time?"""
        deadline = time.monotonic() + most_s
        while self._standby.execute(_COPIED.format("', '".join(slots))) != [(len(slots),)]:
            if time.monotonic() > deadline:
                return False
            with contextlib.suppress(psycopg.Error):
                # A copy is made good once decoding could begin there. The standby looks ever more
                # seldom where nothing happens, and at once when it reads its settings.
                self.server.execute("SELECT pg_log_standby_snapshot()")
                meanwhile()
                self._standby.execute("SELECT pg_reload_conf()")
            time.sleep(0.2)
        return True


class PromotableMySql(MySqlOracle):
    """A primary, and a replica. When it is promoted it has all that was committed: where it might
    not, capture could only stop.
    """

    def __init__(
        self, primary: MySqlFamilyServer, replica: MySqlFamilyServer, front: PathProxy
    ) -> None:
        super().__init__(primary)
        self._replica = replica
        self._front = front
        self._copies_begin = replica.binlog_end()
        self._lost: MySqlFamilyServer | None = None
        self._copies_end = 0
        self._twins: dict[int, Change] = {}
        """By a change's identity: the same change, as the first server logged it."""

    @property
    def port(self) -> int:
        return self._front.port

    def promote(self, rng: random.Random) -> str:
        primary, replica = self.server, self._replica
        if primary is replica:
            return ""
        try:
            replica.caught_up(READY_S)
        except TidelogError:
            return ""
        begun = time.monotonic()
        self._front.refuse()
        _end_clients(primary)
        replica.caught_up(CAUGHT_UP_S)
        name, offset = replica.binlog_end()
        self._copies_end = pack_position(parse_file_name(name)[1], offset)
        primary.kill()
        replica.follow_no_more()
        replica.settings["read_only"] = False  # when it is started again
        replica.execute("SET GLOBAL read_only = OFF")
        self.server, self._lost = replica, primary
        self._front.lead_to(replica.port)
        self._front.heal()
        return f"goes on at {name}:{offset}, within {time.monotonic() - begun:.1f} s"

    def truth(self, xids: Set[int] = frozenset()) -> list[Transaction]:
        """The first server's, up to the first transaction that capture had from the second one;
        this has logged all of the first one's, too, at other places and perhaps with more columns.
        """
        lost = self._lost
        if lost is None:
            return super().truth(xids)
        lost.start()  # its port is known to nobody
        try:
            before = self._read(lost, self._begin)
        finally:
            lost.kill()
        logged = self._read(self.server, self._copies_begin)
        copies = [each for each in logged if each.position < self._copies_end]
        if [_brief(each) for each in copies] != [_brief(each) for each in before]:
            raise AssertionError(
                f"the replica logged {len(copies)} transactions of the {len(before)} that its "
                "primary had, or others"
            )
        there = (place for place, copy in enumerate(copies) if copy.xid in xids)
        left = next(there, len(copies))
        if left < len(before) and before[left].xid in xids:  # capture had it in part from each
            pairs = zip(logged[left].changes, before[left].changes, strict=True)
            self._twins = {id(change): twin for change, twin in pairs}
        return before[:left] + logged[left:]

    def same(self, change: Change, record: Change) -> bool:
        twin = self._twins.get(id(change))
        return super().same(change, record) or (twin is not None and super().same(twin, record))


def _brief(transaction: Transaction) -> list[tuple[str, str]]:
    """What is the same in every binlog."""
    return [(change.op, change.table) for change in transaction.changes]


def _end_clients(server: MySqlFamilyServer) -> None:
    """Return once nobody is left who could commit. Those who read the log are let be: a replica."""
    deadline = time.monotonic() + CAUGHT_UP_S
    while clients := server.execute(_CLIENTS):
        for (client,) in clients:
            with contextlib.suppress(pymysql.MySQLError):  # it has gone
                server.execute(f"KILL {client}")
        if time.monotonic() > deadline:
            raise TidelogError(f"clients {clients} of the server do not end")
        time.sleep(0.05)


# ---------------------------------------------------------------- pairs of servers


@contextlib.contextmanager
def postgres18() -> Iterator[PromotablePostgres]:
    """`synchronized_standby_slots` is the primary's alone: what it names is not on the standby."""
    followed = {"sync_replication_slots": "on", "wal_retrieve_retry_interval": "500ms"}
    with (
        PostgresServer(18, postgres.SETTINGS) as primary,
        PostgresStandby(primary, followed) as standby,
        PathProxy(primary.port) as front,
    ):
        primary.execute(f"ALTER SYSTEM SET synchronized_standby_slots = {standby.slot}")
        primary.execute("SELECT pg_reload_conf()")
        yield PromotablePostgres(primary, standby, front)


@contextlib.contextmanager
def mysql80() -> Iterator[PromotableMySql]:
    with MySqlServer("8.0", mysql.SETTINGS) as primary, _replicated(primary) as source:
        yield source


@contextlib.contextmanager
def mariadb1011() -> Iterator[PromotableMySql]:
    with MariaDbServer("10.11", mysql.SETTINGS) as primary, _replicated(primary) as source:
        yield source


@contextlib.contextmanager
def _replicated(primary: MySqlFamilyServer) -> Iterator[PromotableMySql]:
    replica = type(primary).replica_of(primary, mysql.SETTINGS)
    replica.primary = None  # it must not follow before its binlog begins where it has to
    with replica, PathProxy(primary.port) as front:
        replica.execute(f"RESET MASTER TO {FIRST_FILE}")
        replica.primary = primary
        replica._follow(primary)
        replica.caught_up(CAUGHT_UP_S)
        yield PromotableMySql(primary, replica, front)
