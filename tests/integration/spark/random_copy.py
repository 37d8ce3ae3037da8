"""Brings a log into a lake's table in random batches, which fail, or meet other writers, now and
then.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any

from tests.integration.spark.conftest import Lake
from tests.integration.spark.random_table import SEED, Key, RandomTable, comparable
from tests.support.delta_readers import by_delta_rs, by_duckdb

from tidelog.errors import TidelogError
from tidelog.outputs.lake.data_files.layout import source_name
from tidelog.outputs.lake.delta.table import DeltaTable, path_of
from tidelog.outputs.lake.settling.tasks import RewriteWork, rewrite_files
from tidelog.spark.datasource.segment_rows import batch_of
from tidelog.system import failpoints

POINTS = ("lake.table.write", "delta.commit.before", "delta.commit.after", "lake.rewrite.commit")
MOST_FAILURES = 25


class RandomCopy:
    """``options``: of the output."""

    points: Sequence[str] = POINTS

    def __init__(
        self,
        lake: Lake,
        source: RandomTable,
        rng: random.Random,
        **options: Any,
    ) -> None:
        self.lake, self.source, self.rng = lake, source, rng
        self.options = options
        self.table = source.shape.table
        self.place = path_of(lake.path, self.table, str(self.table))
        self.output, self.other = self._open(), self._open()
        self.done = 0
        self.acted: list[str] = []

    def _open(self) -> Any:
        output = self.lake.output(options=self.lake.options(**self.options))
        output.prepare(self.lake.built.log.generation)
        return output

    def restart(self) -> None:
        self.output.close()
        self.output = self._open()

    def close(self) -> None:
        self.output.close()
        self.other.close()

    def catch_up(self) -> None:
        log, rng = self.lake.built.log, self.rng
        end, failures = log.latest_offset(), 0
        while self.done < end:
            cut = rng.choice([end, rng.randint(self.done + 1, end)])
            start = rng.randint(0, self.done) if rng.random() < 0.2 else self.done
            with failpoints.arm(self._surprise()):
                try:
                    self.output.write(batch_of(log, start, cut))
                except (OSError, TidelogError) as error:
                    self.acted.append(f"failed: {error}")
                    failures += 1
                    assert failures < MOST_FAILURES, self.acted[-MOST_FAILURES:]
                    if rng.random() < 0.5:
                        self.restart()
                    continue
            self.acted.append(f"batch {start} to {cut}")
            self.done = cut

    # ------------------------------------------------------------ what befalls batches

    def befalls(self) -> list[Callable[[], None]]:
        """What happens amid a batch, one of these at a time."""
        return [self._fail, self._rewrite, self._drive]

    def between(self) -> None:
        """What happens between batches, now and then."""

    def _surprise(self) -> dict[str, Any]:
        hits = [self.rng.choice(self.befalls())]
        return {self.rng.choice(self.points): lambda: hits.pop()() if hits else None}

    def _fail(self) -> None:
        raise OSError("somebody pulled the plug")

    def _rewrite(self) -> None:
        """Another writer puts all files together."""
        table = self.opened()
        self.acted.append("files put together")
        with failpoints.arm(dict.fromkeys(self.points, lambda: None)):
            if table.state.files:
                table.commit_compaction([rewrite_files(RewriteWork(table.files()))])

    def _drive(self) -> None:
        """Another driver of the same output, which knows what the table was some batches ago."""
        log = self.lake.built.log
        until = self.rng.randint(self.done + 1, log.latest_offset())
        self.acted.append(f"another driver up to {until}")
        with failpoints.arm(dict.fromkeys(self.points, lambda: None)), suppress(TidelogError):
            self.other.write(batch_of(log, self.done, until))

    def sql(self, statement: str) -> None:
        """By Spark; ``{}`` is the table."""
        self.acted.append(statement)
        self.lake.spark.sql(statement.format(f"delta.`{self.place}`"))

    # ------------------------------------------------------------ what is there

    def opened(self) -> DeltaTable:
        """As another process opens it."""
        layout = self.output._options.layout_of(self.table)
        table = DeltaTable(self.place, layout, lambda works: [rewrite_files(w) for w in works])
        table.exists()
        return table

    def check(self, told: str) -> None:
        """Each of the readers finds the source's rows."""
        names, wanted = self.source.columns, self.wanted()
        for read in self._readers():
            found: dict[Key, dict[str, Any]] = {}
            for row in self._read(read):
                key = self._key(row)
                assert key not in found, f"{key} is there twice; {told}"
                found[key] = {name: comparable(row[name]) for name in names}
            assert found == wanted, told

    def wanted(self) -> dict[Key, dict[str, Any]]:
        return self.source.wanted

    def _key(self, row: dict[str, Any]) -> Key:
        return tuple(comparable(row[name]) for name in self.source.shape.key)

    def _read(self, read: Any) -> Iterator[dict[str, Any]]:
        """By the source's names."""
        names = {
            each["name"]: source_name(each) for each in self.opened().metadata.schema["fields"]
        }
        for row in read(self.place, "1").to_pylist():
            if not row.get("_deleted"):
                yield {names[name]: value for name, value in row.items()}

    def _readers(self) -> Sequence[Any]:
        return (by_duckdb, by_delta_rs) if self.is_known_to_delta_rs() else (by_duckdb,)

    def is_known_to_delta_rs(self) -> bool:
        """delta-rs 1.6 does not know type widening, nor column mapping."""
        features = self.opened().protocol.writer_features
        return not {"typeWidening", "columnMapping"} & set(features)


def play(source: RandomTable, copy: RandomCopy, batches: int) -> None:
    """Change the source and bring that over, again and again; compare each time."""
    rng = source.rng
    try:
        for number in range(batches):
            for _ in range(rng.randint(1, 3)):
                source.change()
            copy.catch_up()
            copy.check(f"batch {number}, seed {SEED}: {copy.acted}")
            if number % 2:
                source.change_columns()
                copy.between()
    finally:
        copy.close()
