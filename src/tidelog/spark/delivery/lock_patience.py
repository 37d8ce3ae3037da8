"""Reads for verify give way to the application's locks, and are patient instead."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, TypeVar

from tidelog.errors import ChunkBusyError

PATIENCE_S: Final = 60.0
_PAUSE_S: Final = 0.2
_Answer = TypeVar("_Answer")


def while_busy(read: Callable[[], _Answer], patience_s: float = PATIENCE_S) -> _Answer:
    """What ``read`` gives, tried again while another session holds a lock that it waits for.

    A session of ours waits for a lock shorter than the server takes to look for a deadlock, so that
    it never is the application's statement that is ended. DDL may take longer than that.

    Raises ChunkBusyError once ``patience_s`` have passed.
    """
    deadline = time.monotonic() + patience_s
    while True:
        try:
            return read()
        except ChunkBusyError:
            if time.monotonic() >= deadline:
                raise
        time.sleep(_PAUSE_S)
