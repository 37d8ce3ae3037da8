"""What tasks have staged, for the driver that publishes it."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass


@dataclass(frozen=True)
class StagedFile:
    """A whole file that waits to be published into ``directory``."""

    staged: str
    directory: str
    table: str
    rows: int


@dataclass(frozen=True)
class Attempt:
    """What one attempt of a task has staged. Those of one task have ``task`` in common."""

    task: str
    files: tuple[StagedFile, ...]

    def to_json(self) -> bytes:
        return json.dumps(asdict(self)).encode()

    @classmethod
    def from_json(cls, data: bytes) -> Attempt:
        found = json.loads(data)
        return cls(found["task"], tuple(StagedFile(**each) for each in found["files"]))
