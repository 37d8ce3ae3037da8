"""``record_processing_on: processes``: runs jobs in worker processes."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import queue
import signal
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Final

from tidelog.engine.events import Events
from tidelog.engine.processing.workers import EventWork, JobResult, answer_to, read_answer
from tidelog.engine.retries import StoppingError
from tidelog.errors import ConfigError, ConsumerError

_JOIN_S: Final = 5.0
_PARENT_S: Final = 1.0


class WorkerProcesses:
    """`tidelog.engine.processing.workers.Workers`. A process starts with its first job.

    Raises:
        ConfigError: if the work can't be sent to another process.
    """

    jobs_are_dear = False

    def __init__(self, count: int, work: EventWork) -> None:
        self._work = _pickled(work)
        self._lock = threading.Lock()
        self._closed = False
        self._processes: list[BaseProcess] = []
        self._free: queue.SimpleQueue[Connection | None] = queue.SimpleQueue()
        for _ in range(count):
            self._free.put(None)

    def open(self) -> None: ...

    def call(self, events: Events) -> JobResult:
        job = pickle.dumps(events)
        connection = self._free.get()
        usable: Connection | None = None
        try:
            messages = [self._work, job] if connection is None else [job]
            connection = connection or self._start()
            answer = self._answer(connection, messages)
            usable = connection
        finally:
            self._free.put(usable)
        return read_answer(answer)

    def close(self) -> None:
        """End the processes, even during a job."""
        with self._lock:
            self._closed = True
            processes, self._processes = self._processes, []
        for process in processes:
            process.terminate()
        for process in processes:
            process.join(_JOIN_S)
            if process.is_alive():
                process.kill()

    def _answer(self, connection: Connection, messages: Sequence[bytes]) -> bytes:
        try:
            for message in messages:
                connection.send_bytes(message)
            return connection.recv_bytes()
        except (EOFError, OSError) as error:
            if self._closed:
                raise StoppingError("processes") from error
            raise ConsumerError("a process that processes records has ended by itself") from error

    def _start(self) -> Connection:
        # The work is sent over the connection, as jobs are, not as an argument: arguments go
        # through a pipe whose other end this process holds, too. If the process died, a write of
        # more than fits would block for ever, under the lock.
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        process = context.Process(
            target=_serve, args=(theirs,), name="tidelog-records", daemon=True
        )
        with self._lock:
            if self._closed:
                raise StoppingError("processes")
            process.start()
            self._processes.append(process)
        theirs.close()  # so that the process's end is noticed here
        return ours


def _pickled(work: EventWork) -> bytes:
    try:
        pickled = pickle.dumps(work)
    except Exception as error:  # noqa: BLE001 - whatever its __reduce__ raises
        raise ConfigError(
            "record_processing_on: processes needs transforms, and with consume_records_async "
            "a consumer, that are functions of a module (no lambda, nothing that holds a "
            f"lock or a connection): {type(error).__name__}"
        ) from None
    if b"__main__" in pickled and not _main_can_be_imported():
        raise ConfigError(
            "record_processing_on: processes needs transforms, and with consume_records_async a "
            "consumer, that other processes can import. These were typed in (python -c, a console, "
            "a notebook): write them to a file, such as steps.py, and import them from there"
        )
    return pickled


def _main_can_be_imported() -> bool:
    """Can a process that is spawned import the program's main module?"""
    main = sys.modules["__main__"]
    named = getattr(getattr(main, "__spec__", None), "name", None)
    return named is not None or Path(getattr(main, "__file__", None) or "").is_file()


def _serve(connection: Connection) -> None:
    """Do jobs in the process, until the other end is closed."""
    threading.Thread(target=_end_with_parent, name="tidelog-parent", daemon=True).start()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the engine ends it
    closed = (EOFError, OSError)  # OSError: in the middle of a message
    try:
        pickled = connection.recv_bytes()
    except closed:
        return
    work: EventWork = pickle.loads(pickled)  # noqa: S301 - from the process that made this one
    with suppress(*closed):
        while True:
            connection.send_bytes(answer_to(connection.recv_bytes(), work))


def _end_with_parent() -> None:
    """End the process with its engine. A process that outlived a killed engine would continue to
    consume its events while the next engine consumes the same ones.
    """
    parent, above = multiprocessing.parent_process(), os.getppid()
    assert parent is not None
    # A fork of the parent keeps the awaited handle open: hence the check of the id, too.
    while parent.is_alive() and os.getppid() == above:
        parent.join(_PARENT_S)
    os._exit(1)
