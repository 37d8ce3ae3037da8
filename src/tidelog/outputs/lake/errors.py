"""Errors of outputs into lakes: which are of one table alone, and what messages say of them."""

from __future__ import annotations

import re

from tidelog.errors import (
    DecodeError,
    OutputRefusedError,
    RowsLeftOutError,
    TableLeftOutError,
    TidelogError,
)
from tidelog.outputs.base.left_out import undecodable_rows_error
from tidelog.outputs.lake.data_files.file_reader import LOST_FILE
from tidelog.spark.sessions import errors

_GONE = re.compile("FileNotFoundException|FILE_NOT_EXIST")


def error_class_of(error: Exception) -> str:
    """Return the classes of an error, and the system's reason, or that a file is lost; not its
    text, which may contain values.
    """
    what = errors.error_classes(error)
    reason = errors.system_error(error)
    if not reason and _GONE.search(what):
        reason = LOST_FILE  # files that can't be opened are handled before
    return f"{reason}: {what}" if reason else what


def left_out_error(error: TidelogError | None) -> TableLeftOutError | None:
    """Return the error as one of a single table; None if there is none, or if it may concern other
    tables too.
    """
    if isinstance(error, TableLeftOutError):
        return error
    if isinstance(error, DecodeError):
        return undecodable_rows_error(error)
    if isinstance(error, OutputRefusedError):
        return RowsLeftOutError(str(error))
    return None
