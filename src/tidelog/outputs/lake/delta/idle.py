"""Remembers that a Delta output had all of the event log, so that the next look is a cheap one.

Such a check reads each table by modules that take most of a second to load (numba, pyspark). It
holds as long as nobody has committed to a table: that is seen by the names in the tables' logs.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any, Final

from tidelog.outputs.base.left_out import LeftOutTableStore
from tidelog.outputs.base.stores import open_file_store
from tidelog.outputs.lake.delta_log.table_state import commit_name
from tidelog.ports import LogExtent

_PREFIX: Final = "idle/"
"""The prefix of keys in the state store, by generation of the log and output."""


def is_as_checked(log: LogExtent, output: str, settings: str) -> bool:
    """Return whether log, settings and tables are those of the last `record_check`."""
    found = log.state.get(_key(log, output))
    return (
        found is not None
        and found.value.get("of") == _inputs(log, output, settings)
        and all(
            (None if version < 0 else _tag(path, version)) == tag
            and _tag(path, version + 1) is None
            for path, (version, tag) in found.value["newest"].items()
        )
    )


def record_check(log: LogExtent, output: str, settings: str, newest: Mapping[str, int]) -> None:
    """Store that the output has all of the log, its tables being at these versions by path (-1:
    there is none).
    """
    tags = {path: (each, _tag(path, each) if each >= 0 else None) for path, each in newest.items()}
    log.state.put(_key(log, output), {"of": _inputs(log, output, settings), "newest": tags}, None)


def _key(log: LogExtent, output: str) -> str:
    return f"{_PREFIX}{log.generation}/{output}"


def _inputs(log: LogExtent, output: str, settings: str) -> list[Any]:
    """What the check depends on beside the tables: any difference makes it void."""
    left_out = LeftOutTableStore(log.state, log.generation, output)
    digest = hashlib.sha256(settings.encode()).hexdigest()
    return [log.end, digest, left_out.messages(), left_out.keyless()]


def _tag(path: str, version: int) -> str | None:
    return open_file_store(path).tag(commit_name(version))
