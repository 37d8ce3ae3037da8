"""Finds the cells of binlog payloads: log rows in the server's binary format and dump rows as
tuples of texts, mixed in one batch.

A log row's payload is ``0x01``, flags (`BEFORE`, `AFTER`, `PARTIAL`), the number of columns
(uint16, little-endian), then for each image, before first, the bitmap of its columns, their null
bits, and the values, as in the server's row events. Sources: MySQL internals, "Rows_event"
(``libbinlogevents/include/rows_event.h``), ``sql/rpl_record.cc``; MariaDB knowledge base,
"ROWS_EVENT_V1/V2".

The kernel locates the cells; `tidelog.codecs.mysql.cell_text.columns` converts them to the texts
of dump rows, so that all later code is shared.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from tidelog.codecs.cell_positions import MISSING, CellPlaces, Image, integers, matrices, payloads
from tidelog.codecs.key_kernel import TUPLE_FAULTS
from tidelog.codecs.mysql import types
from tidelog.codecs.mysql.cell_text.columns import BadCellError, TextWriter, TooMuchTextError
from tidelog.codecs.mysql.rows.cell_kernel import any_old_or_partial, locate
from tidelog.errors import DecodeError
from tidelog.model.records import Bools, Int32s, UInt8s
from tidelog.model.schema import Column, TableSchema


@dataclass(frozen=True, slots=True)
class ValueLayout:
    """The layout of values in a table's rows.

    Attributes:
        prefix: uint8[columns], bytes of the length before the value, 0 if it has none.
        size: int32[columns], bytes of a value without a length.
        json: bool[columns], True for JSON, of which a partial image may hold changes.
    """

    prefix: UInt8s
    size: Int32s
    json: Bools


def value_layout(schema: TableSchema) -> ValueLayout:
    """The layout of rows of ``schema``.

    Raises:
        DecodeError: a column's type does not exist in the binlog.
    """
    layouts = [_layout(schema, column) for column in schema.columns]
    return ValueLayout(
        prefix=np.array([prefix for prefix, _ in layouts], dtype=np.uint8),
        size=np.array([size for _, size in layouts], dtype=np.int32),
        json=np.array([c.type_id == types.JSON for c in schema.columns], dtype=np.bool_),
    )


def _layout(schema: TableSchema, column: Column) -> tuple[int, int]:
    """(bytes of the length, bytes of the value if there is no length)."""
    try:
        return types.value_lengths(column.type_id, types.metadata(column), types.old_digits(column))
    except ValueError:
        raise DecodeError(
            f"{schema.table}: column {column.name}: {column.type_name} is not a type of the binlog"
        ) from None


def parse(
    records: pa.RecordBatch,
    schema: TableSchema,
    wanted: Sequence[int],
    *,
    old: bool,
    old_columns: Sequence[int] | None = None,
) -> CellPlaces:
    """See `tidelog.codecs.wire_formats.parse`; cells as `TextWriter` writes them."""
    raw, bounds = payloads(records)
    base = int(bounds[0])
    offsets = bounds - np.int32(base)
    kind: UInt8s = records.column("kind").to_numpy(zero_copy_only=True)
    version = integers(records, "offset")
    try:
        rows = read_rows(
            raw[base : int(bounds[-1])], offsets[:-1], offsets[1:], kind, schema, wanted,
            old=old, old_columns=old_columns,
        )  # fmt: skip
    except RowError as error:
        column = f"column {error.column}, " if error.column else ""
        raise DecodeError(
            f"{schema.table}: {column}version {version[error.row]}: {error.reason}"
        ) from None
    except TooMuchTextError:
        raise DecodeError(
            f"{schema.table}: versions {version[0]} to {version[-1]}: more than 2 GiB of text in "
            "one batch; decode fewer records"
        ) from None
    return CellPlaces(rows.data, version, kind, rows.old, rows.new, rows.any_missing)


class RowError(Exception):
    """A record does not fit its schema. Callers that know its position convert it to a DecodeError;
    it contains no value on purpose.
    """

    def __init__(self, row: int, column: str | None, reason: str) -> None:
        super().__init__(row, column, reason)
        self.row, self.column, self.reason = row, column, reason


@dataclass(slots=True)
class Rows:
    """The cells of ``n`` records as texts in ``data``; see `CellPlaces`. ``lacks``: uint8[n], how
    the new row lacks a column, wanted or not (`tidelog.codecs.mysql.rows.cell_kernel.locate`).
    """

    data: UInt8s
    old: Image | None
    new: Image
    lacks: UInt8s
    binary: Bools
    any_missing: bool


def read_rows(
    raw: UInt8s,
    begins: Int32s,
    ends: Int32s,
    kind: UInt8s,
    schema: TableSchema,
    wanted: Sequence[int],
    *,
    old: bool,
    old_columns: Sequence[int] | None = None,
) -> Rows:
    """Find the cells of columns ``wanted`` and convert them to text.

    Args:
        raw: uint8[...], the payloads.
        begins: int32[n], the payloads' positions in ``raw``.
        ends: int32[n].
        kind: uint8[n], `RecordKind`.
        schema: the version that the records were written under.
        wanted: wire column numbers.
        old: whether to return the old images too.
        old_columns: wire column numbers; the others of the old images are `MISSING`.

    Raises:
        RowError: a payload or a cell does not fit ``schema``.
        TooMuchTextError: the text exceeds one buffer.
    """
    n, columns = len(kind), len(schema.columns)
    layout = value_layout(schema)
    slot = np.full(columns, -1, dtype=np.int32)
    slot[list(wanted)] = np.arange(len(wanted), dtype=np.int32)
    any_old, any_partial = any_old_or_partial(raw, begins, ends, kind)
    fill_old = (old and any_old) or any_partial
    new_image = Image(*matrices(len(wanted), n), np.empty(n, dtype=np.bool_))
    old_shape = (len(wanted), n) if fill_old else (0, 0)
    old_image = Image(*matrices(*old_shape), np.empty(n, dtype=np.bool_))
    binary = np.empty(n, dtype=np.bool_)
    lacks = np.empty(n, dtype=np.uint8)
    row, reason, any_missing = locate(
        raw, begins, ends, kind, slot,
        layout.prefix, layout.size, layout.json, fill_old, binary, lacks,
        old_image.start, old_image.length, old_image.present,
        new_image.start, new_image.length, new_image.present,
    )  # fmt: skip
    if row >= 0:
        raise RowError(int(row), None, TUPLE_FAULTS[reason])
    data = raw
    if binary.any():
        images = [new_image, old_image] if fill_old else [new_image]
        left_out = [] if old_columns is None else [w not in old_columns for w in wanted]
        chosen = [schema.columns[number] for number in wanted]
        keys = {*schema.key, *schema.match_key}
        data = _texts(raw, chosen, keys, images, binary, left_out)
    if any_partial:
        any_missing = bool((new_image.length == MISSING).any())
    kept = old_image if old and any_old else None
    return Rows(data, kept, new_image, lacks, binary, any_missing)


def _texts(
    raw: UInt8s,
    columns: Sequence[Column],
    keys: Collection[str],
    images: Sequence[Image],
    binary: Bools,
    left_out: Sequence[bool],
) -> UInt8s:
    """Convert the binary cells of the images to text; returns the buffer with the cells. Columns
    ``left_out`` of the second image become missing instead.
    """
    texts = TextWriter(raw, columns, int(binary.sum()) * len(images), keys)
    for number, column in enumerate(columns):
        try:
            rows = binary
            if column.type_id == types.JSON and len(images) > 1:
                rows = binary & ~texts.apply_partial(images[0], images[1], number)
            for image in images:
                if left_out and left_out[number] and image is not images[0]:
                    image.length[number, binary] = MISSING
                    continue
                texts.convert(number, image.start[number], image.length[number], rows)
                rows = binary
        except BadCellError as error:
            reason = f"the value is not a valid {column.type_name}"
            raise RowError(error.row, column.name, reason) from None
    return texts.buffer()
