"""A cursor over an event's body, and its packed integers."""

from __future__ import annotations


class Fields:
    """A cursor over an event's body; reading past its end raises IndexError."""

    __slots__ = ("at", "data", "end")

    def __init__(self, data: bytes, at: int = 0, end: int | None = None) -> None:
        self.data = data
        self.at = at
        self.end = len(data) if end is None else end

    def left(self) -> int:
        return self.end - self.at

    def take(self, count: int) -> bytes:
        """The next ``count`` bytes."""
        after = self.at + count
        if count < 0 or after > self.end:
            raise IndexError("past the end")
        taken = self.data[self.at : after]
        self.at = after
        return taken

    def integer(self, width: int) -> int:
        """An unsigned integer of ``width`` bytes."""
        return int.from_bytes(self.take(width), "little")

    def packed(self) -> int:
        """A length-encoded integer."""
        first = self.integer(1)
        if first < 251:
            return first
        widths = {252: 2, 253: 3, 254: 8}
        if first not in widths:
            raise ValueError("no length-encoded integer")
        return self.integer(widths[first])

    def rest(self) -> bytes:
        return self.take(self.left())


def variable(fields: Fields) -> int:
    """An unsigned integer of 1 to 9 bytes: the trailing ones of the first byte count the following
    bytes.
    """
    first = fields.integer(1)
    more = (~first & first + 1).bit_length() - 1
    if more == 8:
        return fields.integer(8)
    return (fields.integer(more) << 8 | first) >> more + 1


def signed(fields: Fields) -> int:
    """A signed integer of 1 to 9 bytes: the sign is in the lowest bit."""
    value = variable(fields)
    return -(value >> 1) - 1 if value & 1 else value >> 1


def short_text(fields: Fields) -> str:
    """An ASCII text that follows its length."""
    return fields.take(variable(fields)).decode("ascii")
