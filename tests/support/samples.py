"""A sample of a test's variants for `make test-all`; the others are for `make test-thorough`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from zlib import crc32

import pytest


def mark_sample(items: Sequence[pytest.Item], folder: Path, parameter: str) -> None:
    """Of the folder's tests mark as thorough all but one of the variants that differ in this
    parameter alone, whose ids are its values.

    Which one stays depends on the test's name and its other parameters, so that each value has its
    turn.
    """
    tests: dict[str, list[pytest.Item]] = {}
    for item in items:
        parameters = item.callspec.params if hasattr(item, "callspec") else {}
        if (
            folder in item.path.parents
            and parameter in parameters
            and item.get_closest_marker("thorough") is None
        ):
            test, _, ids = item.nodeid.partition("[")
            rest = ids.replace(str(parameters[parameter]), "")
            tests.setdefault(f"{test}[{rest}", []).append(item)
    for name, variants in tests.items():
        sample = crc32(name.encode()) % len(variants)
        for number, item in enumerate(variants):
            if number != sample:
                item.add_marker(pytest.mark.thorough)
