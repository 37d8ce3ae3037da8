"""Named places where a test can kill, freeze or fail the process. Nearly free when unused.

``TIDELOG_FAILPOINT="put.before_link:kill"`` arms one point; several are separated by commas, and
``name:action:3`` acts at the third hit only, ``name:action:/a/file`` while that file is there.
Actions: ``kill`` (SIGKILL to ourselves), ``pause`` (SIGSTOP: every thread stands still until
SIGCONT) and ``error`` (an OSError with EIO). In one process a test may `arm` a callable instead.

This module imports nothing of Tidelog, so every layer may use it.
"""

from __future__ import annotations

import errno
import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

ENVIRONMENT_VARIABLE = "TIDELOG_FAILPOINT"

Action = Callable[[], None]


def _kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _pause() -> None:
    # To this thread, which then does not go on until another thread has received it.
    signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)


def _error() -> None:
    raise OSError(errno.EIO, "failpoint")


ACTIONS: Mapping[str, Action] = {"kill": _kill, "pause": _pause, "error": _error}


def _at_hit(number: int, action: Action) -> Action:
    hits = 0

    def act() -> None:
        nonlocal hits
        hits += 1
        if hits == number:
            action()

    return act


def _while_exists(file: Path, action: Action) -> Action:
    def act() -> None:
        if file.exists():
            action()

    return act


def parse(text: str) -> dict[str, Action]:
    """Parse ``TIDELOG_FAILPOINT``. Raises ValueError for an unknown action."""
    armed: dict[str, Action] = {}
    for item in filter(None, (part.strip() for part in text.split(","))):
        name, _, rest = item.partition(":")
        action, _, when = rest.partition(":")
        if action not in ACTIONS:
            raise ValueError(
                f"{ENVIRONMENT_VARIABLE}: {item!r} is not name:action[:hit or file] "
                f"with action one of {', '.join(ACTIONS)}"
            )
        act = ACTIONS[action]
        if when.startswith("/"):
            armed[name] = _while_exists(Path(when), act)
        else:
            armed[name] = _at_hit(int(when), act) if when else act
    return armed


_armed: dict[str, Action] = parse(os.environ.get(ENVIRONMENT_VARIABLE, ""))


def hit(name: str) -> None:
    """Mark the place ``name``; run the action that a test armed for it."""
    if _armed:
        action = _armed.get(name)
        if action is not None:
            action()


@contextmanager
def arm(actions: Mapping[str, Action]) -> Iterator[None]:
    """Arm callables in this process for the duration of the block."""
    if not actions:
        yield
        return
    before = dict(_armed)
    _armed.update(actions)
    try:
        yield
    finally:
        _armed.clear()
        _armed.update(before)
