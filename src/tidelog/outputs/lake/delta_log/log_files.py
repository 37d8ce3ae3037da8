"""Names of the files in a table's ``_delta_log`` (Delta protocol, "File Types")."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

FOLDER: Final = "_delta_log"
SIDECARS: Final = f"{FOLDER}/_sidecars"
LAST_CHECKPOINT: Final = f"{FOLDER}/_last_checkpoint"

_COMMIT: Final = re.compile(r"(\d{20})\.json")
_CHECKPOINT: Final = re.compile(
    r"(?P<version>\d{20})\.checkpoint"
    r"(?:\.(?P<part>\d{10})\.(?P<parts>\d{10})|\.[0-9a-f-]{36}(?=\.))?\.(?:parquet|json)"
)

_EXPIRING: Final = re.compile(r"(\d{20})\.(?:json|crc|checkpoint\..+|\d{20}\.compacted\.json)")


def commit_name(version: int) -> str:
    """Returns the name of a commit's file, below the table."""
    return f"{FOLDER}/{version:020d}.json"


def parse_actions(data: bytes, kind: str = "") -> Iterator[dict[str, Any]]:
    """Yields the actions of a file of JSON lines; only those of ``kind`` if given. Raises
    ValueError.

    Lines end only with a newline: texts may contain other line separators.
    """
    for line in data.decode().split("\n"):
        if kind in line and line.strip():
            action = json.loads(line)
            if not kind or kind in action:
                yield action


def version_of(name: str) -> int:
    """Returns the (first) version of a file in ``_delta_log``; -1: it has no version."""
    found = _EXPIRING.fullmatch(name)
    return -1 if found is None else int(found[1])


@dataclass(frozen=True, order=True)
class CheckpointFiles:
    """A checkpoint: names of its files in ``_delta_log``, in order of its parts."""

    version: int
    names: tuple[str, ...]


@dataclass(frozen=True)
class LogListing:
    """The content of ``_delta_log``: commits and complete checkpoints, the newest last."""

    commits: list[int] = field(default_factory=list)
    checkpoints: list[CheckpointFiles] = field(default_factory=list)

    @classmethod
    def of(cls, names: Iterable[str]) -> LogListing:
        commits: list[int] = []
        whole: list[CheckpointFiles] = []
        parts: dict[tuple[int, int], dict[int, str]] = defaultdict(dict)
        for name in names:
            if found := _COMMIT.fullmatch(name):
                commits.append(int(found[1]))
            elif found := _CHECKPOINT.fullmatch(name):
                version = int(found["version"])
                if found["part"] is None:
                    whole.append(CheckpointFiles(version, (name,)))
                else:
                    parts[version, int(found["parts"])][int(found["part"])] = name
        for (version, count), each in parts.items():
            # Parts appear one by one: without all of them it is not a checkpoint (yet).
            if sorted(each) == list(range(1, count + 1)):
                whole.append(CheckpointFiles(version, tuple(each[n] for n in sorted(each))))
        return cls(sorted(commits), sorted(whole))
