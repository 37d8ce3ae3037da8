"""As `test_delta_random`, with keys and columns of more kinds and names, and with partitions; tasks
run in this process, so that there are more of them.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from pyspark import cloudpickle
from tests.integration.spark.conftest import Lake
from tests.integration.spark.random_copy import RandomCopy, play
from tests.integration.spark.random_table import BATCHES, SEED, RandomTable, Shape
from tests.support.build_log import BuiltLog

from tidelog.model.schema import TableName
from tidelog.outputs.lake import jobs
from tidelog.outputs.lake.settling import tasks

pytestmark = pytest.mark.spark

SHAPES = {
    "null keys": Shape({"a": "text", "b": "decimal(10,2)"}),  # NaN of the source
    "floats": Shape({"f": "float64", "d": "date"}, values={"g": "float64"}),
    "binary": Shape({"Blob": "binary"}, values={"Other": "binary", "m": "decimal(38,10)"}),
    "odd-names": Shape(
        {"Ünï key": "text", "Id": "decimal(38,10)"},
        TableName("public", "Odd Name"),
        {"a,b;{c}": "text", "=": "date", "Case": "bool"},
    ),
    "partitions": Shape({"a": "text", "p": "int32"}, values={"q": "date"}, partitions=("q", "p")),
}


def in_this_process(
    _spark: Any, function: Callable[[Any], Any], items: Sequence[Any], **_: Any
) -> list[Any]:
    """As `run_on_executors` does it, a hundred times as fast."""
    sent = [cloudpickle.loads(cloudpickle.dumps(item)) for item in items]  # type: ignore[no-untyped-call]
    return [cloudpickle.loads(cloudpickle.dumps(function(item))) for item in sent]  # type: ignore[no-untyped-call]


@pytest.fixture
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "run_on_executors", in_this_process)
    monkeypatch.setattr(tasks, "_PART_BYTES", 2_000)  # settled by parts


@pytest.mark.parametrize(
    "shape",
    [
        pytest.param(shape, marks=[] if shape == "binary" else pytest.mark.thorough)
        for shape in SHAPES
    ],
)
def test_copies_of_any_shape_are_the_source_whatever_happens(
    lake: Lake, built: BuiltLog, fast: None, shape: str
) -> None:
    rng = random.Random(f"{SEED} {shape}")
    source = RandomTable(built, SHAPES[shape], rng)
    partitions = {str(source.shape.table): source.shape.partitions}
    options = {
        "soft_deletes": rng.random() < 0.5,
        "deletion_vectors": rng.random() < 0.7,
        "plain_names": rng.random() < 0.5,
        "partition_by": partitions if source.shape.partitions else {},
    }
    play(source, RandomCopy(lake, source, rng, **options), BATCHES)
