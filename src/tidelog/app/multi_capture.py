"""Runs several captures in one process: of several configurations, or of a server's databases."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, Literal

from tidelog.app.base.service import BackgroundService
from tidelog.app.capture.run import run_capture
from tidelog.app.overview.remote_control import OnStatus, ignore_status
from tidelog.app.pipeline.run import run_capture_and_pipeline
from tidelog.config import AnyConfig, Config, as_config
from tidelog.config.loading import config_by_database, databases_of
from tidelog.errors import ConfigError
from tidelog.system.callbacks import refuse_coroutine_function

OnStatusOf = Callable[[int, dict[str, Any]], None]


class CaptureGroup(BackgroundService):
    """Runs a task for each configuration: its capture and, if it has outputs, its pipeline.

    A configuration with ``source.databases`` has a task for each of them. Each task needs its own
    event log and state. It ends when all tasks have ended; then `run`, `wait` and the end of a
    ``with`` block raise the first failure, if any.

    Example:
        ``with CaptureGroup(["shop.yaml", "billing.yaml"]) as group: group.wait()``

    Args:
        configs: configurations, paths of ``tidelog.yaml`` files, or contents of such files.
        pipelines: whether to run the configured outputs, too.
        on_failure: ``isolate``: a task that fails does not end the others; ``stop``: it does.
        on_status: called with a task's index and status now and then, from that task's thread.
        stop_event: ends it when set, as `stop` does; for several that end together.

    Attributes:
        failures: by a task's index, what ended it.

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
        stop_event: threading.Event | None = None,
    ) -> None:
        super().__init__("tidelog-group", stop_event)
        refuse_coroutine_function("on_status", on_status)
        if on_failure not in ("isolate", "stop"):
            raise ConfigError(f"on_failure is isolate or stop, not {on_failure!r}")
        given = [as_config(each) for each in configs]
        if not given:
            raise ConfigError("there is no configuration: give at least one")
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
        self.failures: dict[int, BaseException] = {}

    def _run(self, stop: threading.Event) -> None:
        threads = [
            threading.Thread(
                target=self._task, args=(index, stop), name=f"tidelog-task-{index}", daemon=True
            )
            for index in range(len(self.configs))
        ]
        for thread in threads:
            thread.start()
        try:
            for thread in threads:
                thread.join()
        except BaseException:  # such as KeyboardInterrupt: what was read becomes durable
            stop.set()
            for thread in threads:
                thread.join()
            raise
        for failure in self.failures.values():
            raise failure

    def _task(self, index: int, stop: threading.Event) -> None:
        def on_status(status: dict[str, Any]) -> None:
            if self._on_status is not None:
                self._on_status(index, status)

        work = run_capture_and_pipeline if self._pipelines else run_capture
        try:
            work(self.configs[index], on_status=on_status, stop_event=stop)
        except BaseException as failure:  # noqa: BLE001 - raised when all have ended
            self.failures[index] = failure
            if self._stops:
                stop.set()


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

    CaptureGroup(
        [config], pipelines=False, on_failure="stop", on_status=show, stop_event=stop_event
    ).run()
