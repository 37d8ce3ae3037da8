"""The pipeline's lease as tasks see it: a file of the driver's host, and the event log.

A lease is renewed while a task runs, and the driver may hang or die meanwhile, which ends no task:
Spark's JVM and its workers go on, and begin the tasks that are queued. So a task looks before each
step: at the file, which the driver writes at each renewal, and whether the driver is alive. Where
the file can't be seen (another host, another /tmp) it asks the event log, in which each leader of
the pipeline notes its epoch before it writes: later than the file would tell, but surely.
"""

from __future__ import annotations

import atexit
import logging
import os
import struct
import tempfile
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from tidelog.errors import LeaseLostError
from tidelog.eventlog.consumers import Consumers
from tidelog.eventlog.storage.opening import storage_at
from tidelog.ports import Lease
from tidelog.system.boot_clock import boot_clock
from tidelog.system.processes import has_ended, is_here, this_process

logger = logging.getLogger(__name__)

_CONTENT: Final = struct.Struct("<qd")  # epoch, and the deadline on this host's `boot_clock`
_ALIVE_EVERY_S: Final = 0.1
_LOG_EVERY_S: Final = 2.0


@dataclass
class FileFence:
    """`tidelog.ports.TaskFence` of the leader ``process`` of this epoch of the pipeline ``name``.
    Each task has one of its own. What was lost stays lost: several threads of a task may ask.
    """

    path: str
    epoch: int
    process: dict[str, Any]
    log_path: str
    name: str
    _here: bool | None = field(default=None, compare=False)
    _alive_at: float = field(default=0.0, compare=False)
    _log_at: float = field(default=0.0, compare=False)
    _over: LeaseLostError | None = field(default=None, compare=False)

    def check(self) -> None:
        if self._over is None:
            self._over = self._found()
        if self._over is not None:
            raise self._over

    def _found(self) -> LeaseLostError | None:
        """Why the lease has ended, if it has."""
        now = time.monotonic()
        if self._here is None:
            self._here = is_here(self.process)
        if self._here:
            if now >= self._alive_at:
                self._alive_at = now + _ALIVE_EVERY_S
                if has_ended(self.process):
                    return self._lost("its driver has ended")
            with suppress(OSError, struct.error):  # another /tmp, or another user's: not seen
                epoch, deadline = _CONTENT.unpack(Path(self.path).read_bytes())
                if epoch != self.epoch or boot_clock() >= deadline:
                    return self._lost(f"{self.path} says so")
                return None
        if now >= self._log_at:
            self._log_at = now + _LOG_EVERY_S
            found = Consumers(storage_at(self.log_path)).find(self.name)
            if found is not None and found.epoch > self.epoch:
                return self._lost(f"one of epoch {found.epoch} leads")
        return None

    def _lost(self, why: str) -> LeaseLostError:
        return LeaseLostError(
            f"the pipeline's lease of epoch {self.epoch} has ended, {why}: its tasks write no more"
        )


class LeaseFile:
    """The driver's end: `told` of each renewal, its deadline on `boot_clock`. Thread-safe."""

    def __init__(self) -> None:
        self._process = this_process()
        self._lock = threading.Lock()
        self._epoch = self._ended = 0
        self._file = -1
        self._path = ""

    def told(self, lease: Lease) -> None:
        with self._lock:
            if lease.epoch == self._ended:  # renewed once more before it is given back
                return
            self._epoch = lease.epoch
            self._write(lease.epoch, lease.deadline)

    def ended(self) -> None:
        """No task writes under this lease from now on."""
        with self._lock:
            self._ended = self._epoch
            if self._file >= 0:
                self._write(0, 0.0)

    def fence(self, epoch: int, log_path: str, name: str) -> FileFence:
        """For tasks of the pipeline ``name``, which reads the event log at ``log_path``."""
        return FileFence(self._path, epoch, self._process, log_path, name)

    def close(self) -> None:
        """It stays as long as the process: a task that began late must find that it has ended."""
        self.ended()
        atexit.register(self._forget)

    def _write(self, epoch: int, deadline: float) -> None:
        """Write the deadline. If that fails, tasks go by the last one that they know."""
        try:
            if not self._stands():
                self._make()
            os.pwrite(self._file, _CONTENT.pack(epoch, deadline), 0)
        except OSError as error:
            logger.warning("the pipeline's lease can't be told to its tasks: %s", error)

    def _stands(self) -> bool:
        """Is the file still there? Systems remove old files from /tmp."""
        if self._file < 0:
            return False
        with suppress(FileNotFoundError):
            return os.path.samestat(os.fstat(self._file), Path(self._path).stat())
        return False

    def _make(self) -> None:
        """Make the file in the place where tasks look."""
        if self._file >= 0:
            os.close(self._file)
            self._file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o644)
        else:
            self._file, self._path = tempfile.mkstemp(prefix="tidelog-lease-")
        os.fchmod(self._file, 0o644)  # workers may be another user's; it holds no secret

    def _forget(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
            with suppress(FileNotFoundError):
                Path(self._path).unlink()
