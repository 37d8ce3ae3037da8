"""A host: a directory, a namespace of the network, a configuration, paths to what it needs, a
capture, perhaps a pipeline.
"""

from __future__ import annotations

import signal
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from subprocess import TimeoutExpired

from tests.campaign import switches
from tests.campaign.paths import PathProxy
from tests.campaign.witness import Notes
from tests.e2e.history_processes import CaptureProcess
from tests.support.namespaces import Bridge, Namespace
from tests.support.oracle.history import HistoryError
from tests.support.pipeline_process import Delivering


class Host:
    """Its capture takes itself for one on a host of its own: that another's ended does not show.

    Args:
        name: of the host.
        directory: of its own.
        targets: the port that each path leads to.
        opened: what is closed at the end of the run.
        mutation: of `tests.campaign.mutations`.
        bridge: to its namespace; None: it has none, and its paths are on this machine's loopback.
    """

    def __init__(
        self,
        name: str,
        directory: Path,
        targets: Mapping[str, int],
        opened: ExitStack,
        mutation: str,
        bridge: Bridge | None,
    ) -> None:
        self.name = name
        self.directory = directory / name
        self.directory.mkdir()
        switches.prepare(self.directory)
        self.address = bridge.address if bridge else "127.0.0.1"
        """Where its paths begin."""
        self.namespace = opened.enter_context(Namespace(bridge, name)) if bridge else None
        self.paths = {
            path: opened.enter_context(PathProxy(port, address=self.address))
            for path, port in targets.items()
        }
        self.config_file = self.directory / "tidelog.yaml"
        self.notes = Notes(self.directory)
        self.capture: CaptureProcess | None = None
        self.leaves = False
        """It was asked to end."""
        self.pipeline: Delivering | None = None
        self.pipeline_leaves = False
        """It was asked to end."""
        self._mutation = mutation
        self._starts = self._pipeline_starts = 0

    @property
    def ports(self) -> dict[str, int]:
        return {name: path.port for name, path in self.paths.items()}

    def start(self, changes: Mapping[str, str] | None = None) -> None:
        """``changes``: of the configuration's text, for this start alone."""
        log_file = self.directory / f"capture-{self._starts}.log"
        self._starts += 1
        self.leaves = False
        config_file = self.config_file
        if changes:
            text = config_file.read_text()
            for before, after in changes.items():
                assert before in text
                text = text.replace(before, after)
            config_file = self.directory / "changed.yaml"
            config_file.write_text(text)
        self.capture = CaptureProcess(
            config_file,
            log_file,
            mutation=self._mutation,
            host=self.name,
            namespace=self.namespace.name if self.namespace else "",
        )

    def kill(self) -> None:
        if self.capture is not None:
            self.capture.kill()
        self.capture = None

    def ask_to_end(self) -> None:
        self.leaves = True
        if self.capture is not None:
            self.capture.send(signal.SIGTERM)

    def start_pipeline(self) -> None:
        """It knows that it is on one machine with the other."""
        log_file = self.directory / f"pipeline-{self._pipeline_starts}.log"
        self._pipeline_starts += 1
        self.pipeline_leaves = False
        inside = self.namespace.inside if self.namespace else ()
        self.pipeline = Delivering(self.config_file, log_file, inside=inside)

    def kill_pipeline(self) -> None:
        if self.pipeline is not None:
            self.pipeline.close()
        self.pipeline = None

    def end_pipeline(self, timeout_s: float) -> None:
        """Raise HistoryError if it does not end in order."""
        if self.pipeline is None:
            return
        self.pipeline_leaves = True
        self.pipeline.send(signal.SIGTERM)
        try:
            code = self.pipeline.wait(timeout_s)
        except TimeoutExpired:
            raise HistoryError(
                f"the pipeline of {self.name} did not end\n{self.pipeline.said[-4000:]}"
            ) from None
        if code not in (0, -signal.SIGTERM):  # the latter before it heeded signals
            raise HistoryError(f"the pipeline ended with {code}\n{self.pipeline.said[-4000:]}")
        self.pipeline = None
