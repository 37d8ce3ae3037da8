"""Why Spark could not write a lake's table, as far as it may be told."""

from __future__ import annotations

import re

from py4j.protocol import Py4JJavaError

from tidelog.outputs.lake.data_files.file_reader import LOST_FILE
from tidelog.spark import errors

_GONE = re.compile("FileNotFoundException|FILE_NOT_EXIST")


def reason_of(error: Exception) -> str:
    """Its kind and Spark's error class, or Java's classes; its text may hold values."""
    get_condition = getattr(error, "getCondition", None)
    condition = get_condition() if get_condition is not None else None
    if isinstance(error, Py4JJavaError):
        condition, cause = "", error.java_exception
        while cause is not None:
            condition += f"{': ' if condition else ''}{cause.getClass().getSimpleName()}"
            cause = cause.getCause()
    reason = errors.system_error(error)
    what = f"{type(error).__name__}{f' ({condition})' if condition else ''}"
    if not reason and condition and _GONE.search(condition):
        reason = LOST_FILE  # Java says the same of files that can't be opened: told before
    return f"{reason}: {what}" if reason else what
