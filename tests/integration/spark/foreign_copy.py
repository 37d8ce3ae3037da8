"""Random tables of a lake that users write to by delta-rs or by Spark, or alter."""

from __future__ import annotations

import random
from abc import abstractmethod
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake
from tests.integration.spark.conftest import Lake
from tests.integration.spark.random_copy import RandomCopy
from tests.integration.spark.random_table import Key, RandomTable
from tests.integration.spark.test_delta_random import RandomChanges, RandomHistory

PROPERTIES = {
    "delta.enableChangeDataFeed": "true",
    "delta.enableInCommitTimestamps": "true",
    "delta.checkpointPolicy": "v2",
    "delta.checkpointInterval": "3",
    "delta.columnMapping.mode": "name",
}
B = Decimal("77.00")  # of keys that the source does not have
RESTORES = "restores version"


def setting(name: str) -> str:
    return f"ALTER TABLE {{}} SET TBLPROPERTIES ('{name}' = '{PROPERTIES[name]}')"


class SharedCopy(RandomCopy):
    """Users restore versions, and remove the files of older ones. In a copy they insert, update and
    delete rows of keys that the source does not have, which it keeps, and rewrite all rows.

    Attributes:
        theirs: values of ``v`` by ``a`` of the key.
        known: the same, by versions.
        whole: since this version, no file was removed.
    """

    def __init__(self, lake: Lake, source: RandomTable, rng: random.Random, **options: Any) -> None:
        super().__init__(lake, source, rng, **options)
        self.theirs: dict[str, str] = {}
        self.known: dict[int, dict[str, str]] = {}
        self.whole = 1
        self._count = 0

    def wanted(self) -> dict[Key, dict[str, Any]]:
        nothing = dict.fromkeys(self.source.columns)
        return super().wanted() | {(a, B): nothing | {"v": v} for a, v in self.theirs.items()}

    def befalls(self) -> list[Callable[[], None]]:
        return [self._fail, self._drive, *(3 * [self._act])]

    def acts(self) -> list[Callable[[], None]]:
        of_rows = [self._insert, self._update, self._delete, self.update_nothing]
        return [*([] if "holds" in self.options else of_rows), self.optimize, self._restore]

    def between(self) -> None:
        self._act([self._restore, self._vacuum])

    def catch_up(self) -> None:
        """What a RESTORE behind the last batch took away comes by the next start."""
        before = len(self.acted)
        super().catch_up()
        if any(RESTORES in each for each in self.acted[before:]):
            self.restart()

    def _act(self, acts: Sequence[Callable[[], None]] = ()) -> None:
        now = self.version()
        self.known |= dict.fromkeys(range(len(self.known), now + 1), self.theirs)
        act = self.rng.choice(acts or self.acts())
        self.acted.append(f"their {act.__name__} after version {now}")
        act()

    def version(self) -> int:
        return int(DeltaTable(self.place).version())

    def _next(self) -> str:
        self._count += 1
        return f"theirs {self._count}"

    def _insert(self) -> None:
        added = [self._next() for _ in range(self.rng.randint(1, 3))]
        self.insert(added)
        self.theirs = self.theirs | {a: a for a in added}

    def _update(self) -> None:
        if self.theirs:
            a = self.rng.choice(list(self.theirs))
            v = self._next()
            self.update(v, f"a = '{a}'")
            self.theirs = self.theirs | {a: v}

    def _delete(self) -> None:
        if self.theirs:
            deleted = self.rng.choice(list(self.theirs))
            self.delete(f"a = '{deleted}'")
            self.theirs = {a: v for a, v in self.theirs.items() if a != deleted}

    def _restore(self) -> None:
        now = self.version()
        if now > self.whole:
            version = self.rng.randint(max(self.whole, now - 4), now - 1)
            self.acted.append(f"{RESTORES} {version}")
            self.restore(version)
            self.theirs = self.known[version]

    def _vacuum(self) -> None:
        self.vacuum()
        self.whole = self.version()

    @abstractmethod
    def insert(self, values: list[str]) -> None:
        """Rows with the same ``a`` and ``v``."""

    @abstractmethod
    def update(self, v: str, where: str) -> None: ...

    @abstractmethod
    def delete(self, where: str) -> None: ...

    @abstractmethod
    def update_nothing(self) -> None:
        """Rewrite all rows as they are."""

    @abstractmethod
    def optimize(self) -> None: ...

    @abstractmethod
    def restore(self, version: int) -> None: ...

    @abstractmethod
    def vacuum(self) -> None: ...


