"""Two frames compared row by row, by key, on executors."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark import StorageLevel
from pyspark.sql import functions as f
from pyspark.sql.types import BooleanType, LongType, StringType, StructField, StructType

from tidelog.pipeline.arrow_frames import map_in_arrow
from tidelog.pipeline.key_frames import as_text
from tidelog.pipeline.transforms import quoted

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

Key = tuple[str | None, ...]
KINDS = ("missing", "surplus", "different", "unsettled")


@dataclass(slots=True)
class Found:
    """Unequal rows by kind: how many, and keys of some of them."""

    counts: dict[str, int]
    keys: dict[str, list[Key]]

    @property
    def definite(self) -> int:
        return sum(self.counts[kind] for kind in KINDS[:3])

    @property
    def definite_keys(self) -> list[Key]:
        return [key for kind in KINDS[:3] for key in self.keys[kind]]


class Unequal:
    """Rows that differ between ``source`` and ``output``, computed once when it is made: a later
    write to either never changes them. (``persist`` would let it: Spark computes cached frames anew
    once a table that they read was written to, in any session.)

    Args:
        source: its types are what values are compared as.
        output: may hold a value in another type.
        columns: to be compared.
        key: of them, what rows are matched by.
    """

    def __init__(
        self, source: DataFrame, output: DataFrame, columns: Sequence[str], key: Sequence[str]
    ) -> None:
        self._names = [f"k{place}" for place in range(len(key))]
        found = _unequal(source, output, columns, key)
        self._frame = found.localCheckpoint(storageLevel=StorageLevel.DISK_ONLY)
        self.count = self._frame.count()

    def judged(self, touched: DataFrame | bool, most: dict[str, int]) -> Found:
        """What they are. Those with a key of ``touched`` (True: all) are unsettled.

        Args:
            touched: as `tidelog.pipeline.touched.touched_keys` gives it.
            most: how many keys of each kind are named at most, about.
        """
        frame = self._frame
        if touched is True:
            frame = frame.withColumn("kind", f.lit("unsettled"))
        elif touched is not False:
            same: Column = f.lit(True)
            other = touched.withColumnsRenamed({name: f"t_{name}" for name in self._names})
            for name in self._names:
                same &= f.col(name).eqNullSafe(f.col(f"t_{name}"))
            frame = frame.join(other, same, "left").select(
                f.when(f.col("touched"), "unsettled").otherwise(f.col("kind")).alias("kind"),
                *self._names,
            )
        shape = StructType(
            [
                StructField("kind", StringType()),
                StructField("n", LongType()),
                StructField("named", BooleanType()),
                *(StructField(name, StringType()) for name in self._names),
            ]
        )
        counts = dict.fromkeys(KINDS, 0)
        keys: dict[str, list[Key]] = {kind: [] for kind in KINDS}
        for row in map_in_arrow(frame, _Few(most), shape).collect():
            kind = row["kind"]
            counts[kind] += row["n"]
            if row["named"] and len(keys[kind]) < most[kind]:
                keys[kind].append(tuple(row[name] for name in self._names))
        return Found(counts, keys)


def _unequal(
    source: DataFrame, output: DataFrame, columns: Sequence[str], key: Sequence[str]
) -> DataFrame:
    """``kind`` and the key's texts ``k0``, ``k1`` … of the rows that differ."""
    others = [name for name in columns if name not in key]
    kinds = {field.name: field.dataType for field in source.schema.fields}

    def side(frame: DataFrame, mark: str) -> DataFrame:
        # An output may keep a value in another type (an enum as text): as the source's it counts.
        values = {
            name: f.col(quoted(name))
            if frame.schema[name].dataType == kinds[name]
            else f.col(quoted(name)).try_cast(kinds[name])
            for name in columns
        }
        return frame.select(
            *[values[name].alias(f"k{i}") for i, name in enumerate(key)],
            f.struct(*[values[n].alias(f"c{i}") for i, n in enumerate(others)], f.lit(1)).alias(
                mark
            ),
        )

    joined = side(source, "l").join(
        side(output, "r"), [f"k{i}" for i in range(len(key))], "full_outer"
    )
    kind = (
        f.when(f.col("r").isNull(), "missing")
        .when(f.col("l").isNull(), "surplus")
        .when(~f.col("l").eqNullSafe(f.col("r")), "different")
    )
    texts = [as_text(f"k{i}", joined.schema[f"k{i}"].dataType) for i in range(len(key))]
    return joined.select(
        kind.alias("kind"), *[text.alias(f"k{i}") for i, text in enumerate(texts)]
    ).where("kind is not null")


def of_keys(
    spark: SparkSession, frame: DataFrame, names: Sequence[str], keys: Sequence[Key]
) -> DataFrame:
    """The rows with one of ``keys``, whose columns are ``names``."""
    columns = ", ".join(f"w{i} string" for i in range(len(names)))
    wanted = f.broadcast(spark.createDataFrame(list(keys), columns))
    conditions = [
        as_text(name, frame.schema[name].dataType).eqNullSafe(wanted[f"w{i}"])
        for i, name in enumerate(names)
    ]
    condition = conditions[0]
    for other in conditions[1:]:
        condition &= other
    return frame.join(wanted, condition, "left_semi")


class _Few:
    """Of each task's rows (kind, key) at most so many of a kind; the others are counted, with no
    key.
    """

    def __init__(self, most: dict[str, int]) -> None:
        self._most = most

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        left = dict(self._most)
        for batch in batches:
            for kind in pc.unique(batch.column(0)).to_pylist():
                of_kind = batch.filter(pc.equal(batch.column(0), kind))
                few = of_kind.slice(0, left[kind])
                left[kind] -= len(few)
                if len(few):
                    ones = pa.array(np.ones(len(few), np.int64))
                    named = pa.array(np.ones(len(few), np.bool_))
                    yield _named([few.column(0), ones, named, *few.columns[1:]], batch)
                rest = len(of_kind) - len(few)
                if rest:
                    none = [pa.nulls(1, pa.string()) for _ in batch.schema.names[1:]]
                    count = pa.array([rest], pa.int64())
                    yield _named([pa.array([kind]), count, pa.array([False]), *none], batch)


def _named(columns: list[pa.Array], batch: pa.RecordBatch) -> pa.RecordBatch:
    names = ["kind", "n", "named", *batch.schema.names[1:]]
    return pa.RecordBatch.from_arrays(columns, names=names)
