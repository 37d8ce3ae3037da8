"""Tests that are written for PostgreSQL 16 and 18 run on one of them, taking turns: on the other
they are `thorough`. What only one of them has is tested on that one alone.
"""

from __future__ import annotations

import re
from collections import defaultdict
from zlib import crc32

import pytest

_VERSION = re.compile(r"(?<=[\[-])(?:postgres)?(16|18)(?=[-\]])")
"""In a test's name, among its parameters."""


def mark_versions(items: list[pytest.Item]) -> None:
    """Set the marker, before `-m` chooses."""
    alike: dict[str, dict[str, pytest.Item]] = defaultdict(dict)
    for item in items:
        found = _VERSION.search(item.nodeid)
        if found:
            others = item.nodeid[: found.start()] + item.nodeid[found.end() :]
            alike[others][found[1]] = item
    for others, by_version in alike.items():
        if len(by_version) == 2:
            left_out = ("16", "18")[crc32(others.encode()) % 2]
            by_version[left_out].add_marker(pytest.mark.thorough)
