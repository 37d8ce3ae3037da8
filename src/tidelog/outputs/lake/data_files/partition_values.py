"""Values of partition columns as the log has them, and the folders of a partition's files.

Delta protocol, "Partition Value Serialization". Times are UTC. Readers take an empty text or binary
value for null.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote

import numpy as np
import pyarrow as pa

from tidelog.errors import OutputRefusedError

_NULL_FOLDER = "__HIVE_DEFAULT_PARTITION__"
_NOT_IN_FOLDERS = re.compile(r"""[\x00-\x1f\x7f"#%'*/:=?\\{\[\]^]""")  # Hive's escapePathName
_MOST_NAME_BYTES = 255  # of a folder on Linux


def partition_texts(values: pa.Array, column: str) -> list[str | None]:
    """Returns ``values`` as the log has them.

    Raises:
        OutputRefusedError: a binary value of ``column`` is not UTF-8, which the protocol can't
            represent.
    """
    return [None if each is None else _text(each, column) or None for each in _values(values)]


def partition_value(text: str | None, kind: pa.DataType) -> pa.Scalar:
    """Returns the value that the log has as ``text``.

    Raises:
        OutputRefusedError: the text is no value of that type.
    """
    try:
        return _parsed(text, kind) if text else pa.scalar(None, kind)
    except ValueError:
        raise OutputRefusedError(
            f"the log of the table has the value of a partition of type {kind} in a format that "
            "Tidelog can't read: rewrite that partition"
        ) from None


def partition_folder(values: Mapping[str, str | None], columns: Sequence[str]) -> str | None:
    """Returns the folder for files of a partition, with Hive's naming; None: a name is too long for
    a folder.
    """
    names = []
    for column in columns:
        value = values[column]
        last = _NULL_FOLDER if value is None else escaped(value)
        names.append(f"{escaped(column)}={last}")
        if len(names[-1].encode()) > _MOST_NAME_BYTES:
            return None
    return "/".join(names)


def escaped(text: str) -> str:
    """Returns a column or a value as it appears in the name of a folder."""
    return _NOT_IN_FOLDERS.sub(lambda found: f"%{ord(found[0]):02X}", text)


def path_of(name: str) -> str:
    """Returns a file's name as its path in the log: percent-encoded."""
    return quote(name, safe="/!$&'()*+,;=@~")


def _parsed(text: str, kind: pa.DataType) -> pa.Scalar:
    if pa.types.is_string(kind):
        return pa.scalar(text, kind)
    if pa.types.is_binary(kind):
        return pa.scalar(text.encode(), kind)
    if pa.types.is_date32(kind):
        return pa.scalar(int(np.datetime64(text, "D").astype(np.int64)), pa.int32()).cast(kind)
    if pa.types.is_timestamp(kind):
        instant = np.datetime64(text.removesuffix("Z"), "us")
        return pa.scalar(int(instant.astype(np.int64)), pa.int64()).cast(kind)
    return pa.scalar(text).cast(kind)


def _values(values: pa.Array) -> list[Any]:
    """Returns Python values; dates and times as NumPy's, which support all years; times with their
    zone.
    """
    kind = values.type
    if pa.types.is_floating(kind):
        found: Sequence[Any] = list(values.to_numpy(zero_copy_only=False))
    elif pa.types.is_date32(kind):
        found = list(np.asarray(values.cast(pa.int32()).fill_null(0)).astype("M8[D]"))
    elif pa.types.is_timestamp(kind):
        zone = "Z" if kind.tz else ""
        instants = np.asarray(values.cast(pa.int64()).fill_null(0)).astype("M8[us]")
        found = [str(each).replace("T", "T" if zone else " ") + zone for each in instants]
    else:
        return list(values.to_pylist())
    return [
        each if known.as_py() else None
        for each, known in zip(found, values.is_valid(), strict=True)
    ]


def _text(value: Any, column: str) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            raise OutputRefusedError(
                f"a value of the partition column {column} is no UTF-8, and Delta can't hold "
                "another in a partition: partition by another column"
            ) from None
    if isinstance(value, np.floating):
        if np.isnan(value):
            return "NaN"
        return str(value).replace("inf", "Infinity")
    return f"{value:f}" if hasattr(value, "as_tuple") else str(value)
