"""Reads keys that users provide: JSON on the command line; CSV, Parquet and JSON files.

Files are read lazily, a batch at a time (a JSON list: at once). Keys are returned as texts for the
source's input functions.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import pyarrow as pa

from tidelog.control.commands import Key
from tidelog.errors import UsageError

BATCH_ROWS = 10_000

KeyTexts = Callable[[pa.Array], pa.Array]
"""Converts typed values to texts of the source, keeping nulls; raises UsageError for a type that no
key has."""


@dataclass(frozen=True, slots=True)
class KeysOfFile:
    """Keys of one file. ``keys`` can be iterated once, and reads the file lazily.

    ``columns``: the key's columns that the file names, in the order of ``keys``; None: the keys are
    lists of values in the key's own order.
    """

    columns: Key | None
    keys: Iterator[Key]


def read_key_file(
    path: Path, texts: KeyTexts, key_columns: Callable[[Sequence[str]], Sequence[str]]
) -> KeysOfFile:
    """The keys of a file, whose suffix gives the format.

    ==============================  ===========================================================
    ``.csv``, ``.tsv``              the first line names the columns; an empty field is an empty
                                    text
    ``.parquet``, ``.pq``           columns by name
    ``.jsonl``, ``.ndjson``         a value, list or object a line
    ``.json``, no suffix            as `parse_keys`
    ==============================  ===========================================================

    Other columns are not read.

    Args:
        path: path of the file.
        texts: converts Parquet's typed values to texts.
        key_columns: selects the key's columns among those a file names, in the key's order; raises
            UsageError if some are missing.

    Raises:
        UsageError: here or during the iteration: if the file can't be read or does not have the
            format of its suffix; names the line or the column, never a value.
    """
    suffix = path.suffix.lower()
    reader = _READERS.get(suffix)
    if reader is None:
        known = ", ".join(name for name in _READERS if name)
        raise UsageError(f"keys: {path.name}: a file of keys is one of {known}")
    try:
        return reader(path, texts, key_columns)
    except OSError as error:
        raise UsageError(f"keys: {path} cannot be read: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise UsageError(f"keys: {path} is not UTF-8") from None


# ---------------------------------------------------------------- JSON


def parse_keys(text: str) -> tuple[tuple[Key, ...], Key | None]:
    """Keys from JSON: ``[1, 2]``, ``[["a", 1], …]`` or ``[{"id": 1}, …]``, or a line for each.

    Numbers keep the digits they were written with.

    Returns:
        The keys as texts, and the order of their columns if the JSON names them.

    Raises:
        UsageError: if it is not JSON, or has no keys.
    """
    items = _json_items(text)
    if items and all(isinstance(item, dict) for item in items):
        columns = tuple(items[0])
        if any(set(item) != set(columns) for item in items):
            raise UsageError("keys: all keys must name the same columns")
        return tuple(tuple(_text(item[name]) for name in columns) for item in items), columns
    if any(isinstance(item, dict) for item in items):
        raise UsageError("keys: either all keys name their columns, or none")
    return tuple(_values(item) for item in items), None


def _json_items(text: str) -> list[Any]:
    try:
        value = _loads(text)
    except json.JSONDecodeError as whole:
        lines = [line for line in text.splitlines() if line.strip()]
        if len(lines) < 2:
            raise UsageError(f"keys: not JSON: {whole.msg} at character {whole.pos}") from None
        try:
            return [_loads(line) for line in lines]
        except json.JSONDecodeError as error:
            raise UsageError(f"keys: neither a JSON list nor JSON lines: {error.msg}") from None
    return value if isinstance(value, list) else [value]


def _loads(text: str) -> Any:
    return json.loads(text, parse_int=str, parse_float=str, parse_constant=str)


def _values(item: Any) -> Key:
    return tuple(map(_text, item)) if isinstance(item, list) else (_text(item),)


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "t" if value else "f"
    if not isinstance(value, str):
        raise UsageError("keys: a key column is a text, a number or a boolean, and never null")
    return value


def _keys_of_items(
    items: Iterator[Any], key_columns: Callable[[Sequence[str]], Sequence[str]]
) -> KeysOfFile:
    first = next(items, None)
    if not isinstance(first, dict):
        everything: Iterable[Any] = () if first is None else chain([first], items)
        return KeysOfFile(None, map(_require_values, everything))
    columns = tuple(key_columns(tuple(first)))

    def named(item: Any) -> Key:
        if not isinstance(item, dict):
            raise UsageError("keys: either all keys name their columns, or none")
        absent = next((name for name in columns if name not in item), None)
        if absent is not None:
            raise UsageError(f"keys: a key lacks the column {absent}")
        return tuple(_text(item[name]) for name in columns)

    return KeysOfFile(columns, map(named, chain([first], items)))


def _require_values(item: Any) -> Key:
    if isinstance(item, dict):
        raise UsageError("keys: either all keys name their columns, or none")
    return _values(item)


def _json(
    path: Path, _texts: KeyTexts, key_columns: Callable[[Sequence[str]], Sequence[str]]
) -> KeysOfFile:
    return _keys_of_items(iter(_json_items(path.read_text(encoding="utf-8"))), key_columns)


def _json_lines(
    path: Path, _texts: KeyTexts, key_columns: Callable[[Sequence[str]], Sequence[str]]
) -> KeysOfFile:
    return _keys_of_items(_parsed_lines(path), key_columns)


def _parsed_lines(path: Path) -> Iterator[Any]:
    for number, line in enumerate(_lines(path), 1):
        if line.strip():
            try:
                yield _loads(line)
            except json.JSONDecodeError as error:
                raise UsageError(f"keys: {path.name} line {number}: {error.msg}") from None


# ---------------------------------------------------------------- CSV


def _lines(path: Path) -> Iterator[str]:
    """The file's lines with their line ends: inside a quoted field these are data."""
    # utf-8-sig: spreadsheets begin their files with a byte order mark
    with path.open(encoding="utf-8-sig", newline="") as file:
        try:
            yield from file
        except UnicodeDecodeError:
            raise UsageError(f"keys: {path} is not UTF-8") from None


