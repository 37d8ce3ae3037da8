"""The threads that read chunks, each over a reader of its own."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Callable
from queue import SimpleQueue

from tidelog.capture.dumps.chunk_queue import Task
from tidelog.ports import ChunkReader

NICE = 10
"""Of the threads that read chunks: the log's, and a database on the same host, come first."""


class ChunkReaders:
    """As many threads as are wanted; they are started when there is work, and their connections
    are closed when fewer are wanted.

    Args:
        open_reader: a new reader; it connects when it is first used.
        work: called in a reader's thread for each task. What it raises ends all (`failure`).
    """

    def __init__(
        self, open_reader: Callable[[], ChunkReader], work: Callable[[ChunkReader, Task], None]
    ) -> None:
        self._open_reader = open_reader
        self._work = work
        self._queue: SimpleQueue[Task | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []
        self._readers: list[ChunkReader] = []
        self._running = 0
        self._busy = 0
        self.failure: BaseException | None = None

    @property
    def busy(self) -> int:
        """Threads that read, and tasks that one will take at once."""
        with self._lock:
            return self._busy

    def give(self, task: Task) -> None:
        """Have ``task`` read now; called only while fewer are busy than are wanted."""
        with self._lock:
            self._busy += 1
            if self._busy > self._running:
                self._running += 1
                name = f"tidelog-chunks-{self._running}"
                thread = threading.Thread(target=self._run, name=name, daemon=True)
                self._threads = [t for t in self._threads if t.is_alive()]
                self._threads.append(thread)
                thread.start()
        self._queue.put(task)

    def shrink(self, wanted: int) -> None:
        """Let threads beyond ``wanted`` end as soon as they have nothing to do."""
        with self._lock:
            surplus = self._running - max(wanted, self._busy)
            for _ in range(surplus):
                self._running -= 1
                self._queue.put(None)

    def close(self) -> None:
        """End what is being read, and disconnect."""
        with self._lock:
            readers = list(self._readers)
        for reader in readers:
            reader.close()
        for _ in self._threads:
            self._queue.put(None)
        for thread in self._threads:
            thread.join(10)

    def _run(self) -> None:
        _yield_to_others()
        reader = self._open_reader()
        with self._lock:
            self._readers.append(reader)
        try:
            while (task := self._queue.get()) is not None:
                try:
                    self._work(reader, task)
                finally:
                    with self._lock:
                        self._busy -= 1
        except BaseException as failure:  # noqa: BLE001 - raised by the coordinator
            self.failure = failure
        finally:
            reader.close()
            with self._lock:
                self._readers.remove(reader)


def _yield_to_others() -> None:
    """Linux schedules threads, each by its own priority; elsewhere this would be the process's."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICE)
