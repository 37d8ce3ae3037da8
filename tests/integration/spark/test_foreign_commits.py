"""As `test_delta_random`, while users write to the table by delta-rs or by Spark, or alter it."""

from __future__ import annotations

import random

import pytest
from tests.integration.spark.conftest import Lake
from tests.integration.spark.foreign_copy import (
    RESTORES,
    AlteredCopy,
    ChangesOfDeltaRs,
    CopyOfDeltaRs,
    CopyOfSpark,
    HistoryOfDeltaRs,
)
from tests.integration.spark.random_copy import play
from tests.integration.spark.random_table import BATCHES, SEED, RandomTable, Shape
from tests.integration.spark.test_delta_shapes import fast
from tests.support.build_log import BuiltLog
from tests.support.delta_readers import by_spark

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures(fast.__name__)]

SHAPE = Shape({"a": "text", "b": "decimal(9,2)"}, widens=False)
"""delta-rs writes no table with a widened column, and Spark restores none."""


@pytest.mark.parametrize(
    "form",
    [
        CopyOfDeltaRs,
        HistoryOfDeltaRs,
        pytest.param(ChangesOfDeltaRs, marks=pytest.mark.thorough),
    ],
)
def test_tables_stay_right_while_users_write_by_delta_rs(
    lake: Lake, built: BuiltLog, form: type[CopyOfDeltaRs]
) -> None:
    rng = random.Random(SEED)
    source = RandomTable(built, SHAPE, rng)
    copy = form(lake, source, rng, deletion_vectors=False)
    play(source, copy, BATCHES)
    assert any(RESTORES in each for each in copy.acted)


@pytest.mark.parametrize(
    ("vectors", "batches"),
    [
        (True, BATCHES // 2),
        pytest.param(True, 2 * BATCHES, marks=pytest.mark.thorough),
        pytest.param(False, 2 * BATCHES, marks=pytest.mark.thorough),
    ],
)
def test_the_copy_stays_right_while_users_write_by_spark(
    lake: Lake, built: BuiltLog, vectors: bool, batches: int
) -> None:
    rng = random.Random(SEED)
    source = RandomTable(built, SHAPE, rng)
    copy = CopyOfSpark(lake, source, rng, deletion_vectors=vectors)
    play(source, copy, batches)
    assert any(RESTORES in each for each in copy.acted)


@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(n, marks=pytest.mark.thorough) for n in (1, 2))]
)
def test_the_copy_stays_right_whatever_features_its_table_gets(
    lake: Lake, built: BuiltLog, seed: int
) -> None:
    rng = random.Random(SEED + seed)
    source = RandomTable(built, SHAPE, rng)
    copy = AlteredCopy(lake, source, rng, deletion_vectors=rng.random() < 0.5)
    play(source, copy, BATCHES)
    assert not copy.unset
    read = by_spark(lake.spark, copy.place, "a").to_pylist()
    assert len(read) == len(copy.wanted())
