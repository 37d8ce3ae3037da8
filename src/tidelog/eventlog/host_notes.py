"""Notes that the processes of one host share about an event log on an object store, to save
requests: where the log ends, when that was last checked, and whether the log's writer runs on this
host.

A note is only a hint, in a file of the user in the directory for temporary files. No read or write
of the log depends on it: a process that can't use the file, or finds invalid content, sends its own
requests. Times are of the host's `boot_clock`.
"""

from __future__ import annotations

import os
import struct
import threading
import zlib
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from tidelog.eventlog.storage.port import Storage
from tidelog.system.boot_clock import boot_clock
from tidelog.system.private_files import create_file, temporary_directory

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
        """For the log's writer: note that it has appended all before ``end``, and nothing after
        it.
        """
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
        """The open file. Each process opens its own: a lock belongs to an open file. Raises
        OSError.
        """
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
