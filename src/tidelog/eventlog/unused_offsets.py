"""Keeps the offsets of an event log unique, even if an older copy of it was restored.

A leader does not know what was appended after the end that it finds: the log, together with its
state, may have been restored from a backup. So its fence skips all offsets that can have been
issued since that end was written (docs/adr/0034-no-offset-is-issued-twice.md). A reader whose
offset is inside the skipped range has read records that the log does not have any more.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Final

from tidelog.errors import OffsetAheadError
from tidelog.eventlog.chain import Chain, ChainReader
from tidelog.eventlog.layout import SegmentMeta
from tidelog.eventlog.storage.port import Storage

ISSUED_PER_MS: Final = 1 << 20
"""More offsets than any capture issues in a millisecond: 1 GiB of payload in a second."""
LEAST_SKIPPED: Final = 1 << 36
"""Offsets skipped at every start, for hosts whose clocks differ, by a minute or two at most."""
_LONGEST_MS: Final = 1 << 35
"""About a year: a clock that is wrong by decades must not use up the offsets."""
_LATE_LISTING_S: Final = 2.0
_RETRY_S: Final = 0.2
_SEEN_MARGIN: Final = 1 << 40


def first_offset_after(tail: SegmentMeta, seen: int | None) -> int:
    """The offset at which a leader that finds ``tail`` begins.

    ``seen``: other processes know that offsets below it were issued. None: begin at ``tail``, for a
    caller that knows that nothing followed it.
    """
    if seen is None:
        return tail.next
    passed_ms = min(max(0, time.time_ns() // 1_000_000 - tail.created_ms), _LONGEST_MS)
    begin = tail.next + LEAST_SKIPPED + passed_ms * ISSUED_PER_MS
    return begin if seen <= tail.next else max(begin, seen + _SEEN_MARGIN)


def diverges_at(chain: Chain, offset: int) -> int | None:
    """Where this log diverges from one that had ``offset``; None: they are equal up to there."""
    if offset > chain.next:
        return chain.next
    segment = chain.covering(offset)
    for first, following in () if segment is None else segment.unused:
        if first < offset < following:
            return first
    return None


def check_offsets(reader: ChainReader, offsets: Sequence[int], who: str) -> None:
    """Raises OffsetAheadError if `diverges_at` finds one of these offsets. A listing may be late:
    it is repeated for some time, and each time what would follow is requested.
    """
    chain = reader.refresh(max(offsets, default=None))
    deadline = time.monotonic() + _LATE_LISTING_S
    for offset in offsets:
        while offset > chain.next and time.monotonic() < deadline:
            time.sleep(_RETRY_S)
            chain = reader.refresh()
        if diverges_at(chain, offset) is None:
            continue
        chain = reader.walk()
        parted = diverges_at(chain, offset)
        if parted is not None:
            raise _ahead_error(reader.storage, chain, offset, parted, who)


def _ahead_error(
    storage: Storage, chain: Chain, offset: int, end: int, who: str
) -> OffsetAheadError:
    """The error for a reader at ``offset`` whose log diverged from this one at ``end``."""
    ends = "ends" if end == chain.next else "ended when it was restored"
    return OffsetAheadError(
        f"{storage!r}: {who} stands at offset {offset}, but the event log {ends} at {end}: "
        "it was restored to an earlier state, or lost its end. What was read from there on is not "
        "in the log. Give an output a new name and an empty place: a copy would keep rows that are "
        "not in the log, and events would be delivered twice. Any other reader can resume at "
        f"offset {end}: docs/how-to/restore.md"
    )


def count_unused(chain: Chain, start: int, end: int) -> int:
    """The number of offsets in ``[start, end)`` that a leader skipped."""
    return sum(
        max(0, min(end, following) - max(start, first))
        for segment in chain.between(start, end)
        for first, following in segment.unused
    )
