"""A table of a source that is changed at random, with keys and values of many kinds.

``TIDELOG_RANDOM_BATCHES`` and ``TIDELOG_RANDOM_SEED`` make tests with it longer, and others.
"""

from __future__ import annotations

import math
import os
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import date
from decimal import Decimal
from typing import Any

from tests.support.build_log import BuiltLog
from tests.support.pgoutput_messages import UNCHANGED

from tidelog.model.schema import TableName, TableSchema

Key = tuple[Any, ...]
Texts = tuple[str, ...]
"""A key as the source spells it."""

BATCHES = int(os.environ.get("TIDELOG_RANDOM_BATCHES", "8"))
SEED = int(os.environ.get("TIDELOG_RANDOM_SEED", "7"))

_TABLE = TableName("public", "t")
_TEXTS = ["", "é", "a" * 40 + "1", "a" * 40 + "2", *(f"k{n}" for n in range(16))]
_FLOATS = ["NaN", "-0", "0", "1.5", "-Infinity", "1e-300", "3"]
DRAWS: Mapping[str, Callable[[random.Random], str]] = {
    "text": lambda rng: rng.choice(_TEXTS),
    "decimal(10,2)": lambda rng: rng.choice(["NaN", *(f"{n / 4:.2f}" for n in range(-3, 9))]),
    "decimal(9,2)": lambda rng: f"{rng.randint(-3, 9) / 4:.2f}",
    "decimal(38,10)": lambda rng: f"{rng.randint(-3, 3)}{rng.choice('012')}.0000000001",
    "float64": lambda rng: rng.choice(_FLOATS),
    "binary": lambda rng: "\\x" + rng.choice(["", "00", "0000", "ff", "00ff", "ff00", "80" * 40]),
    "date": lambda rng: f"{rng.choice(['1900', '2024'])}-01-{rng.randint(1, 9):02d}",
    "int32": lambda rng: str(rng.randint(-9, 9)),
    "int64": lambda rng: str(rng.randint(-9, 9) << 40),
    "bool": lambda rng: rng.choice("tf"),
}
"""Texts of PostgreSQL, of few values, so that keys meet again."""


def value_of(kind: str, text: str | None) -> Any:
    """What readers find for a text; equal where the source and Spark take keys for equal."""
    if text is None:
        return None
    if kind.startswith("decimal"):
        return None if text == "NaN" else Decimal(text)  # no decimal has it
    if kind == "float64":
        return comparable(float(text))
    if kind == "binary":
        return bytes.fromhex(text[2:])
    if kind == "date":
        return date.fromisoformat(text)
    if kind == "bool":
        return text == "t"
    return int(text) if kind.startswith("int") else text


def comparable(value: Any) -> Any:
    """NaN is equal to itself."""
    return "NaN" if isinstance(value, float) and math.isnan(value) else value


@dataclass(frozen=True)
class Shape:
    """``key``, ``values``: columns and their kinds. The source adds, drops and brings back the
    columns ``x`` and ``y``, widens ``n`` where it ``widens``, and does not tell ``v`` where that
    did not change.
    """

    key: Mapping[str, str]
    table: TableName = _TABLE
    values: Mapping[str, str] = field(default_factory=dict)
    partitions: tuple[str, ...] = ()
    widens: bool = True

    @property
    def columns(self) -> dict[str, str]:
        return {**self.key, "v": "text", "n": "int32", **self.values, "x": "text"}


