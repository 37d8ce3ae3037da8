"""Capture a database's row changes, dump its tables without locks, deliver both through Spark.

``tidelog.Capture`` and ``tidelog.Engine`` are for embedding, ``tidelog.repair`` reads the keys of a
DataFrame again; they are loaded on first use, so that ``import tidelog`` stays quick.
"""

from __future__ import annotations

from typing import Any

__version__ = "0.1.0"

__all__ = ["Capture", "Engine", "__version__", "repair"]

_LAZY = dict.fromkeys(("Capture", "Engine", "repair"), "tidelog.runtime")


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        from importlib import import_module

        return getattr(import_module(_LAZY[name]), name)
    raise AttributeError(f"module 'tidelog' has no attribute {name!r}")
