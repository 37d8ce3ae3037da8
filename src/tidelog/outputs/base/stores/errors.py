"""What a file system refuses, as an error of the output."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from tidelog.errors import OutputError


@contextmanager
def failing(name: str, what: str, *passed: type[OSError]) -> Iterator[None]:
    """An OSError becomes an OutputError: ``name`` can't be ``what``. ``passed`` are let through."""
    try:
        yield
    except passed:
        raise
    except OSError as error:
        raise OutputError(f"{name} can't be {what}: {reason_of(error)}") from error


def reason_of(error: OSError) -> str:
    """What the system says of an error, without paths."""
    return os.strerror(error.errno) if error.errno else type(error).__name__
