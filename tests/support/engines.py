"""Engines over event logs that tests write: real segments, no database."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.support.build_log import BuiltLog

from tidelog.app.async_engine.log_task import LogTask
from tidelog.engine.core import EngineCore, assemble
from tidelog.engine.options import EngineOptions
from tidelog.engine.ports import Connector, SourceTask
from tidelog.eventlog.consumers import Consumers
from tidelog.eventlog.reader import EventLog

PATIENCE_S = 60.0
"""For what must come: however busy the machine is. A wait ends as soon as it has."""

COLUMNS = {"id": "int64", "note": "text"}


def until(
    condition: Callable[[], object], what: str = "it", patience_s: float = PATIENCE_S
) -> None:
    """Wait for what must come."""
    deadline = time.monotonic() + patience_s
    while not condition():
        assert time.monotonic() < deadline, f"{what} did not come"
        time.sleep(0.002)


def orders_log(path: Path, rows: Sequence[int]) -> BuiltLog:
    """A log of inserts into ``public.orders`` with these ids, in one segment."""
    built = BuiltLog(path)
    orders = built.table("public.orders", COLUMNS)
    for row in rows:
        built.insert(orders, str(row), f"note {row}")
    built.flush()
    return built


def versions(path: Path | str) -> list[int]:
    """Of the row changes that a log holds, in order."""
    log = EventLog.open(path)
    return [
        record["offset"]
        for ref in log.segments(log.head_offset)
        for batch in log.batches(ref, ["offset", "schema_id"])
        for record in batch.to_pylist()
        if record["schema_id"]
    ]


def committed(path: Path | str, name: str = "engine") -> int | None:
    """The offset that a log keeps of a task."""
    found = {each.name: each.offset for each in Consumers(EventLog.open(path).storage).all()}
    return found.get(name)


class Gates(LogTask):
    """A task that stops where a test wants it to, and notes what it is asked."""

    def __init__(self, path: Path | str, name: str = "engine", **options: Any) -> None:
        super().__init__(str(path), name, **options)
        self.calls: list[str] = []
        self.may_start = threading.Event()
        self.may_start.set()
        self.patient = True  # gives up starting when it is told to
        self.fails_at: dict[str, list[BaseException]] = {}

    def start(self, cancelled: threading.Event) -> None:
        self.calls.append("start")
        while not self.may_start.wait(0.002):
            if self.patient and cancelled.is_set():
                raise InterruptedError("told to give up")
        self._fail("start")
        super().start(cancelled)

    def poll(self, timeout_s: float) -> Any:
        if "poll" not in self.calls:
            self.calls.append("poll")
        self._fail("poll")
        return super().poll(min(timeout_s, 0.01))

    def commit(self, offset: int) -> None:
        self.calls.append(f"commit {offset}")
        self._fail("commit")
        super().commit(offset)

    def stop(self) -> None:
        self.calls.append("stop")
        self._fail("stop")
        super().stop()

    def _fail(self, where: str) -> None:
        if self.fails_at.get(where):
            raise self.fails_at[where].pop(0)


class Tasks:
    """A connector of these tasks."""

    def __init__(self, *tasks: SourceTask) -> None:
        self._tasks = tasks
        self.calls: list[str] = []

    def start(self) -> None:
        self.calls.append("start")

    def tasks(self) -> Sequence[SourceTask]:
        self.calls.append("tasks")
        return self._tasks

    def stop(self) -> None:
        self.calls.append("stop")


def engine(connector: Connector | SourceTask, *, order: Any = None, **given: Any) -> EngineCore:
    """An engine with quick retries; options of `EngineOptions` and of `assemble` mixed."""
    options = {
        "record_processing_threads": 4,
        "errors_retry_delay_initial_ms": 1,
        "errors_retry_delay_max_ms": 2,
        "task_management_timeout_ms": int(PATIENCE_S * 1000),
    }
    options |= {name: given.pop(name) for name in list(given) if name in EngineOptions.__slots__}
    consume_async = given.get("consume_records_async", False)
    order = order or ("none" if consume_async else "total")
    if not hasattr(connector, "tasks"):
        connector = Tasks(connector)
    return assemble(connector, EngineOptions(order=order, **options), **given)  # type: ignore[arg-type]


class Running:
    """An engine that runs in a thread of the test."""

    def __init__(self, core: EngineCore) -> None:
        self.core = core
        self.error: BaseException | None = None
        self.thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        try:
            self.core.run()
        except BaseException as error:  # noqa: BLE001 - what the test asks for
            self.error = error

    def join(self) -> BaseException | None:
        """What ``run`` raised."""
        self.thread.join(PATIENCE_S)
        assert not self.thread.is_alive(), "the engine did not end"
        return self.error


@contextmanager
def running(core: EngineCore) -> Iterator[Running]:
    """Run it; closed at the end, if it did not end before. What it raised is in ``error``."""
    found = Running(core)
    found.thread.start()
    try:
        yield found
    finally:
        core.close()
        found.join()


others: set[threading.Thread] = set()
"""Threads that other tests of this process have left, as `tests.conftest` notes them."""


def no_threads_left() -> bool:
    """Has every thread of this test's engines ended?"""
    left = set(threading.enumerate()) - others
    return not [thread for thread in left if thread.name.startswith("tidelog-")]
