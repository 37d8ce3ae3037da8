"""A clock that runs while the host is suspended; Linux's monotonic one does not."""

from __future__ import annotations

import time

_BOOT = getattr(time, "CLOCK_BOOTTIME", None)


def suspended_s() -> float:
    """Return how long the host has been suspended since it started; 0 if that is not known."""
    return 0.0 if _BOOT is None else time.clock_gettime(_BOOT) - time.monotonic()


def boot_clock() -> float:
    """Return the monotonic clock plus `suspended_s`, in seconds."""
    return time.monotonic() + suspended_s()
