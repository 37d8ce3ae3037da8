"""Where the server's binlog begins and ends: SHOW BINARY LOGS and its kin, as positions."""

from __future__ import annotations

from dataclasses import dataclass

from tidelog.errors import PreflightError
from tidelog.sources.mysql.connect import Connection
from tidelog.wire.binlog_position import file_number, pack, unpack
from tidelog.wire.flavor import Flavor

FILE_START = 4  # behind the magic number


@dataclass(frozen=True, slots=True)
class LogEnd:
    """The end of the binlog: a file's name and the offset in it."""

    file: str
    offset: int

    @property
    def position(self) -> int:
        return pack(file_number(self.file)[1], self.offset)


@dataclass(frozen=True, slots=True)
class LogFiles:
    """The files that the server has.

    Attributes:
        base: what their names share, e.g. ``binlog``.
        digits: how many digits the first one's number is written with.
        sizes: bytes by file number, in order.
    """

    base: str
    digits: int
    sizes: dict[int, int]

    def name(self, number: int) -> str:
        return f"{self.base}.{number:0{self.digits}}"

    @property
    def first(self) -> int:
        """The position where the oldest file begins."""
        return pack(next(iter(self.sizes)), FILE_START)

    @property
    def end(self) -> int:
        """The position where the newest file ended when it was asked for."""
        number, size = list(self.sizes.items())[-1]
        return pack(number, size)

    def bytes_between(self, start: int, end: int) -> int:
        """How much of the binlog lies between two positions, as far as the files are there."""
        (first, begin), (last, stop) = unpack(start), unpack(end)
        return sum(
            (stop if number == last else size) - (begin if number == first else 0)
            for number, size in self.sizes.items()
            if first <= number <= last
        )

    def describe(self, position: int) -> str:
        """A position as the server writes it, for messages: ``binlog.000012:4567``."""
        number, offset = unpack(position)
        return f"{self.name(number)}:{offset}"


def log_end(connection: Connection) -> LogEnd:
    """The end of the binlog: what is committed by now lies before it. Needs REPLICATION CLIENT.

    Raises PreflightError if the server writes no binlog; PyMySQL's errors otherwise.
    """
    rows = connection.named(_status_statement(connection))
    if not rows:
        raise PreflightError(
            "the server writes no binlog: set log_bin in its configuration and restart it"
        )
    return LogEnd(_text(rows[0]["File"]), int(rows[0]["Position"]))


def log_files(connection: Connection) -> LogFiles:
    """The binlog's files. Errors as `log_end`; the same privilege."""
    rows = connection.named("SHOW BINARY LOGS")
    if not rows:
        raise PreflightError(
            "the server writes no binlog: set log_bin in its configuration and restart it"
        )
    names = [_text(row["Log_name"]) for row in rows]
    base, _ = file_number(names[0])
    digits = len(names[0]) - len(base) - 1
    return LogFiles(
        base,
        digits,
        {
            file_number(name)[1]: int(row["File_size"])
            for name, row in zip(names, rows, strict=True)
        },
    )


def _status_statement(connection: Connection) -> str:
    """8.2 renamed it, and 8.4 took the old name away; MariaDB 10.5.2 added its own."""
    if connection.flavor is Flavor.MYSQL and connection.version >= (8, 2):
        return "SHOW BINARY LOG STATUS"
    return "SHOW MASTER STATUS"


def _text(value: object) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
