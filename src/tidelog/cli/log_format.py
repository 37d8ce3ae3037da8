"""The form of log lines."""

from __future__ import annotations

import logging

from tidelog.model.printable import printable


class OneLine(logging.Formatter):
    """A record is a line, whatever the names in it hold; a traceback follows on its own lines."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's name
        return printable(super().formatMessage(record))
