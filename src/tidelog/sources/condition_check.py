"""Asking a server about a dump's condition before the dump begins."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tidelog.errors import ChunkDeniedError, ChunkRefusedError, TidelogError


@contextmanager
def only_refusals() -> Iterator[None]:
    """Let only through that the server can't understand what it was asked, whoever asks and when:
    whatever else went wrong (a lock, a right, the connection), the dump itself will meet or not.
    """
    try:
        yield
    except ChunkDeniedError:
        pass
    except ChunkRefusedError:
        raise
    except TidelogError:
        pass
