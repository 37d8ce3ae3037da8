"""Tests that `make test` runs have the marker `first`: all of tests/unit and tests/property, and
those that say so themselves, as they stand for the others. `make test-all` runs the others, too.
"""

from __future__ import annotations

import pytest

MARKER = "first"
_FOLDERS = [("tests", "unit"), ("tests", "property")]


def mark_first(items: list[pytest.Item]) -> None:
    """Set the marker. `make test-servers` and `make test-spark` never look into these folders.

    Raises:
        pytest.UsageError: a test there starts Spark, which takes seconds.
    """
    for item in items:
        if item.path.relative_to(item.config.rootpath).parts[:2] in _FOLDERS:
            if item.get_closest_marker("spark"):
                raise pytest.UsageError(
                    f"{item.nodeid} starts Spark: its place is tests/integration/spark"
                )
            item.add_marker(MARKER)
