"""What the suite asks of a destination, and the destinations there are."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.support.build_log import BuiltLog

from tidelog.ports import Output
from tidelog.spark.datasource.segment_rows import batch_of

Row = dict[str, Any]


@dataclass
class Context:
    """What a destination is made from."""

    spark: Any
    built: BuiltLog
    path: Path


@dataclass
class Destination:
    """One place, opened again and again.

    ``traits``: of ``no-delivery`` (open ignores `Delivery`; its tasks hit no failpoints),
    ``stream`` (every change is appended: nothing can be removed) and ``ascii`` (S3Proxy takes no
    other names). ``drop``: drops a table there, as a user does.
    """

    open: Callable[..., Output]
    rows: Callable[[str], list[Row]]
    traits: frozenset[str] = field(default_factory=frozenset)
    drop: Callable[[str], object] | None = None


def kinds() -> list[str]:
    found = Path(__file__).parent.glob("destination_*.py")
    return sorted(path.stem.removeprefix("destination_") for path in found)


def make(kind: str, context: Context) -> Destination:
    module = importlib.import_module(f"tests.behaviours.outputs.destination_{kind}")
    made: Destination = module.destination(context)
    return made


def newest(messages: Iterable[tuple[str, int, Row | None]]) -> list[Row]:
    """Messages (key, version, row; None: deleted) as a reader that minds versions sees them."""
    kept: dict[str, tuple[int, Row | None]] = {}
    for key, version, row in messages:
        if key not in kept or version >= kept[key][0]:
            kept[key] = (version, row)
    return [row for _, (_, row) in sorted(kept.items()) if row is not None]


def write(destination: Destination, built: BuiltLog, *ranges: tuple[int, int], **how: Any) -> None:
    """Bring offset ranges over, one after the other, by one output."""
    output = destination.open(**how)
    try:
        output.prepare(built.log.generation)
        for start, end in ranges:
            output.write(batch_of(built.log, start, end))
    finally:
        output.close()
