"""Runs several captures in one process: of several configurations, or of a server's databases."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Final, Literal

from tidelog.app.capture.run import run_capture
from tidelog.app.overview.remote_control import OnStatus, ignore_status
from tidelog.app.pipeline.run import run_capture_and_pipeline
from tidelog.config import AnyConfig, Config, as_config
from tidelog.config.loading import config_by_database, databases_of
from tidelog.errors import ConfigError
from tidelog.system.callbacks import refuse_coroutine_function

_POLL_S: Final = 0.1

OnStatusOf = Callable[[int, dict[str, Any]], None]


class CaptureGroup:
    """Runs a task for each configuration: its capture and, if it has outputs, its pipeline.

    A configuration with ``source.databases`` has a task for each of them. Each task needs its own
    event log and state.

    Example:
        ``with CaptureGroup(["shop.yaml", "billing.yaml"]) as group: group.wait()``

    Args:
        configs: configurations, paths of ``tidelog.yaml`` files, or contents of such files.
        pipelines: whether to run the configured outputs, too.
        on_failure: ``isolate``: a task that fails does not end the others; ``stop``: it does.
        on_status: called with a task's index and status now and then, from that task's thread.

    Raises:
        ConfigError: a configuration is wrong, two tasks share an event log or a state, or
            ``on_status`` is a coroutine function.
    """

    def __init__(
        self,
        configs: Sequence[AnyConfig],
        *,
        pipelines: bool = True,
        on_failure: Literal["isolate", "stop"] = "isolate",
        on_status: OnStatusOf | None = None,
    ) -> None:
        refuse_coroutine_function("on_status", on_status)
        if on_failure not in ("isolate", "stop"):
            raise ConfigError(f"on_failure is isolate or stop, not {on_failure!r}")
        given = [as_config(each) for each in configs]
        self.configs = [each for config in given for each in config_by_database(config).values()]
        locations = {
            "log.path": [config.log.path for config in self.configs],
            # With the parts that its text would hide.
            "state.url": [config.state.location.reveal() for config in self.configs],
        }
        for what, each in locations.items():
            if len(set(each)) != len(each):
                raise ConfigError(f"two configurations have the same {what}: give each its own")
        self._pipelines = pipelines
        self._stops = on_failure == "stop"
        self._on_status = on_status
        self._stop = threading.Event()
        self._changed = threading.Condition()
        self._running = 0
        self.failures: dict[int, BaseException] = {}
        self._threads = [
            threading.Thread(target=self._task, args=(index,), name=f"tidelog-task-{index}")
            for index in range(len(self.configs))
        ]

    def start(self) -> None:
        """Start every task; return at once."""
        self._running = len(self._threads)
        for thread in self._threads:
            thread.start()

    def run(self) -> None:
        """Start every task, and wait until all have ended. Raises the first failure."""
        self.start()
        try:
            while not self.wait(1):
                pass
        finally:
            self._end()

    def stop(self) -> None:
        """Ask every task to end; returns at once."""
        self._stop.set()

    def _end(self) -> None:
        self._stop.set()
        for thread in self._threads:
            if thread.ident is not None:
                thread.join()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until every task has ended (True), one has failed, or the time is over (False).

        Raises the first failure; the others run on unless ``on_failure`` is ``stop``: then they
        have ended.
        """
        with self._changed:
            self._changed.wait_for(lambda: self.failures or not self._running, timeout_s)
        if self.failures:
            if self._stops:
                self._end()
            raise next(iter(self.failures.values()))
        return not self._running

    def __enter__(self) -> CaptureGroup:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """What was read is durable when this returns."""
        self._end()

    def _task(self, index: int) -> None:
        def on_status(status: dict[str, Any]) -> None:
            if self._on_status is not None:
                self._on_status(index, status)

        work = run_capture_and_pipeline if self._pipelines else run_capture
        failure: BaseException | None = None
        try:
            work(self.configs[index], on_status=on_status, stop_event=self._stop)
        except BaseException as raised:  # noqa: BLE001 - kept for wait
            failure = raised
            if self._stops:
                self._stop.set()
        with self._changed:
            self._running -= 1
            if failure is not None:
                self.failures[index] = failure
            self._changed.notify_all()


def capture_databases(
    config: Config, *, on_status: OnStatus = ignore_status, stop_event: threading.Event
) -> None:
    """Capture every one of ``source.databases`` until ``stop_event``, or until one fails.

    Raises:
        TidelogError: the error that ended one; the others have ended, too.
    """
    names = databases_of(config)
    shown: dict[str, dict[str, Any]] = {}
    lock = threading.Lock()

    def show(index: int, status: dict[str, Any]) -> None:
        with lock:
            shown[names[index]] = status
            on_status(dict(shown))

    group = CaptureGroup([config], pipelines=False, on_failure="stop", on_status=show)
    with group:
        while not (group.wait(_POLL_S) or stop_event.is_set()):
            pass
    for failure in group.failures.values():
        raise failure
