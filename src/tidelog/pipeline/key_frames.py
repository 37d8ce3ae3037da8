"""A DataFrame's key columns as texts: turned on the executors, distinct, to the driver as Arrow."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from tidelog.errors import UsageError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

KeyTexts = Callable[[pa.Array], pa.Array]


def keys_of_frame(
    df: DataFrame, columns: Sequence[str], texts: KeyTexts
) -> Iterator[tuple[str, ...]]:
    """The distinct keys in ``df``, as texts; in no order.

    Executors turn values into texts, drop duplicates with a shuffle, and pack what is left, up to
    10,000 keys a row (``spark.sql.execution.arrow.maxRecordsPerBatch``), as Arrow. The driver holds
    one partition of that shuffle at a time, which Spark sizes to 64 MB unless told otherwise
    (``spark.sql.adaptive.advisoryPartitionSizeInBytes``), and one row of it unpacked.

    Args:
        df: any batch DataFrame.
        columns: of the key, in its order.
        texts: of an Arrow array; pickled to the executors.

    Raises:
        UsageError: a column is not there, or there twice, or of a type that no key has; when all
            keys were gone through: how many rows had a NULL among them.
    """
    _check(df, columns, texts)
    names = [f"k{place}" for place in range(len(columns))]
    chosen = df.select(
        *(df[_quoted(column)].alias(name) for column, name in zip(columns, names, strict=True))
    )
    schema = ", ".join(f"{name} string" for name in names)
    counted = chosen.mapInArrow(partial(_as_texts, texts), schema).groupBy(*names).count()
    nulls = 0
    for row in counted.mapInArrow(_packed, "keys binary, nulls bigint").toLocalIterator():
        nulls += row["nulls"]
        with pa.ipc.open_stream(bytes(row["keys"])) as packed:
            for batch in packed:
                yield from zip(*(column.to_pylist() for column in batch.columns), strict=True)
    if nulls:
        raise UsageError(
            f"{nulls} rows have NULL in the key ({', '.join(columns)}), and a key never has: leave "
            "them out with DataFrame.dropna"
        )


def _check(df: DataFrame, columns: Sequence[str], texts: KeyTexts) -> None:
    from pyspark.errors import PySparkException
    from pyspark.sql.pandas.types import to_arrow_type

    if df.isStreaming:
        raise UsageError("a streaming DataFrame has no end: repair inside foreachBatch")
    for name in columns:
        found = [field for field in df.schema.fields if field.name == name]
        if len(found) != 1:
            how = "has more than one column" if found else "has no column"
            raise UsageError(f"the DataFrame {how} {name}; the key is ({', '.join(columns)})")
        try:
            texts(pa.array([], to_arrow_type(found[0].dataType, timezone="UTC")))
        except UsageError as error:
            raise UsageError(f"column {name}: {error}") from None
        except PySparkException:
            kind = found[0].dataType.simpleString()
            raise UsageError(
                f"column {name}: values of type {kind} can't be part of a key"
            ) from None


def _as_texts(texts: KeyTexts, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        columns = [texts(column) for column in batch.columns]
        yield pa.RecordBatch.from_arrays(columns, names=batch.schema.names)


def _packed(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Each batch's keys as one binary value (an Arrow stream), and how many rows were no keys."""
    for batch in batches:
        *names, count = batch.schema.names
        whole = pa.array([True] * batch.num_rows)
        for name in names:
            whole = pc.and_(whole, batch.column(name).is_valid())
        nulls = pc.sum(batch.column(count).filter(pc.invert(whole)), min_count=0)
        keys = batch.select(names).filter(whole)
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, keys.schema) as stream:
            stream.write_batch(keys)
        yield pa.RecordBatch.from_arrays(
            [pa.array([sink.getvalue().to_pybytes()], pa.binary()), pa.array([nulls.as_py()])],
            names=["keys", "nulls"],
        )


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"
