"""Who still needs the event log from which offset: ``consumers/<name>.json``."""

from __future__ import annotations

import json
import re
import time
from dataclasses import dataclass
from typing import Final

from tidelog.errors import SegmentCorruptError, UsageError
from tidelog.eventlog.storage import Storage

_FOLDER: Final = "consumers"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


@dataclass(frozen=True, slots=True)
class Consumer:
    """``offset``: the next record it needs; retention keeps it and everything after."""

    name: str
    offset: int
    updated_ms: int


class Consumers:
    """The registered consumers of one event log. Each name has one process that updates it."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage

    def register(self, name: str, offset: int) -> None:
        """Register ``name``, or move it on: it has processed everything before ``offset``."""
        if not _NAME.fullmatch(name):
            raise UsageError(
                f"consumer name {name!r}: use letters, digits, '.', '_' and '-', at most 100"
            )
        data = {"offset": offset, "updated_ms": time.time_ns() // 1_000_000}
        self._storage.replace(f"{_FOLDER}/{name}.json", json.dumps(data).encode())

    def forget(self, name: str) -> None:
        """Retention no longer waits for ``name``."""
        self._storage.delete(f"{_FOLDER}/{name}.json")

    def all(self) -> list[Consumer]:
        """Sorted by name. Raises SegmentCorruptError for a damaged file: better keep too much."""
        result = []
        for path in self._storage.names(_FOLDER):
            if not path.endswith(".json"):
                continue
            try:
                data = json.loads(self._storage.read(path))
                name = path.removeprefix(f"{_FOLDER}/").removesuffix(".json")
                result.append(Consumer(name, data["offset"], data["updated_ms"]))
            except FileNotFoundError:
                continue
            except (ValueError, KeyError, TypeError) as error:
                raise SegmentCorruptError(
                    f"{self._storage!r} {path} is damaged; retention stops until it is registered "
                    "again or deleted."
                ) from error
        return result
