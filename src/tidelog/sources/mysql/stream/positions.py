"""Reads the binlog's files, beginning and end as positions, with SHOW BINARY LOGS and similar."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tidelog.codecs.mysql.binlog.items import pack_position, parse_file_name, unpack_position
from tidelog.codecs.mysql.flavor import Flavor
from tidelog.errors import PreflightError
from tidelog.sources.mysql.connect import Connection, text_of

FILE_START = 4  # after the magic number
RESET = "RESET MASTER or RESET BINARY LOGS AND GTIDS"
"""The statement that resets a binlog: MySQL 8.2 renamed it, and 8.4 has only the new name."""
NO_BINLOG = (
    "the server writes no binlog: set log_bin (on a replica log_replica_updates, or "
    "log_slave_updates, too) in its configuration and restart it"
)


@dataclass(frozen=True, slots=True)
class LogEnd:
    """The end of the binlog: a file's name and the offset in it; ``shift`` as in `LogFiles`."""

    file: str
    offset: int
    shift: int = 0

    @property
    def position(self) -> int:
        return pack_position(parse_file_name(self.file)[1] + self.shift, self.offset)

    def describe(self, position: int) -> str:
        """See `LogFiles.describe`."""
        base, _ = parse_file_name(self.file)
        return _position_text(base, len(self.file) - len(base) - 1, position, self.shift)


@dataclass(frozen=True, slots=True)
class LogFiles:
    """The server's binlog files.

    Attributes:
        base: the common prefix of their names, e.g. ``binlog``.
        digits: the number of digits of the first file's number.
        sizes: bytes by file number, in order.
        shift: the difference between file numbers in positions and in names (`ServerPin.shift`).
    """

    base: str
    digits: int
    sizes: dict[int, int]
    shift: int = 0

    def name(self, number: int) -> str:
        return _name(self.base, self.digits, number - self.shift)

    def number(self, name: str) -> int:
        """The file's number in positions."""
        return parse_file_name(name)[1] + self.shift

    def begin(self, number: int) -> int:
        """The position where the file begins."""
        return pack_position(number, FILE_START)

    @property
    def first(self) -> int:
        """The position where the oldest file begins."""
        return self.begin(next(iter(self.sizes)))

    @property
    def end(self) -> int:
        """The end of the newest file when the list was read."""
        number, size = list(self.sizes.items())[-1]
        return pack_position(number, size)

    def bytes_between(self, start: int, end: int) -> int:
        """The bytes of the binlog between two positions, as far as the files exist."""
        (first, begin), (last, stop) = unpack_position(start), unpack_position(end)
        return sum(
            (stop if number == last else size) - (begin if number == first else 0)
            for number, size in self.sizes.items()
            if first <= number <= last
        )

    def describe(self, position: int) -> str:
        """The position as the server writes it, for messages: ``binlog.000012:4567``."""
        return _position_text(self.base, self.digits, position, self.shift)


def _name(base: str, digits: int, number: int) -> str:
    return f"{base}.{number:0{digits}}"


def _position_text(base: str, digits: int, position: int, shift: int) -> str:
    number, offset = unpack_position(position)
    return f"{_name(base, digits, number - shift)}:{offset}"


def log_end(connection: Connection) -> LogEnd:
    """The end of the binlog: what is committed by now is before it. Needs REPLICATION CLIENT.
    Raises PreflightError if the server writes no binlog; PyMySQL's errors otherwise.
    """
    status = log_status(connection)
    if not status:
        raise PreflightError(NO_BINLOG)
    return LogEnd(text_of(status["File"]), int(status["Position"]), connection.pin.shift)


def log_status(connection: Connection) -> dict[str, Any]:
    """The row of SHOW MASTER STATUS; {} if the server writes no binlog. Raises PyMySQL's errors,
    also if the account lacks the privilege.
    """
    # MySQL 8.2 renamed it, and 8.4 removed the old name; MariaDB 10.5.2 added another name.
    renamed = connection.flavor is Flavor.MYSQL and connection.version >= (8, 2)
    rows = connection.named("SHOW BINARY LOG STATUS" if renamed else "SHOW MASTER STATUS")
    return rows[0] if rows else {}


def log_files(connection: Connection) -> LogFiles:
    """The binlog's files. Same errors and privilege as `log_end`."""
    rows = connection.named("SHOW BINARY LOGS")
    if not rows:
        raise PreflightError(NO_BINLOG)
    names = [text_of(row["Log_name"]) for row in rows]
    base, _ = parse_file_name(names[0])
    digits = len(names[0]) - len(base) - 1
    shift = connection.pin.shift
    sizes = {
        parse_file_name(name)[1] + shift: int(row["File_size"])
        for name, row in zip(names, rows, strict=True)
    }
    return LogFiles(base, digits, sizes, shift)


def has_gtids(connection: Connection) -> bool:
    """Return True if each transaction of the binlog has a GTID. Raises PyMySQL's errors."""
    if connection.flavor is Flavor.MARIADB:
        return True
    return str(connection.value("SELECT @@GLOBAL.gtid_mode")).upper() == "ON"
