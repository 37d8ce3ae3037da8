"""A session of Spark on this machine, and work that this process does without it.

A Spark job costs about 0.2 s of CPU, and Spark's start 10 s: small work is done by this process,
also while Spark starts.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, InvalidStateError, wait
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

from tidelog.errors import OutputError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Work = TypeVar("Work")
Result = TypeVar("Result")


class DriverTasks:
    """Runs small work in threads of this process.

    Args:
        small_bytes: up to how many bytes work is small; 0: none is.
    """

    def __init__(self, small_bytes: int) -> None:
        self.small_bytes = small_bytes
        self._running = set[Future[Any]]()

    def run(self, function: Callable[[Work], Result], items: Sequence[Work]) -> list[Result]:
        """Return ``function(item)`` of each item, all at once. Raises the error of one, when all
        have ended, and OutputError at `cancel`, which waits for none.
        """
        futures = [Future[Result]() for _ in items]
        self._running.update(futures)

        def run(future: Future[Result], item: Work) -> None:
            try:
                result = function(item)
            except Exception as error:  # noqa: BLE001 - raised below
                _end(future, error=error)
            except BaseException as error:  # noqa: BLE001 - a task's exit is not this process's
                _end(future, error=OutputError(f"a task has ended by {type(error).__name__}"))
            else:
                _end(future, result=result)

        try:
            for future, item in zip(futures, items, strict=True):
                # The end of the process waits for no daemon: the task may wait for a database.
                threading.Thread(target=run, args=(future, item), daemon=True).start()
            wait(futures)
            return [future.result() for future in futures]
        finally:
            self._running.difference_update(futures)

    def cancel(self) -> None:
        """Have all work that runs fail at once."""
        for future in list(self._running):
            _end(future, error=OutputError("the batch was cancelled"))


def _end(future: Future[Any], *, result: Any = None, error: BaseException | None = None) -> None:
    """Set the result, or the error, of a task that has neither."""
    with suppress(InvalidStateError):
        if error is None:
            future.set_result(result)
        else:
            future.set_exception(error)


class LocalSession:
    """A SparkSession of this machine: whatever is called on it is called on the session, which is
    started by the first call, or by `start`.

    Args:
        open_session: opens the session; raises TidelogError.
        prepare: is called with the open session, as `prepare_workers` is after each change.
        cores: the number of tasks that run at once.
        tasks: does small work without a session.
    """

    def __init__(
        self,
        open_session: Callable[[], SparkSession],
        prepare: Callable[[SparkSession], object],
        cores: int,
        tasks: DriverTasks,
    ) -> None:
        self.cores = cores
        self.tasks = tasks
        self._open = open_session
        self._prepare = prepare
        self._lock = threading.Lock()
        self._session: SparkSession | None = None
        self.failure: BaseException | None = None
        """The error by which `start` failed."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.current(), name)

    @property
    def is_open(self) -> bool:
        """Is there a session?"""
        return self._session is not None

    def current(self) -> SparkSession:
        """Return the session, which is opened if there is none. Raises TidelogError."""
        with self._lock:
            if self._session is None:
                self._session = self._open()
                try:
                    self._prepare(self._session)  # for what was changed while it opened
                except BaseException:
                    self._session = None
                    raise
            return self._session

    def start(self) -> None:
        """Open the session in a thread. If that fails, `failure` is the error."""

        def opened() -> None:
            try:
                self.current()
            except BaseException as error:  # noqa: BLE001 - see above
                self.failure = error

        threading.Thread(target=opened, name="tidelog-spark-start", daemon=True).start()

    def beside(
        self, opened: Callable[[SparkSession], SparkSession], tasks: DriverTasks | None = None
    ) -> LocalSession:
        """Return the session that ``opened`` makes of this one, when it is needed; ``tasks``: that
        do its small work, if not those of this one.
        """
        return LocalSession(
            lambda: opened(self.current()), self._prepare, self.cores, tasks or self.tasks
        )

    def cancel_jobs(self) -> None:
        """Have all work fail at once."""
        self.tasks.cancel()
        if self._session is not None:
            with suppress(Exception):  # its Java was killed
                self._session.sparkContext.cancelAllJobs()