class CopyOfDeltaRs(SharedCopy):
    """delta-rs does not write where there are vectors, or what it does not know."""

    def acts(self) -> list[Callable[[], None]]:
        return super().acts() if self.is_known_to_delta_rs() else [self._rewrite]

    def insert(self, values: list[str]) -> None:
        columns = {"a": values, "b": pa.array(len(values) * [B], pa.decimal128(9, 2)), "v": values}
        write_deltalake(self.place, pa.table(columns), mode="append", schema_mode="merge")

    def update(self, v: str, where: str) -> None:
        DeltaTable(self.place).update({"v": f"'{v}'"}, predicate=where)

    def delete(self, where: str) -> None:
        DeltaTable(self.place).delete(where)

    def update_nothing(self) -> None:
        DeltaTable(self.place).update({"v": "v"})

    def optimize(self) -> None:
        DeltaTable(self.place).optimize.compact()

    def restore(self, version: int) -> None:
        DeltaTable(self.place).restore(version)

    def vacuum(self) -> None:
        DeltaTable(self.place).vacuum(0, dry_run=False, enforce_retention_duration=False)


class ChangesOfDeltaRs(CopyOfDeltaRs, RandomChanges):
    """As both."""


class HistoryOfDeltaRs(CopyOfDeltaRs, RandomHistory):
    """As both."""


class CopyOfSpark(SharedCopy):
    """Users also set properties, and cluster."""

    def acts(self) -> list[Callable[[], None]]:
        return [*super().acts(), self._alter]

    def _alter(self) -> None:
        clustering = f"ALTER TABLE {{}} CLUSTER BY {self.rng.choice(['NONE', '(b)', '(n, a)'])}"
        self.sql(self.rng.choice([clustering, *map(setting, PROPERTIES)]))

    def insert(self, values: list[str]) -> None:
        rows = ", ".join(f"('{a}', {B}, '{a}')" for a in values)
        self.sql(f"INSERT INTO {{}} (a, b, v) VALUES {rows}")

    def update(self, v: str, where: str) -> None:
        self.sql(f"UPDATE {{}} SET v = '{v}' WHERE {where}")

    def delete(self, where: str) -> None:
        self.sql(f"DELETE FROM {{}} WHERE {where}")

    def update_nothing(self) -> None:
        self.sql("UPDATE {} SET v = v")

    def optimize(self) -> None:
        clustered = "clustering" in self.opened().protocol.writer_features
        orders = ["OPTIMIZE {}" if clustered else "OPTIMIZE {} ZORDER BY (a)"]
        self.sql(self.rng.choice([*orders, "OPTIMIZE {}", "REORG TABLE {} APPLY (PURGE)"]))

    def restore(self, version: int) -> None:
        self.sql(f"RESTORE TABLE {{}} TO VERSION AS OF {version}")

    def vacuum(self) -> None:
        self.sql("VACUUM {} RETAIN 0 HOURS")


class AlteredCopy(RandomCopy):
    """Properties and clusters are drawn for the new table, and altered later."""

    def __init__(self, lake: Lake, source: RandomTable, rng: random.Random, **options: Any) -> None:
        super().__init__(lake, source, rng, **options)
        self.unset = rng.sample(list(PROPERTIES), len(PROPERTIES))

    def between(self) -> None:
        """Half of the properties that are left. The output clusters as its options say."""
        for _ in range((len(self.unset) + 1) // 2):
            self.sql(setting(self.unset.pop()))
        columns = self.rng.choice([(), ("b",), ("n", "a")])
        self.acted.append(f"clustered by {columns}")
        self.options["cluster_by"] = {str(self.table): columns} if columns else {}
        self.restart()
