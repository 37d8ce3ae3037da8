"""Events that the program's code can't take: told in a file, and passed over."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any, Protocol

from tidelog.engine.events import Event
from tidelog.errors import ConsumerError
from tidelog.system.private_files import create_directory, create_file, fsync_directory

Letter = dict[str, Any]
"""What is told of an event."""


class DeadLetterSink(Protocol):
    """Takes the events that a chain passes over."""

    def put(self, event: Event, error: ConsumerError) -> None: ...

    def write(self, letter: Letter) -> None:
        """Write letters that were put elsewhere, as `put` does."""
        ...


class BufferedDeadLetters:
    """Holds letters until they are sent to where they are written."""

    def __init__(self) -> None:
        self.held: list[Letter] = []

    def put(self, event: Event, error: ConsumerError) -> None:
        self.write(_letter(event, error))

    def write(self, letter: Letter) -> None:
        self.held.append(letter)


class DeadLetterFile:
    """A JSON line for each event: database, table, version, op and reason, no values.

    Thread-safe, also between processes. A line is durable when `put` returns, so no offset is
    committed past an event that nobody is told of. An event that comes again may be told again. A
    line that could be written in part only stays, and is none: the next one begins behind it.
    """

    def __init__(self, file: Path) -> None:
        self._file = file

    def put(self, event: Event, error: ConsumerError) -> None:
        """Raises OSError."""
        self.write(_letter(event, error))

    def write(self, letter: Letter) -> None:
        """Raises OSError."""
        directory = self._file.parent
        if not directory.is_dir():
            create_directory(directory)
            fsync_directory(directory.parent)
        descriptor = create_file(self._file, os.O_RDWR | os.O_APPEND)
        try:
            _append(descriptor, f"{json.dumps(letter)}\n".encode())
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        # Each time: who made the file may have died before its name was durable.
        fsync_directory(directory)


def _letter(event: Event, error: ConsumerError) -> Letter:
    return {
        "database": event.source.database,
        "table": str(event.table),
        "version": event.version,
        "op": event.op,
        "reason": str(error),
    }


def _append(descriptor: int, line: bytes) -> None:
    """In one write, so that lines of several processes do not mix."""
    size = os.fstat(descriptor).st_size
    if size and os.pread(descriptor, 1, size - 1) != b"\n":
        line = b"\n" + line
    if os.write(descriptor, line) != len(line):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
