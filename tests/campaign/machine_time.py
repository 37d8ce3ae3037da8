"""A clock that stands still while the machine has no core for who wants one.

What is late because other work keeps the machine busy is not stuck. A process beside the run, which
now and then has the same little to do, shows which share of the time a core was there for it.
"""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from types import TracebackType
from typing import Final, Self

LEAST_SHARE: Final = 0.1
"""However busy the machine is: what is stuck is to be seen as stuck some day."""
NEWEST: Final = 0.3
"""What the newest look at the machine counts, of all before."""
_REFERENCE: Final = """
import time
while True:
    begun, used = time.monotonic(), time.process_time()
    while time.process_time() < used + 0.04:
        pass
    print((time.process_time() - used) / (time.monotonic() - begun), flush=True)
    time.sleep(0.8)
"""


class MachineTime:
    """Use it as a context manager."""

    def __enter__(self) -> Self:
        self._seconds, self._at, self.share = 0.0, time.monotonic(), 1.0
        self._lock = threading.Lock()
        self._process = subprocess.Popen(
            [sys.executable, "-S", "-c", _REFERENCE], stdout=subprocess.PIPE, text=True
        )
        threading.Thread(target=self._listen, daemon=True).start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._process.kill()
        self._process.wait()

    def __call__(self) -> float:
        """Seconds of the machine since the start: at most those that have passed."""
        with self._lock:
            self._pass()
            return self._seconds

    def _pass(self) -> None:
        now = time.monotonic()
        self._seconds += (now - self._at) * self.share
        self._at = now

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            with self._lock:
                share = min(1.0, max(LEAST_SHARE, float(line)))
                self.share += (share - self.share) * NEWEST
                self._pass()
