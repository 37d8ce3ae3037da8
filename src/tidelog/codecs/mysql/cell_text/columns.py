"""Converts binary cells of the binlog to the text that a SELECT shows, column by column.

The texts are appended to a copy of the payloads, into which the cells then point: texts in UTF-8
and bytes stay in place, labels of ENUM are written once. These texts are the contract between the
log, dump rows and `tidelog.codecs.columns.values` (docs/reference/types.md).
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Collection, Sequence

import numpy as np
import pyarrow as pa
from numba import njit

from tidelog.codecs.cell_positions import MISSING, Image
from tidelog.codecs.mysql import types
from tidelog.codecs.mysql.cell_text import charset_texts, json_texts, kernels
from tidelog.codecs.mysql.cell_text.kernels import little_endian, old_temporal_text
from tidelog.codecs.mysql.charsets import BINARY_COLLATION, charset_of
from tidelog.codecs.mysql.rows.cell_kernel import PARTIAL_JSON
from tidelog.model.records import Bools, Int32s, UInt8s
from tidelog.model.schema import Column


@njit(cache=True, nogil=True)
def members(data, start, length, binary, label_start, label_length):  # type: ignore[no-untyped-def]
    """Convert ENUM's numbers to the positions of their labels; 0 is the empty text. Returns 0, or
    -1 - the bad row.
    """
    for i in range(len(start)):
        if not binary[i] or length[i] < 0:
            continue
        if length[i] > 2:
            return -1 - i
        number = np.int64(little_endian(data, np.int64(start[i]), np.int64(length[i])))
        if number >= len(label_start):
            return -1 - i
        start[i] = label_start[number]
        length[i] = label_length[number]
    return 0


@njit(cache=True, nogil=True)
def padded(data, start, length, binary, width, to):  # type: ignore[no-untyped-def]
    """Convert BINARY(width), whose trailing zero bytes the log omits."""
    for i in range(len(start)):
        if not binary[i] or length[i] < 0 or length[i] == width:
            continue
        if length[i] > width:
            return -1 - i
        for k in range(length[i]):
            data[to + k] = data[start[i] + k]
        for k in range(length[i], width):
            data[to + k] = 0
        start[i] = to
        length[i] = width
        to += width
    return to


@njit(cache=True, nogil=True)
def without_srid(start, length, binary):  # type: ignore[no-untyped-def]
    """Convert geometries: the well-known binary follows the four bytes of the SRID."""
    for i in range(len(start)):
        if binary[i] and length[i] >= 4:
            start[i] += 4
            length[i] -= 4


_INTEGER_SIZES = {
    types.TINY: 1,
    types.SHORT: 2,
    types.INT24: 3,
    types.LONG: 4,
    types.LONGLONG: 8,
}
_INTEGER_TEXT = 20  # bytes of the longest integer
_MAX_BYTES = int(np.iinfo(np.int32).max)
_ZLIB = 8  # MariaDB's only compression of columns


class BadCellError(Exception):
    """The cell of ``row`` is not of the column's type; contains no value on purpose."""

    def __init__(self, row: int) -> None:
        super().__init__(row)
        self.row = row


class TooMuchTextError(Exception):
    """The text exceeds int32 offsets: decode fewer records at once."""


