"""A second decoder of binlog row images, slow and obvious, for the types that the history oracle's
tables have. It shares no code with `tidelog.codecs`.

Source: MySQL's internals manual, "Rows_event" and "Data types in row events". The form of a payload
is the event log's: 0x01, flags, column count, then for each image the bitmap of the columns that it
has, and the image as the binlog has it.
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Sequence
from typing import Any

from tests.support.oracle.values import UNCHANGED, Row, Value

from tidelog.model.schema import Column

_BEFORE, _AFTER, _PARTIAL = 1, 2, 4
_INTEGERS = {1: 1, 2: 2, 9: 3, 3: 4, 8: 8}  # type code → bytes
_VARCHAR, _DATETIME2, _JSON, _NEWDECIMAL, _ENUM, _BLOB, _STRING = 15, 18, 245, 246, 247, 252, 254
_CODECS = {63: "binary", **dict.fromkeys((5, 8, 15, 31, 47, 48, 49, 94), "cp1252")}
_INSERT, _REMOVE = 1, 2  # of a document's changes; 0 replaces
_DIGITS_BYTES = (0, 1, 1, 2, 2, 3, 3, 4, 4, 4)


def is_row_image(payload: bytes) -> bool:
    """Is it the binlog's form? A dump's rows have pgoutput's."""
    return payload[:1] == b"\x01"


def parse_row_images(payload: bytes, columns: Sequence[Column]) -> tuple[Row | None, Row | None]:
    """(old, new); what an image lacks is `UNCHANGED`, or as the old image has it."""
    flags, count = struct.unpack_from("<BH", payload, 1)
    if count != len(columns):
        raise ValueError(f"a row of {count} columns where the schema has {len(columns)}")
    if flags & ~(_BEFORE | _AFTER | _PARTIAL):
        raise ValueError(f"images of flags {flags:#x}")
    at, old, new = 4, None, None
    if flags & _BEFORE:
        old, at = _image(payload, at, columns)
    if flags & _AFTER:
        new, at = _image(payload, at, columns, old if flags & _PARTIAL else None)
    if at != len(payload):
        raise ValueError(f"a row ends at {at} of {len(payload)} bytes")
    return old, completed(new, old)


def completed(new: Row | None, old: Row | None) -> Row | None:
    """``new`` with what only the old image has."""
    if new is None or old is None:
        return new
    return {name: old[name] if value == UNCHANGED else value for name, value in new.items()}


def _image(
    payload: bytes, at: int, columns: Sequence[Column], changed: Row | None = None
) -> tuple[Row, int]:
    """``changed``: the row that a partial update changes (``binlog_row_value_options``)."""
    here, at = _bits(payload, at, len(columns))
    partial: set[str] = set()
    if changed is not None:
        options, at = payload[at], at + 1
        if options & 1:
            documents = [column.name for column in columns if column.type_id == _JSON]
            flags, at = _bits(payload, at, len(documents))
            partial = {name for name, flag in zip(documents, flags, strict=True) if flag}
    present = [column for column, is_here in zip(columns, here, strict=True) if is_here]
    null, at = _bits(payload, at, len(present))
    row: Row = {column.name: UNCHANGED for column in columns}
    for column, is_null in zip(present, null, strict=True):
        row[column.name] = None
        if not is_null and column.name in partial and changed is not None:
            row[column.name], at = _changed(payload, at, changed[column.name])
        elif not is_null:
            row[column.name], at = _cell(payload, at, column)
    return row, at


def _bits(payload: bytes, at: int, count: int) -> tuple[list[bool], int]:
    end = at + (count + 7) // 8
    number = int.from_bytes(payload[at:end], "little")
    return [bool(number >> i & 1) for i in range(count)], end


def _cell(payload: bytes, at: int, column: Column) -> tuple[Value, int]:
    kind, mod = column.type_id, column.type_mod
    meta, collation, unsigned = mod & 0xFFFF, mod >> 16 & 0xFFFF, bool(mod >> 32 & 1)
    if kind in _INTEGERS:
        end = at + _INTEGERS[kind]
        return str(int.from_bytes(payload[at:end], "little", signed=not unsigned)), end
    if kind == _NEWDECIMAL:
        return _decimal(payload, at, meta >> 8, meta & 0xFF)
    if kind == _DATETIME2:
        return _datetime(payload, at, meta)
    if kind == _ENUM:
        end = at + (meta & 0xFF)
        number = int.from_bytes(payload[at:end], "little")
        return ("", *labels(column.type_name))[number], end
    if kind == _VARCHAR:
        prefix, most = (2 if meta > 255 else 1), 0
    elif kind == _STRING:
        most = meta & 0xFF | ((meta >> 4) & 0x300 ^ 0x300)
        prefix = 2 if most > 255 else 1
    elif kind in (_BLOB, _JSON):
        prefix, most = meta, 0
    else:
        raise ValueError(f"a column of type {kind}")
    start = at + prefix
    end = start + int.from_bytes(payload[at:start], "little")
    value = payload[start:end]
    if kind == _JSON:
        return json_of_binary(value), end
    codec = _CODECS.get(collation, "utf-8")
    if codec == "binary":
        return text_of_bytes(value.ljust(most, b"\0")), end
    return value.decode(codec), end


def text_of_bytes(value: bytes) -> str:
    """Bytes as the texts of keys have them."""
    return f"0x{value.hex()}"


