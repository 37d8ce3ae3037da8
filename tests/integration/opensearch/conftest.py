"""The fixtures of the Spark tests."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from tests.behaviours.outputs.destinations import Context
from tests.integration.spark.conftest import spark  # noqa: F401
from tests.support.build_log import BuiltLog

_numbers = itertools.count(1)


@pytest.fixture
def built(tmp_path: Path) -> BuiltLog:
    return BuiltLog(tmp_path / "log")


@pytest.fixture
def context(spark, built: BuiltLog, tmp_path: Path) -> Context:  # type: ignore[no-untyped-def]  # noqa: F811
    return Context(spark, built, tmp_path)


@pytest.fixture
def name() -> str:
    """Of an alias that no other test has."""
    return f"own{next(_numbers)}"
