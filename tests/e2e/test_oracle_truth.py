"""The truth that the history oracle holds event logs against, without Tidelog: do a second decoder
of the source's log, what the writers say, and the source's own tables agree?
"""

from __future__ import annotations

import random
import time

import pytest
from tests.support.oracle.history import SourceState, check_audit
from tests.support.oracle.mysql import MySqlOracle
from tests.support.oracle.source import OracleSource
from tests.support.oracle.workload import Mix, OracleWorkload

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
    check_audit(truth)
    state = SourceState()
    for transaction in truth:
        for change in transaction.changes:
            state.apply(change)
        for entry in transaction.audit:
            state.apply_audit(entry)
    assert workload.committed > 100
    for table in oracle_source.tables.values():
        rows = oracle_source.rows(table)
        seen = state.tables.get(table.name, {})
        assert seen.keys() == rows.keys(), table.name
        for key, row in rows.items():
            lasting = {name: value for name, value in row.items() if not name.startswith("x")}
            assert {name: seen[key][name] for name in lasting} == lasting
    oracle_source.drop()
    if isinstance(oracle_source, MySqlOracle):
        assert {t.position for t in truth} == {t.xid for t in truth}
