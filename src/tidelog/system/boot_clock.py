"""A clock that goes on while the host is suspended, as the monotonic one does not on Linux."""

from __future__ import annotations

import time

_BOOT = getattr(time, "CLOCK_BOOTTIME", None)


def suspended_s() -> float:
    """For how long the host has been suspended since it started; 0 where the system can't tell."""
    return 0.0 if _BOOT is None else time.clock_gettime(_BOOT) - time.monotonic()


def boot_clock() -> float:
    """The monotonic clock and `suspended_s`, in seconds."""
    return time.monotonic() + suspended_s()
