"""Registers processes in the state store, for `tidelog status` and for handovers."""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import threading
import time
from pathlib import Path
from typing import Any, Final, Literal

from tidelog.errors import StateConflictError, StateError
from tidelog.ports import StateStore
from tidelog.system.processes import unix_ms

PREFIX: Final = "standby/"
WRITE_EVERY_S: Final = 30.0
EXPIRED_MS: Final = 100_000
"""A process whose document is older than this has ended. Hosts' clocks may differ a little."""
_KEEP_MS: Final = 86_400_000


PIPELINE_PREFIX: Final = "pipeline/"
"""Prefix of the documents that name each pipeline's current or last leader."""


_PIDS = Path("/proc/self/ns/pid")
_PIDS_OF_HOST: Final = 0xEFFFFFFC
"""The inode of Linux's first pid namespace (``PROC_PID_INIT_INO``)."""


def this_holder() -> str:
    """Return the id of this process: host, pid namespace and pid. The pid namespace is there in a
    container only: containers on the host's network share its name, and each has a process 1.
    """
    host, space = socket.gethostname(), _pid_space()
    return f"{host}{'' if space is None else f'-{space}'}:{os.getpid()}"


def _pid_space() -> int | None:
    """Return the pid namespace; None: the host's own, or unknown."""
    with contextlib.suppress(OSError):
        number = _PIDS.stat().st_ino
        return None if number == _PIDS_OF_HOST else number
    return None


def pipeline_prefix(name: str) -> str:
    """Return the prefix of the documents of this pipeline's standbys."""
    return f"pipeline-{PREFIX}{name}/"


class InstanceRegistration:
    """The document of one process that starts or stands by. If the state store fails, it is written
    later.

    Args:
        state: the state store.
        holder: the id of this process.
        zone: the zone of this process, if any.
        prefix: the key prefix of the documents of all standbys of the same lease.
        url: the URL of the HTTP interface of this process, if any.
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
        self._write_at = 0.0
        self._written = False
        self._lock = threading.Lock()
        self._started: threading.Event | None = None

    def start(self, what: str) -> None:
        """Write that this process starts ``what``, until it stands by or leaves. A thread repeats
        it: Spark may take minutes to start.
        """
        self._value["starting"] = what
        if self._started is None:
            self._started = threading.Event()
            threading.Thread(
                target=self._repeat, args=(self._started,), name="tidelog-starting", daemon=True
            ).start()
        self._write()

    def _repeat(self, started: threading.Event) -> None:
        while not started.wait(WRITE_EVERY_S):
            self._write(started)

    def stand_by(self, trouble: str = "") -> None:
        """Write the document if due; call it often. ``trouble``: why this process can't lead."""
        now = time.monotonic()
        started = self._end_start()
        if now < self._write_at and trouble == self._value["trouble"] and not started:
            return
        self._value["trouble"] = trouble
        self._write_at = now + WRITE_EVERY_S
        self._write()

    def _end_start(self) -> bool:
        """Report no start any more; return whether one was reported."""
        if self._started is not None:
            self._started.set()
            self._started = None
        return self._value.pop("starting", None) is not None

    def _write(self, started: threading.Event | None = None) -> None:
        with self._lock, contextlib.suppress(StateError, StateConflictError):
            if started is not None and started.is_set():
                return
            if not self._written:
                self._value["since_ms"] = unix_ms()
                self._remove_dead()
            self._state.put(self._key, {**self._value, "seen_ms": unix_ms()}, None)
            self._written = True

    def leave(self, *, later: bool = False) -> None:
        """Delete the document, because the process leads or ends. ``later``: in a thread."""
        self._write_at = 0.0
        self._end_start()
        if later:
            threading.Thread(target=self.leave, name="tidelog-leave", daemon=True).start()
            return
        with self._lock, contextlib.suppress(StateError):
            if self._written:
                self._written = False
                self._state.delete(self._key)

    def _remove_dead(self) -> None:
        for key in self._state.keys(self._prefix):
            document = self._state.get(key)
            if document is not None and document.value["seen_ms"] < unix_ms() - _KEEP_MS:
                self._state.delete(key)


def standbys(state: StateStore, prefix: str = PREFIX) -> list[dict[str, Any]]:
    """Return the standbys (``holder``, ``zone``, ``since_ms``, ``url``), the oldest first."""
    return [
        {name: one.get(name) for name in ("holder", "zone", "since_ms", "url")}
        for one in _alive(state, prefix)
        if not one.get("trouble") and not one.get("starting")
    ]


def processes_with(
    state: StateStore, field: Literal["starting", "trouble"], prefix: str = PREFIX
) -> list[dict[str, Any]]:
    """Return the processes that start (``starting``: what) or that try to lead but can't
    (``trouble``: why), with ``holder`` and ``since_ms``.
    """
    return [
        {name: one.get(name) for name in ("holder", "since_ms", field)}
        for one in _alive(state, prefix)
        if one.get(field)
    ]


def _alive(state: StateStore, prefix: str) -> list[dict[str, Any]]:
    documents = [state.get(key) for key in state.keys(prefix)]
    alive = [
        one.value
        for one in documents
        if one is not None and one.value["seen_ms"] >= unix_ms() - EXPIRED_MS
    ]
    return sorted(alive, key=lambda one: one["since_ms"])
