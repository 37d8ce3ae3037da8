"""Which files can hold one of the keys, by what the log says of them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa

from tidelog.outputs.lake.data_files.keys import KeyQuery, SortedKeys, partition_of
from tidelog.outputs.lake.data_files.layout import FileColumn, FileLayout
from tidelog.outputs.lake.delta_log.actions import DataFile

# Some writers keep bounds of decimals as doubles.
_DECIMAL_SLACK = Decimal("1E-15")


def may_hold(files: Sequence[DataFile], keys: KeyQuery, layout: FileLayout) -> list[DataFile]:
    """Those of ``files`` that can have a row of a key, by their partition and their statistics."""
    return [file for file in files if _may_hold(file, keys, layout)]


def _may_hold(file: DataFile, keys: KeyQuery, layout: FileLayout) -> bool:
    wanted = keys.within(partition_of(file.partition_values, layout))
    if wanted is None:
        return False
    if file.stats is None:
        return True
    stats = json.loads(file.stats, parse_float=Decimal)
    return all(_may_be_in(column, wanted, stats) for column in layout.file_key)


def _may_be_in(column: FileColumn, wanted: SortedKeys, stats: Mapping[str, Any]) -> bool:
    found = [(stats.get(each) or {}).get(column.physical) for each in ("minValues", "maxValues")]
    if None in found:
        return True
    if wanted.has_null(column.name) and (stats.get("nullCount") or {}).get(column.physical) != 0:
        return True
    try:
        least, greatest = (_bound(each, column.type) for each in found)
    except (ValueError, TypeError, ArithmeticError):
        return True
    if least is None:
        return True
    if pa.types.is_timestamp(column.type):
        greatest += 999  # milliseconds are rounded down by most writers
    elif pa.types.is_decimal(column.type):
        least -= abs(least) * _DECIMAL_SLACK
        greatest += abs(greatest) * _DECIMAL_SLACK
    return wanted.has_between(column.name, least, greatest)


def _bound(value: Any, kind: pa.DataType) -> Any:
    """As `canonical` has values; None: such bounds say nothing."""
    if pa.types.is_integer(kind):
        return int(value)
    if pa.types.is_decimal(kind):
        return Decimal(value)
    if pa.types.is_string(kind):
        return str(value)
    if pa.types.is_temporal(kind):
        unit = "D" if pa.types.is_date32(kind) else "us"
        return int(np.datetime64(value.removesuffix("Z")).astype(f"M8[{unit}]").astype(np.int64))
    return None
