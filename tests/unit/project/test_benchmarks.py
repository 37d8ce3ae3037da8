"""Benchmarks are run by hand: a name that moved would be noticed late."""

from __future__ import annotations

import importlib
import pkgutil
from pathlib import Path

ROOT = Path(__file__).parents[3] / "benchmarks"


def test_each_benchmark_can_be_imported() -> None:
    for folder, package in ((ROOT, "benchmarks"), (ROOT / "peers", "benchmarks.peers")):
        for module in pkgutil.iter_modules([str(folder)]):
            if module.name != "__main__":
                importlib.import_module(f"{package}.{module.name}")
