"""Rows of a lake's copy that the output did not write."""

from __future__ import annotations

import pytest
from pyspark.sql import functions as f
from tests.integration.spark.conftest import Lake
from tests.support.build_log import BuiltLog

pytestmark = pytest.mark.spark


@pytest.mark.parametrize("soft", [False, True], ids=["hard", "soft"])
def test_a_row_without_a_version_gives_way_to_any_state_of_its_key(
    lake: Lake, built: BuiltLog, soft: bool
) -> None:
    """A user's INSERT. What the source says of its key holds, also by a delete and by a dump; a row
    of a key that the source does not name stays, as in a database.
    """
    options = lake.options(soft_deletes=soft)
    table = built.table("public.t", {"id": "int64", "v": "text"})
    built.insert(table, "1", "ours")
    built.flush()
    lake.run(output=lake.output(options=options))
    lake.add("public.t", [(2, "theirs"), (3, "theirs"), (4, "theirs"), (5, "theirs")])
    first = built.dump_started("public.t").first
    built.chunk(table, [("1", "ours"), ("4", "dumped")])
    built.dump_completed("public.t", first)
    lake.run(output=lake.output(options=options))
    built.insert(table, "2", "ours")
    built.delete(table, "3")
    built.flush()
    lake.run(output=lake.output(options=options))
    frame = lake.frame("public.t")
    if soft:
        frame = frame.where(~f.coalesce(lake.deleted, f.lit(False)))
    assert {(row["id"], row["v"], row["_version"] is None) for row in frame.collect()} == {
        (1, "ours", False),
        (2, "ours", False),
        (4, "dumped", False),
        (5, "theirs", True),
    }
