"""Delta tables of the same rows, with statistics, without, and in partitions, and queries that let
readers skip files by them.
"""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
from tests.support.lake_files import TYPES, column_of, plain_layout, write_log

from tidelog.outputs.base.stores import open_file_store
from tidelog.outputs.lake.data_files.parquet_files import ParquetFileWriter

_LONG = "m" * 40

# Of each type: its name in SQL, and values in order.
VALUES: dict[str, tuple[str, list[Any]]] = {
    "byte": ("TINYINT", [-128, -1, 0, 1, 7, 127]),
    "short": ("SMALLINT", [-32768, -1, 0, 1, 300, 32767]),
    "integer": ("INT", [-(2**31), -1, 0, 1, 70_000, 2**31 - 1]),
    "long": ("BIGINT", [-(2**63), -1, 0, 2**53, 2**53 + 1, 2**63 - 1]),
    "float": ("FLOAT", [-1.5, -0.0, 0.0, 1.5, 2.0, float("nan")]),
    "double": ("DOUBLE", [float("-inf"), -1e300, -0.0, 0.1, 1e300, float("nan")]),
    "string": ("STRING", ["", " ", "a", _LONG + "a", _LONG + "b", "ü\U0010ffff"]),
    "date": ("DATE", [-719_162, -1, 0, 1, 20_000, 2_932_896]),
    "timestamp": ("TIMESTAMP", [-1001, -1000, -1, 999, 1000, 1_700_000_000_000_001]),
    "timestamp_ntz": ("TIMESTAMP_NTZ", [-1001, -1000, -1, 999, 1000, 1_700_000_000_000_001]),
    "decimal(9,2)": ("DECIMAL(9,2)", [Decimal(n) / 100 for n in (-150, -1, 0, 1, 99, 150)]),
    "decimal(38,10)": (
        "DECIMAL(38,10)",
        [Decimal(n).scaleb(-10) for n in (-(10**37), -1, 0, 1, 10**27 + 1, 10**37)],
    ),
}


_NUMBERS = range(len(VALUES["long"][1]))


def _column_name(kind: str) -> str:
    """The column of a type, as SQL can have it without quotes."""
    return "c_" + kind.translate(str.maketrans("(,)", "___"))


def conditions() -> list[tuple[str, list[int]]]:
    """SQL conditions on all columns together, and the ids of the rows that hold: each value, what
    is above and below others, and null. A file that one column's statistics leave out is missed.
    """
    count = len(_NUMBERS)
    found = [(" = {}", number, [number]) for number in _NUMBERS]
    found += [
        (" > {}", count - 2, [count - 1]),
        (" < {}", 1, [0]),
        (" IS NULL", 0, [count, count + 1]),
    ]
    return [
        (
            " AND ".join(
                _column_name(kind) + comparison.format(_literals(kind)[number]) for kind in VALUES
            ),
            ids,
        )
        for comparison, number, ids in found
    ]


def _literals(kind: str) -> list[str]:
    name, values = VALUES[kind]
    column = column_of(values, TYPES[kind])
    if pa.types.is_temporal(column.type):
        zone = "+00:00" if kind == "timestamp" else ""
        plain = column.cast(pa.timestamp("us")) if zone else column
        shown = [each + zone for each in plain.cast(pa.string()).to_pylist()]
    else:
        shown = [f"{each:f}" if isinstance(each, Decimal) else str(each) for each in values]
    return [f"CAST('{each}' AS {name})" for each in shown]


def write_tables(root: Path) -> tuple[Path, Path, Path]:
    """The table with statistics, the one without, and one that is partitioned by all columns."""
    columns = {"id": pa.int64()} | {_column_name(kind): TYPES[kind] for kind in VALUES}
    plain = plain_layout(columns, key=["id"])
    parted = plain_layout(columns, key=["id"], partitions=[*columns][1:])
    rows = pa.table(
        {
            "id": pa.array(range(len(_NUMBERS) + 2), pa.int64()),
            **{
                _column_name(kind): column_of([*values, None, None], TYPES[kind])
                for kind, (_, values) in VALUES.items()
            },
        }
    )
    for name, layout in (("with", plain), ("without", plain), ("parted", parted)):
        store = open_file_store(str(root / name))
        files = ParquetFileWriter(store, layout, max_rows=2).write(rows)
        if name == "without":
            files = [replace(each, stats=None) for each in files]
        write_log(root / name, layout, files)
    return root / "with", root / "without", root / "parted"