class TextWriter:
    """The buffer of one batch's cells.

    Args:
        raw: uint8[...], the payloads.
        columns: the columns of the matrices' rows.
        cells: approximate number of binary cells per column.
        keys: the names of the key's columns, whose texts are exact
            (`tidelog.codecs.mysql.cell_text.charset_texts`).
    """

    def __init__(
        self, raw: UInt8s, columns: Sequence[Column], cells: int, keys: Collection[str] = ()
    ) -> None:
        self._columns = columns
        self._keys = keys
        room = sum(_width(column) for column in columns) * cells
        self._data: UInt8s = np.empty(len(raw) + room, dtype=np.uint8)
        self._data[: len(raw)] = raw
        self._used = len(raw)
        self._labels: dict[int, tuple[Int32s, Int32s]] = {}

    def buffer(self) -> UInt8s:
        """The buffer that the cells point into."""
        data = self._data[: self._used]
        data.flags.writeable = False
        return data

    def convert(self, number: int, start: Int32s, length: Int32s, binary: Bools) -> None:
        """Convert the binary cells of column ``number`` to text, in place.

        Args:
            number: the column's number.
            start: int32[n], into the buffer.
            length: int32[n].
            binary: bool[n], True for a log row's cell.

        Raises:
            BadCellError: a cell is not of the column's type.
            TooMuchTextError: the texts do not fit one batch.
        """
        column = self._columns[number]
        code, meta = column.type_id, types.metadata(column)
        data, to = self._room(_width(column) * len(start))
        if digits := types.old_digits(column):
            self._convert_each(
                lambda cell: old_temporal_text(code, digits, cell), start, length, binary
            )
        elif code in _INTEGER_SIZES:
            self._fill(
                kernels.integers(
                    data, start, length, binary, _INTEGER_SIZES[code],
                    types.is_unsigned(column), to,
                )
            )  # fmt: skip
        elif code == types.NEWDECIMAL:
            self._fill(kernels.decimals(data, start, length, binary, meta >> 8, meta & 0xFF, to))
        elif code == types.DATETIME2:
            self._fill(kernels.datetimes(data, start, length, binary, meta, to))
        elif code == types.TIMESTAMP2:
            self._fill(kernels.timestamps(data, start, length, binary, meta, True, to))
        elif code == types.TIME2:
            self._fill(kernels.times(data, start, length, binary, meta, to))
        elif code in (types.DATE, types.NEWDATE):
            self._fill(kernels.dates(data, start, length, binary, to))
        elif code == types.YEAR:
            self._fill(kernels.years(data, start, length, binary, to))
        elif code == types.TIMESTAMP:
            self._fill(kernels.timestamps(data, start, length, binary, 0, False, to))
        elif code == types.DATETIME:
            self._fill(kernels.old_datetimes(data, start, length, binary, to))
        elif code == types.TIME:
            self._fill(kernels.old_times(data, start, length, binary, to))
        elif code == types.BIT:
            truth = column.logical == "bool"
            self._fill(kernels.bits(data, start, length, binary, truth, to))
        elif code in (types.FLOAT, types.DOUBLE):
            self._floats(start, length, binary, 4 if code == types.FLOAT else 8)
        elif code == types.ENUM:
            labels = self._label_places(number)
            _require_valid(members(data, start, length, binary, *labels))
        elif code == types.SET:
            self._sets(types.labels(column), start, length, binary)
        elif code == types.JSON:
            self._json(start, length, binary)
        elif code == types.GEOMETRY:
            without_srid(start, length, binary)
        elif code in (types.BLOB_COMPRESSED, types.VARCHAR_COMPRESSED):
            self._convert_each(_uncompressed, start, length, binary)
            self._characters(column, start, length, binary)
        elif code == types.STRING and column.type_name in _NETWORK:
            self._convert_each(_NETWORK[column.type_name], start, length, binary)
        elif code == types.STRING and types.collation(column) == BINARY_COLLATION:
            width = types.string_bytes(meta)
            self._fill(padded(data, start, length, binary, width, to))
        elif code != types.VECTOR:
            self._characters(column, start, length, binary)

    def apply_partial(self, new: Image, old: Image, number: int) -> Bools:
        """Apply partial updates in column ``number``: their cells become the text of the changed
        document.

        A cell becomes missing where the record has no before image of it. Returns bool[n], True for
        cells that are text now.
        """
        start, length = new.start[number], new.length[number]
        done = np.zeros(len(start), dtype=np.bool_)
        for row in np.flatnonzero(length == PARTIAL_JSON):
            at = int(start[row])
            before = int(old.length[number, row])
            if before < 0:
                start[row], length[row] = 0, MISSING
                continue
            size = int.from_bytes(self._data[at - 4 : at].tobytes(), "little")
            changes = self._data[at : at + size].tobytes()
            begin = int(old.start[number, row])
            document = self._data[begin : begin + before].tobytes()
            try:
                text = json_texts.apply_changes(document, changes)
            except json_texts.MalformedJsonError:
                raise BadCellError(int(row)) from None
            start[row], length[row] = self._append(text), len(text)
            done[row] = True
        return done

    def _room(self, size: int) -> tuple[UInt8s, int]:
        """(the buffer with room for ``size`` bytes more, the position of this room)."""
        needed = self._used + size
        if needed > _MAX_BYTES:
            raise TooMuchTextError
        if needed > len(self._data):
            grown = np.empty(max(needed, len(self._data) * 3 // 2), dtype=np.uint8)
            grown[: self._used] = self._data[: self._used]
            self._data = grown
        return self._data, self._used

    def _fill(self, to: int) -> None:
        self._used = _require_valid(to)

    def _append(self, text: bytes) -> int:
        data, to = self._room(len(text))
        data[to : to + len(text)] = np.frombuffer(text, dtype=np.uint8)
        self._used += len(text)
        return to

    def _label_places(self, number: int) -> tuple[Int32s, Int32s]:
        """The positions of an ENUM's labels in the buffer, by number; 0 is the empty text."""
        if number not in self._labels:
            texts = [b"", *(label.encode() for label in types.labels(self._columns[number]))]
            places = [self._append(text) for text in texts]
            sizes = [len(text) for text in texts]
            self._labels[number] = np.array(places, np.int32), np.array(sizes, np.int32)
        return self._labels[number]

    def _sets(self, labels: Sequence[str], start: Int32s, length: Int32s, binary: Bools) -> None:
        values = np.empty(len(start), dtype=np.uint64)
        _require_valid(kernels.little_endian_numbers(self._data, start, length, binary, values))
        rows = np.flatnonzero(binary & (length >= 0))
        distinct, which = np.unique(values[rows], return_inverse=True)
        places = np.empty(len(distinct), dtype=np.int32)
        sizes = np.empty(len(distinct), dtype=np.int32)
        for index, value in enumerate(distinct.tolist()):
            if value >> len(labels):
                raise BadCellError(int(rows[np.argmax(which == index)]))
            text = ",".join(label for k, label in enumerate(labels) if value >> k & 1).encode()
            places[index], sizes[index] = self._append(text), len(text)
        start[rows], length[rows] = places[which], sizes[which]

    def _floats(self, start: Int32s, length: Int32s, binary: Bools, size: int) -> None:
        patterns = np.empty(len(start), dtype=np.uint64)
        _require_valid(kernels.floats(self._data, start, length, binary, size, patterns))
        rows = np.flatnonzero(binary & (length >= 0))
        if size == 4:
            values = patterns[rows].astype(np.uint32).view(np.float32).astype(np.float64)
        else:
            values = patterns[rows].view(np.float64)
        texts = float_texts(pa.array(values))
        _, offsets, data = texts.buffers()
        bounds = np.frombuffer(offsets, dtype=np.int32)[: len(texts) + 1]
        if len(texts):
            base = self._append(data.to_pybytes()[: int(bounds[-1])])
            start[rows] = bounds[:-1] + np.int32(base)
            length[rows] = np.diff(bounds)

    def _json(self, start: Int32s, length: Int32s, binary: Bools) -> None:
        sizes = np.where(binary & (length > 0), length, 0)
        data, to = self._room(int(json_texts.TEXT_FACTOR * sizes.sum(dtype=np.int64))
                              + json_texts.TEXT_EXTRA * len(start))  # fmt: skip
        slow = np.zeros(len(start), dtype=np.bool_)
        self._fill(json_texts.documents(data, start, length, binary, slow, to))
        if slow.any():
            self._convert_each(json_texts.text, start, length, slow)

    def _characters(self, column: Column, start: Int32s, length: Int32s, binary: Bools) -> None:
        charset = charset_of(types.collation(column))
        if charset is None:
            raise BadCellError(int(np.argmax(binary)))
        if charset in charset_texts.UTF8:
            return
        if column.name in self._keys and charset_texts.is_lossy(charset):
            binary = binary & ~self._exact(charset, start, length, binary)
        if charset_texts.is_single_byte(charset):
            sizes = np.where(binary & (length > 0), length, 0)
            data, to = self._room(3 * int(sizes.sum(dtype=np.int64)))
            codes = charset_texts.single_byte_table(charset)
            self._fill(charset_texts.convert_single_byte(data, start, length, binary, *codes, to))
            return
        chosen = binary & (length > 0)
        if charset_texts.keeps_ascii(charset):
            chosen = np.empty(len(start), dtype=np.bool_)
            charset_texts.not_ascii(self._data, start, length, binary, chosen)
        self._convert_each(
            lambda text: charset_texts.decode_multibyte(charset, text).encode(),
            start,
            length,
            chosen,
        )

    def _exact(self, charset: str, start: Int32s, length: Int32s, binary: Bools) -> Bools:
        """Convert the cells whose text must show their bytes; returns bool[n], True for these."""
        odd = binary & (length > 0)
        if charset_texts.is_plain_ascii(charset):
            charset_texts.not_ascii(self._data, start, length, binary, odd)
        for row in np.flatnonzero(odd):
            begin = int(start[row])
            cell = self._data[begin : begin + int(length[row])].tobytes()
            text = charset_texts.exact_text(charset, cell)
            odd[row] = text is not None
            if text is not None:
                encoded = text.encode()
                start[row], length[row] = self._append(encoded), len(encoded)
        return odd

    def _convert_each(
        self, convert: Callable[[bytes], bytes], start: Int32s, length: Int32s, chosen: Bools
    ) -> None:
        """Convert cell by cell, for types without a kernel."""
        for row in np.flatnonzero(chosen & (length >= 0)):
            begin = int(start[row])
            cell = self._data[begin : begin + int(length[row])].tobytes()
            try:
                text = convert(cell)
            except (LookupError, ValueError, zlib.error):
                raise BadCellError(int(row)) from None
            start[row], length[row] = self._append(text), len(text)


def float_texts(values: pa.Array) -> pa.Array:
    """Convert float64[n] to string[n], the canonical texts of floating-point numbers."""
    return values.cast(pa.string())


def _require_valid(result: int) -> int:
    if result < 0:
        raise BadCellError(-1 - int(result))
    return int(result)


def _width(column: Column) -> int:
    """The most bytes of a text of the column that a kernel writes; 0 for other columns."""
    code, meta = column.type_id, types.metadata(column)
    if code in _INTEGER_SIZES or code == types.BIT:
        return _INTEGER_TEXT
    if code == types.NEWDECIMAL:
        return (meta >> 8) + 3 + 9
    if code in (types.DATE, types.NEWDATE, types.YEAR):
        return 10
    if code in (types.TIMESTAMP, types.TIMESTAMP2, types.DATETIME, types.DATETIME2):
        return 26
    if code in (types.TIME, types.TIME2):
        return 17
    if code == types.STRING and types.collation(column) == BINARY_COLLATION:
        return types.string_bytes(meta)
    return 0


def _uncompressed(cell: bytes) -> bytes:
    """Decompress a value of MariaDB's COMPRESSED columns.

    The first byte is the method; then the plain value follows (0), or its size, big-endian, and
    zlib's output, raw or wrapped (``sql/field_comp.cc``).
    """
    if not cell:
        return b""
    how = cell[0]
    if how == 0:
        return cell[1:]
    size_bytes = how & 7
    if how >> 4 != _ZLIB or len(cell) <= size_bytes:
        raise ValueError
    size = int.from_bytes(cell[1 : 1 + size_bytes], "big")
    window = -15 if how & 8 else 15
    text = zlib.decompressobj(window).decompress(cell[1 + size_bytes :], size + 1)
    if len(text) != size:
        raise ValueError
    return text


# MariaDB's types of fixed size. The log omits trailing zero bytes, as for BINARY. Source:
# ``plugin/type_uuid/sql_type_uuid.h``, ``plugin/type_inet/sql_type_inet.cc``.


def uuid_text(cell: bytes) -> bytes:
    """UUID: 16 bytes."""
    text = _whole(cell, 16).hex()
    return "-".join((text[:8], text[8:12], text[12:16], text[16:20], text[20:])).encode()


def inet4_text(cell: bytes) -> bytes:
    """INET4: four bytes in network order."""
    return ".".join(str(byte) for byte in _whole(cell, 4)).encode()


def inet6_text(cell: bytes) -> bytes:
    """INET6: 16 bytes in network order. The first longest run of zero groups is omitted, even a
    single one; a final IPv4 address has its own form if only zeros, or zeros and ffff, precede it.
    """
    value = _whole(cell, 16)
    groups = [int.from_bytes(value[at : at + 2], "big") for at in range(0, 16, 2)]
    gap, length = _longest_gap(groups)
    holds_ipv4 = gap == 0 and (length == 6 or (length == 5 and groups[5] == 0xFFFF))
    text = ""
    at = 0
    while at < 8:
        if at == gap:
            text += ":" if at else "::"
            at += length
        elif at == 6 and holds_ipv4:
            return text.encode() + inet4_text(value[12:])
        else:
            text += f"{groups[at]:x}" + (":" if at < 7 else "")
            at += 1
    return text.encode()


def _longest_gap(groups: list[int]) -> tuple[int, int]:
    """(begin of the first longest run of zeros, its length); (-1, 0) if there is none."""
    best, at = (-1, 0), 0
    while at < len(groups):
        end = at
        while end < len(groups) and groups[end] == 0:
            end += 1
        if end - at > best[1]:
            best = (at, end - at)
        at = end + 1
    return best


def _whole(cell: bytes, size: int) -> bytes:
    if len(cell) > size:
        raise ValueError
    return cell.ljust(size, b"\0")


_NETWORK: dict[str, Callable[[bytes], bytes]] = {
    "uuid": uuid_text,
    "inet4": inet4_text,
    "inet6": inet6_text,
}
