"""Several captures in one process, for programs that embed Tidelog."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from tidelog.app.capture_run import capture
from tidelog.app.pipeline.run import run
from tidelog.config import Config, load_config
from tidelog.errors import ConfigError

OnStatus = Callable[[int, dict[str, Any]], None]


class Engine:
    """Runs a task for each configuration: its capture and, if it has outputs, its pipeline.

    Tasks are independent: one that fails does not end the others. Each needs an event log and a
    state of its own.

    Example:
        ``with Engine(["shop.yaml", "billing.yaml"]) as engine: engine.wait()``

    Args:
        configs: configurations, or paths of ``tidelog.yaml`` files.
        pipelines: run the configured outputs too; else capture alone.
        on_status: told a task's index and status now and then, from that task's thread.

    Raises:
        ConfigError: a configuration is wrong, or two tasks share an event log or a state.
    """

    def __init__(
        self,
        configs: Sequence[Config | str | Path],
        *,
        pipelines: bool = True,
        on_status: OnStatus | None = None,
    ) -> None:
        self.configs = [c if isinstance(c, Config) else load_config(c) for c in configs]
        for what in ("log.path", "state.url"):
            section, _, option = what.partition(".")
            places = [str(getattr(getattr(config, section), option)) for config in self.configs]
            if len(set(places)) != len(places):
                raise ConfigError(f"two configurations have the same {what}: give each its own")
        self._pipelines = pipelines
        self._on_status = on_status
        self._stop = threading.Event()
        self.failures: dict[int, BaseException] = {}
        self._threads = [
            threading.Thread(target=self._task, args=(index,), name=f"tidelog-task-{index}")
            for index in range(len(self.configs))
        ]

    def start(self) -> None:
        """Start every task; returns at once."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """End every task; what was read is durable when this returns."""
        self._stop.set()
        for thread in self._threads:
            if thread.ident is not None:
                thread.join()

    def wait(self) -> None:
        """Until every task has ended. Raises the first failure, if there was one."""
        for thread in self._threads:
            thread.join()
        for failure in self.failures.values():
            raise failure

    def __enter__(self) -> Engine:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()

    def _task(self, index: int) -> None:
        def on_status(status: dict[str, Any]) -> None:
            if self._on_status is not None:
                self._on_status(index, status)

        work = run if self._pipelines else capture
        try:
            work(self.configs[index], on_status=on_status, stop_event=self._stop)
        except BaseException as failure:  # noqa: BLE001 - kept for wait
            self.failures[index] = failure
