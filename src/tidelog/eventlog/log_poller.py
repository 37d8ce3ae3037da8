"""Polls an event log on an object store for new records, with few requests.

A poll is one request, for the segment that would follow the known end. Other changes of the log
matter only when there is something to read, and `ChainReader.refresh` checks for them then. Cases
in which nothing would ever follow (the storage was restored to an earlier state, another log is at
the place, a successor was rolled up or removed before it was seen) show in the newest known
segment: it has changed. That is checked less often.

Processes of one host share notes: where the log ends, when that was last checked, and whether the
log's writer runs on this host. So they share their polls, and need none while the writer does. A
note is only a hint, in a file of the user in the directory for temporary files. No read or write of
the log depends on it: a process that can't use the file, or finds invalid content, sends its own
requests. Times are of the host's `boot_clock`.
"""

from __future__ import annotations

import math
import os
import struct
import threading
import time
import zlib
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from tidelog.eventlog.chain import ChainReader
from tidelog.eventlog.segments import segment_name
from tidelog.eventlog.storage_port import Storage
from tidelog.system.private_files import create_file, temporary_directory
from tidelog.system.processes import boot_clock

# The notes of a host.

_CONTENT: Final = struct.Struct("<qdd")  # a `HostNote`: the poll's part, then the writer's
_POLLED, _WRITER = struct.Struct("<qd"), struct.Struct("<d")
WRITER_SILENT_S: Final = 3.0
"""A writer that has noted nothing for this time may have ended, or run on another host."""

_NOTE_EVERY_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class HostNote:
    """``end``: offset at which the log ended. ``polled_at``: when a process last checked whether
    more follows it; ``written_at``: when the log's writer last noted that it runs.
    """

    end: int = 0
    polled_at: float = 0.0
    written_at: float = 0.0

    def has_writer(self) -> bool:
        """Does the log's writer run on this host? Then it notes what it appends."""
        return 0 <= boot_clock() - self.written_at < WRITER_SILENT_S

    def is_polled(self, end: int, every_s: float) -> bool:
        """Did a process check what follows ``end`` within the last ``every_s``?"""
        return self.end == end and 0 <= boot_clock() - self.polled_at < every_s


class HostNotes:
    """The note of one log; none for a log in a directory, which each process can check.
    Thread-safe. Failed reads and writes are ignored.
    """

    def __init__(self, storage: Storage, generation: str) -> None:
        self._is_kept = storage.parallel > 1
        self._name = f"log-{generation}-{zlib.crc32(repr(storage).encode()):08x}"
        self._lock = threading.Lock()
        self._opened = (-1, -1)  # descriptor, and the process that opened it
        self._noted_at = 0.0

    def read(self) -> HostNote:
        """The note; empty if there is none."""
        with self._lock, suppress(OSError):
            return _read(self._file())
        return HostNote()

    def claim(self, end: int, every_s: float) -> bool:
        """Should this process check what follows ``end``? Not if one of this host has done so, or
        is about to, within the last ``every_s``.

        There is no lock, which a frozen process would keep: two may check at once; and if this
        overwrites the note of a segment that was just appended, the check finds it.
        """
        if self.read().is_polled(end, every_s):
            return False
        self._write(_POLLED, end, boot_clock())
        return True

    def note_end(self, end: int) -> None:
        """Note that the log continues, to ``end`` at least."""
        self._write(_POLLED, end, 0.0)

    def note_append(self, end: int) -> None:
        """For the log's writer: note that all before ``end`` is appended, and no more."""
        now = self._noted_at = boot_clock()
        self._write(_CONTENT, end, now, now)

    def note_alive(self) -> None:
        """For the log's idle writer: note that it runs. May be called at any time."""
        now = boot_clock()
        if now - self._noted_at >= _NOTE_EVERY_S:
            self._noted_at = now
            self._write(_WRITER, now, at=_POLLED.size)

    def _write(self, part: struct.Struct, *values: float, at: int = 0) -> None:
        with self._lock, suppress(OSError):
            os.pwrite(self._file(), part.pack(*values), at)

    def _file(self) -> int:
        """The open file, one a process: a lock belongs to an open file. Raises OSError."""
        if not self._is_kept:
            raise FileNotFoundError(self._name)
        path = temporary_directory("tidelog") / self._name
        file, process = self._opened
        if process == os.getpid():
            with suppress(FileNotFoundError):  # systems remove old files from /tmp
                if os.path.samestat(os.fstat(file), path.stat()):
                    return file
            os.close(file)
            self._opened = (-1, -1)
        file = create_file(path, os.O_RDWR | os.O_CLOEXEC)
        self._opened = (file, os.getpid())
        return file


def _read(file: int) -> HostNote:
    return HostNote(*_CONTENT.unpack(os.pread(file, _CONTENT.size, 0).ljust(_CONTENT.size, b"\0")))


# The polls.

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
