"""Keeps the error with which a capture or pipeline ended, until one ends in order."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
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
    """Store the error that is raised inside, and raise it. An end without one removes what is
    stored: an older error is then of no interest.

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
        value = {
            "at_ms": time.time_ns() // 1_000_000,
            "holder": this_holder(),
            "reason": redacted(" ".join(text.split()))[:_TEXT],
        }
        _in_state(config, lambda state: state.put(_PREFIX + part, value, None))
        raise
    else:
        _in_state(config, lambda state: _forget(state, _PREFIX + part))


def _forget(state: StateStore, key: str) -> None:
    if state.get(key) is not None:
        state.delete(key)


def _in_state(config: Config, work: Callable[[StateStore], object]) -> None:
    def run() -> None:
        with suppress(TidelogError, OSError):
            if state_exists(config.state.place):
                with closing(open_state(config.state.place)) as state:
                    work(state)

    thread = threading.Thread(target=run, name="tidelog-store-end", daemon=True)
    thread.start()
    thread.join(_PATIENCE_S)


def last_end(
    state: StateStore, part: str, *, holder: str | None, since_ms: int
) -> dict[str, Any] | None:
    """Return ``at_ms``, ``holder`` and ``reason`` of the last error with which this part ended;
    None: there is none, or a process has led or ended in order since then.

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
