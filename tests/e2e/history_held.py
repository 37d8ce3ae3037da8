"""For the history oracle: an append whose PUT comes to the bucket when another leads."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from tests.e2e.history_run import Run
from tests.e2e.history_spec import Spec
from tests.support.faulty_network import FaultyNetwork
from tests.support.oracle.history import HistoryError
from tests.support.oracle.source import OracleSource

from tidelog.config import load_config
from tidelog.eventlog.reader import EventLog

HOLD: Final = "hold a put"
STANDS_BY_S: Final = 1.5
APPENDS_S: Final = 5.0
LEADS_S: Final = 30.0


class HeldRun(Run):
    """See `Run`. ``network``: the way to the bucket. `HOLD` is one more fault."""

    def __init__(
        self, spec: Spec, source: OracleSource, directory: Path, *, network: FaultyNetwork
    ) -> None:
        super().__init__(spec, source, directory)
        self._network = network
        self.held = 0
        """Appends that came too late, and were refused."""

    def _strike(self, fault: str) -> None:
        if fault != HOLD:
            super()._strike(fault)
            return
        self._note(f"fault {fault}")
        network, place = self._network, load_config(self.config_file, {}).log.path
        bucket, folder = urlsplit(place)[1:3]
        self._launch()
        time.sleep(STANDS_BY_S)
        network.arm("hold", f"PUT /{bucket}{folder}/0")
        self._await(lambda: bool(network.struck), APPENDS_S)
        if not network.struck:
            network.disarm()
            return
        victim = self.captures[0]
        victim.send(signal.SIGSTOP)
        log = EventLog.open(place)
        epoch = log.chain().segments[-1].epoch
        led = self._await(lambda: log.chain().segments[-1].epoch > epoch, LEADS_S)
        (answer,) = network.deliver()
        if led and answer.split()[1] not in (b"409", b"412"):
            raise HistoryError(f"an append that came after another led is answered by {answer!r}")
        self.held += led
        victim.send(signal.SIGCONT)
        time.sleep(0.5)  # it may find that it lost the lease
        self._watch_processes()
        victim.kill()
        self.captures.remove(victim)

    def _await(self, is_so: Callable[[], bool], most_s: float) -> bool:
        deadline = time.monotonic() + most_s
        while not (found := is_so()) and time.monotonic() < deadline:
            time.sleep(0.002)
        return found
