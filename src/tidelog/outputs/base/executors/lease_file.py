"""The pipeline's lease as tasks see it: a file of the driver's host.

A lease is renewed while a task runs, and the driver may hang or die meanwhile, which ends no task:
Spark's JVM and its workers go on. So a task looks before each step: at the file, which the driver
writes at each renewal, and whether the driver is alive. Executors of other hosts can't look; what
they were given to do before the driver's end they do, as far as the destination lets them.
"""

from __future__ import annotations

import os
import struct
import tempfile
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tidelog.errors import LeaseLostError
from tidelog.ports import Lease
from tidelog.system.processes import has_ended, is_here, this_process

_CONTENT: Final = struct.Struct("<qd")  # epoch, and the deadline on this host's monotonic clock


@dataclass(frozen=True)
class FileFence:
    """`tidelog.ports.TaskFence` of the leader ``process`` of this epoch."""

    path: str
    epoch: int
    process: dict[str, Any]

    def check(self) -> None:
        if not is_here(self.process):
            return
        try:
            epoch, deadline = _CONTENT.unpack(Path(self.path).read_bytes())
        except (OSError, struct.error):
            epoch, deadline = 0, 0.0
        if epoch != self.epoch or time.monotonic() >= deadline or has_ended(self.process):
            raise LeaseLostError(
                f"the pipeline's lease of epoch {self.epoch} has ended, by {self.path}: its tasks "
                "write no more"
            )


class LeaseFile:
    """The driver's end: `told` of each renewal. Thread-safe."""

    def __init__(self) -> None:
        self._file, self._path = tempfile.mkstemp(prefix="tidelog-lease-")
        os.fchmod(self._file, 0o644)  # workers may be another user's; it holds no secret
        self._process = this_process()
        self._epoch = self._ended = 0
        self._lock = threading.Lock()

    def told(self, lease: Lease) -> None:
        with self._lock:
            if lease.epoch == self._ended:  # renewed once more before it is given back
                return
            self._epoch = lease.epoch
            os.pwrite(self._file, _CONTENT.pack(lease.epoch, lease.deadline), 0)

    def ended(self) -> None:
        """No task writes under this lease from now on."""
        with self._lock:
            self._ended = self._epoch
            os.pwrite(self._file, _CONTENT.pack(0, 0.0), 0)

    def fence(self, epoch: int) -> FileFence:
        return FileFence(self._path, epoch, self._process)

    def close(self) -> None:
        os.close(self._file)
        with suppress(FileNotFoundError):
            Path(self._path).unlink()
