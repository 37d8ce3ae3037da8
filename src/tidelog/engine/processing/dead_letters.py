"""Events that the program's code can't take: told in a file, and passed over."""

from __future__ import annotations

import json
import os
from pathlib import Path

from tidelog.engine.events import Event
from tidelog.errors import ConsumerError
from tidelog.system.private_files import create_directory, create_file


class DeadLetters:
    """A JSON line for each event: database, table, version, op and reason, no values.

    Thread-safe, also between processes. A line is durable when `put` returns, so no offset is
    committed past an event that nobody is told of. An event that comes again may be told again.
    """

    def __init__(self, file: Path) -> None:
        self._file = file

    def put(self, event: Event, error: ConsumerError) -> None:
        """Raises OSError."""
        line = {
            "database": event.source.database,
            "table": str(event.table),
            "version": event.version,
            "op": event.op,
            "reason": str(error),
        }
        create_directory(self._file.parent)
        descriptor = create_file(self._file, os.O_WRONLY | os.O_APPEND)
        try:
            os.write(descriptor, f"{json.dumps(line)}\n".encode())
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
