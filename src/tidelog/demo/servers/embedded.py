"""The base of the servers for tests and the demo: one process with its own directory.

It runs as an unprivileged user, and ends with this process.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Any, ClassVar, Self

from tidelog.demo.servers.unprivileged import reachable_directory, unprivileged_account
from tidelog.demo.servers.watcher import Watcher
from tidelog.errors import TidelogError, UsageError


class EmbeddedServer:
    """A server process; use it as a context manager.

    Subclasses `start` it by `_spawn` and `_is_ready`, with ``atexit.register(self.close)``.

    Attributes:
        title: the server's name in messages.
        ended_by: the name of the signal that ends it when this process is killed.
        log_file: the server's log.
    """

    title: str
    ended_by: ClassVar[str] = "KILL"

    def __init__(self, prefix: str) -> None:
        self._account = unprivileged_account()
        self._base = reachable_directory(self._account, prefix)
        self.log_file = self._base / "server.log"
        self._process: subprocess.Popen[bytes] | None = None
        self._watcher: Watcher | None = None

    def start(self) -> None:
        """Start it, also after `stop` and `kill`; return once it answers. No-op if it runs."""
        raise NotImplementedError

    def stop(self) -> None:
        """Shut down in order."""
        self._stop(signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL, as a crash of the server would; `start` recovers."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(timeout=30)
        self._ended()

    def close(self) -> None:
        """Stop it, and remove everything."""
        atexit.unregister(self.close)
        self.kill()
        shutil.rmtree(self._base, ignore_errors=True)

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        """The server's process id."""
        if self._process is None:
            raise UsageError(f"the embedded {self.title} server is not started")
        return self._process.pid

    def pause(self) -> None:
        """SIGSTOP: connections stay open and nothing is answered, until `resume`."""
        os.kill(self.pid, signal.SIGSTOP)
        deadline = time.monotonic() + 10
        while not _is_stopped(self.pid) and time.monotonic() < deadline:
            time.sleep(0.001)

    def resume(self) -> None:
        """SIGCONT after `pause`."""
        os.kill(self.pid, signal.SIGCONT)

    def log_tail(self, lines: int = 20) -> str:
        """Return the last lines of the server's log."""
        try:
            text = self.log_file.read_text(errors="replace")
        except FileNotFoundError:
            return "(no server log)"
        return "\n".join(text.splitlines()[-lines:])

    # ------------------------------------------------------------------ for subclasses

    def _spawn(
        self, command: Sequence[str], output: IO[bytes] | int, rights: Mapping[str, Any]
    ) -> None:
        """Start the process. ``output``: where its output goes; ``rights``: see `identity`."""
        self._process = subprocess.Popen(  # noqa: S603
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=self._base,
            # Ctrl-C at a terminal must reach us alone: we stop the server in order.
            start_new_session=True,
            **rights,
        )
        self._watcher = Watcher(self.pid, self.ended_by)

    def _is_ready(self, answers: Callable[[], bool], timeout_s: float = 120) -> bool:
        """Wait until it answers; False if it ended by itself. Raises TidelogError on timeout."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            if not self.running:
                self._ended()
                return False
            if answers():
                return True
            time.sleep(0.03)
        self.kill()
        raise TidelogError(f"{self.title} was not ready in {timeout_s} s:\n{self.log_tail()}")

    def _stop(self, number: signal.Signals) -> None:
        """Send the signal; `kill` if it does not help within a minute."""
        process = self._process
        if process is not None and process.poll() is None:
            self.resume()
            process.send_signal(number)
            try:
                process.wait(timeout=60)
            except subprocess.TimeoutExpired:
                self.kill()
        self._ended()

    def _ended(self) -> None:
        self._process = None
        watcher, self._watcher = self._watcher, None
        if watcher is not None:
            watcher.close()

    def _own(self, path: Path) -> None:
        """Give a file to the account of the server."""
        if self._account is not None:
            os.chown(path, self._account.pw_uid, self._account.pw_gid)


def _is_stopped(pid: int) -> bool:
    """Return whether all threads have stopped; True if the kernel does not report it (no /proc)."""
    states = []
    for thread in Path(f"/proc/{pid}/task").glob("*/stat"):
        with contextlib.suppress(OSError):  # it has ended
            states.append(thread.read_text().rpartition(")")[2].split()[0])
    return all(state in "Tt" for state in states)
