"""Random changes in random batches, with failures and commits of others and of another driver amid:
the copy is the source, as delta-rs and DuckDB read it, and so is what a table of changes folds to,
and a table of history as of any version.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest
from tests.integration.spark.conftest import Lake
from tests.integration.spark.random_copy import RandomCopy, play
from tests.integration.spark.random_table import (
    BATCHES,
    SEED,
    Key,
    RandomTable,
    Shape,
    comparable,
)
from tests.support.build_log import BuiltLog
from tests.support.delta_readers import rows_of

pytestmark = pytest.mark.spark

SHAPE = Shape({"a": "text", "b": "decimal(9,2)"})


class RandomChanges(RandomCopy):
    """Brings the log into a table of changes."""

    def __init__(self, lake: Lake, source: RandomTable, rng: random.Random, **options: Any) -> None:
        super().__init__(lake, source, rng, holds={"*.*": "changes"}, **options)
        source.dumps = True  # who folds changes finds old values of the column until then
        source.dumps = True  # who folds changes finds old values of the column until then

    def _read(self, read: Any) -> Iterator[dict[str, Any]]:
        """The state that the changes give, once they are found to be the source's."""
        names = [*self.source.shape.key, *self.source.columns]
        changes = rows_of(read(self.place, "version, op"))
        reader = self.lake.spark.read.format("tidelog").option("path", self.lake.built.path)
        typed = rows_of(reader.options(table=str(self.table)).load().orderBy("version").toArrow())
        for image in (each[name] for each in [*changes, *typed] for name in ("before", "after")):
            for name in set(image or ()) - set(names):
                del image[
                    name
                ]  # dropped at the source, which does not give it from the next row on
        assert [each for each in changes if each["op"] != "s"] == typed, f"seed {SEED}"
        for (a, b), row in folded(changes, self.source.added).items():
            yield {"a": a, "b": b, **row}


class RandomHistory(RandomCopy):
    """Brings the log into a table of history. ``seen``: by version, the rows of the source, with
    the columns that it always has.
    """

    def __init__(self, lake: Lake, source: RandomTable, rng: random.Random, **options: Any) -> None:
        super().__init__(lake, source, rng, holds={"*.*": "history"}, **options)
        self.seen: dict[int, dict[Key, dict[str, Any]]] = {}

    def check(self, told: str) -> None:
        super().check(told)
        self.seen[self.done - 1] = always(self.source.wanted)
        rows = list(super()._read(self._readers()[0]))
        for version, wanted in self.seen.items():
            found = {
                self._key(row): {name: comparable(row[name]) for name in ALWAYS}
                for row in rows
                if row["_valid_from_version"] <= version < (row["_valid_to_version"] or NEVER)
            }
            assert found == wanted, f"as of {version}; {told}"
        states: dict[Key, list[dict[str, Any]]] = {}
        for row in rows:
            states.setdefault(self._key(row), []).append(row)
        for of_key in states.values():
            check_states(of_key, told)

    def _read(self, read: Any) -> Iterator[dict[str, Any]]:
        return (row for row in super()._read(read) if row["_current"])


ALWAYS = ("v", "n")
NEVER = 1 << 62


def always(rows: dict[Key, dict[str, Any]]) -> dict[Key, dict[str, Any]]:
    return {key: {name: row[name] for name in ALWAYS} for key, row in rows.items()}


def check_states(rows: list[dict[str, Any]], told: str) -> None:
    """The states of a key follow one another."""
    rows.sort(key=lambda row: row["_valid_from_version"])
    for row in rows:
        ended = row["_valid_to_version"] is not None
        assert row["_current"] == (not ended), told
        assert (row["_valid_to"] is not None) == ended, told
        assert row["_valid_from_version"] <= row["_version"] < (row["_valid_to_version"] or NEVER)
    for one, following in pairwise(rows):
        assert one["_valid_to_version"] <= following["_valid_from_version"], told
        if one["_valid_to_version"] == following["_valid_from_version"]:
            assert one["_valid_to"] == following["_valid_from"], told


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
    source = RandomTable(built, SHAPE, rng)
    play(source, RandomCopy(lake, source, rng, **options), BATCHES)


def test_changes_fold_to_the_source_whatever_happens(lake: Lake, built: BuiltLog) -> None:
    rng = random.Random(SEED)
    source = RandomTable(built, SHAPE, rng)
    play(source, RandomChanges(lake, source, rng), BATCHES // 2)


def test_history_is_the_source_as_of_any_version_whatever_happens(
    lake: Lake, built: BuiltLog
) -> None:
    rng = random.Random(SEED)
    source = RandomTable(built, SHAPE, rng)
    play(source, RandomHistory(lake, source, rng), BATCHES // 2)
