"""Prints lines of stderr above a redrawn picture.

They come from this process, and from Spark's Java and Python workers, which write to the file
descriptor and not to ``sys.stderr``.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from types import TracebackType

_STDERR = 2
_END = b"\0tidelog-end\n"
_PATIENCE_S = 1.0


class StderrLines:
    """Passes lines of stderr to ``say`` while it is open, if stderr is a terminal.

    A context manager.
    """

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._original: int | None = None
        self._ended = threading.Event()

    def __enter__(self) -> StderrLines:
        if os.isatty(_STDERR):
            sys.stderr.flush()
            self._original = os.dup(_STDERR)
            read, write = os.pipe()
            os.dup2(write, _STDERR)
            os.close(write)
            threading.Thread(target=self._forward, args=(read,), daemon=True).start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._original is None:
            return
        sys.stderr.flush()
        os.write(_STDERR, _END)
        os.dup2(self._original, _STDERR)
        self._ended.wait(_PATIENCE_S)

    def _forward(self, read: int) -> None:
        """Forward lines until the last process that has this stderr has ended."""
        with os.fdopen(read, "rb") as lines:
            for line in lines:
                if line.endswith(_END):
                    line, _, _ = line.partition(_END)
                    self._ended.set()
                    if not line:
                        continue
                text = line.decode("utf-8", "replace").rstrip("\r\n")
                if not self._ended.is_set():
                    self._say(text)
                elif self._original is not None:
                    os.write(self._original, f"{text}\n".encode())
