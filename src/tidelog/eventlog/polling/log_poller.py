"""Asking an event log on an object store again and again whether it went on, by few requests.

A poll is one request, for the segment that would follow the end that is known. Whatever else may
have happened to the log matters once there is something to read, and `ChainReader.refresh` asks for
it then. What nothing would ever follow (an older state of the storage that was put back, another
log at the place, a successor that was rolled up or removed before it was seen) shows by the newest
segment that is known: it is not there as it was. That is checked more seldom.

Processes of one host share their polls, and need none while the log's writer runs there
(`tidelog.eventlog.polling.host_notes`).
"""

from __future__ import annotations

import math
import threading
import time
from typing import Final

from tidelog.eventlog.chain import ChainReader
from tidelog.eventlog.layout import segment_name
from tidelog.eventlog.polling.host_notes import HostNote, HostNotes

BUSY_EVERY_S: Final = 1.0
"""Between two polls of a log that has got records lately, within `BUSY_S`,"""
IDLE_EVERY_S: Final = 2.6
"""and of one that has not: 1,385 an hour."""
BUSY_S: Final = 20.0
CHECK_EVERY_S: Final = 60.0
"""Between two checks of the newest segment. Not longer than roll-up leaves a segment alone
(`EventLogMaintenance.rollup`): a reader that did not poll for as long checks at its next poll.
"""
_NOTES_EVERY_S: Final = 0.02


class LogPoller:
    """Polls for all who read by one `ChainReader`. Thread-safe."""

    def __init__(self, reader: ChainReader) -> None:
        self._reader = reader
        self._notes = HostNotes(reader.storage, reader.info.generation)
        self._lock = threading.Lock()
        self._end = self._acted_on = -1
        self._grew_at = self._polled_at = self._checked_at = -math.inf

    def poll(self, offset: int, wait_s: float = 0.0) -> bool:
        """May the log hold more than who has read to ``offset`` knows? Then `ChainReader.refresh`
        tells. Waits up to ``wait_s`` for it where polls are few.

        Raises StorageError.
        """
        if self._reader.storage.parallel == 1:
            return True
        deadline = time.monotonic() + wait_s
        while not self._went_on(offset):
            if time.monotonic() >= deadline:
                return False
            time.sleep(_NOTES_EVERY_S)
        return True

    def _went_on(self, offset: int) -> bool:
        chain, read_at = self._reader.known, self._reader.read_at
        if chain is None or chain.tail is None or chain.next != offset:
            return True
        with self._lock:
            end, note = chain.next, self._notes.read()
            if end != self._end:
                new = chain.between(self._end, end) if self._end >= 0 else ()
                # Not by positions alone, which capture of an idle source notes now and then.
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
            return check and not self._reader.stands()
        self._notes.reached(end + 1)
        return True

    def _is_due(self, note: HostNote, end: int) -> bool | None:
        """Is a poll due, with a check? None: neither."""
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
