"""Fixtures of the suite: the Spark session of all tests of a process."""

from __future__ import annotations

from tests.behaviours.outputs.conftest import built, spark  # noqa: F401
