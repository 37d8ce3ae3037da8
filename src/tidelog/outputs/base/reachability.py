"""Checks for `tidelog check` whether this host can reach destinations. Nothing is written."""

from __future__ import annotations

import os
import re
import socket
from pathlib import Path

from tidelog.errors import OutputError, OutputRefusedError

ANSWER_S = 5.0
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:/")


def check_directory_access(path: str) -> str | None:
    """Returns what is found in the directory for files, or None for a URL, which only Spark's file
    systems can reach. Raises OutputRefusedError.
    """
    if _URL.match(path):
        return None
    place = existing = Path(path)
    try:
        if place.exists() and not place.is_dir():
            raise OutputRefusedError(f"{path} is not a directory: choose another path")
        while not existing.exists():
            existing = existing.parent
    except OSError as error:
        why = error.strerror or type(error).__name__
        raise OutputRefusedError(f"{path} can't be checked: {why}") from None
    if not os.access(existing, os.W_OK | os.X_OK):
        raise OutputRefusedError(
            f"{existing} can't be written: choose another path, or change its permissions"
        )
    return f"{path} can be written" if place.exists() else f"{path} will be created"


def check_port(host: str, port: int) -> str:
    """Returns a message that the port accepts connections. Raises OutputError if it does not."""
    try:
        with socket.create_connection((host, port), timeout=ANSWER_S):
            return f"{host}:{port} accepts connections"
    except OSError as error:
        why = error.strerror or type(error).__name__
        raise OutputError(f"{host}:{port} can't be reached: {why}") from None
