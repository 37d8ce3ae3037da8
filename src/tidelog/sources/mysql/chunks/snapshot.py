"""What a chunk's SELECT could see, by places in the binlog."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tidelog.codecs.mysql.binlog.position import text
from tidelog.model.records import Bools, Int64s, XidRanges


@dataclass(frozen=True, slots=True)
class BinlogSnapshot:
    """Sees every transaction that begins before ``position`` in the binlog, and is taken to see no
    other: what else it did see is in the log behind, and is emitted again.

    A transaction's number is where it begins, so numbers and positions are compared alike.
    """

    position: int

    def visible(self, xid: Int64s) -> Bools:
        """bool[n]: does the transaction begin before the position?"""
        seen: Bools = xid < self.position
        return seen

    def invisible_ranges(self, upto_xid: int) -> XidRanges:
        """Everything from the position on."""
        ranges = [[self.position, upto_xid + 1]] if upto_xid >= self.position else []
        return np.array(ranges, np.int64).reshape(-1, 2)

    def follows(self, earlier: BinlogSnapshot) -> bool:
        """Is all visible here that was logged when ``earlier`` was taken?

        What had begun by then and was not yet logged does not count: such a transaction holds a
        metadata lock on the tables that it has used, so no DDL stands between it and its commit.
        """
        return self.position >= earlier.position

    def to_text(self) -> str:
        return f"binlog:{text(self.position)}"
