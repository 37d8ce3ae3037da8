"""Delivery options of all outputs that write from executors."""

from __future__ import annotations

from dataclasses import dataclass, field

from tidelog.model.option_values import ColumnTypes
from tidelog.outputs.base.sections import KeylessPolicy
from tidelog.outputs.base.writer import StopAtRejection
from tidelog.ports import DeadLetters, Formatter
from tidelog.spark.transforms import Step

# One task folds or formats up to this much of a table alone, without a shuffle.
PART_BYTES = 32 << 20


@dataclass(frozen=True)
class Delivery:
    """What an output delivers, and how."""

    name: str
    tables: tuple[str, ...] = ("*.*",)
    keyed: bool = True
    keyless: KeylessPolicy = "skip"  # of a table without a key, where one is needed
    order: str = "key"  # of ordered delivery: key, total or none
    formatter: Formatter | None = None
    steps: tuple[Step, ...] = ()
    on_schema_change: str = "evolve"
    dead_letters: DeadLetters = field(default_factory=StopAtRejection)
    parallelism: int = 0  # 0: as Spark has cores
    part_bytes: int = PART_BYTES
    skipped: frozenset[str] = frozenset()  # operations that ordered delivery leaves out
    types: ColumnTypes | None = None  # of new columns that are text without it; None: text
    messages: Formatter | None = None  # for the source's logical messages; None: they are left out
