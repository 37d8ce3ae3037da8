"""Identifies this process, so that others on the host notice its end; and the host's clock."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any, Final

_BOOT: Final = Path("/proc/sys/kernel/random/boot_id")
_NAMESPACES: Final = ("pid", "time")  # kernels before 5.6 have no time namespaces
_DEAD: Final = ("Z", "X")


def this_process() -> dict[str, Any]:
    """Return a JSON document of this process for `has_ended`; empty if that can't be known."""
    where, started = _here(), _start_time(os.getpid())
    if where is None or started is None:
        return {}
    return {"where": where, "pid": os.getpid(), "started": started[0]}


def has_ended(process: dict[str, Any]) -> bool:
    """Return whether the process has certainly ended. False for processes of other hosts or
    containers.
    """
    if not is_here(process):
        return False
    try:
        os.kill(process["pid"], 0)
    except ProcessLookupError:
        return True
    except OSError:  # it exists, and is another user's
        pass
    # Numbers are reused: the start time distinguishes two processes.
    start = _start_time(process["pid"])
    return start is not None and (start[0] != process["started"] or start[1])


def is_here(process: dict[str, Any]) -> bool:
    """Return whether the process is of this host, or of this container."""
    return bool(process) and process["where"] == _here()


def _here() -> str | None:
    """Return the id of this boot of the kernel, and of these namespaces."""
    try:
        namespaces = [_namespace(name) for name in _NAMESPACES]
        if namespaces[0] == "none":
            return None
        return " ".join([_BOOT.read_text().strip(), *namespaces])
    except OSError:
        return None


def _namespace(name: str) -> str:
    try:
        return str(Path(f"/proc/self/ns/{name}").readlink())
    except FileNotFoundError:
        return "none"


def _start_time(pid: int) -> tuple[int, bool] | None:
    """Return the start time in ticks since the boot, and whether only the exit status is left."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        # The first thread may have ended while others run.
        threads = len(list(Path(f"/proc/{pid}/task").iterdir()))
    except OSError:  # it ended just now, or the host hides other users' processes
        return None
    return int(fields[19]), fields[0] in _DEAD and threads <= 1


# Clocks.


def unix_ms() -> int:
    """Return the milliseconds since 1970, as documents of the state store have them."""
    return time.time_ns() // 1_000_000


# A clock that runs while the host is suspended; Linux's monotonic one does not.

_BOOT_TIME = getattr(time, "CLOCK_BOOTTIME", None)


def suspended_s() -> float:
    """Return how long the host has been suspended since it started; 0 if that is not known."""
    return 0.0 if _BOOT_TIME is None else time.clock_gettime(_BOOT_TIME) - time.monotonic()


def boot_clock() -> float:
    """Return the monotonic clock plus `suspended_s`, in seconds."""
    return time.monotonic() + suspended_s()
