"""Single keys, without Enter."""

from __future__ import annotations

import os
import select
import sys
import termios
import time
import tty
from collections.abc import Iterator
from types import TracebackType
from typing import Final

from tidelog.cli import exit_codes

_NAMED: Final = {
    "\033[A": "up", "\033[B": "down", "\033[C": "right", "\033[D": "left",
    "\033OA": "up", "\033OB": "down", "\033OC": "right", "\033OD": "left",
}  # fmt: skip


class Keys:
    """Keys from the terminal, while this process is in the foreground. Ctrl-C stays a signal. A
    context manager.
    """

    def __init__(self) -> None:
        self._terminal = sys.stdin.fileno() if sys.stdin is not None and sys.stdin.isatty() else -1
        self._before: list[object] | None = None

    def __enter__(self) -> Keys:
        exit_codes.before_exit.append(self._restore)
        self._take()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._restore()
        exit_codes.before_exit.remove(self._restore)

    def pressed(self, timeout_s: float) -> list[str]:
        """What was pressed, waiting at most so long for the first: characters, ``up``, ``left``."""
        if not self._take():
            time.sleep(timeout_s)
            return []
        ready, _, _ = select.select([self._terminal], [], [], timeout_s)
        if not ready:
            return []
        try:
            read = os.read(self._terminal, 64)
        except OSError:
            read = b""
        if not read:  # the terminal is gone
            self._terminal = -1
        return list(_keys(read.decode("utf-8", "replace")))

    def _take(self) -> bool:
        """May keys be read? Whoever reads from the background is stopped. A shell that brings a
        process back to the foreground has set the terminal as it likes it.
        """
        if self._terminal < 0:
            return False
        try:
            if os.tcgetpgrp(self._terminal) != os.getpgrp():
                return False
            now = termios.tcgetattr(self._terminal)
            if now[3] & termios.ICANON:
                self._before = now
                tty.setcbreak(self._terminal, termios.TCSANOW)
        except (OSError, termios.error):
            self._terminal = -1
            return False
        return True

    def _restore(self) -> None:
        before, self._before = self._before, None
        if before is None:
            return
        try:
            if os.tcgetpgrp(self._terminal) == os.getpgrp():
                termios.tcsetattr(self._terminal, termios.TCSANOW, before)  # type: ignore[arg-type]
        except (OSError, termios.error):
            pass  # the terminal is gone


def _keys(text: str) -> Iterator[str]:
    while text:
        found = next((code for code in _NAMED if text.startswith(code)), None)
        yield _NAMED[found] if found else text[0]
        text = text[len(found or text[0]) :]
