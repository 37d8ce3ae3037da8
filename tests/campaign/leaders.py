"""Invariant 7, by what leaders did: whoever lost its lease adds no record and changes no state.

Pure: the notes of all processes (`tests.campaign.witness`) and the segments of the event log come
in, the first rule that was broken comes out as a `HistoryError`. Each rule is held for itself. What
stands behind it would save the event log, so a reader of that does not see that it is gone.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Final

from tests.campaign.witness import Note
from tests.support.oracle.history import HistoryError

from tidelog.eventlog.segments import SegmentMeta

LATE_APPEND: Final = "appended after its lease had ended"
LATE_STATE_WRITE: Final = "changed the state after its lease had ended"
NOT_FENCED: Final = "appended after a later leader had begun"
EPOCH_NOT_RAISED: Final = "leads with an epoch that is not above all before"
STATE_NOT_FENCED: Final = "changed what a later leader had read or changed"

CHANGES: Final = ("put", "delete")


def judge(notes: Sequence[Note], segments: Iterable[SegmentMeta]) -> None:
    """Raise HistoryError."""
    _within_the_lease(notes, ("append",), LATE_APPEND)
    _within_the_lease(notes, CHANGES, LATE_STATE_WRITE)
    _epochs_rise(notes)
    _shut_out_of_the_log(notes, segments)
    _shut_out_of_the_state(notes)


def _within_the_lease(notes: Sequence[Note], acts: Sequence[str], broken: str) -> None:
    """Was there a lease that lasted when it was looked at, between the call and what was done?"""
    leases = defaultdict(list)
    for note in notes:
        if note.what == "lease":
            leases[note.pid, note.epoch].append(note)
    for act in notes:
        if act.what not in acts:
            continue
        told = leases[act.pid, act.epoch]
        # What happens between the look and an append is not seen: it was before its end, at least.
        until = act.begun if act.what in CHANGES else act.ended
        if not any(one.called <= until and act.called < one.deadline for one in told):
            late = act.called - max((one.deadline for one in told), default=0.0)
            where = act.key or f"offset {act.offset}"
            raise HistoryError(f"the leader of epoch {act.epoch} {broken} ({where}, {late:.2f} s)")


def _epochs_rise(notes: Sequence[Note]) -> None:
    """In the order in which they took the event log over, which is that of its offsets."""
    leads = sorted((note for note in notes if note.what == "leads"), key=_place)
    for before, after in pairwise(leads):
        if after.epoch <= before.epoch:
            raise HistoryError(
                f"process {after.pid} {EPOCH_NOT_RAISED}: {before.epoch}, then {after.epoch}"
            )


def _shut_out_of_the_log(notes: Sequence[Note], segments: Iterable[SegmentMeta]) -> None:
    leads = sorted((note for note in notes if note.what == "leads"), key=_place)
    begins = [note.offset for note in leads]
    for segment in segments:
        index = bisect_left(begins, segment.first + 1) - 1
        if index >= 0 and segment.epoch < leads[index].epoch:
            raise HistoryError(
                f"the leader of epoch {segment.epoch} {NOT_FENCED}: offset {segment.first}, that "
                f"of epoch {leads[index].epoch} began at {leads[index].offset}"
            )


def _shut_out_of_the_state(notes: Sequence[Note]) -> None:
    """What was begun after a later leader's change, or look, was over, must be refused. Of a
    document that is gone nobody knows whose it was.
    """
    by_key = defaultdict(list)
    for note in notes:
        if note.what in ("get", *CHANGES) and note.done:
            by_key[note.key].append(note)
    for key, acts in by_key.items():
        seen = sorted(acts, key=lambda note: note.ended)
        ends = [note.ended for note in seen]
        newest = [0]  # the greatest epoch of what was over by then
        for note in seen:
            newest.append(0 if note.what == "delete" else max(note.epoch, newest[-1]))
        for act in acts:
            before = newest[bisect_left(ends, act.begun)]
            if act.what in CHANGES and before > act.epoch:
                raise HistoryError(
                    f"the leader of epoch {act.epoch} {STATE_NOT_FENCED}: {key}, of epoch {before}"
                )


def _place(note: Note) -> tuple[int, float]:
    return note.offset, note.ended
