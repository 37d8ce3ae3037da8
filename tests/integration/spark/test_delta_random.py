"""Random changes in random batches, with failures and commits of others and of another driver amid:
the copy is the source, as delta-rs and DuckDB read it, and so is what a table of changes folds to.

``TIDELOG_RANDOM_BATCHES`` and ``TIDELOG_RANDOM_SEED`` make it longer, and another.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from tests.integration.spark.conftest import Lake
from tests.support.build_log import BuiltLog
from tests.support.delta_readers import by_delta_rs, by_duckdb, rows_of
from tests.support.pgoutput_messages import UNCHANGED

from tidelog.errors import TidelogError
from tidelog.model.schema import TableName, TableSchema
from tidelog.outputs.base.ranges import batch_of
from tidelog.outputs.lake.delta.settle_tasks import RewriteWork, rewrite_files
from tidelog.outputs.lake.delta.table import DeltaTable, path_of
from tidelog.system import failpoints

pytestmark = pytest.mark.spark

BATCHES = int(os.environ.get("TIDELOG_RANDOM_BATCHES", "8"))
SEED = int(os.environ.get("TIDELOG_RANDOM_SEED", "7"))
NAME = "public.t"
TEXTS = ["", "é", "a" * 40 + "1", "a" * 40 + "2", *(f"k{n}" for n in range(16))]
POINTS = ("lake.table.write", "delta.commit.before", "delta.commit.after", "lake.rewrite.commit")

Key = tuple[str, Decimal]
Reader = Callable[[str, str], pa.Table]


class Source:
    """The table at its source: changes it at random, and logs that."""

    def __init__(self, built: BuiltLog, rng: random.Random) -> None:
        self.built, self.rng = built, rng
        self.kinds = {"a": "text", "b": "decimal(10,2)", "v": "text", "n": "int32", "x": "text"}
        self.rows: dict[Key, dict[str, Any]] = {}
        self.added: dict[str, int] = {}  # columns, and the version of the schema that they came by
        self.schema = self._register()

    def _register(self) -> TableSchema:
        return self.built.table(NAME, self.kinds, key=("a", "b"))

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
            self._dump()

    def change_columns(self) -> None:
        """Add, drop, bring back, widen; then drop and bring back."""
        if "y" not in self.kinds:
            self._add("y")
        elif "x" in self.kinds:
            del self.kinds["x"]
        else:
            self._add("x")
            if self.rng.random() < 0.5:
                self.kinds["n"] = "int64"
        before, self.schema = self.schema, self._register()
        for name in set(self.schema.column_names) - set(before.column_names):
            self.added[name] = self.schema.schema_id

    def _add(self, column: str) -> None:
        self.kinds[column] = "text"
        for row in self.rows.values():
            row[column] = None

    def _dump(self) -> None:
        began = self.built.dump_started(NAME).first
        if self.rows:
            self.built.chunk(self.schema, [self._texts(key, row) for key, row in self.rows.items()])
        self.built.dump_completed(NAME, began)

    def _change_row(self) -> None:
        rng = self.rng
        key = rng.choice(TEXTS), Decimal(rng.randint(-3, 3)) / 4
        there = self.rows.get(key)
        if there is None:
            self.rows[key] = self._values()
            self.built.insert(self.schema, *self._texts(key, self.rows[key]))
        elif (chance := rng.random()) < 0.3:
            del self.rows[key]
            self.built.delete(self.schema, *self._key(key))
        elif chance < 0.4:
            moved = rng.choice(TEXTS), Decimal(rng.randint(4, 9)) / 4
            if moved in self.rows:
                return
            self.rows[moved] = self._values()
            del self.rows[key]
            texts = self._texts(moved, self.rows[moved])
            self.built.update(self.schema, *texts, key=self._key(key))
        else:
            fresh = self._values()
            texts = self._texts(key, fresh)
            if chance < 0.7 and there["v"] is not None:
                fresh["v"] = there["v"]
                texts[list(self.kinds).index("v")] = UNCHANGED
            self.rows[key] = fresh
            self.built.update(self.schema, *texts)

    def _values(self) -> dict[str, Any]:
        rng = self.rng
        found: dict[str, Any] = {
            name: rng.choice([None, "", f"{name}{rng.random()}"]) for name in "vxy"
        }
        found["n"] = rng.randint(-5, 5) * (1 << 40 if self.kinds["n"] == "int64" else 1)
        return found

    def _key(self, key: Key) -> list[str]:
        return [key[0], f"{key[1]:.2f}"]

    def _texts(self, key: Key, row: dict[str, Any]) -> list[Any]:
        values = [row[name] for name in [*self.kinds][2:]]
        return [*self._key(key), *(None if each is None else str(each) for each in values)]

    @property
    def wanted(self) -> dict[Key, dict[str, Any]]:
        names = [*self.kinds][2:]
        return {key: {name: row[name] for name in names} for key, row in self.rows.items()}


class Copy:
    """Brings the log over in random batches, which fail or meet another writer now and then."""

    def __init__(self, lake: Lake, rng: random.Random, **options: Any) -> None:
        self.lake, self.rng, self.options = lake, rng, options
        self.place = path_of(lake.path, TableName.parse(NAME), NAME)
        self.output, self.other = self._open(), self._open()
        self.done = 0

    def _open(self) -> Any:
        output = self.lake.output(options=self.lake.options(**self.options))
        output.prepare(self.lake.built.log.generation)
        return output

    def catch_up(self) -> None:
        log, rng = self.lake.built.log, self.rng
        end = log.latest_offset()
        while self.done < end:
            cut = rng.choice([end, rng.randint(self.done + 1, end)])
            start = rng.randint(0, self.done) if rng.random() < 0.2 else self.done
            with failpoints.arm(self._surprise()):
                try:
                    self.output.write(batch_of(log, start, cut))
                except (OSError, TidelogError):
                    if rng.random() < 0.5:
                        self.output.close()
                        self.output = self._open()
                    continue
            self.done = cut

    def _surprise(self) -> dict[str, Any]:
        hits = [self.rng.choice([self._fail, self._rewrite, self._drive])]
        return {self.rng.choice(POINTS): lambda: hits.pop()() if hits else None}

    def _fail(self) -> None:
        raise OSError("somebody pulled the plug")

    def _rewrite(self) -> None:
        """Another writer puts all files together."""
        table = self._table()
        with failpoints.arm(dict.fromkeys(POINTS, lambda: None)):
            if table.state.files:
                files = table.files()
                table.compacted([rewrite_files(RewriteWork(files))])

    def _drive(self) -> None:
        """Another driver of the same output, which knows what the table was some batches ago."""
        log = self.lake.built.log
        until = self.rng.randint(self.done + 1, log.latest_offset())
        with failpoints.arm(dict.fromkeys(POINTS, lambda: None)):
            self.other.write(batch_of(log, self.done, until))

    def _table(self) -> DeltaTable:
        layout = self.output._options.layout_of(TableName.parse(NAME))
        table = DeltaTable(self.place, layout, lambda works: [rewrite_files(w) for w in works])
        table.exists()
        return table

    def close(self) -> None:
        self.output.close()
        self.other.close()

    def found(self, names: list[str]) -> Iterator[dict[Key, dict[str, Any]]]:
        """As each of the readers has it."""
        # delta-rs 1.6 does not know type widening.
        widened = "typeWidening" in self._table().protocol.writer_features
        for read in (by_duckdb,) if widened else (by_duckdb, by_delta_rs):
            yield self._rows(read, names)

    def _rows(self, read: Reader, names: list[str]) -> dict[Key, dict[str, Any]]:
        rows = [row for row in read(self.place, "a").to_pylist() if not row.get("_deleted")]
        keys = [(row["a"], row["b"]) for row in rows]
        assert len(set(keys)) == len(keys), f"a row is there twice, seed {SEED}"
        values = [{name: row[name] for name in names} for row in rows]
        return dict(zip(keys, values, strict=True))


class Changes(Copy):
    """Brings them into a table of changes."""

    def __init__(self, lake: Lake, rng: random.Random, source: Source) -> None:
        super().__init__(lake, rng, holds={"*.*": "changes"})
        self.source = source

    def _rows(self, read: Reader, names: list[str]) -> dict[Key, dict[str, Any]]:
        """The state that the changes give, once they are found to be the source's."""
        names = ["a", "b", *names]
        changes = rows_of(read(self.place, "version, op"))
        for image in (change[name] for change in changes for name in ("before", "after")):
            for name in set(image or ()) - set(names):
                del image[name]  # dropped at the source, so that this does not give it any more
        reader = self.lake.spark.read.format("tidelog").option("path", self.lake.built.path)
        typed = reader.options(table=NAME).load().orderBy("version").toArrow()
        assert [each for each in changes if each["op"] != "s"] == rows_of(typed), f"seed {SEED}"
        return folded(changes, self.source.added)


