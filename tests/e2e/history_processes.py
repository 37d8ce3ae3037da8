"""The processes of a run: captures that can be killed and frozen, and a consumer beside them."""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import ClassVar

from tests.campaign import switches
from tests.e2e.history_spec import ROOT
from tests.support.oracle.dumps import REFETCH, PlacedChunk
from tests.support.oracle.log import read_event_log
from tests.support.oracle.values import Change

from tidelog.errors import StorageError
from tidelog.eventlog.reader import EventLog
from tidelog.model.records import ChunkMeta

START_S = 300.0
"""For a fork, and before the first one for all imports: on a machine with many times more to do
than it has cores, a process may get no turn for a minute.
"""


class Collector(threading.Thread):
    """Reads the log as a consumer does, while it is written: what it saw must stay true."""

    def __init__(self, path: Path) -> None:
        super().__init__(daemon=True)
        self._path = path
        self._stopping = threading.Event()
        self._log: EventLog | None = None
        self.lock = threading.Lock()
        """It does not read while another has it."""
        self.count = 0
        self.forgotten: set[int] = set()
        """Offsets of records that the log lost when it was put back."""
        self.records: list[Change] = []
        self.xids: set[int] = set()
        self.chunks: dict[str, ChunkMeta] = {}
        self.placed: dict[str, PlacedChunk] = {}
        self.next: int | None = None
        self.begin: int | None = None
        self.failure: BaseException | None = None

    def run(self) -> None:
        try:
            while not self._stopping.is_set() and not EventLog.exists(self._path):
                time.sleep(0.01)
            if self._stopping.is_set():
                return
            while not self._stopping.wait(0.03):
                with self.lock, contextlib.suppress(StorageError):  # the store restarts
                    self._log = self._log or EventLog.open(self._path)
                    self.read(self._log)
        except BaseException as failure:  # noqa: BLE001 - raised by stop
            self.failure = failure

    def read(self, log: EventLog) -> None:
        chain = log.chain()
        if self.begin is None:
            resumes = [meta.resume for meta in chain.segments if meta.resume is not None]
            if not resumes:
                return
            self.begin, self.next = resumes[0].acknowledge, chain.head
        assert self.next is not None
        end = log.latest_offset()
        if end > self.next:
            for meta, chunk in log.chunks(self.next):
                self.chunks[chunk.chunk_id] = chunk
                if meta.kind == "chunk" and len(meta.chunks) == 1:
                    self.placed[chunk.chunk_id] = PlacedChunk(meta.first, meta.next, chunk)
            records = read_event_log(log, self.next, end)
            self.records += records
            self.xids.update(record.xid for record in records)
            self.count += len(records)
            self.next = end

    def rewind(self, end: int) -> None:
        """The log was put back and ends there. To be called with the lock."""
        self.forgotten |= {record.offset for record in self.records if record.offset >= end}
        self.records = [record for record in self.records if record.offset < end]
        self.xids = {record.xid for record in self.records}
        kept = {name for name, chunk in self.placed.items() if chunk.first < end}
        self.placed = {name: self.placed[name] for name in kept}
        self.chunks = {name: chunk for name, chunk in self.chunks.items() if name in kept}
        self.next, self._log = end, None

    def drop(self, is_dropped: Callable[[str], bool]) -> None:
        """Forget what tables have that are judged apart."""
        self.records = [record for record in self.records if not is_dropped(record.table)]
        self.chunks = {k: chunk for k, chunk in self.chunks.items() if not is_dropped(chunk.table)}
        self.placed = {k: v for k, v in self.placed.items() if not is_dropped(v.meta.table)}

    @property
    def refetch(self) -> list[PlacedChunk]:
        return [placed for placed in self.placed.values() if placed.meta.dump_id == REFETCH]

    def stop(self) -> None:
        self._stopping.set()
        self.join(30)
        if self.failure is not None:
            raise self.failure


