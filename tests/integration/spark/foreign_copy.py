"""A random copy whose table users write to by delta-rs, or alter."""

from __future__ import annotations

import random
from abc import abstractmethod
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake
from tests.integration.spark.conftest import Lake
from tests.integration.spark.random_copy import RandomCopy
from tests.integration.spark.random_table import Key, RandomTable

PROPERTIES = {
    "delta.enableChangeDataFeed": "true",
    "delta.enableInCommitTimestamps": "true",
    "delta.checkpointPolicy": "v2",
    "delta.checkpointInterval": "3",
    "delta.columnMapping.mode": "name",
}
B = Decimal("77.00")  # of keys that the source does not have


class SharedCopy(RandomCopy):
    """Users insert, update and delete rows of keys that the source does not have, and rewrite all
    rows; the copy keeps them.

    Attributes:
        theirs: values of ``v`` by ``a`` of the key.
    """

    def __init__(self, lake: Lake, source: RandomTable, rng: random.Random, **options: Any) -> None:
        super().__init__(lake, source, rng, **options)
        self.theirs: dict[str, str] = {}
        self._count = 0

    def wanted(self) -> dict[Key, dict[str, Any]]:
        nothing = dict.fromkeys(self.source.columns)
        return super().wanted() | {(a, B): nothing | {"v": v} for a, v in self.theirs.items()}

    def befalls(self) -> list[Callable[[], None]]:
        return [self._fail, self._drive, *(3 * [self._act])]

    def acts(self) -> list[Callable[[], None]]:
        return [self._insert, self._update, self._delete, self.update_nothing, self.optimize]

    def _act(self) -> None:
        act = self.rng.choice(self.acts())
        self.acted.append(f"their {act.__name__}")
        act()

    def _next(self) -> str:
        self._count += 1
        return f"theirs {self._count}"

    def _insert(self) -> None:
        for _ in range(self.rng.randint(1, 3)):
            a = self._next()
            self.insert(a, a)
            self.theirs[a] = a

    def _update(self) -> None:
        if self.theirs:
            a = self.rng.choice(list(self.theirs))
            v = self._next()
            self.update(v, f"a = '{a}'")
            self.theirs[a] = v

    def _delete(self) -> None:
        if self.theirs:
            a = self.rng.choice(list(self.theirs))
            self.delete(f"a = '{a}'")
            del self.theirs[a]

    @abstractmethod
    def insert(self, a: str, v: str) -> None: ...

    @abstractmethod
    def update(self, v: str, where: str) -> None: ...

    @abstractmethod
    def delete(self, where: str) -> None: ...

    @abstractmethod
    def update_nothing(self) -> None:
        """Rewrite all rows as they are."""

    @abstractmethod
    def optimize(self) -> None: ...


class CopyOfDeltaRs(SharedCopy):
    """delta-rs does not write where there are vectors, or what it does not know."""

    def acts(self) -> list[Callable[[], None]]:
        return super().acts() if self.is_known_to_delta_rs() else [self._rewrite]

    def insert(self, a: str, v: str) -> None:
        columns = {"a": [a], "b": pa.array([B], pa.decimal128(9, 2)), "v": [v]}
        write_deltalake(self.place, pa.table(columns), mode="append", schema_mode="merge")

    def update(self, v: str, where: str) -> None:
        DeltaTable(self.place).update({"v": f"'{v}'"}, predicate=where)

    def delete(self, where: str) -> None:
        DeltaTable(self.place).delete(where)

    def update_nothing(self) -> None:
        DeltaTable(self.place).update({"v": "v"})

    def optimize(self) -> None:
        DeltaTable(self.place).optimize.compact()


class AlteredCopy(RandomCopy):
    """Properties and clusters are drawn for the new table, and altered later."""

    def __init__(self, lake: Lake, source: RandomTable, rng: random.Random, **options: Any) -> None:
        super().__init__(lake, source, rng, **options)
        self.unset = rng.sample(list(PROPERTIES), len(PROPERTIES))

    def between(self) -> None:
        """Half of the properties that are left. The output clusters as its options say."""
        chosen = [self.unset.pop() for _ in range((len(self.unset) + 1) // 2)]
        columns = self.rng.choice([(), ("b",), ("n", "a")])
        self.acted.append(f"altered: {chosen}, clustered by {columns}")
        if chosen:
            values = ", ".join(f"'{name}' = '{PROPERTIES[name]}'" for name in chosen)
            self.lake.spark.sql(f"ALTER TABLE delta.`{self.place}` SET TBLPROPERTIES ({values})")
        self.options["cluster_by"] = {str(self.table): columns} if columns else {}
        self.output.close()
        self.output = self._open()
