"""What `tidelog check` asks of destinations: can this host reach them? Nothing is written."""

from __future__ import annotations

import os
import socket
from pathlib import Path

from tidelog.errors import OutputError, OutputRefusedError

ANSWER_S = 5.0


def directory_ready(path: str) -> str | None:
    """What is found in the directory for files; None for a URL, which only Spark's file systems can
    reach. Raises OutputRefusedError.
    """
    if "://" in path:
        return None
    place = Path(path)
    if place.exists() and not place.is_dir():
        raise OutputRefusedError(f"{path} is not a directory: choose another path")
    there = place
    while not there.exists():
        there = there.parent
    if not os.access(there, os.W_OK | os.X_OK):
        raise OutputRefusedError(f"{there} can't be written: choose another path, or its rights")
    return f"{path} can be written" if place.exists() else f"{path} will be created"


def accepts(host: str, port: int) -> str:
    """Raises OutputError if no connection can be made."""
    try:
        with socket.create_connection((host, port), timeout=ANSWER_S):
            return f"{host}:{port} accepts connections"
    except OSError as error:
        why = error.strerror or type(error).__name__
        raise OutputError(f"{host}:{port} can't be reached: {why}") from None
