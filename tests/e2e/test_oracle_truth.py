"""The truth that the history oracle holds event logs against, without Tidelog: do a second decoder
of the source's log, what the writers say, and the source's own tables agree?
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager

import pytest
from tests.support.oracle import promotable
from tests.support.oracle.history import SourceState, check_audit
from tests.support.oracle.mysql import MySqlOracle
from tests.support.oracle.promotable import FIRST_FILE, PromotableMySql, PromotablePostgres
from tests.support.oracle.source import OracleSource
from tests.support.oracle.values import Transaction
from tests.support.oracle.workload import Mix, OracleWorkload

from tidelog.codecs.mysql.binlog.items import pack_position

pytestmark = [pytest.mark.integration, pytest.mark.slow]


def test_truth_is_what_was_written(oracle_source: OracleSource) -> None:
    """With whatever may befall the source."""
    rng = random.Random(1)
    oracle_source.create("truth", 1)
    prepared = oracle_source.prepares
    workload = OracleWorkload(oracle_source.writers, 1, Mix(prepared=prepared), writers=4)
    workload.start()
    for fault in oracle_source.faults:
        if fault == "crash" and prepared and isinstance(oracle_source, MySqlOracle):
            # XA transactions and the binlog need not agree after an unexpected halt (MySQL's
            # manual, "Restrictions on XA Transactions", of servers before 8.0.30).
            continue
        time.sleep(1.0)
        oracle_source.strike(fault, rng)
    time.sleep(1.0)
    workload.stop()
    oracle_source.last_write(rng)
    truth = oracle_source.truth()
    assert workload.committed > 100
    check_rows(truth, oracle_source)
    oracle_source.drop()
    if isinstance(oracle_source, MySqlOracle):
        assert {t.position for t in truth} == {t.xid for t in truth}


@pytest.mark.thorough
@pytest.mark.parametrize(
    "pair", [promotable.postgres18, promotable.mysql80, promotable.mariadb1011]
)
def test_the_history_is_true_where_another_server_is_promoted(
    pair: Callable[[], AbstractContextManager[OracleSource]],
) -> None:
    rng = random.Random(3)
    with pair() as source:
        source.create("truth", 1)
        if isinstance(source, PromotablePostgres):
            make_captures_slot(source)
        workload = OracleWorkload(source.writers, 1, Mix(), writers=4)
        workload.start()
        time.sleep(2.0)
        assert source.promote(rng)
        time.sleep(2.0)
        workload.stop()
        assert not source.promote(rng), "there is no third server"
        source.last_write(rng)
        truth = source.truth()
        check_rows(truth, source)
        if isinstance(source, PromotableMySql):
            check_places(truth, source)


def make_captures_slot(source: PromotablePostgres) -> None:
    """There is no capture, and without its slot the standby is not ready."""
    source.server.execute(
        f"SELECT pg_create_logical_replication_slot('{source._slot}', 'pgoutput', "
        "failover => true)",
        source._name,
    )
    assert source._await_copies((source._slot,), 60)


def check_places(truth: Sequence[Transaction], source: PromotableMySql) -> None:
    """A capture that has had a part from the first server has the rest from the second one."""
    own = [transaction.xid >= pack_position(FIRST_FILE, 0) for transaction in truth]
    assert own == sorted(own)
    assert {True, False} <= set(own)
    logged = source._read(source.server, source._copies_begin)
    left = own.index(True) // 2
    moved = source.truth({logged[left].xid, logged[-1].xid})
    assert moved == [*truth[:left], *logged[left:]]
    check_rows(moved, source)


def check_rows(truth: Sequence[Transaction], oracle_source: OracleSource) -> None:
    """Is it what the writers say, and does it give the source's own tables?"""
    check_audit(truth)
    state = SourceState()
    for transaction in truth:
        for change in transaction.changes:
            state.apply(change)
        for entry in transaction.audit:
            state.apply_audit(entry)
    for table in oracle_source.tables.values():
        rows = oracle_source.rows(table)
        seen = state.tables.get(table.name, {})
        assert seen.keys() == rows.keys(), table.name
        for key, row in rows.items():
            lasting = {name: value for name, value in row.items() if not name.startswith("x")}
            assert {name: seen[key][name] for name in lasting} == lasting
