"""What can be done to a destination, whatever its kind."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.faults.outputs.source import Rows, Source
from tests.faults.outputs.switch import Switch
from tests.integration.spark.frozen_destinations import Place, Places

Strike = Callable[[], object]


def nothing() -> None: ...


class Target:
    """A destination. Each fault is a context manager, at whose end the destination is as before; it
    yields what strikes once a batch may be under way.
    """

    grows = 500
    """Rows that a place which is full does not take."""

    def __init__(self, request: pytest.FixtureRequest, root: Path, opened: ExitStack) -> None:
        self._root, self._opened = root, opened
        self.places = Places(request, root)
        self.place = self.make()

    def make(self) -> Place:
        raise NotImplementedError

    @property
    def section(self) -> dict[str, Any]:
        """The output's, of the configuration."""
        return {**self.place.output, "name": "copy"}

    def holds(self, source: Source) -> bool:
        """Is the copy what the source is, or was told: nothing lost, nothing twice?"""
        if self.place.stream:
            told = [
                (op, key, None if value is None else str(value))
                for op, key, value in self.place.found()
            ]
            return sorted(told, key=str) == sorted(source.changes, key=str)
        return {key: str(value) for key, value in self.place.found()} == source.rows

    def rows(self) -> Rows:
        """What a reader sees now; of a stream nothing, since `holds` minds its order."""
        return {} if self.place.stream else {k: str(v) for k, v in self.place.found()}

    def follow(self, message: str) -> None:
        """Do what the refusal of another type says, before the table is dumped again."""

    @contextmanager
    def away(self) -> Iterator[Strike]:
        self.switch.refuse()
        try:
            yield nothing
        finally:
            self.switch.listen()

    @contextmanager
    def slow(self) -> Iterator[Strike]:
        self.switch.pause_s = 0.1
        try:
            yield nothing
        finally:
            self.switch.pause_s = 0.0

    @contextmanager
    def killed(self) -> Iterator[Strike]:
        """It stands still until it is killed, so that it is amid what it was sent."""
        self.server.pause()
        try:
            yield self.server.kill
        finally:
            self.server.kill()
            self.server.start()

    server: Any
    switch: Switch

    def _behind_switch(self, port: int, at: int = 0) -> int:
        self.switch = self._opened.enter_context(Switch(port, at=at))
        return self.switch.port
