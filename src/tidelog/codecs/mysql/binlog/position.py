"""A position in a MySQL or MariaDB binlog as one int64: the file's number, then the offset in it.

Files are named ``base.000123`` with growing numbers; a transaction never spans two files. 39 bits
hold an offset of 512 GiB (a transaction may make a file larger than ``max_binlog_size``), 24 bits
16.7 million files.
"""

from __future__ import annotations

OFFSET_BITS = 39
_OFFSET_MASK = (1 << OFFSET_BITS) - 1


def pack(file_number: int, offset: int) -> int:
    """The position of ``offset`` in file ``file_number``; raises ValueError if it is
    out of range.
    """
    if not 0 <= offset <= _OFFSET_MASK or not 0 <= file_number < 1 << (63 - OFFSET_BITS):
        raise ValueError(f"no position of a binlog: file {file_number}, offset {offset}")
    return file_number << OFFSET_BITS | offset


def unpack(position: int) -> tuple[int, int]:
    """(file number, offset)."""
    return position >> OFFSET_BITS, position & _OFFSET_MASK


def text(position: int) -> str:
    """The position for messages: ``000123:4567``."""
    number, offset = unpack(position)
    return f"{number:06}:{offset}"


def file_number(name: str) -> tuple[str, int]:
    """(base, number) of a file name such as ``binlog.000123``; raises ValueError if it has none."""
    base, dot, suffix = name.rpartition(".")
    if not dot or not suffix.isdigit():
        raise ValueError(f"{name!r} is not the name of a binlog file")
    return base, int(suffix)
