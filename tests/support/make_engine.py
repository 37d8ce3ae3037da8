"""Engines over servers, which capture: what the fixture `make_engine` gives."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.support.engines import no_threads_left

from tidelog.app.async_engine.engine import AsyncEngine
from tidelog.app.base.log_location import event_log_path


class MakeEngine:
    """Makes engines of one configuration, whose log and state are in the test's directory."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._source: dict[str, Any] = {}
        self._made: list[AsyncEngine] = []

    def of(self, **source: Any) -> MakeEngine:
        """From now on over this source: options of a configuration's section ``source``."""
        self._source |= source
        return self

    def __call__(self, *, engine: Mapping[str, Any] | None = None, **given: Any) -> AsyncEngine:
        """``engine``: the configuration's section; ``given`` to the engine itself."""
        directory = self._directory
        config: dict[str, Any] = {
            "source": dict(self._source),
            "log": {"path": str(directory / "log")},
            "state": {"url": f"sqlite:///{directory}/state.db"},
        }
        if engine is not None:
            config["engine"] = dict(engine)
        made = AsyncEngine(config, **given)
        self._made.append(made)
        return made

    @property
    def log(self) -> str:
        """The place of the event log of the engine that was made last."""
        return event_log_path(self._made[-1].config)

    def end(self) -> None:
        """Close those that a test that failed has left open; none leaves a thread."""
        for engine in self._made:
            engine.close()
        assert no_threads_left()
