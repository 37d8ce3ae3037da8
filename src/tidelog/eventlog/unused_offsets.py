"""What keeps the numbers of an event log unique, also where an older copy of it was put back.

A leader does not know what was appended behind the end that it finds: the log, and its state with
it, may have been restored from a backup. So its fence leaves out all offsets that can have been
issued since that end was written (docs/adr/0034-no-offset-is-issued-twice.md). A reader that stands
inside of what was left out has read records that the log does not hold any more.
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
LEAST_LEFT_OUT: Final = 1 << 36
"""At every start, for hosts whose clocks differ, by a minute or two at most."""
_LONGEST_MS: Final = 1 << 35
"""About a year: a clock that is wrong by decades must not use up the numbers."""
_LATE_LISTING_S: Final = 2.0
_LOOK_AGAIN_S: Final = 0.2
_SEEN_MARGIN: Final = 1 << 40


def first_offset_after(tail: SegmentMeta, seen: int | None) -> int:
    """Where a leader begins that finds ``tail``.

    ``seen``: others know that offsets below it were issued. None: at ``tail``, for whoever knows
    that nothing followed it.
    """
    if seen is None:
        return tail.next
    passed_ms = min(max(0, time.time_ns() // 1_000_000 - tail.created_ms), _LONGEST_MS)
    begin = tail.next + LEAST_LEFT_OUT + passed_ms * ISSUED_PER_MS
    return begin if seen <= tail.next else max(begin, seen + _SEEN_MARGIN)


def diverges_at(chain: Chain, offset: int) -> int | None:
    """Where this log diverges from one that had ``offset``; None: they are the same up to there."""
    if offset > chain.next:
        return chain.next
    segment = chain.covering(offset)
    for first, following in () if segment is None else segment.unused:
        if first < offset < following:
            return first
    return None


def check_offsets(reader: ChainReader, offsets: Sequence[int], who: str) -> None:
    """Raises OffsetAheadError if there is one of these that `diverges_at` finds. A listing may be
    late: it is looked again for a while, and each look asks for what would follow.
    """
    chain = reader.refresh(max(offsets, default=None))
    deadline = time.monotonic() + _LATE_LISTING_S
    for offset in offsets:
        while offset > chain.next and time.monotonic() < deadline:
            time.sleep(_LOOK_AGAIN_S)
            chain = reader.refresh()
        if diverges_at(chain, offset) is None:
            continue
        chain = reader.walk()
        parted = diverges_at(chain, offset)
        if parted is not None:
            raise _ahead(reader.storage, chain, offset, parted, who)


def _ahead(storage: Storage, chain: Chain, offset: int, end: int, who: str) -> OffsetAheadError:
    """For who stands at ``offset``, where the log it has read parted from this one at ``end``."""
    ends = "ends" if end == chain.next else "ended when it was restored"
    return OffsetAheadError(
        f"{storage!r}: {who} stands at offset {offset}, but the event log {ends} at {end}: "
        "it was put back to an earlier state, or lost its end. What was read from there on is not "
        "in the log. An output goes on under a name that it never had, and at an empty place: a "
        "copy would keep rows of what is not in the log, and events would be told twice. Any other "
        f"reader goes on from the offset {end}: docs/how-to/restore.md"
    )


def count_unused(chain: Chain, start: int, end: int) -> int:
    """How many of ``[start, end)`` no record has because a leader left them out."""
    return sum(
        max(0, min(end, following) - max(start, first))
        for segment in chain.between(start, end)
        for first, following in segment.unused
    )
