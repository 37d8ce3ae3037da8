"""A host: a directory, a configuration, paths to what it needs, and a capture."""

from __future__ import annotations

import signal
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

from tests.campaign.paths import PathProxy
from tests.e2e.history_processes import CaptureProcess


class Host:
    """Its capture takes itself for one on a host of its own: that another's ended does not show.

    Args:
        name: of the host.
        directory: of its own.
        targets: the port that each path leads to.
        opened: what is closed at the end of the run.
        mutation: of `tests.campaign.mutations`.
    """

    def __init__(
        self,
        name: str,
        directory: Path,
        targets: Mapping[str, int],
        opened: ExitStack,
        mutation: str,
    ) -> None:
        self.name = name
        self.directory = directory / name
        self.directory.mkdir()
        self.paths = {path: opened.enter_context(PathProxy(port)) for path, port in targets.items()}
        self.config_file = self.directory / "tidelog.yaml"
        self.capture: CaptureProcess | None = None
        self.leaves = False
        """It was asked to end."""
        self._mutation = mutation
        self._starts = 0

    @property
    def ports(self) -> dict[str, int]:
        return {name: path.port for name, path in self.paths.items()}

    def start(self) -> None:
        log_file = self.directory / f"capture-{self._starts}.log"
        self._starts += 1
        self.leaves = False
        self.capture = CaptureProcess(
            self.config_file, log_file, mutation=self._mutation, host=self.name
        )

    def kill(self) -> None:
        if self.capture is not None:
            self.capture.kill()
        self.capture = None

    def ask_to_end(self) -> None:
        self.leaves = True
        if self.capture is not None:
            self.capture.send(signal.SIGTERM)
