"""Retries reads for verify that wait for locks of the application."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, TypeVar

from tidelog.errors import ChunkBusyError

PATIENCE_S: Final = 60.0
_PAUSE_S: Final = 0.2
_Answer = TypeVar("_Answer")


def retry_while_busy(read: Callable[[], _Answer], patience_s: float = PATIENCE_S) -> _Answer:
    """Returns the result of ``read``, retried while another session holds a lock that it waits for.

    A session of ours waits for a lock shorter than the server's deadlock timeout, so that the
    server never aborts the application's statement. DDL may take longer than that. Raises
    ChunkBusyError after ``patience_s``.
    """
    deadline = time.monotonic() + patience_s
    while True:
        try:
            return read()
        except ChunkBusyError:
            if time.monotonic() >= deadline:
                raise
        time.sleep(_PAUSE_S)
