"""Call a function at an interval while a block runs."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def repeatedly(call: Callable[[], object], every_s: float) -> Iterator[None]:
    """Calls on a thread of its own; the last call has returned when the block is left."""
    done = threading.Event()

    def run() -> None:
        while not done.wait(every_s):
            call()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
