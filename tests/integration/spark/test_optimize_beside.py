"""OPTIMIZE, Z-ORDER, VACUUM, UPDATE and DELETE by another session, before a batch is committed."""

from __future__ import annotations

import logging

import pytest
from tests.integration.spark.conftest import Lake

from tidelog.spark.datasource.segment_rows import batch_of
from tidelog.system import failpoints

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.thorough]

CONF = {
    "spark.databricks.delta.optimize.zorder.checkStatsCollection.enabled": "false",
    "spark.databricks.delta.retentionDurationCheck.enabled": "false",
    "spark.sql.sources.parallelPartitionDiscovery.parallelism": "2",
}
KEYS = 30
"""Keys that the source changes; it leaves alone the two behind them."""


@pytest.mark.parametrize("layout", ["", "ZORDER BY (v)"], ids=["plain", "zorder"])
def test_what_others_rewrote_meanwhile_is_settled_with(
    lake: Lake, layout: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "tidelog.outputs.lake")
    built, name = lake.built, lake.name("public.t")
    table = built.table("public.t", {"id": "int64", "v": "text"})
    rows = {key: f"v{key}" for key in range(KEYS + 2)}
    for key, value in rows.items():
        built.insert(table, str(key), value)
    built.flush()
    output = lake.output()
    output.write(batch_of(built.log, 0, built.log.latest_offset()))
    session = lake.session().newSession()
    for setting, value in CONF.items():
        session.conf.set(setting, value)
    others = [
        (f"UPDATE {name} SET v = 'theirs' WHERE id = {KEYS}",),
        # What the batch has written goes, too: it is not committed, and written again.
        (f"OPTIMIZE {name} {layout}", f"VACUUM {name} RETAIN 0 HOURS"),
        (f"DELETE FROM {name} WHERE id = {KEYS + 1}",),
        (f"OPTIMIZE {name} {layout}",),
    ]
    for turn, statements in enumerate(others):
        for key in range(turn, KEYS, 7):
            rows.pop(key, None)
            if turn == 2:
                built.delete(table, str(key))
            else:
                rows[key] = f"again {turn}"
                built.update(table, str(key), rows[key])
        rows[100 + turn] = "once"  # nothing later makes it good, were it lost or doubled
        built.insert(table, str(100 + turn), "once")
        start = built.log.latest_offset()
        built.flush()
        left = [*reversed(statements)]

        def interfere(left: list[str] = left) -> None:
            while left:
                session.sql(left.pop())

        with failpoints.arm({"lake.table.write": interfere}):
            output.write(batch_of(built.log, start, built.log.latest_offset()))
        assert caplog.text.count("the batch is settled again") == turn + 1
    output.close()
    rows[KEYS] = "theirs"
    del rows[KEYS + 1]
    assert lake.rows("public.t") == sorted(rows.items())
