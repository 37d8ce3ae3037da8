"""Spark could not start a Python process in time."""

from __future__ import annotations

from tidelog.errors import OutputBusyError

# A process for planning, or for a task, within 10 s (Spark's PythonWorkerFactory).
_NOT_STARTED = "Python worker failed to connect back"
BUSY = (
    "Spark's Python worker did not start within 10 s: the host is busy, or PYSPARK_PYTHON names no "
    "Python that has Tidelog"
)
ENDED = (
    "a Python process that Spark runs was killed or ended by itself: look whether the host lacks "
    "memory"
)


class HostBusyError(OutputBusyError):
    """What Spark starts did not come up in time: nothing is wrong with the output."""


def is_busy(error: BaseException) -> bool:
    """Did Spark fail because what it starts did not come up in time?"""
    found: BaseException | None = error
    while found is not None:
        if _NOT_STARTED in str(found):
            return True
        found = found.__cause__
    return False