class Nursery:
    """Forks captures (`tests.e2e.capture_process`); one serves all runs of a test process, and
    another those of a campaign.
    """

    _shared: ClassVar[dict[bool, Nursery]] = {}

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.e2e.capture_process"],
            cwd=ROOT,
            env={
                **os.environ,
                "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}",
                "TIDELOG_DEBUG": "1",
                **environment,
            },
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._started: SimpleQueue[int] = SimpleQueue()
        self._ended: dict[int, int] = {}
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()
        atexit.register(self._close)

    @classmethod
    def shared(cls, *, stepped: bool = False) -> Nursery:
        """``stepped``: its captures' clocks are (`tests.campaign.switches`)."""
        if stepped not in cls._shared:
            cls._shared[stepped] = Nursery(switches.faketime() if stepped else {})
        return cls._shared[stepped]

    def start(self, **arguments: str) -> int:
        """The process id of a new capture."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(arguments) + "\n")
        self._process.stdin.flush()
        deadline = time.monotonic() + START_S
        while True:
            with contextlib.suppress(Empty):
                return self._started.get(timeout=0.5)
            code = self._process.poll()
            if code is not None or not self._listener.is_alive():
                raise RuntimeError(f"the nursery of captures has ended (exit code {code})")
            if time.monotonic() > deadline:
                raise RuntimeError(f"the nursery of captures lives, but began none in {START_S} s")

    def ended(self, pid: int) -> int | None:
        """Its exit code; None while it runs."""
        return self._ended.get(pid)

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            what, *numbers = line.split()
            if what == "started":
                self._ended.pop(int(numbers[0]), None)  # of an earlier process
                self._started.put(int(numbers[0]))
            else:
                self._ended[int(numbers[0])] = int(numbers[1])

    def _close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(10)


class CaptureProcess:
    """One `tidelog capture`, or a program with an engine, in a process of its own."""

    def __init__(
        self,
        config: Path,
        log_file: Path,
        failpoint: str = "",
        mutation: str = "",
        window_ms: int = 0,
        engine: str = "",
        host: str = "",
        namespace: str = "",
    ) -> None:
        self.failpoint = failpoint
        self.log_file = log_file
        with log_file.open("a") as out:
            out.write(f"--- start {failpoint}\n")
        self._nursery = Nursery.shared(stepped=bool(host))
        self.pid = self._nursery.start(
            config=str(config),
            log_file=str(log_file),
            failpoint=failpoint,
            mutation=mutation,
            window_ms=str(window_ms),
            engine=engine,
            host=host,
            namespace=namespace,
        )
        self.frozen = False

    def send(self, number: signal.Signals) -> None:
        if not self.died:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)
        self.frozen = number is signal.SIGSTOP

    def is_stopped(self) -> bool:
        """Return True if it has ended or, upon SIGSTOP, none of its threads runs."""
        states = set()
        for stat in Path(f"/proc/{self.pid}/task").glob("*/stat"):
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it has just ended
                states.add(stat.read_text().rsplit(")", 1)[1].split()[0])
        return self.died or states <= {"T"}

    def kill(self) -> None:
        self.send(signal.SIGKILL)
        self.wait(30)

    def stop(self) -> int:
        """Ask it to end; its exit code."""
        if self.frozen:
            self.send(signal.SIGCONT)
        self.send(signal.SIGTERM)
        if self.wait(120) is None:
            self.kill()
        return self.code or 0

    def wait(self, timeout_s: float) -> int | None:
        """Its exit code once it has ended; None if it still runs after ``timeout_s``."""
        deadline = time.monotonic() + timeout_s
        while not self.died and time.monotonic() < deadline:
            time.sleep(0.01)
        return self.code

    @property
    def code(self) -> int | None:
        """Its exit code, minus the signal that killed it; None while it runs."""
        return self._nursery.ended(self.pid)

    @property
    def died(self) -> bool:
        return self.code is not None

    @property
    def tail(self) -> str:
        return self.log_file.read_text()[-6000:]
