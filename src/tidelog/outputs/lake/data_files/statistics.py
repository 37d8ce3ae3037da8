"""Statistics of a data file, as its entry in the log has them.

Delta protocol, "Per-file Statistics". Of times Delta keeps milliseconds: the least is rounded down,
the greatest up. Texts are cut, and the greatest then ends in the last code point.
"""

from __future__ import annotations

import json

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidelog.outputs.lake.data_files.layout import FileLayout

_MOST_CHARACTERS = 32  # Delta's default (stringPrefixLength)
_LAST_CHARACTER = "\U0010ffff"
_FIRST_YEAR, _END_YEAR = np.datetime64("0001", "Y"), np.datetime64("10000", "Y")


def file_statistics(rows: pa.Table, layout: FileLayout) -> str:
    """The JSON text of a file's statistics.

    Args:
        rows: of the file, by the table's names; their types are the layout's.
        layout: says which columns are counted.
    """
    nulls, least, greatest = [], [], []
    for name in layout.statistics:
        column, physical = rows[name], _quoted(layout.column(name).physical)
        nulls.append(f"{physical}:{column.null_count}")
        if (found := _bounds(column)) is not None:
            least.append(f"{physical}:{found[0]}")
            greatest.append(f"{physical}:{found[1]}")
    tight = ',"tightBounds":true' if layout.deletion_vectors else ""
    return (
        f'{{"numRecords":{rows.num_rows},"minValues":{{{",".join(least)}}},'
        f'"maxValues":{{{",".join(greatest)}}},"nullCount":{{{",".join(nulls)}}}{tight}}}'
    )


def has_bounds(kind: pa.DataType) -> bool:
    """Does Delta keep minimum and maximum of the type?"""
    return bool(
        pa.types.is_integer(kind)
        or pa.types.is_string(kind)
        or pa.types.is_temporal(kind)
        or pa.types.is_decimal(kind)
        or pa.types.is_floating(kind)
    )


def _bounds(column: pa.ChunkedArray) -> tuple[str, str] | None:
    """Minimum and maximum as JSON; None where they can't be said, or would not be bounds."""
    kind = column.type
    if not has_bounds(kind):
        return None
    if pa.types.is_date32(kind):
        column = column.cast(pa.int32())
    elif pa.types.is_timestamp(kind):
        column = column.cast(pa.int64())
    # NaN is above all else to Spark, and JSON has no word for it.
    elif pa.types.is_floating(kind) and pc.any(pc.is_nan(column)).as_py():
        return None
    found = pc.min_max(column)
    least, greatest = found["min"].as_py(), found["max"].as_py()
    if least is None:
        return None
    if pa.types.is_string(kind):
        return _quoted(least[:_MOST_CHARACTERS]), _quoted(_cut_above(greatest))
    if pa.types.is_date32(kind):
        return _times(least, greatest, "D", "")
    if pa.types.is_timestamp(kind):
        return _times(least // 1000, -(-greatest // 1000), "ms", "Z" if kind.tz else "")
    if pa.types.is_decimal(kind):
        return f"{least:f}", f"{greatest:f}"
    if pa.types.is_floating(kind):
        # Readers may tell the zeros apart, and put the negative one first.
        bounds = least or -0.0, greatest or 0.0
        return None if np.isinf(bounds).any() else (repr(bounds[0]), repr(bounds[1]))
    return str(least), str(greatest)


def _times(least: int, greatest: int, unit: str, zone: str) -> tuple[str, str] | None:
    """None outside the years that every reader can read."""
    bounds = np.array([least, greatest]).astype(f"M8[{unit}]")
    if bounds[0] < _FIRST_YEAR or bounds[1] >= _END_YEAR:
        return None
    found = np.datetime_as_string(bounds)
    return f'"{found[0]}{zone}"', f'"{found[1]}{zone}"'


def _cut_above(text: str) -> str:
    """A short text that is not less."""
    end = _MOST_CHARACTERS
    while end < len(text) and text[end] == _LAST_CHARACTER:
        end += 1
    return text if end >= len(text) else text[:end] + _LAST_CHARACTER


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