def _csv(
    path: Path, _texts: KeyTexts, key_columns: Callable[[Sequence[str]], Sequence[str]]
) -> KeysOfFile:
    delimiter = "\t" if path.suffix.lower() == ".tsv" else ","
    rows = _csv_rows(path, delimiter)
    _, header = next(rows, (0, []))
    if not header:
        raise UsageError(f"keys: {path.name} is empty: its first line names the columns")
    columns = tuple(key_columns(header))
    twice = next((name for name in columns if header.count(name) > 1), None)
    if twice is not None:
        raise UsageError(f"keys: {path.name} names the column {twice} more than once")
    places = [header.index(name) for name in columns]

    def keys() -> Iterator[Key]:
        for line, row in rows:
            if not row:  # an empty line
                continue
            if len(row) != len(header):
                raise UsageError(
                    f"keys: {path.name} line {line}: {len(row)} fields, the first line names "
                    f"{len(header)} columns"
                )
            yield tuple(row[place] for place in places)

    return KeysOfFile(columns, keys())


def _csv_rows(path: Path, delimiter: str) -> Iterator[tuple[int, list[str]]]:
    reader = csv.reader(_lines(path), delimiter=delimiter, strict=True)
    try:
        for row in reader:
            yield reader.line_num, row
    except csv.Error as error:
        raise UsageError(f"keys: {path.name} line {reader.line_num}: {error}") from None


# ---------------------------------------------------------------- Parquet


def _parquet(
    path: Path, texts: KeyTexts, key_columns: Callable[[Sequence[str]], Sequence[str]]
) -> KeysOfFile:
    import pyarrow.parquet as pq

    try:
        file = pq.ParquetFile(path)
    except pa.ArrowInvalid:
        raise UsageError(f"keys: {path.name} is not a Parquet file") from None
    columns = tuple(key_columns(file.schema_arrow.names))

    def keys() -> Iterator[Key]:
        with file:
            for batch in file.iter_batches(BATCH_ROWS, columns=list(columns)):
                yield from keys_of_batch(batch, columns, texts)

    return KeysOfFile(columns, keys())


def keys_of_batch(batch: pa.RecordBatch, columns: Key, texts: KeyTexts) -> Iterator[Key]:
    """The batch's rows as keys. Raises UsageError with a column whose type no key has."""
    values = []
    for name in columns:
        try:
            column = texts(batch.column(name))
        except UsageError as error:
            raise UsageError(f"keys: column {name}: {error}") from None
        if column.null_count:
            raise UsageError(f"keys: column {name} holds NULL, and a key never does")
        values.append(column.to_pylist())
    yield from zip(*values, strict=True)


_READERS: dict[
    str, Callable[[Path, KeyTexts, Callable[[Sequence[str]], Sequence[str]]], KeysOfFile]
] = {
    ".csv": _csv,
    ".tsv": _csv,
    ".parquet": _parquet,
    ".pq": _parquet,
    ".jsonl": _json_lines,
    ".ndjson": _json_lines,
    ".json": _json,
    "": _json,
}
