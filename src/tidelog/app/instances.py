"""The processes that stand by, or can't lead: each writes a document, for `tidelog status` and
handovers.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import threading
import time
from pathlib import Path
from typing import Any, Final

from tidelog.errors import StateConflictError, StateError
from tidelog.ports import StateStore

PREFIX: Final = "standby/"
TOLD_EVERY_S: Final = 30.0
GONE_MS: Final = 100_000
"""One that has not told for so long is gone. Hosts' clocks may differ a little."""
_KEEP_MS: Final = 86_400_000


PIPELINE_PREFIX: Final = "pipeline/"
"""Prefix of the documents that say who leads each pipeline, or led it last."""


_PIDS = Path("/proc/self/ns/pid")
_PIDS_OF_HOST: Final = 0xEFFFFFFC
"""The inode of Linux's first pid namespace (``PROC_PID_INIT_INO``)."""


def this_holder() -> str:
    """Who this process is: by this leaders are told from those that stand by.

    In a container the number of its pid namespace stands behind the host's name: containers on a
    host's network share its name, and each has a process 1.
    """
    host, space = socket.gethostname(), _pid_space()
    return f"{host}{'' if space is None else f'-{space}'}:{os.getpid()}"


def _pid_space() -> int | None:
    """None: the host's, or none is known."""
    with contextlib.suppress(OSError):
        number = _PIDS.stat().st_ino
        return None if number == _PIDS_OF_HOST else number
    return None


def of_pipeline(name: str) -> str:
    """Prefix of the documents of processes that stand by for the pipeline of this name."""
    return f"pipeline-{PREFIX}{name}/"


class InstanceRegistration:
    """What one process tells of itself. A store that is away ends nothing: it is told later.

    ``prefix``: of the documents of all that stand by for the same; ``url``: of an HTTP interface.
    """

    def __init__(
        self,
        state: StateStore,
        holder: str,
        zone: str | None,
        prefix: str = PREFIX,
        url: str | None = None,
    ) -> None:
        self._state = state
        self._prefix = prefix
        self._key = prefix + secrets.token_hex(8)
        self._value: dict[str, Any] = {"holder": holder, "zone": zone, "url": url, "trouble": ""}
        self._tell_at = 0.0
        self._told = False
        self._lock = threading.Lock()

    def stand_by(self, trouble: str = "") -> None:
        """Call it often. ``trouble``: why this process can't lead although it tries."""
        now = time.monotonic()
        if now < self._tell_at and trouble == self._value["trouble"]:
            return
        self._value["trouble"] = trouble
        self._tell_at = now + TOLD_EVERY_S
        with self._lock, contextlib.suppress(StateError, StateConflictError):
            if not self._told:
                self._value["since_ms"] = _now_ms()
                self._remove_dead()
            self._state.put(self._key, {**self._value, "seen_ms": _now_ms()}, None)
            self._told = True

    def leave(self, *, later: bool = False) -> None:
        """It leads, or ends. ``later``: in a thread, for who has no time."""
        self._tell_at = 0.0
        if later:
            threading.Thread(target=self.leave, name="tidelog-roster", daemon=True).start()
            return
        with self._lock, contextlib.suppress(StateError):
            if self._told:
                self._told = False
                self._state.delete(self._key)

    def _remove_dead(self) -> None:
        for key in self._state.keys(self._prefix):
            found = self._state.get(key)
            if found is not None and found.value["seen_ms"] < _now_ms() - _KEEP_MS:
                self._state.delete(key)


def standbys(state: StateStore, prefix: str = PREFIX) -> list[dict[str, Any]]:
    """Those that stand by: ``holder``, ``zone``, ``since_ms``, ``url``; the first came first."""
    return [
        {name: one.get(name) for name in ("holder", "zone", "since_ms", "url")}
        for one in _alive(state, prefix)
        if not one.get("trouble")
    ]


def failing(state: StateStore, prefix: str = PREFIX) -> list[dict[str, Any]]:
    """Those that would lead but can't: ``holder``, ``since_ms`` and why, ``trouble``."""
    return [
        {name: one.get(name) for name in ("holder", "since_ms", "trouble")}
        for one in _alive(state, prefix)
        if one.get("trouble")
    ]


def _alive(state: StateStore, prefix: str) -> list[dict[str, Any]]:
    found = [state.get(key) for key in state.keys(prefix)]
    alive = [
        one.value
        for one in found
        if one is not None and one.value["seen_ms"] >= _now_ms() - GONE_MS
    ]
    return sorted(alive, key=lambda one: one["since_ms"])


def _now_ms() -> int:
    return int(time.time() * 1000)
