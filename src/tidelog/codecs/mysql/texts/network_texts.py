"""Converts values of MariaDB's fixed-size types to the text that SELECT prints.

The log omits trailing zero bytes, as for BINARY. Source: ``plugin/type_uuid/sql_type_uuid.h``,
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
    """INET6: 16 bytes in network order.

    The first longest run of zero groups is omitted, even a single one; a final IPv4 address has its
    own form if only zeros, or zeros and ffff, precede it.
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