def hexadecimal(row: Row | None, columns: Sequence[Column]) -> Row | None:
    """A dump's row with `text_of_bytes` of its columns of bytes."""
    if row is None:
        return None
    return row | {
        column.name: text_of_bytes(value.encode("utf-8", "surrogateescape"))
        for column in columns
        if column.logical == "bytes" and isinstance(value := row[column.name], str)
    }


def bytes_of_text(value: str) -> bytes:
    """The bytes that `text_of_bytes` made a text of."""
    return bytes.fromhex(value.removeprefix("0x"))


def labels(column_type: str) -> list[str]:
    """Those of an ENUM or SET, from its SQL."""
    return [label.replace("''", "'") for label in re.findall(r"'((?:[^']|'')*)'", column_type)]


def _decimal(payload: bytes, at: int, precision: int, scale: int) -> tuple[str, int]:
    whole = precision - scale
    sizes = [_DIGITS_BYTES[whole % 9], *[4] * (whole // 9)]
    fraction = [*[4] * (scale // 9), _DIGITS_BYTES[scale % 9]]
    widths = [whole % 9, *[9] * (whole // 9), *[9] * (scale // 9), scale % 9]
    end = at + sum(sizes) + sum(fraction)
    raw = bytearray(payload[at:end])
    negative = not raw[0] & 0x80
    raw[0] ^= 0x80
    if negative:
        raw = bytearray(byte ^ 0xFF for byte in raw)
    digits, place = "", 0
    for size, width in zip([*sizes, *fraction], widths, strict=True):
        if width:
            digits += f"{int.from_bytes(raw[place : place + size], 'big'):0{width}d}"
        place += size
    left = digits[:whole].lstrip("0") or "0"
    text = f"{left}.{digits[whole:]}" if scale else left
    return ("-" if negative else "") + text, end


def _datetime(payload: bytes, at: int, digits: int) -> tuple[str, int]:
    end = at + 5 + (digits + 1) // 2
    number = int.from_bytes(payload[at : at + 5], "big") - 0x8000000000
    days, clock = number >> 17, number & 0x1FFFF
    months, day = days >> 5, days & 31
    year, month = divmod(months, 13)
    hour, minute, second = clock >> 12, clock >> 6 & 63, clock & 63
    text = f"{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02}"
    if digits:
        part = int.from_bytes(payload[at + 5 : end], "big")
        text += f".{part:0{2 * ((digits + 1) // 2)}d}"[: digits + 1]
    return text, end


# ---------------------------------------------------------------- JSON


def json_of_binary(value: bytes) -> str:
    """MySQL's binary JSON by python-mysql-replication's decoder; as `canonical`."""
    from pymysqlreplication.json_binary import parse_json

    return canonical(plain(parse_json(value[0], value[1:])))


def _changed(payload: bytes, at: int, before: Value) -> tuple[Value, int]:
    """The document ``before`` with the changes at ``at`` (``sql/json_diff.h``)."""
    end = at + 4 + int.from_bytes(payload[at : at + 4], "little")
    if before is None or before == UNCHANGED:
        return UNCHANGED, end
    assert isinstance(before, str)
    document, at = json.loads(before), at + 4
    while at < end:
        operation = payload[at]
        path, at = _counted(payload, at + 1)
        value: Any = None
        if operation != _REMOVE:
            binary, at = _counted(payload, at)
            value = json.loads(json_of_binary(binary))
        steps = [
            json.loads(name) if name.startswith('"') else name or int(index)
            for name, index in re.findall(r'\.("(?:[^"\\]|\\.)*"|[^.\[]+)|\[(\d+)\]', path.decode())
        ]
        if not steps:
            document = value
            continue
        inner = document
        for step in steps[:-1]:
            inner = inner[step]
        if operation == _REMOVE:
            del inner[steps[-1]]
        elif operation == _INSERT and isinstance(inner, list):
            inner.insert(steps[-1], value)
        else:
            inner[steps[-1]] = value
    return canonical(document), end


def _counted(payload: bytes, at: int) -> tuple[bytes, int]:
    """The bytes behind their length, an integer of 1, 3, 4 or 9 bytes."""
    more = {0xFC: 2, 0xFD: 3, 0xFE: 8}.get(payload[at], 0)
    start = at + 1 + more
    end = start + (int.from_bytes(payload[at + 1 : start], "little") if more else payload[at])
    return payload[start:end], end


def canonical(document: Any) -> str:
    """One text for equal documents."""
    return json.dumps(document, sort_keys=True, ensure_ascii=False)


def canonical_documents(row: Row | None, columns: Sequence[Column]) -> Row | None:
    """With each text of MySQL's JSON as `canonical`."""
    if row is None or not any(column.type_id == _JSON for column in columns):
        return row
    documents = {column.name for column in columns if column.type_id == _JSON}
    return {
        name: canonical(json.loads(value))
        if name in documents and value is not None and value != UNCHANGED
        else value
        for name, value in row.items()
    }


def plain(value: Any) -> Any:
    """With texts where python-mysql-replication has bytes."""
    if isinstance(value, bytes):
        return value.decode()
    if isinstance(value, dict):
        return {plain(name): plain(item) for name, item in value.items()}
    if isinstance(value, list):
        return [plain(item) for item in value]
    return value
