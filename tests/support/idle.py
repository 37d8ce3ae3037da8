"""Whether `tidelog pipeline --once` would end without Spark."""

from __future__ import annotations

from contextlib import closing

from tidelog.app.base.elections import PipelineElection, acquire_lease
from tidelog.app.pipeline.idle_check import nothing_to_deliver
from tidelog.capture.leadership import LeaseKeeper
from tidelog.config import Config
from tidelog.state.opening import open_state


def is_idle(config: Config) -> bool:
    """Asked under the pipeline's lease."""
    with (
        closing(open_state(config.state.location)) as state,
        closing(PipelineElection(config, "test")) as election,
    ):
        keeper = LeaseKeeper(election, acquire_lease(election), 5.0)
        try:
            return nothing_to_deliver(config, state, keeper)
        finally:
            keeper.release()
