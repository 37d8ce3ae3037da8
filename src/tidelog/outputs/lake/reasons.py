"""Why Spark could not write a lake's table, as far as it may be told."""

from __future__ import annotations

import re

from py4j.protocol import Py4JJavaError

from tidelog.spark import failures

# Delta's error classes, and Java's, for a commit that another writer's came before.
CONFLICT = re.compile(
    r"DELTA_(CONCURRENT_\w+|METADATA_CHANGED|PROTOCOL_CHANGED)"
    r"|\b(Concurrent(Write|Append|DeleteRead|DeleteDelete|Transaction|Modification)"
    r"|MetadataChanged|ProtocolChanged)Exception\b|\bDeltaConcurrentModificationException\b"
)
_GONE = re.compile("FileNotFoundException|FILE_NOT_EXIST")
_LOST_FILE = (
    "a file of the table is gone, as after a VACUUM that kept nothing while a batch was written; "
    "restore the table to a version that has all its files, or move it away and dump it again"
)


def reason_of(error: Exception) -> str:
    """Its kind and Spark's error class, or Java's classes; its text may hold values."""
    get_condition = getattr(error, "getCondition", None)
    condition = get_condition() if get_condition is not None else None
    if isinstance(error, Py4JJavaError):
        condition, cause = "", error.java_exception
        while cause is not None:
            condition += f"{': ' if condition else ''}{cause.getClass().getSimpleName()}"
            cause = cause.getCause()
    reason = failures.system_error(error)
    what = f"{type(error).__name__}{f' ({condition})' if condition else ''}"
    if not reason and condition and _GONE.search(condition):
        reason = _LOST_FILE  # Java says the same of files that can't be opened: told before
    return f"{reason}: {what}" if reason else what
