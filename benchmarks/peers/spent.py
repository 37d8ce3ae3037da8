"""CPU and memory of a peer's processes."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

_CGROUPS = Path("/sys/fs/cgroup")
_LOOK_EVERY_S = 0.5
_END_S = 60.0


@dataclass(frozen=True, slots=True)
class Spent:
    """Seconds until the end was reached, CPU seconds of all processes until they had ended, and the
    most memory that they had together: each page counts once, however many share it."""

    seconds: float
    cpu_s: float
    peak_bytes: int

    def __str__(self) -> str:
        return f"{self.seconds:.1f} s, {self.cpu_s:.1f} s CPU, {self.peak_bytes / 1e9:.2f} GB"


def run_until(
    commands: Sequence[Sequence[str]],
    directory: Path,
    reached: Callable[[], bool],
    timeout_s: float,
) -> Spent:
    """Run the commands beside each other until it is reached, then end them.

    The program ends with a message that names the log if one ends by itself, or it takes longer.
    """
    with _group() as group:
        began = time.perf_counter()
        processes = []
        logs = [directory / f"command{number}.log" for number in range(len(commands))]
        for command, path in zip(commands, logs, strict=True):
            within = ["sh", "-c", 'echo $$ > "$0" && exec "$@"', group.processes, *command]
            with path.open("ab") as log:
                processes.append(
                    subprocess.Popen(within, cwd=directory, stdout=log, stderr=subprocess.STDOUT)
                )
        peak, done = [0], threading.Event()
        watcher = threading.Thread(target=_watch, args=(group, peak, done), daemon=True)
        watcher.start()
        try:
            while not reached():
                for process, path in zip(processes, logs, strict=True):
                    if process.poll() is not None:
                        sys.exit(
                            f"a process ended by itself, with {process.returncode}: see {path}"
                        )
                if time.perf_counter() - began > timeout_s:
                    sys.exit(f"not done after {timeout_s:.0f} s: see {', '.join(map(str, logs))}")
                time.sleep(_LOOK_EVERY_S)
            seconds = time.perf_counter() - began
        finally:
            done.set()
            watcher.join()
            for process in processes:
                process.terminate()
            for process in processes:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(_END_S)
            group.kill()
        return Spent(seconds, group.cpu_s(), peak[0])


class Group:
    """A control group of Linux: its kernel counts the CPU of all processes that began in it.

    A parent's count of its children is not enough: Spark's Python daemon ignores SIGCHLD, so that
    workers which end before it are in no count.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.processes = str(directory / "cgroup.procs")

    def pids(self) -> list[int]:
        return [int(line) for line in Path(self.processes).read_text().split()]

    def cpu_s(self) -> float:
        if (first := self._directory / "cpuacct.usage").exists():  # cgroups, version 1
            return int(first.read_text()) / 1e9
        return int((self._directory / "cpu.stat").read_text().split()[1]) / 1e6

    def kill(self) -> None:
        while left := self.pids():
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.05)


@contextmanager
def _group() -> Iterator[Group]:
    """Exits without the right to make one."""
    above = _CGROUPS / "cpuacct" if (_CGROUPS / "cpuacct").exists() else _CGROUPS
    directory = above / f"peers-{os.getpid()}"
    try:
        directory.mkdir()
    except OSError as error:
        sys.exit(f"no control group can be made to count CPU ({error}): run it as root")
    try:
        yield Group(directory)
    finally:
        directory.rmdir()


def _watch(group: Group, peak: list[int], done: threading.Event) -> None:
    while not done.wait(_LOOK_EVERY_S):
        resident = 0
        for pid in group.pids():
            with contextlib.suppress(psutil.Error):
                resident += psutil.Process(pid).memory_full_info().pss
        peak[0] = max(peak[0], resident)
