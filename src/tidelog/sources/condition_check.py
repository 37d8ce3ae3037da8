"""Checks a dump's condition on the server before the dump begins."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tidelog.errors import ChunkDeniedError, ChunkRefusedError, TidelogError


@contextmanager
def only_condition_errors() -> Iterator[None]:
    """Pass on only the errors that say that the server can't understand the condition.

    All other errors (a lock, a missing right, a lost connection) are ignored here: the dump itself
    may meet them or not.
    """
    try:
        yield
    except ChunkDeniedError:
        pass
    except ChunkRefusedError:
        raise
    except TidelogError:
        pass
