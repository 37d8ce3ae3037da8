"""Reads single keys, without Enter."""

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
    """Reads keys from the terminal while this process is in the foreground. A context manager.

    Ctrl-C stays a signal.
    """

    def __init__(self) -> None:
        self._terminal = sys.stdin.fileno() if sys.stdin is not None and sys.stdin.isatty() else -1
        self._saved_mode: list[object] | None = None

    def __enter__(self) -> Keys:
        exit_codes.before_exit.append(self._restore)
        self._set_mode()
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
        """Return the keys that were pressed: characters, or ``up``, ``left``, …

        Waits at most ``timeout_s`` for the first one.
        """
        if not self._set_mode():
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

    def _set_mode(self) -> bool:
        """Take the terminal; return whether keys may be read.

        A process that reads from the background would be stopped. A shell that brings a process
        back to the foreground has changed the terminal's mode.
        """
        if self._terminal < 0:
            return False
        try:
            if os.tcgetpgrp(self._terminal) != os.getpgrp():
                return False
            now = termios.tcgetattr(self._terminal)
            if now[3] & termios.ICANON:
                self._saved_mode = now
                tty.setcbreak(self._terminal, termios.TCSANOW)
        except (OSError, termios.error):
            self._terminal = -1
            return False
        return True

    def _restore(self) -> None:
        before, self._saved_mode = self._saved_mode, None
        if before is None:
            return
        try:
            if os.tcgetpgrp(self._terminal) == os.getpgrp():
                termios.tcsetattr(self._terminal, termios.TCSANOW, before)  # type: ignore[arg-type]
        except (OSError, termios.error):
            pass  # the terminal is gone


def _keys(text: str) -> Iterator[str]:
    while text:
        code_seen = next((code for code in _NAMED if text.startswith(code)), None)
        yield _NAMED[code_seen] if code_seen else text[0]
        text = text[len(code_seen or text[0]) :]
