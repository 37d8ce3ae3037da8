"""Texts of MariaDB's types of a fixed number of bytes, as SELECT prints them.

The log leaves out trailing zero bytes, as of BINARY. Source: ``plugin/type_uuid/sql_type_uuid.h``,
``plugin/type_inet/sql_type_inet.cc``.
"""

from __future__ import annotations


def uuid_text(cell: bytes) -> bytes:
    """UUID: 16 bytes."""
    text = _whole(cell, 16).hex()
    return "-".join((text[:8], text[8:12], text[12:16], text[16:20], text[20:])).encode()


def inet4_text(cell: bytes) -> bytes:
    """INET4: four bytes in network order."""
    return ".".join(str(byte) for byte in _whole(cell, 4)).encode()


def inet6_text(cell: bytes) -> bytes:
    """INET6: 16 bytes in network order, the longest run of zero groups left out."""
    value = _whole(cell, 16)
    return value.hex().encode()


def _whole(cell: bytes, size: int) -> bytes:
    if len(cell) > size:
        raise ValueError
    return cell.ljust(size, b"\0")