class RandomTable:
    """Changes rows and columns at random, and logs that. ``dumps``: as capture does, a dump of all
    after a column that was dropped is there again.
    """

    dumps = False

    def __init__(self, built: BuiltLog, shape: Shape, rng: random.Random) -> None:
        self.built, self.shape, self.rng = built, shape, rng
        self.kinds = shape.columns
        self.rows: dict[Key, tuple[Texts, dict[str, str | None]]] = {}
        self.added: dict[str, int] = {}  # columns, and the version of the schema that they came by
        self.schema = self._register()

    def _register(self) -> TableSchema:
        return self.built.table(self.shape.table, self.kinds, key=tuple(self.shape.key))

    @property
    def columns(self) -> list[str]:
        """Besides the key."""
        return [*self.kinds][len(self.shape.key) :]

    @property
    def wanted(self) -> dict[Key, dict[str, Any]]:
        return {
            key: {name: value_of(self.kinds[name], row[name]) for name in self.columns}
            for key, (_, row) in self.rows.items()
        }

    def change(self) -> None:
        """Some records of rows; sometimes a truncate, or a dump of all."""
        for _ in range(self.rng.randint(1, 60)):
            self._change_row()
        chance = self.rng.random()
        if chance < 0.06:
            self.built.truncate(self.schema)
            self.rows.clear()
            for _ in range(10):
                self._change_row()
        self.built.flush()
        if 0.06 < chance < 0.2:
            self.dump()

    def change_columns(self) -> None:
        """Add, drop, bring back, widen; then drop and bring back."""
        if "y" not in self.kinds:
            self._add("y")
        elif "x" in self.kinds:
            del self.kinds["x"]
        else:
            self._add("x")
            if self.rng.random() < 0.5 and self.shape.widens:
                self.kinds["n"] = "int64"
        before, self.schema = self.schema, self._register()
        for name in set(self.schema.column_names) - set(before.column_names):
            if name in self.shape.columns and self.dumps:
                self.dump()
            self.added[name] = self.schema.schema_id

    def _add(self, column: str) -> None:
        self.kinds[column] = "text"
        for _, row in self.rows.values():
            row[column] = None

    def dump(self) -> None:
        """Log a dump of all rows."""
        began = self.built.dump_started(self.shape.table).first
        if self.rows:
            rows = [self._texts(texts, row) for texts, row in self.rows.values()]
            self.built.chunk(self.schema, rows)
        self.built.dump_completed(self.shape.table, began)

    def _change_row(self) -> None:
        rng = self.rng
        texts, key = self._draw_key()
        there = self.rows.get(key)
        if there is None:
            self.rows[key] = texts, self._values()
            self.built.insert(self.schema, *self._texts(*self.rows[key]))
            return
        old, row = there
        if (chance := rng.random()) < 0.3:
            del self.rows[key]
            self.built.delete(self.schema, *old)
        elif chance < 0.4:
            moved, to = self._draw_key()
            if to in self.rows:
                return
            self.rows[to] = moved, self._values()
            del self.rows[key]
            self.built.update(self.schema, *self._texts(*self.rows[to]), key=old)
        else:
            fresh = self._values()
            told: list[Any] = self._texts(texts, fresh)
            if chance < 0.7 and row["v"] is not None:
                fresh["v"] = row["v"]
                told[[*self.kinds].index("v")] = UNCHANGED
            self.rows[key] = texts, fresh
            # Spelled anew, such as 0 for -0, a key is the same one, but not to the log.
            self.built.update(self.schema, *told, key=old if texts != old else None)

    def _draw_key(self) -> tuple[Texts, Key]:
        texts = tuple(DRAWS[kind](self.rng) for kind in self.shape.key.values())
        pairs = zip(self.shape.key.values(), texts, strict=True)
        return texts, tuple(value_of(kind, text) for kind, text in pairs)

    def _values(self) -> dict[str, str | None]:
        return {
            name: self.rng.choice([None, "", f"{name}{self.rng.random()}"])
            if name in ("v", "x", "y")
            else self.rng.choice([None, *(DRAWS[self.kinds[name]](self.rng) for _ in range(4))])
            for name in ("v", "x", "y", *self.columns)
        }

    def _texts(self, key: Texts, row: Mapping[str, str | None]) -> list[str | None]:
        return [*key, *(row[name] for name in self.columns)]
