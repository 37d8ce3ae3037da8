"""Lets tasks check the pipeline's lease, by a file on the driver's host and by the event log.

A lease is renewed while a task runs. If the driver hangs or dies in that time, its tasks do not
end: Spark's JVM and its workers continue, and start the tasks that are queued. So a task checks
before each step: the file, which the driver writes at each renewal, and whether the driver is
alive. Where the task can't read the file (another host, another /tmp) it reads the event log, in
which each leader of the pipeline notes its epoch before it writes: later than by the file, but
surely.
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
from tidelog.eventlog.storage import storage_at
from tidelog.ports import Lease
from tidelog.system.processes import boot_clock, has_ended, is_here, this_process

logger = logging.getLogger(__name__)

_CONTENT: Final = struct.Struct("<qd")  # epoch, and the deadline on this host's `boot_clock`
_ALIVE_EVERY_S: Final = 0.1
_LOG_EVERY_S: Final = 2.0


@dataclass
class FileFence:
    """`tidelog.ports.TaskFence` of the leader ``process`` of this epoch of the pipeline ``name``.
    Each task has its own. Once the lease is lost, every later check fails. Thread-safe.
    """

    path: str
    epoch: int
    process: dict[str, Any]
    log_path: str
    name: str
    _here: bool | None = field(default=None, compare=False)
    _alive_at: float = field(default=0.0, compare=False)
    _log_at: float = field(default=0.0, compare=False)
    _loss: LeaseLostError | None = field(default=None, compare=False)

    def check(self) -> None:
        if self._loss is None:
            self._loss = self._find_loss()
        if self._loss is not None:
            raise self._loss

    def _find_loss(self) -> LeaseLostError | None:
        """Return why the lease has ended, or None."""
        now = time.monotonic()
        if self._here is None:
            self._here = is_here(self.process)
        if self._here:
            if now >= self._alive_at:
                self._alive_at = now + _ALIVE_EVERY_S
                if has_ended(self.process):
                    return self._lease_lost("its driver has ended")
            with suppress(OSError, struct.error):  # another /tmp, or another user's: not visible
                epoch, deadline = _CONTENT.unpack(Path(self.path).read_bytes())
                if epoch != self.epoch or boot_clock() >= deadline:
                    return self._lease_lost(f"{self.path} says so")
                return None
        if now >= self._log_at:
            self._log_at = now + _LOG_EVERY_S
            found = Consumers(storage_at(self.log_path)).find(self.name)
            if found is not None and found.epoch > self.epoch:
                return self._lease_lost(f"epoch {found.epoch} has the lease now")
        return None

    def _lease_lost(self, why: str) -> LeaseLostError:
        return LeaseLostError(
            f"the pipeline's lease of epoch {self.epoch} has ended, {why}: its tasks write no more"
        )


class LeaseFile:
    """Writes the lease's file on the driver. Call `renewed` after each renewal. Thread-safe."""

    def __init__(self) -> None:
        self._process = this_process()
        self._lock = threading.Lock()
        self._epoch = self._ended = 0
        self._file = -1
        self._path = ""

    def on_renewal(self, lease: Lease) -> None:
        with self._lock:
            if lease.epoch == self._ended:  # renewed once more before it is released
                return
            self._epoch = lease.epoch
            self._write(lease.epoch, lease.deadline)

    def end(self) -> None:
        """End the lease for tasks: from now on none writes under it."""
        with self._lock:
            self._ended = self._epoch
            if self._file >= 0:
                self._write(0, 0.0)

    def fence(self, epoch: int, log_path: str, name: str) -> FileFence:
        """Return the fence for tasks of the pipeline ``name`` that reads the log ``log_path``."""
        return FileFence(self._path, epoch, self._process, log_path, name)

    def close(self) -> None:
        """End the lease, and delete the file when the process exits: a task that starts late must
        find that the lease has ended.
        """
        self.end()
        atexit.register(self._delete)

    def _write(self, epoch: int, deadline: float) -> None:
        """Write the deadline. If that fails, tasks use the last deadline that they can read."""
        try:
            if not self._file_exists():
                self._create()
            os.pwrite(self._file, _CONTENT.pack(epoch, deadline), 0)
        except OSError as error:
            logger.warning("the pipeline's lease can't be written for its tasks: %s", error)

    def _file_exists(self) -> bool:
        """Is the file still there? Systems remove old files from /tmp."""
        if self._file < 0:
            return False
        with suppress(FileNotFoundError):
            return os.path.samestat(os.fstat(self._file), Path(self._path).stat())
        return False

    def _create(self) -> None:
        """Create the file, under the path that tasks read."""
        if self._file >= 0:
            os.close(self._file)
            self._file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o644)
        else:
            self._file, self._path = tempfile.mkstemp(prefix="tidelog-lease-")
        os.fchmod(self._file, 0o644)  # workers may be another user's; it has no secret

    def _delete(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
            with suppress(FileNotFoundError):
                Path(self._path).unlink()
