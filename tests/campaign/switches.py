"""What the nemesis does to a process from within: its wall clock, and the event log's disk.

A file of the host's directory says what is to be, so that a process that starts has it, too.
"""

from __future__ import annotations

import errno
import mmap
import os
import select
import struct
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from tidelog.system import failpoints

LIBFAKETIME: Final = next(map(str, Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1")), "")
"""Where it is installed: a process that has it steps the clock of its libraries in C and Rust, too.
"""
FAKETIME: Final = {
    "LD_PRELOAD": LIBFAKETIME,
    "FAKETIME_DONT_FAKE_MONOTONIC": "1",
    # Or each wait for Python's lock is over at once, and three threads take five times as long.
    "FAKETIME_FORCE_MONOTONIC_FIX": "0",
    "NO_FAKE_STAT": "1",  # the times of files are those of their host
    "FAKETIME_CACHE_DURATION": "0",  # it looks at the file each second
}
if LIBFAKETIME and os.environ.get("LD_PRELOAD") == LIBFAKETIME:
    # By Python 3.11's own, a deadline of the monotonic clock, libfaketime 0.9.10 fails with EINVAL
    # (its issue 426). It has to be another one before others take it (kazoo).
    time.sleep = lambda seconds: select.select((), (), (), seconds) and None
_CLOCK, _TIMESTAMP = "clock", "FAKETIME_TIMESTAMP_FILE"
_DISK, _MET = "disk", "disk-met"
_FORMAT: Final = struct.Struct("<d")
DISK_FULL, FSYNC_FAILS, DISK_SLOW = "disk full", "fsync fails", "disk slow"
DISK_FAULTS: Final = {
    "put.before_write": {DISK_FULL: errno.ENOSPC},
    "put.after_write": {FSYNC_FAILS: errno.EIO, DISK_SLOW: 0},
}
"""By the place where an append meets them; 0: it goes on, later."""


def prepare(directory: Path) -> None:
    (directory / _CLOCK).write_bytes(_FORMAT.pack(0.0))
    set_clock(directory, 0.0)
    set_disk(directory, "")
    (directory / _MET).write_text("")


def faketime() -> dict[str, str]:
    """The environment of a process whose clock, and that of its forks, is to be stepped; empty: it
    is not there, and `install` steps the clock of Python.
    """
    return dict(FAKETIME) if LIBFAKETIME else {}


def set_clock(directory: Path, offset_s: float) -> None:
    """The host's wall clock is so far ahead of the machine's from now on, or in a second."""
    if LIBFAKETIME:
        asked = directory / f"{_CLOCK}.new"
        asked.write_text(f"{offset_s:+f}\n")
        asked.replace(directory / _CLOCK)
        return
    with (directory / _CLOCK).open("r+b") as file:
        file.write(_FORMAT.pack(offset_s))


def set_disk(directory: Path, fault: str, delay_s: float = 0.0) -> None:
    """Of `DISK_FAULTS`, or empty; ``delay_s``: of a slow one."""
    asked = directory / f"{_DISK}.new"
    asked.write_text(f"{fault}:{delay_s}")
    asked.replace(directory / _DISK)


def disk_met(directory: Path) -> int:
    """How often an append of the host has met a fault of its disk so far."""
    return (directory / _MET).stat().st_size


def install(directory: Path) -> None:
    """In a process of the host, before it begins."""
    if LIBFAKETIME and os.environ.get("LD_PRELOAD") == LIBFAKETIME:
        os.environ[_TIMESTAMP] = str(directory / _CLOCK)
    else:
        _step_clocks(directory / _CLOCK)
    for point, faults in DISK_FAULTS.items():
        failpoints._armed[point] = _failing(directory, faults)


def _step_clocks(path: Path) -> None:
    """Those that Python code asks, where there is nothing better."""
    file = os.open(path, os.O_RDONLY)
    offset = mmap.mmap(file, _FORMAT.size, prot=mmap.PROT_READ)
    os.close(file)
    seconds, nanoseconds = time.time, time.time_ns

    def ahead() -> float:
        return float(_FORMAT.unpack(offset[:])[0])

    time.time = lambda: seconds() + ahead()
    time.time_ns = lambda: nanoseconds() + int(ahead() * 1e9)


def _failing(directory: Path, faults: Mapping[str, int]) -> failpoints.Action:
    def fail() -> None:
        fault, _, delay_s = (directory / _DISK).read_text().partition(":")
        number = faults.get(fault)
        if number is None:
            return
        with (directory / _MET).open("a") as met:
            met.write(".")
        if number:
            raise OSError(number, os.strerror(number))
        time.sleep(float(delay_s))

    return fail
