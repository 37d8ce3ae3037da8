"""What batches into Delta tables on S3 ask of the store, where each request is paid for."""

from __future__ import annotations

from collections import Counter
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from tests.support.build_log import BuiltLog
from tests.support.faulty_network import on_the_way
from tests.support.s3 import S3Server

from tidelog.outputs.lake.delta.output import DeltaOutput
from tidelog.spark.datasource.segment_rows import batch_of

pytestmark = [pytest.mark.spark, pytest.mark.integration]

TABLES, BATCHES, ROWS = 2, 10, 10
OF_A_BATCH = Counter({"GET": 2, "HEAD": 2, "PUT": 3})
"""For each table, at most: its newest commit, the file whose keys are looked up; new rows, those
that died, the commit.
"""
MOST = 12
"""The same, with the files that are put together after eight batches."""


def test_a_batch_makes_few_requests_for_each_table(
    spark: Any, built: BuiltLog, s3: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables = [
        built.table(f"public.t{n}", {"id": "int64", "v": "text"}, relation_id=n + 1)
        for n in range(TABLES)
    ]
    keys = count(1)
    place = s3.url(tmp_path.name)
    batches: list[list[str]] = []
    with on_the_way(s3, place, monkeypatch) as network:
        output = DeltaOutput(spark, built.path, place)
        output.prepare(built.log.generation)
        done = 0
        for batch in range(BATCHES):
            for table in tables:
                for key in [next(keys) for _ in range(ROWS)]:
                    built.insert(table, str(key), "new")
                    if batch:  # all rows of the batch before
                        built.update(table, str(key - ROWS * TABLES), "updated")
            end = built.flush().next
            network.asked.clear()
            output.write(batch_of(built.log, done, end))
            done = end
            batches.append([line.partition(" HTTP")[0] for line in network.asked])
        output.close()
    told = [Counter(line.split()[0] for line in lines) for lines in batches]
    usual = [each for each in told if each.total() <= OF_A_BATCH.total() * TABLES]
    assert len(usual) >= BATCHES - 1, told
    for each in usual[1:]:  # the first one makes the tables
        assert each <= Counter({kind: most * TABLES for kind, most in OF_A_BATCH.items()}), told
    assert sum(each.total() for each in told) <= MOST * TABLES * BATCHES, told
    assert max(each.total() for each in told) <= 2 * MOST * TABLES, told
