"""Keeps the error with which the last capture or pipeline ended, for the status."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from typing import Any, Final

from tidelog.app.elections import AnotherLeaderError
from tidelog.app.instances import this_holder
from tidelog.app.redaction import redacted
from tidelog.config import Config
from tidelog.errors import TidelogError
from tidelog.ports import StateStore
from tidelog.state.opening import open_state, state_exists

CAPTURE: Final = "capture"
PIPELINE: Final = "pipeline/"
"""The part of a pipeline, before its name."""
_PREFIX: Final = "ended/"
_TEXT: Final = 1000
_PATIENCE_S: Final = 5.0


@contextmanager
def storing_end(config: Config, part: str) -> Iterator[None]:
    """Store the error that is raised inside, and raise it.

    A state store that fails, hangs, or is not there yet is no further error.

    Args:
        config: the configuration of the process.
        part: `CAPTURE`, or `PIPELINE` and the pipeline's name.
    """
    try:
        yield
    except AnotherLeaderError:
        raise  # the other process captures: nothing has ended
    except Exception as error:
        known = isinstance(error, TidelogError)
        text = str(error) if known else f"an internal error ({type(error).__name__})"
        _store(config, part, redacted(" ".join(text.split()))[:_TEXT])
        raise


def _store(config: Config, part: str, reason: str) -> None:
    value = {"at_ms": time.time_ns() // 1_000_000, "holder": this_holder(), "reason": reason}

    def put() -> None:
        with suppress(TidelogError, OSError):
            if state_exists(config.state.place):
                with closing(open_state(config.state.place)) as state:
                    state.put(_PREFIX + part, value, None)

    thread = threading.Thread(target=put, name="tidelog-store-end", daemon=True)
    thread.start()
    thread.join(_PATIENCE_S)


def last_end(
    state: StateStore, part: str, *, holder: str | None, since_ms: int
) -> dict[str, Any] | None:
    """Return ``at_ms``, ``holder`` and ``reason`` of the last error with which this part ended;
    None: there is none, or a process has led since then.

    Args:
        state: the state store.
        part: as in `storing_end`.
        holder: the last process that led.
        since_ms: a time at which it led.
    """
    stored = state.get(_PREFIX + part)
    if stored is None:
        return None
    end: dict[str, Any] = stored.value
    return end if end["holder"] == holder or end["at_ms"] >= since_ms else None
