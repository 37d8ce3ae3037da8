"""Takes pipelines away, too."""

from __future__ import annotations

import contextlib
import signal

from tests.campaign.copies import NAME
from tests.campaign.hosts import Host
from tests.campaign.nemesis import HANDOVER_S
from tests.campaign.store_nemesis import StoreNemesis
from tests.support.pipeline_process import Delivering, signal_all

from tidelog import app
from tidelog.errors import TidelogError

STOP_S = 120.0
PIPELINE_KINDS = {
    "kill a pipeline": "kill -9 of driver, Java and workers, started again up to two seconds later",
    "freeze a pipeline": "SIGSTOP of the driver, or of all of it, for longer than the lease",
    "upgrade a pipeline": "SIGTERM, and another process in its place",
    "hand a pipeline over": "`tidelog handover --pipeline`",
}


class PipelineNemesis(StoreNemesis):
    """See `StoreNemesis`. ``kinds`` may be of `PIPELINE_KINDS`, too."""

    def _deliverer(self) -> tuple[Host, Delivering] | None:
        """A host whose pipeline is there and nothing is done to."""
        busy = {fault.what.rpartition(" ")[2] for fault in self._away if "pipeline" in fault.what}
        free = [
            (host, host.pipeline)
            for host in self._hosts
            if host.pipeline and host.pipeline.code is None and host.name not in busy
        ]
        return self._rng.choice(free) if free else None

    def _kill_a_pipeline(self) -> bool:
        found = self._deliverer()
        if found is None:
            return False
        host, _ = found
        host.kill_pipeline()
        return self._begin(
            f"kill pipeline {host.name}", self._rng.random() * 2, host.start_pipeline
        )

    def _freeze_a_pipeline(self) -> bool:
        found = self._deliverer()
        if found is None:
            return False
        host, pipeline = found
        pids = self._rng.choice(([pipeline.pid], pipeline.processes))
        signal_all(pids, signal.SIGSTOP)
        seconds = self._lease_s * self._rng.uniform(1.2, 3)
        self._note("all of it" if len(pids) > 1 else "the driver")
        return self._begin(
            f"freeze pipeline {host.name}", seconds, lambda: signal_all(pids, signal.SIGCONT)
        )

    def _upgrade_a_pipeline(self) -> bool:
        found = self._deliverer()
        if found is None:
            return False
        host, _ = found
        self._note(f"upgrade pipeline {host.name}")
        host.end_pipeline(STOP_S)
        host.start_pipeline()
        return True

    def _hand_a_pipeline_over(self) -> bool:
        with contextlib.suppress(TidelogError):  # nobody leads, or nobody stands by
            found = app.hand_over(self._config, None, timeout_s=HANDOVER_S, pipeline=NAME).to_dict()
            self._note(f"handover of the pipeline {found}")
            return True
        return False
