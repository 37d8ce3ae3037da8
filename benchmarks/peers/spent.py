"""CPU and memory of a peer's processes."""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

_SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER: what a peer leaves behind becomes our child
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
    ctypes.CDLL(None).prctl(_SUBREAPER, 1)
    me = psutil.Process()
    others = {child.pid for child in me.children()}
    before = _cpu_s()
    began = time.perf_counter()
    processes = []
    logs = [directory / f"command{number}.log" for number in range(len(commands))]
    for command, path in zip(commands, logs, strict=True):
        with path.open("ab") as log:
            processes.append(
                subprocess.Popen(command, cwd=directory, stdout=log, stderr=subprocess.STDOUT)
            )
    peak, done = [0], threading.Event()
    watcher = threading.Thread(target=_watch, args=(me, others, peak, done), daemon=True)
    watcher.start()
    try:
        while not reached():
            for process, path in zip(processes, logs, strict=True):
                if process.poll() is not None:
                    sys.exit(f"a process ended by itself, with {process.returncode}: see {path}")
            if time.perf_counter() - began > timeout_s:
                sys.exit(f"not done after {timeout_s:.0f} s: see {', '.join(map(str, logs))}")
            time.sleep(_LOOK_EVERY_S)
        seconds = time.perf_counter() - began
    finally:
        done.set()
        watcher.join()
        _end(processes, me, others)
    return Spent(seconds, _cpu_s() - before, peak[0])


def _end(processes: list[subprocess.Popen[bytes]], me: psutil.Process, others: set[int]) -> None:
    for process in processes:
        process.terminate()
    for process in processes:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_END_S)
    while left := [child for child in me.children() if child.pid not in others]:
        for child in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(child.pid, signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(child.pid, 0)


def _watch(me: psutil.Process, others: set[int], peak: list[int], done: threading.Event) -> None:
    while not done.wait(_LOOK_EVERY_S):
        resident = 0
        for child in me.children():
            if child.pid in others:
                continue
            with contextlib.suppress(psutil.Error):
                for process in [child, *child.children(recursive=True)]:
                    with contextlib.suppress(psutil.Error):
                        resident += process.memory_full_info().pss
        peak[0] = max(peak[0], resident)


def _cpu_s() -> float:
    """Of children that have ended, and of theirs."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime
