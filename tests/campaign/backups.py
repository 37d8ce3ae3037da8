"""A copy of a run's event log and state, to be put back later."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any, Final

from tests.campaign.places import Place

from tidelog.config import Config
from tidelog.state.opening import open_election, open_state

LOG: Final = "log"
STATE: Final = "state"
_OF_STATE: Final = "state"
"""The folder below a log in a bucket that `log:` keeps."""


class Backup:
    """Made and put back while no capture runs. ``directory``: of its own."""

    def __init__(self, place: Place, config: Config, directory: Path) -> None:
        self._log, self._config, self._directory = place.files(), config, directory
        directory.mkdir()
        _copy(self._log, directory / "log")
        self._state = [_texts(register) for register in self._registers()]

    def put_back(self, parts: tuple[str, ...]) -> None:
        """``parts``: `LOG`, `STATE` or both."""
        if LOG in parts:
            for each in self._log.iterdir():
                if each.name != _OF_STATE:
                    shutil.rmtree(each) if each.is_dir() else each.unlink()
            for each in (self._directory / "log").iterdir():
                if each.name != _OF_STATE:
                    _copy(each, self._log / each.name)
        if STATE in parts:
            for register, texts in zip(self._registers(), self._state, strict=True):
                for name in register.names():
                    register.remove(name)
                for name, text in texts.items():
                    register.swap(name, text, None)

    def _registers(self) -> list[Any]:
        """Of documents and of leases, which all of the campaign's stores keep as texts by name."""
        url = self._config.state.location
        election: Any = open_election(url, "copy", "copy", 1.0)
        store: Any = open_state(url)
        return [store._register, election._documents._register]


def _texts(register: Any) -> dict[str, bytes]:
    found = {name: register.read(name) for name in register.names()}
    return {name: read[0] for name, read in found.items() if read is not None}


def _copy(source: Path, target: Path) -> None:
    """With owners and extended attributes: objects of a bucket have them."""
    subprocess.run(["cp", "-a", source, target], check=True)
