"""The processes of a run: captures that can be killed and frozen, and a consumer beside them."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

from tests.e2e.capture_process import MUTATION_VARIABLE
from tests.e2e.history_spec import ROOT

from tidelog.eventlog.reader import EventLog
from tidelog.model.records import ChunkMeta
from tidelog.testing.dump_oracle import REREAD, PlacedChunk
from tidelog.testing.oracle_wire import Change, read_event_log


class Collector(threading.Thread):
    """Reads the log as a consumer does, while it is written: what it saw must stay true."""

    def __init__(self, path: Path) -> None:
        super().__init__(daemon=True)
        self._path = path
        self._stopping = threading.Event()
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
            log = EventLog.open(self._path)
            while not self._stopping.wait(0.03):
                self.read(log)
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
            self.next = end

    @property
    def reread(self) -> list[tuple[int, int]]:
        return [(p.first, p.next) for p in self.placed.values() if p.meta.dump_id == REREAD]

    def stop(self) -> None:
        self._stopping.set()
        self.join(30)
        if self.failure is not None:
            raise self.failure


class CaptureProcess:
    """One `tidelog capture`, in a process of its own."""

    def __init__(
        self, config: Path, log_file: Path, failpoint: str = "", mutation: str = ""
    ) -> None:
        environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}", "TIDELOG_DEBUG": "1"}
        environment["TIDELOG_FAILPOINT"] = failpoint
        environment[MUTATION_VARIABLE] = mutation
        self.failpoint = failpoint
        self.log_file = log_file
        with log_file.open("ab") as out:
            out.write(f"--- start {failpoint}\n".encode())
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.e2e.capture_process", str(config)],
                cwd=ROOT,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=out,
            )
        self.frozen = False

    def send(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(number)
        self.frozen = number is signal.SIGSTOP

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(30)

    def stop(self) -> int:
        if self.frozen:
            self.send(signal.SIGCONT)
        if self.process.poll() is None:
            self.process.terminate()
        try:
            return self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.kill()
            return -signal.SIGKILL

    @property
    def died(self) -> bool:
        return self.process.poll() is not None

    @property
    def tail(self) -> str:
        return self.log_file.read_text()[-6000:]
