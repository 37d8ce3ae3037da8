"""Remembers that a lake's output had all of the event log, so that the next look is a cheap one.

Such a check reads each table by modules that take most of a second to load (numba, pyspark), or by
Iceberg's library, which needs Java. It holds as long as nobody has committed to a table: that is
seen by names in the table's log, or of its metadata files.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import Any, Final

from tidelog.outputs.base.left_out import LeftOutTableStore
from tidelog.outputs.base.stores import open_file_store
from tidelog.ports import LogExtent

_PREFIX: Final = "idle/"
"""The prefix of keys in the state store, by generation of the log and output."""

WatchedFiles = Mapping[str, bool]
"""Files below a path, of which each commit to a table creates or replaces one; whether each exists.
"""


def is_as_checked(log: LogExtent, output: str, settings: str) -> bool:
    """Return whether log, settings and tables are those of the last `record_check`."""
    found = log.state.get(_key(log, output))
    return (
        found is not None
        and found.value.get("inputs") == _inputs(log, output, settings)
        and all(_tags(path, tags) == tags for path, tags in found.value["files"].items())
    )


def record_check(
    log: LogExtent, output: str, settings: str, tables: Mapping[str, WatchedFiles]
) -> None:
    """Store that the output has all of the log; ``tables`` by path. Unless these are other files
    now: somebody has committed since.
    """
    tags = {path: _tags(path, files) for path, files in tables.items()}
    if all(
        (tags[path][name] is not None) == exists
        for path, files in tables.items()
        for name, exists in files.items()
    ):
        checked = {"inputs": _inputs(log, output, settings), "files": tags}
        log.state.put(_key(log, output), checked, None)


def _key(log: LogExtent, output: str) -> str:
    return f"{_PREFIX}{log.generation}/{output}"


def _inputs(log: LogExtent, output: str, settings: str) -> list[Any]:
    """What the check depends on beside the tables: any difference makes it void."""
    left_out = LeftOutTableStore(log.state, log.generation, output)
    digest = hashlib.sha256(settings.encode()).hexdigest()
    return [log.end, digest, left_out.messages(), left_out.keyless()]


def _tags(path: str, names: Iterable[str]) -> dict[str, str | None]:
    store = open_file_store(path)
    return {name: store.tag(name) for name in names}
