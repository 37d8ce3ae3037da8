"""The thread pool that processes records, separate from the tasks' threads."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from typing import Any, TypeVar

from tidelog.engine.retries import StoppingError

T = TypeVar("T")


class ThreadPool:
    """`tidelog.engine.ports.RecordService`.

    Its threads are daemons: one that never returns does not keep the process from ending, as one
    of `concurrent.futures` would.

    Args:
        threads: number of threads.
        inside: called in each thread as it begins.
    """

    def __init__(self, threads: int, inside: Callable[[], object] = lambda: None) -> None:
        self.threads = threads
        self._inside = inside
        self._changed = threading.Condition()
        self._waiting: deque[tuple[Future[Any], Callable[[], Any]]] = deque()
        self._running: set[Future[Any]] = set()
        self._idle = 0
        self._started: list[threading.Thread] = []
        self._closed = False

    def submit(self, function: Callable[[], T]) -> Future[T]:
        """Queue a job. Raises RuntimeError without queuing it if no thread could be started."""
        future: Future[T] = Future()
        with self._changed:
            if self._closed:
                raise StoppingError("the pool is closed")
            if self._idle <= len(self._waiting) and len(self._started) < self.threads:
                name = f"tidelog-records-{len(self._started)}"
                thread = threading.Thread(target=self._work, name=name, daemon=True)
                thread.start()  # it waits until the job is there
                self._started.append(thread)
            self._waiting.append((future, function))
            self._changed.notify()
        return future

    def close(self, timeout_s: float) -> bool:
        """Drop queued jobs, let running ones finish within the time, then give up on them. False:
        some were given up; their results are dropped.
        """
        deadline = time.monotonic() + timeout_s
        with self._changed:
            self._closed = True
            dropped = [future for future, _ in self._waiting]
            self._waiting.clear()
            self._changed.notify_all()
        for future in dropped:
            _fail(future, StoppingError("dropped"))
        with self._changed:
            while self._running and (left := deadline - time.monotonic()) > 0:
                self._changed.wait(left)
            given_up = list(self._running)
        for future in given_up:
            _fail(future, StoppingError("given up"))
        if not given_up:
            for thread in self._started:
                thread.join()
        return not given_up

    def _work(self) -> None:
        self._inside()
        while True:
            with self._changed:
                self._idle += 1
                while not self._waiting and not self._closed:
                    self._changed.wait()
                self._idle -= 1
                if not self._waiting:
                    return
                future, function = self._waiting.popleft()
                if not future.set_running_or_notify_cancel():
                    continue
                self._running.add(future)
            try:
                result = function()
            except BaseException as error:  # noqa: BLE001 - raised where the result is read
                _fail(future, error)
            else:
                with suppress(InvalidStateError):  # given up in the meantime
                    future.set_result(result)
            with self._changed:
                self._running.discard(future)
                self._changed.notify_all()


def _fail(future: Future[Any], error: BaseException) -> None:
    with suppress(InvalidStateError):  # it has a result, or was given up
        future.set_exception(error)
