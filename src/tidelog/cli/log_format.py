"""Formats log records as text or JSON."""

from __future__ import annotations

import json
import logging
import traceback
from datetime import UTC, datetime
from typing import Any

from tidelog.model.printable import printable


class OneLineFormatter(logging.Formatter):
    """Writes a record as one line, whatever names it has; a traceback follows on its own lines."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's name
        return printable(super().formatMessage(record))


class JsonFormatter(logging.Formatter):
    """Writes a record as a JSON object: ``at``, ``level``, ``logger``, ``message``, ``thread``.

    An error also has its ``kind`` and ``where`` it happened, but not its text, which may have
    values.
    """

    def format(self, record: logging.LogRecord) -> str:
        at = datetime.fromtimestamp(record.created, UTC)
        document: dict[str, Any] = {
            "at": at.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            "thread": record.threadName,
        }
        if record.exc_info and record.exc_info[0] is not None:
            document["kind"] = record.exc_info[0].__name__
            document["where"] = "".join(traceback.format_tb(record.exc_info[2]))
        return json.dumps(document, ensure_ascii=False)


FORMATS: dict[str, logging.Formatter] = {
    "text": OneLineFormatter("%(asctime)s %(levelname)s %(name)s: %(message)s"),
    "json": JsonFormatter(),
}
"""The formatters for the values of ``--log-format``."""
