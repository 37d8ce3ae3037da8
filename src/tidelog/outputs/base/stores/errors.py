"""Turns errors of a file system into errors of the output."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from tidelog.errors import OutputError


@contextmanager
def file_errors(name: str, what: str, *passed: type[OSError]) -> Iterator[None]:
    """Turn an OSError into an OutputError: ``name`` can't be ``what``. Errors of the types
    ``passed`` pass unchanged.
    """
    try:
        yield
    except passed:
        raise
    except OSError as error:
        raise OutputError(f"{name} can't be {what}: {reason_of(error)}") from error


def reason_of(error: OSError) -> str:
    """Returns the system's text for an error, without paths."""
    return os.strerror(error.errno) if error.errno else type(error).__name__
