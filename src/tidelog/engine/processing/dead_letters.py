"""Dead letters: events that the program's code rejects are written to a file and skipped."""

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
"""The document about an event."""


class DeadLetterSink(Protocol):
    """Receives the events that a chain skips."""

    def put(self, event: Event, error: ConsumerError) -> None: ...

    def write(self, letter: Letter) -> None:
        """Write a letter that another sink received, as `put` does."""
        ...


class BufferedDeadLetters:
    """Buffers letters until they are sent to the sink that writes them."""

    def __init__(self) -> None:
        self.held: list[Letter] = []

    def put(self, event: Event, error: ConsumerError) -> None:
        self.write(_letter(event, error))

    def write(self, letter: Letter) -> None:
        self.held.append(letter)


class DeadLetterFile:
    """Writes a JSON line for each event: database, table, version, op and reason, no values.

    Thread-safe, also between processes. A line is durable when `put` returns, so no offset is
    committed past an event that was not reported. A repeated event may be reported again. A line
    that was written only in part remains and is invalid: the next one begins after it.
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
        # Each time: the creator of the file may have died before its name was durable.
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
    """Append the line in one write, so that lines of several processes do not mix."""
    size = os.fstat(descriptor).st_size
    if size and os.pread(descriptor, 1, size - 1) != b"\n":
        line = b"\n" + line
    if os.write(descriptor, line) != len(line):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
