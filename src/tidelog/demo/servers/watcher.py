"""Ends a child process when this one has ended for any reason, also by ``kill -9``."""

from __future__ import annotations

import subprocess


class Watcher:
    """A shell that reads from a pipe: it closes with this process, and the shell sends the signal.

    Args:
        pid: the id of a child of this process.
        signal_name: the signal, e.g. ``KILL``.
    """

    def __init__(self, pid: int, signal_name: str) -> None:
        self._shell = subprocess.Popen(  # noqa: S603
            ["/bin/sh", "-c", f"read _; kill -{signal_name} {pid} 2>/dev/null"],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def close(self) -> None:
        """End the watch, because the process has ended: its number may be reused soon."""
        self._shell.kill()
        self._shell.wait()
        assert self._shell.stdin is not None
        self._shell.stdin.close()
