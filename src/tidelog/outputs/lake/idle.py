"""Remembers that a lake's output had all of the event log, so that the next check is cheap.

Such a check reads each table by modules that take most of a second to load (numba, pyspark), or by
Iceberg's library, which needs Java. It holds as long as nobody has committed to a table: that is
seen by names in the table's log, or of its metadata files.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar

from tidelog.model.patterns import matches
from tidelog.model.schema import TableName
from tidelog.outputs.base.left_out import LeftOutTableStore
from tidelog.outputs.base.stores import open_file_store
from tidelog.ports import LogExtent

if TYPE_CHECKING:
    from tidelog.outputs.lake.table import LakeTable

Copy = TypeVar("Copy", bound="LakeTable")

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


def copies_if_idle(
    log: LogExtent, output: str, patterns: Sequence[str], open_table: Callable[[TableName], Copy]
) -> list[Copy] | None:
    """Return the tables of the lake, of which some may not exist, if the output has all of the log,
    else None, see `tidelog.ports.IdleOutputKind`. A table's offset is the end of its last batch
    with rows of it: beyond it the log must have no rows of the table, and no end of a dump, which
    removes rows.
    """
    from tidelog.eventlog.reader import EventLog
    from tidelog.outputs.lake.table import HOLDS_PROPERTY, application_of
    from tidelog.spark.datasource.partitions import schemas_now
    from tidelog.spark.datasource.segment_rows import batch_of

    left_out = LeftOutTableStore(log.state, log.generation, output)
    if left_out.messages():
        return None
    opened = EventLog.open(log.path)
    ends: dict[str, int] = {}
    copies: list[Copy] = []
    chain, application = opened.chain(), application_of(log.generation, output)
    for table, schema in schemas_now(opened).items():
        if not matches(patterns, table):
            continue
        copy = open_table(table)
        exists = copy.exists()
        copies.append(copy)
        if not schema.match_key and str(table) in left_out.keyless():
            copy.choose_layout(keyless=True)
            held = copy.property(HOLDS_PROPERTY) if exists else copy.layout.holds
            if held == "changes":  # by other options than those that left it out
                return None
            continue
        since = copy.committed(application) if exists else chain.head
        if since is None or since > log.end:
            return None
        if any(str(table) in each.rows_by_table for each in chain.between(since, log.end)):
            return None
        if exists:
            ends[str(table)] = since
            copy.check_ours(table, log.generation)
            if copy.find_restore(application, since) is not None or not copy.deletes_are_settled():
                return None
    batch = batch_of(opened, min(ends.values(), default=log.end), log.end)
    dumped_later = any(
        done.whole and done.finalized_until > ends.get(done.table, log.end)
        for done in batch.completed
    )
    return None if dumped_later else copies


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
