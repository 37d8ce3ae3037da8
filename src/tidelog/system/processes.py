"""Which process this is, so that others of the same host can tell whether it has ended."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Final

_BOOT: Final = Path("/proc/sys/kernel/random/boot_id")
_NAMESPACES: Final = ("pid", "time")  # kernels before 5.6 have no namespaces of time
_DEAD: Final = ("Z", "X")


def this_process() -> dict[str, Any]:
    """For `has_ended`, on this host; JSON can hold it. Empty where that can't be known."""
    where, started = _where(), _started(os.getpid())
    if where is None or started is None:
        return {}
    return {"where": where, "pid": os.getpid(), "started": started[0]}


def has_ended(process: dict[str, Any]) -> bool:
    """Is it certain that the process does nothing any more? False for one of another host, or of
    another container.
    """
    if not is_here(process):
        return False
    try:
        os.kill(process["pid"], 0)
    except ProcessLookupError:
        return True
    except OSError:  # it is there, and another user's
        pass
    # A number is given again: what tells two processes apart is when they were started.
    found = _started(process["pid"])
    return found is not None and (found[0] != process["started"] or found[1])


def is_here(process: dict[str, Any]) -> bool:
    """Is the process one of this host, or of this container?"""
    return bool(process) and process["where"] == _where()


def _where() -> str | None:
    """This boot of this kernel, as seen from these namespaces."""
    try:
        seen = [_namespace(name) for name in _NAMESPACES]
        if seen[0] == "none":
            return None
        return " ".join([_BOOT.read_text().strip(), *seen])
    except OSError:
        return None


def _namespace(name: str) -> str:
    try:
        return str(Path(f"/proc/self/ns/{name}").readlink())
    except FileNotFoundError:
        return "none"


def _started(pid: int) -> tuple[int, bool] | None:
    """In ticks since the boot, and whether only the exit status is left of it."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        # The first thread may have ended while others go on.
        threads = len(list(Path(f"/proc/{pid}/task").iterdir()))
    except OSError:  # it ended just now, or the host hides other users' processes
        return None
    return int(fields[19]), fields[0] in _DEAD and threads <= 1
