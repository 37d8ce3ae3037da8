"""Who asks the state store while the thread holds a lock under which dumps are decided?"""

from __future__ import annotations

import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tidelog.capture.dumps.refetch_queue import RefetchQueue
from tidelog.capture.dumps.thread_messages import DecisionQueue
from tidelog.capture.state_writes import RetryingStateStore
from tidelog.capture.unsupported_tables import UnsupportedTables


@contextmanager
def asked_under_locks(monkeypatch: pytest.MonkeyPatch) -> Iterator[set[str]]:
    """The functions that did so, with the request; filled while the test runs."""
    found: set[str] = set()
    locks: list[Any] = []  # of type RLock, which knows who holds it
    wrap = monkeypatch.setattr

    def keep(cls: type, name: str) -> None:
        make = cls.__init__  # type: ignore[misc]

        def making(self: Any, *args: Any, **named: Any) -> None:
            make(self, *args, **named)
            if name == "_lock":  # a plain lock
                setattr(self, name, threading.RLock())
            locks.append(getattr(self, name))

        wrap(cls, "__init__", making)

    def watch(request: str) -> None:
        ask = getattr(RetryingStateStore, request)

        def asking(self: RetryingStateStore, *args: Any) -> Any:
            if any(lock._is_owned() for lock in locks):
                callers = [frame.name for frame in traceback.extract_stack()[-7:-1]]
                found.add(f"{request}: {' → '.join(callers)}")
            return ask(self, *args)

        wrap(RetryingStateStore, request, asking)

    keep(DecisionQueue, "lock")
    keep(RefetchQueue, "_lock")
    keep(UnsupportedTables, "_lock")
    for request in ("get", "put", "delete", "keys"):
        watch(request)
    yield found
