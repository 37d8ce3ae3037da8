"""Fixtures of the suite. Executors import this repository's tests: before Spark starts."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from tests.behaviours.outputs.destinations import Context, Destination, kinds, make
from tests.integration.spark.conftest import spark  # noqa: F401
from tests.support.build_log import BuiltLog
from tests.support.samples import mark_sample

_ROOT = str(Path(__file__).parents[3])
if _ROOT not in os.environ.get("PYTHONPATH", "").split(os.pathsep):
    os.environ["PYTHONPATH"] = os.pathsep.join(
        part for part in (_ROOT, os.environ.get("PYTHONPATH")) if part
    )


SLOW = "test_steps_leave_what_a_record_lacks_as_it_was"
"""Of a copy, a stream and a database are enough for `make test-all`."""


@pytest.hookimpl(tryfirst=True)  # before `-m` chooses
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for parameter in ("place", "parts", "how"):
        mark_sample(items, here, parameter)
    for item in items:
        is_slow = here in item.path.parents and getattr(item, "originalname", "") == SLOW
        if is_slow and item.callspec.params["destination"] not in ("delta", "kafka", "postgres"):
            item.add_marker(pytest.mark.thorough)


@pytest.fixture
def built(tmp_path: Path) -> BuiltLog:
    return BuiltLog(tmp_path / "log")


# The same destination in another mode, and an output of a user's own (its page has a test).
FURTHER = (
    "delta_s3", "files_json", "kafka_avro", "kafka_transactions", "mariadb", "mysql",
    "postgres_soft", "sqlite",
)  # fmt: skip


@pytest.fixture(
    params=[
        pytest.param(kind, marks=pytest.mark.thorough) if kind in FURTHER else kind
        for kind in kinds()
    ]
)
def destination(
    request: pytest.FixtureRequest,
    spark: Any,  # noqa: F811
    built: BuiltLog,
    tmp_path: Path,
) -> Destination:
    return make(request.param, Context(spark, built, tmp_path))
