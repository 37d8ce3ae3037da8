"""What went wrong in a Python process of Spark comes back as text: find our error in it."""

from __future__ import annotations

import re

from tidelog import errors

_OURS = re.compile(
    r"tidelog\.errors\.(\w+): (.+?)(?=\n\s*\n|\n\s*at |\n[^\n]*SQLSTATE|\Z)", re.DOTALL
)

# What an operating system says, word for word: no value of a row.
_SYSTEMS = re.compile(
    r"No space left on device|Disk quota exceeded|Read-only file system|Permission denied"
    r"|Too many open files|Cannot allocate memory|Input/output error|Java heap space"
)


# What Spark says of a Python process that was killed: the second, of one that plans batches.
_ENDED = re.compile(
    r"Python worker exited unexpectedly"
    r"|java\.(io\.EOF|net\.Socket)Exception.*\bPythonStreamingSourceRunner\b",
    re.DOTALL,
)


class QueryFailedError(errors.EventLogError):
    """A query ended with an error of Spark that is not known here. It may pass, as where an
    executor is lost.
    """


def worker_ended(error: BaseException) -> bool:
    """Did a Python process of Spark end by itself, or by the kernel's want of memory?"""
    found: BaseException | None = error
    while found is not None:
        if _ENDED.search(f"{found}\n{getattr(found, '_stackTrace', '')}"):
            return True
        found = found.__cause__ or getattr(found, "_cause", None)  # the second is PySpark's own
    return False


def system_error(error: BaseException) -> str:
    """What the operating system or the JVM said that made Spark fail, e.g. that a disk is full;
    empty if it is not known.
    """
    found = _SYSTEMS.search(str(error))
    return found.group() if found else ""


def failed_with(error: BaseException) -> str:
    """How to tell an error of Spark, whose own text may hold values."""
    reason = system_error(error)
    return f"{type(error).__name__}{f': {reason}' if reason else ''}; Spark's log has more"


def find_error(text: str) -> errors.TidelogError | None:
    """The TidelogError that a Python traceback in ``text`` ends with, rebuilt; else None."""
    found = _OURS.findall(text)
    if not found:
        return None
    name, message = found[-1]
    kind = getattr(errors, name, None)
    if not (isinstance(kind, type) and issubclass(kind, errors.TidelogError)):
        return None
    if kind is errors.MissingExtraError:
        return errors.UsageError(message.strip())
    return kind(message.strip())
