"""Polls an event log on an object store for new records, with few requests.

A poll is one request, for the segment that would follow the known end. Other changes of the log
matter only when there is something to read, and `ChainReader.refresh` checks for them then. Cases
in which nothing would ever follow (the storage was restored to an earlier state, another log is at
the place, a successor was rolled up or removed before it was seen) show in the newest known
segment: it has changed. That is checked less often.

Processes of one host share their polls, and need none while the log's writer runs there
(`tidelog.eventlog.host_notes`).
"""

from __future__ import annotations

import math
import threading
import time
from typing import Final

from tidelog.eventlog.chain import ChainReader
from tidelog.eventlog.host_notes import HostNote, HostNotes
from tidelog.eventlog.layout import segment_name

BUSY_EVERY_S: Final = 1.0
"""Seconds between two polls of a log that got records within the last `BUSY_S`,"""
IDLE_EVERY_S: Final = 2.6
"""and of one that did not: 1,385 polls an hour."""
BUSY_S: Final = 20.0
CHECK_EVERY_S: Final = 60.0
"""Seconds between two checks of the newest segment. Not longer than roll-up leaves a segment alone
(`EventLogMaintenance.rollup`): a reader that did not poll for this time checks at its next poll.
"""
_NOTES_EVERY_S: Final = 0.02


class LogPoller:
    """Polls for all users of one `ChainReader`. Thread-safe."""

    def __init__(self, reader: ChainReader) -> None:
        self._reader = reader
        self._notes = HostNotes(reader.storage, reader.info.generation)
        self._lock = threading.Lock()
        self._end = self._acted_on = -1
        self._grew_at = self._polled_at = self._checked_at = -math.inf

    def poll(self, offset: int, wait_s: float = 0.0) -> bool:
        """May the log have more than the caller, which has read to ``offset``, knows? Then
        `ChainReader.refresh` shows it. If polls are limited, waits up to ``wait_s`` for it.

        Raises StorageError.
        """
        if self._reader.storage.parallel == 1:
            return True
        deadline = time.monotonic() + wait_s
        while not self._may_have_grown(offset):
            if time.monotonic() >= deadline:
                return False
            time.sleep(_NOTES_EVERY_S)
        return True

    def _may_have_grown(self, offset: int) -> bool:
        chain, read_at = self._reader.known, self._reader.read_at
        if chain is None or chain.tail is None or chain.next != offset:
            return True
        with self._lock:
            end, note = chain.next, self._notes.read()
            if end != self._end:
                new = chain.between(self._end, end) if self._end >= 0 else ()
                # Positions alone do not count: capture of an idle source appends them from time to
                # time.
                self._grew_at = read_at if any(each.rows for each in new) else self._grew_at
                self._end, self._checked_at = end, read_at
            self._polled_at = max(self._polled_at, read_at)
            if note.end > end and note.end != self._acted_on:
                self._acted_on = note.end
                return True
            check = self._is_due(note, end)
        if check is None:
            return False
        if self._reader.storage.tag(segment_name(end)) is None:
            return check and not self._reader.tail_unchanged()
        self._notes.note_end(end + 1)
        return True

    def _is_due(self, note: HostNote, end: int) -> bool | None:
        """Is a poll due, and with a check (True)? None: no poll is due."""
        now = time.monotonic()
        every_s = BUSY_EVERY_S if now - self._grew_at < BUSY_S else IDLE_EVERY_S
        if note.end == end and note.has_writer():
            every_s = CHECK_EVERY_S
        if now - self._polled_at < every_s or not self._notes.claim(end, every_s):
            return None
        self._polled_at = now
        check = now - self._checked_at >= CHECK_EVERY_S
        self._checked_at = now if check else self._checked_at
        return check
