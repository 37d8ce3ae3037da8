"""The demo's capture: ``tidelog capture`` as a process of its own, so that it can be killed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tidelog.demo.servers.watcher import Watcher
from tidelog.errors import UsageError

_END_S = 30.0
_SAID_LINES = 5


class CaptureProcess:
    """It ends with this process, whatever ends that.

    Args:
        config_file: its configuration.
        log_file: what it complains of is appended there.
    """

    def __init__(self, config_file: Path, log_file: Path) -> None:
        self._config_file = config_file
        self._log_file = log_file
        self._process: subprocess.Popen[bytes] | None = None
        self._watcher: Watcher | None = None

    def start(self) -> None:
        """Returns at once: it leads some seconds later."""
        command = [sys.executable, "-m", "tidelog", "capture", str(self._config_file), "--json"]
        # A checkout that is not installed is on the path of this process alone.
        path = os.pathsep.join(filter(None, sys.path))
        with self._log_file.open("ab") as log:
            self._process = subprocess.Popen(  # noqa: S603
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=log,
                env=os.environ | {"PYTHONPATH": path},
                # Ctrl-C at a terminal must reach us alone: we end it in order.
                start_new_session=True,
            )
        self._watcher = Watcher(self._process.pid, "KILL")

    @property
    def pid(self) -> int:
        if self._process is None:
            raise UsageError("capture is not started")
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def kill(self) -> None:
        """SIGKILL: it can do nothing about it, and nothing after it."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        self._ended()

    def stop(self) -> None:
        """Let it end in order; kill it if that takes too long."""
        if self._process is not None and self.running:
            self._process.terminate()
            try:
                self._process.wait(_END_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        self._ended()

    def said(self) -> str:
        """What it complained of last."""
        try:
            lines = self._log_file.read_text(errors="replace").splitlines()
        except FileNotFoundError:
            lines = []
        return "\n".join(lines[-_SAID_LINES:]) or "it said nothing"

    def _ended(self) -> None:
        watcher, self._watcher = self._watcher, None
        if watcher is not None:
            watcher.close()
