"""A process on a terminal of a given size, and what its screen shows."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import signal
import struct
import termios
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType

import pyte


class PseudoTerminal:
    """A context manager; the process is killed at the end if it still runs.

    ``variables`` are of its environment.
    """

    def __init__(
        self,
        command: Sequence[str],
        directory: Path,
        width: int,
        height: int,
        **variables: str,
    ) -> None:
        self.screen = pyte.Screen(width, height)
        self._stream = pyte.ByteStream(self.screen)
        self._command, self._directory = list(command), directory
        self._pid = self._terminal = -1
        self.exit_code: int | None = None
        self._size = width, height
        self._variables = variables
        self.written = b""

    def __enter__(self) -> PseudoTerminal:
        environment = os.environ | {"TERM": "xterm-256color"}
        for name in ("COLUMNS", "LINES", "NO_COLOR"):
            environment.pop(name, None)
        environment |= self._variables
        self._pid, self._terminal = pty.fork()
        if self._pid == 0:
            try:
                signal.signal(signal.SIGINT, signal.SIG_DFL)  # ignored where tests run unattended
                os.chdir(self._directory)
                os.execvpe(self._command[0], self._command, environment)
            finally:
                os._exit(127)
        self._set_size(*self._size)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self.exit_code is None:
            os.kill(self._pid, 9)
            os.waitpid(self._pid, 0)
        os.close(self._terminal)

    def _set_size(self, width: int, height: int) -> None:
        fcntl.ioctl(self._terminal, termios.TIOCSWINSZ, struct.pack("HHHH", height, width, 0, 0))

    def resize(self, width: int, height: int) -> None:
        """As somebody who pulls at the window's corner."""
        self.screen.resize(height, width)
        self._set_size(width, height)

    def press(self, keys: str) -> None:
        """Type them."""
        os.write(self._terminal, keys.encode())

    @property
    def pid(self) -> int:
        """The process's."""
        return self._pid

    @property
    def text(self) -> str:
        """What the screen shows now."""
        return "\n".join(line.rstrip() for line in self.screen.display).rstrip()

    def wait(self, until: Callable[[str], bool], seconds: float = 30.0) -> str:
        """The screen once it is so, and nothing more comes at once."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if not self._read(0.1) and until(self.text):
                return self.text
        raise AssertionError(f"not seen within {seconds:g} s:\n{self.text}")

    def wait_ended(self, seconds: float = 30.0) -> str:
        """The screen once the process has ended; `exit_code` is set."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            self._read(0.1)
            pid, status = os.waitpid(self._pid, os.WNOHANG)
            if pid:
                self.exit_code = os.waitstatus_to_exitcode(status)
                while self._read(0.1):
                    pass
                return self.text
        raise AssertionError(f"still runs after {seconds:g} s:\n{self.text}")

    def interrupt(self) -> None:
        """Ctrl-C, as the terminal has it."""
        self.press("\x03")

    def _read(self, seconds: float) -> bool:
        """Was there something? A picture is read whole: it is not looked at in its middle."""
        ready, _, _ = select.select([self._terminal], [], [], seconds)
        if not ready:
            return False
        try:
            written = os.read(self._terminal, 65_536)
        except OSError:  # the process has ended
            return False
        self.written += written
        self._stream.feed(written)
        return True