def folded(changes: list[dict[str, Any]], added: dict[str, int]) -> dict[Key, dict[str, Any]]:
    """The rows of a source after these changes, by key, without the columns of the key. Columns are
    null in rows of an older version of the schema than that by which they were ``added``.
    """
    rows: dict[Key, tuple[int, dict[str, tuple[Any, int]]]] = {}
    for change in changes:
        op, version, after = change["op"], change["version"], change["after"]
        if op in "ts":
            rows = {key: row for key, row in rows.items() if row[0] >= version}
            continue
        key = change["key"]["a"], change["key"]["b"]
        left = change["before"] and (change["before"]["a"], change["before"]["b"])
        base = rows.pop(left or key, (0, {}))[1]
        rows.pop(key, None)
        if op != "d":
            known = {name: (value, change["schema_version"]) for name, value in after.items()}
            missing = {name: base.get(name, (None, 0)) for name in change["missing"] or ()}
            rows[key] = version, {**known, **missing}
    return {
        key: {
            name: value if under >= added.get(name, 0) else None
            for name, (value, under) in row.items()
            if name not in "ab"
        }
        for key, (_, row) in rows.items()
    }


@pytest.mark.parametrize(
    "options",
    [
        {"soft_deletes": False, "deletion_vectors": True},
        pytest.param({"soft_deletes": True, "deletion_vectors": False}, marks=pytest.mark.thorough),
        pytest.param({"soft_deletes": True, "deletion_vectors": True}, marks=pytest.mark.thorough),
        pytest.param(
            {"soft_deletes": False, "deletion_vectors": False}, marks=pytest.mark.thorough
        ),
    ],
    ids=lambda options: "-".join(name for name, on in options.items() if on) or "plain",
)
def test_copies_are_the_source_whatever_happens(
    lake: Lake, built: BuiltLog, options: dict[str, bool]
) -> None:
    rng = random.Random(SEED)
    source, copy = Source(built, rng), Copy(lake, rng, **options)
    for number in range(BATCHES):
        for _ in range(rng.randint(1, 3)):
            source.change()
        copy.catch_up()
        wanted = source.wanted
        for found in copy.found([*source.kinds][2:]):
            assert found == wanted, f"batch {number}, seed {SEED}"
        if number % 2:
            source.change_columns()
    copy.close()


def test_changes_fold_to_the_source_whatever_happens(lake: Lake, built: BuiltLog) -> None:
    rng = random.Random(SEED)
    source = Source(built, rng)
    changes = Changes(lake, rng, source)
    for number in range(BATCHES // 2):
        for _ in range(rng.randint(1, 3)):
            source.change()
        changes.catch_up()
        for found in changes.found([*source.kinds][2:]):
            assert found == source.wanted, f"batch {number}, seed {SEED}"
        if number % 2:
            source.change_columns()
    changes.close()
