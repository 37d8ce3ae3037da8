"""``tidelog pipeline``, or `run`, as a process with a JVM and workers of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from tidelog.system.failpoints import ENVIRONMENT_VARIABLE


class Delivering:
    """Starts it. ``inside``: what goes before its command, and becomes it (`ip netns exec`);
    ``environment``: in place of ours.
    """

    def __init__(
        self,
        config: Path,
        log_file: Path,
        failpoint: str = "",
        command: str = "pipeline",
        inside: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.log_file = log_file
        with log_file.open("w") as file:
            self._process = subprocess.Popen(
                [*inside, sys.executable, "-m", "tidelog", command, str(config), "--json"],
                stdout=file,
                stderr=subprocess.STDOUT,
                env={**(environment or os.environ), ENVIRONMENT_VARIABLE: failpoint},
            )
        self.pid = self._process.pid

    def send(self, number: int) -> None:
        self._process.send_signal(number)

    def wait(self, timeout_s: float = 120) -> int:
        return self._process.wait(timeout_s)

    @property
    def code(self) -> int | None:
        """Its exit code, minus the signal that killed it; None while it runs."""
        return self._process.poll()

    @property
    def said(self) -> str:
        return self.log_file.read_text()

    @property
    def processes(self) -> list[int]:
        """All that it started, and itself."""
        children: dict[int, list[int]] = {}
        for found in Path("/proc").glob("[0-9]*/stat"):
            with suppress(OSError):
                fields = found.read_text().rpartition(")")[2].split()
                children.setdefault(int(fields[1]), []).append(int(found.parent.name))
        all_, ahead = [], [self.pid]
        while ahead:
            one = ahead.pop()
            all_.append(one)
            ahead += children.get(one, [])
        return all_

    @property
    def frozen(self) -> list[int]:
        return [pid for pid in self.processes if state_of(pid) in "Tt"]

    def close(self) -> None:
        """Kill all of it."""
        if self._process.poll() is None:
            signal_all(self.processes, signal.SIGKILL)
        self._process.wait()


def state_of(pid: int) -> str:
    """As ``ps`` has it; ``X``: it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "X"


def signal_all(pids: Iterable[int], number: int) -> None:
    """Also if some have ended by now."""
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)
