"""Reads and writes deletion vectors: the numbers of a data file's deleted rows.

Delta protocol, "Deletion Vectors" and "Deletion Vector Format".
"""

from __future__ import annotations

import re
import struct
import uuid
import zlib
from array import array
from typing import Final
from urllib.parse import unquote

import numpy as np
from pyroaring import BitMap64

from tidelog.errors import OutputRefusedError, TidelogError
from tidelog.outputs.base.stores import FileStore, open_file_store
from tidelog.outputs.lake.data_files.data_file import DeletionVector

_MAGIC: Final = struct.pack("<i", 1681511377)
_FILE_VERSION: Final = b"\x01"
_FRAME_BYTES: Final = 8  # length before a vector, checksum after it
_CUT: Final = "the file ends before it"
_UUID_TEXT: Final = 20  # characters of a UUID in Base85
_NAME: Final = re.compile(
    r"deletion_vector_([0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12})\.bin"
)
# ZeroMQ's RFC 32, "Z85".
_DIGITS: Final = (
    "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
)
_VALUES: Final = {digit: value for value, digit in enumerate(_DIGITS)}


def read_rows(store: FileStore, vector: DeletionVector) -> np.ndarray:
    """Return int64[], sorted: the numbers of the deleted rows.

    ``store``: the table's. Raises OutputRefusedError, which names the file, for one that is missing
    or damaged, or of another format.
    """
    if vector.storage == "i":
        body = decode(vector.location)[: vector.size_bytes]
        location = f"{store.path}: a deletion vector in the log"
    else:
        holder, name = _file_of(store, vector)
        location = f"deletion vector {holder.path}/{name}"
        size = vector.size_bytes + _FRAME_BYTES
        data = read_frame(holder, name, vector.offset or 0, size)
        body = _checked_body(data, vector.size_bytes, location)
    return _rows_of(body, vector.cardinality, location)


def read_frame(store: FileStore, name: str, start: int, size: int) -> bytes:
    """Return the bytes of a vector in a file; fewer if a local file ends before.

    Raises OutputRefusedError if the file is missing, or, on an object store, ends before.
    """
    try:
        return store.read_range(name, start, size)
    except TidelogError:
        is_there = store.tag(name) is not None
        if is_there and store.size(name) >= start + size:
            raise
        why = _CUT if is_there else "the file is missing"
        raise _damaged(f"deletion vector {store.path}/{name}", why) from None


def frame_of(rows: np.ndarray) -> bytes:
    """Return rows as Delta and Iceberg have them in a file: length, bitmap, checksum. ``rows``:
    int64[], sorted, distinct, at least one.
    """
    bitmap = BitMap64(array("Q", np.ascontiguousarray(rows, np.uint64).tobytes()))
    bitmap.run_optimize()
    body = _MAGIC + bitmap.serialize()
    return struct.pack(">i", len(body)) + body + struct.pack(">I", zlib.crc32(body))


def rows_of_frame(data: bytes, count: int, location: str) -> np.ndarray:
    """Return int64[], sorted: the rows of a frame (`frame_of`). Raises OutputRefusedError, which
    names the ``location``, for one that is damaged or does not have ``count`` rows.
    """
    return _rows_of(_checked_body(data, len(data) - _FRAME_BYTES, location), count, location)


def _rows_of(body: bytes, count: int, location: str) -> np.ndarray:
    if not body.startswith(_MAGIC):
        raise _damaged(location, "it does not begin as one, or is of a later format")
    try:
        rows = np.frombuffer(BitMap64.deserialize(body[len(_MAGIC) :]).to_array(), np.uint64)
    except ValueError:
        raise _damaged(location, "its bitmap is no Roaring bitmap") from None
    if len(rows) != count:
        raise _damaged(location, f"it has {len(rows)} rows, the log says {count}")
    return rows.astype(np.int64)


class DeletionVectorWriter:
    """Writes all vectors of a task to one new file; no file if there is no vector.

    Args:
        store: the table's store.
    """

    def __init__(self, store: FileStore) -> None:
        self._store = store
        self._id = uuid.uuid4()
        self._data = bytearray(_FILE_VERSION)

    def add(self, rows: np.ndarray) -> DeletionVector:
        """Add a vector of ``rows``: int64[], sorted, distinct, not empty; a file after `close`."""
        frame, offset = frame_of(rows), len(self._data)
        self._data += frame
        size = len(frame) - _FRAME_BYTES
        return DeletionVector("u", encode(self._id.bytes), offset, size, len(rows))

    def close(self) -> None:
        """Write the file, durably."""
        if len(self._data) > len(_FILE_VERSION):
            self._store.put(_file_name(self._id), bytes(self._data))


def encode(data: bytes) -> str:
    """Return the protocol's Base85; zeros fill ``data`` up to a multiple of four bytes."""
    words = struct.iter_unpack(">I", data + b"\0" * (-len(data) % 4))
    return "".join(_DIGITS[word // 85**at % 85] for (word,) in words for at in (4, 3, 2, 1, 0))


def decode(text: str) -> bytes:
    """Return the bytes of a text in Base85. Raises OutputRefusedError for other texts."""
    found = bytearray()
    try:
        for start in range(0, len(text), 5):
            word = 0
            for digit in text[start : start + 5]:
                word = word * 85 + _VALUES[digit]
            found += struct.pack(">I", word)
    except (KeyError, struct.error):
        raise OutputRefusedError(
            f"a deletion vector of the log has the text {text[:40]!r}, which is no Base85: the log "
            "is damaged. Restore the table to a version before it."
        ) from None
    return bytes(found)


def location_in(name: str) -> str | None:
    """Return the location of a file of vectors with storage ``u``, by its ``name`` below the
    table; None: it is no file of vectors.
    """
    folder, _, last = name.rpartition("/")
    found = _NAME.fullmatch(last)
    return None if found is None else folder + encode(uuid.UUID(found[1]).bytes)


def _file_of(store: FileStore, vector: DeletionVector) -> tuple[FileStore, str]:
    """Return the file's store and its name there."""
    if vector.storage == "u":
        prefix = vector.location[:-_UUID_TEXT]
        name = _file_name(uuid.UUID(bytes=decode(vector.location[-_UUID_TEXT:])))
        return store, f"{prefix}/{name}" if prefix else name
    if vector.storage == "p":
        folder, _, name = unquote(vector.location).rpartition("/")
        if folder.startswith("file:/") and not folder.startswith("file://"):
            folder = folder.removeprefix("file:")
        return open_file_store(folder), name
    raise OutputRefusedError(
        f"{store.path}: a deletion vector is stored as {vector.storage!r}, which this version of "
        "Tidelog does not know. Update Tidelog."
    )


def _file_name(of: uuid.UUID) -> str:
    return f"deletion_vector_{of}.bin"


def _checked_body(data: bytes, size_bytes: int, location: str) -> bytes:
    if len(data) != size_bytes + _FRAME_BYTES or size_bytes < 0:
        raise _damaged(location, _CUT)
    (size,) = struct.unpack_from(">i", data)
    if size != size_bytes:
        raise _damaged(location, f"it has {size} bytes, the log says {size_bytes}")
    body = data[4:-4]
    if struct.unpack(">I", data[-4:]) != (zlib.crc32(body),):
        raise _damaged(location, "its checksum is wrong")
    return body


def _damaged(location: str, why: str) -> OutputRefusedError:
    return OutputRefusedError(
        f"{location} is damaged: {why}. Restore the file, or the table to a version before it; or "
        "move the table away and dump it again."
    )
