"""The rows of one SELECT, raw from the socket. Hot path of dumps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
import pymysql
from pymysql.constants import COMMAND, CR

from tidelog.codecs.mysql.rows.dump_rows import ResultError, ResultRows
from tidelog.model.records import LogBatch, UInt8s
from tidelog.model.schema import TableSchema
from tidelog.sources.mysql.connect import Connection

BUFFER_BYTES = 1 << 20
_EOF = 0xFE

T = TypeVar("T", bytes, int)


class RowReader:
    """Runs SELECTs over one connection at a time; its memory is a buffer and the rows' own.

    Used by one thread.
    """

    def __init__(self) -> None:
        self._buffer: UInt8s = np.empty(BUFFER_BYTES, dtype=np.uint8)
        # TLS sockets of early Python 3.11 ask a buffer for its truth, which arrays refuse to tell.
        self._view = self._buffer.data
        self.cut = False
        """Was the last statement ended at its limit?"""

    def read(
        self,
        connection: Connection,
        query: str,
        schema: TableSchema,
        limit_bytes: int = 0,
        stop: Callable[[], None] | None = None,
    ) -> LogBatch:
        """DUMP_ROW records of the rows, with the schema's columns.

        Once they take ``limit_bytes`` (0: they may take any number), ``stop`` has the server end
        the statement, and what comes still is passed over (`cut`).

        Raises PyMySQL's error for what the server says. ``query`` is a single statement: without
        CLIENT_MULTI_STATEMENTS the server refuses more, so a condition can't smuggle in a second
        one.
        """
        rows = ResultRows(schema)
        source: Any = connection
        source._execute_command(COMMAND.COM_QUERY, query)
        _skip_definitions(source)
        self.cut = False
        kept: LogBatch | None = None
        try:
            # What was read ahead with the definitions; from then on straight from the socket.
            rows.feed(_checked(source, lambda: source._rfile.read1(BUFFER_BYTES)))
            while not rows.ended:
                count = _checked(source, lambda: source._sock.recv_into(self._view))
                rows.feed(self._buffer[:count])
                if kept is not None:
                    rows.take()
                elif limit_bytes and rows.payload_bytes >= limit_bytes and not rows.ended:
                    kept, self.cut = rows.take(), True
                    if stop is not None:
                        stop()
        except ResultError as error:
            if kept is not None:  # as a rule that it was ended, by us or its time limit
                return kept
            # The message is left out: it may hold values.
            raise pymysql.err.OperationalError(error.code, "") from None
        except BaseException:
            connection.abandon()  # the rest of the rows would be taken for the next answer
            raise
        return rows.batch() if kept is None else kept


def _checked(source: Any, receive: Callable[[], T]) -> T:
    """What ``receive`` gives; raises PyMySQL's error if the connection is lost."""
    try:
        received = receive()
    except (OSError, ValueError, AttributeError):  # the latter: closed by another thread
        received = None
    if not received:
        source._force_close()
        raise pymysql.err.OperationalError(CR.CR_SERVER_LOST, "the connection was lost")
    return received


def _skip_definitions(source: Any) -> None:
    """Read up to the rows: the columns' number, their definitions, an EOF packet."""
    columns = source._read_packet().read_length_encoded_integer()
    for _ in range(columns + 1):
        packet = source._read_packet()
    if packet.get_all_data()[:1] != bytes([_EOF]):
        raise pymysql.err.InternalError(0, "a result set's definitions do not end")
