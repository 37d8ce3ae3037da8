"""PostgreSQL snapshots, as ``pg_current_snapshot()`` writes them: ``xmin:xmax:xip,xip,…``."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tidelog.model.records import Bools, Int64s


@dataclass(frozen=True, slots=True, eq=False)
class PgSnapshot:
    """What a statement could see, in 64-bit transaction ids.

    ``xip`` holds the transactions in progress, sorted, all of them in ``[xmin, xmax)``.
    """

    xmin: int
    xmax: int
    xip: Int64s

    @classmethod
    def from_text(cls, text: str) -> PgSnapshot:
        xmin, xmax, in_progress = text.split(":")
        xip = np.array([int(xid) for xid in in_progress.split(",") if xid], dtype=np.int64)
        xip.sort()
        return cls(int(xmin), int(xmax), xip)

    def visible(self, xid: Int64s) -> Bools:
        """bool[n]: as ``pg_visible_in_snapshot``, for transactions that are known to be committed
        in the log; xid 0 (not a transaction's) is visible.
        """
        old: Bools = xid < self.xmin
        if not len(self.xip):
            return xid < self.xmax
        place = np.minimum(np.searchsorted(self.xip, xid), len(self.xip) - 1)
        running = self.xip[place] == xid
        seen: Bools = old | ((xid < self.xmax) & ~running)
        return seen

    def invisible(self, upto_xid: int) -> Int64s:
        """Those in progress, and what began after the snapshot, up to ``upto_xid``."""
        later = np.arange(self.xmax, upto_xid + 1, dtype=np.int64)
        return np.concatenate([self.xip[self.xip <= upto_xid], later])

    def follows(self, earlier: PgSnapshot) -> bool:
        return self.xmin >= earlier.xmax

    def to_text(self) -> str:
        return f"{self.xmin}:{self.xmax}:{','.join(str(xid) for xid in self.xip)}"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PgSnapshot) and self.to_text() == other.to_text()

    def __hash__(self) -> int:
        return hash(self.to_text())
