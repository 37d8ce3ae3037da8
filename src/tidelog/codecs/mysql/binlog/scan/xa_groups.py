"""Tracks XA transactions in a scan: which are prepared, and when their rows are yielded."""

from __future__ import annotations

import re
from collections.abc import Iterator

from tidelog.codecs.mysql.binlog.events.xa import parse_xa_prepare
from tidelog.codecs.mysql.binlog.items import RowsOfPreparedTransaction, XaSeen, XaState
from tidelog.codecs.mysql.binlog.kernels import slots as kernel
from tidelog.codecs.mysql.binlog.scan.state import FAULTS, ScanState

_XID = re.compile(r"X'[0-9a-f]*'\s*,\s*X'[0-9a-f]*'\s*,\s*-?\d+", re.IGNORECASE)


class XaGroups:
    """The XA groups of one scan.

    Args:
        state: the scan's state.
        resumed_at: the scan's resume position.
        as_of: if set, yield the rows of prepared groups, as rows of the group that committed them.
    """

    def __init__(
        self, state: ScanState, resumed_at: int, as_of: RowsOfPreparedTransaction | None
    ) -> None:
        self._state = state
        self._resumed_at = resumed_at
        self._as_of = as_of
        self._prepared: dict[bytes, int] = {}

    @property
    def oldest_prepared(self) -> int | None:
        """The beginning of the oldest XA transaction that is prepared and neither committed nor
        rolled back; None: there is none.
        """
        return min(self._prepared.values(), default=None)

    def await_commit(self, xid: bytes) -> None:
        """Note that the group prepares an XA transaction: its rows wait for the commit."""
        state = self._state.slots
        self._state.xid = xid
        state[kernel.BEGUN] = 1
        if self._as_of is None:
            state[kernel.HELD] = 1
        else:
            state[kernel.RECORD_POSITION] = self._as_of.position
            state[kernel.COMMIT_TS] = self._as_of.commit_ts

    def statement(self, sql: str, words: tuple[str, ...]) -> Iterator[XaSeen]:
        """Process an XA statement with these first words."""
        verb = words[1] if len(words) > 1 else ""
        match = _XID.search(sql)
        xid = match.group().lower().replace("x'", "X'").replace(" ", "").encode() if match else b""
        if verb in ("START", "BEGIN"):
            if not xid:
                raise ValueError("xid")
            self.await_commit(xid)
        elif verb in ("COMMIT", "ROLLBACK"):
            if not xid:
                raise ValueError("xid")
            self._prepared.pop(xid, None)
            xa_state = XaState.COMMITTED if verb == "COMMIT" else XaState.ROLLED_BACK
            yield self._seen(xid, xa_state)
            self._state.close()
        elif verb != "END":
            raise self._state.fault(f"statement XA {verb} is not expected")

    def prepare(self, body: bytes) -> Iterator[XaSeen]:
        """Process an XA_PREPARE event."""
        if not self._state.xid:
            raise self._state.fault(f"XA_PREPARE event {FAULTS[kernel.OUTSIDE]}")
        xid, one_phase = parse_xa_prepare(body)
        if xid != self._state.xid:
            raise self._state.fault(
                "XA_PREPARE event does not end the XA transaction that was begun"
            )
        if self._as_of is None:
            if not one_phase:
                self._prepared[xid] = int(self._state.slots[kernel.GROUP_START])
            yield self._seen(xid, XaState.ONE_PHASE if one_phase else XaState.PREPARED)
        self._state.close()

    def _seen(self, xid: bytes, xa_state: XaState) -> XaSeen:
        state = self._state.slots
        begin = int(state[kernel.GROUP_START])
        end = int(state[kernel.FILE] | state[kernel.EVENT_END])
        durable = begin < self._resumed_at
        return XaSeen(xid, xa_state, begin, end, int(state[kernel.COMMIT_TS]), durable)

    def require_outside_xa(self, what: str) -> None:
        """Raise DecodeError if the current group's rows wait for a commit."""
        if self._state.slots[kernel.HELD]:
            raise self._state.fault(f"{what} is inside an XA transaction")
