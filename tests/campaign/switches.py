"""What the nemesis does to a process from within: its wall clock, and the event log's disk.

A file of the host's directory says what is to be, so that a process that starts has it, too.
"""

from __future__ import annotations

import errno
import mmap
import os
import struct
import time
from pathlib import Path
from typing import Final

from tidelog.system import failpoints

_CLOCK: Final = "clock"
_DISK, _MET = "disk", "disk-met"
_FORMAT: Final = struct.Struct("<d")
DISK_FULL, FSYNC_FAILS = "disk full", "fsync fails"
DISK_FAULTS: Final = {
    DISK_FULL: ("put.before_write", errno.ENOSPC),
    FSYNC_FAILS: ("put.after_write", errno.EIO),
}
"""Where an append meets them."""


def prepare(directory: Path) -> None:
    (directory / _CLOCK).write_bytes(_FORMAT.pack(0.0))
    (directory / _DISK).write_text("")
    (directory / _MET).write_text("")


def set_clock(directory: Path, offset_s: float) -> None:
    """The host's wall clock is so far ahead of the machine's from now on."""
    with (directory / _CLOCK).open("r+b") as file:
        file.write(_FORMAT.pack(offset_s))


def set_disk(directory: Path, fault: str) -> None:
    """Of `DISK_FAULTS`, or empty."""
    (directory / _DISK).write_text(fault)


def disk_met(directory: Path) -> int:
    """How often an append of the host has met a fault of its disk so far."""
    return (directory / _MET).stat().st_size


def install(directory: Path) -> None:
    """In a process of the host, before it begins."""
    _step_clocks(directory / _CLOCK)
    for fault, (point, number) in DISK_FAULTS.items():
        failpoints._armed[point] = _failing(directory, fault, number)


def _step_clocks(path: Path) -> None:
    """Those that Python code asks. Libraries in C, and the monotonic clock, go on as they were."""
    file = os.open(path, os.O_RDONLY)
    offset = mmap.mmap(file, _FORMAT.size, prot=mmap.PROT_READ)
    os.close(file)
    seconds, nanoseconds = time.time, time.time_ns

    def ahead() -> float:
        return float(_FORMAT.unpack(offset[:])[0])

    time.time = lambda: seconds() + ahead()
    time.time_ns = lambda: nanoseconds() + int(ahead() * 1e9)


def _failing(directory: Path, fault: str, number: int) -> failpoints.Action:
    def fail() -> None:
        if (directory / _DISK).read_text() == fault:
            with (directory / _MET).open("a") as met:
                met.write(".")
            raise OSError(number, os.strerror(number))

    return fail
