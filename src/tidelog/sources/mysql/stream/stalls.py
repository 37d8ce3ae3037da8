"""Notices that the log began anew while a stream of it is at rest.

After RESET MASTER a server goes on with the file that it deleted: it sends nothing but heartbeats,
which say that all is well, until the new log has grown beyond the old place. Once connected anew,
the reader sees what has become of the log.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from tidelog.codecs.mysql.binlog.position import text
from tidelog.errors import ConnectionLostError
from tidelog.sources.mysql.connect import Connection
from tidelog.sources.mysql.errors import translated
from tidelog.sources.mysql.stream.positions import RESET, log_end

# How often a stream at rest is compared with the log's end.
ASK_S = 5.0


class StallWatch:
    """Of one log reader. Used by one thread.

    Args:
        connected: gives an SQL connection.
    """

    def __init__(self, connected: Callable[[], Connection]) -> None:
        self._connected = connected
        self._position = -1
        self._asked = 0.0

    def check(self, position: int) -> None:
        """Call it after each poll with the stream's position.

        Raises ConnectionLostError if the server's log ends before.
        """
        now = time.monotonic()
        if position != self._position:
            self._position, self._asked = position, now
            return
        if now - self._asked < ASK_S:
            return
        self._asked = now
        with translated("asking where the binlog ends"):
            end = log_end(self._connected()).position
        if end < position:
            raise ConnectionLostError(
                f"the binlog ends at {text(end)}, but was read up to {text(position)}: it began "
                f"anew ({RESET}), or the server is another one"
            )
