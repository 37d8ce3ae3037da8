"""Checks whether Delta tables have all of an event log, by their own logs, without Spark."""

from __future__ import annotations

from collections.abc import Sequence

from tidelog.eventlog.reader import EventLog
from tidelog.model.patterns import all_but, matches
from tidelog.outputs.base.progress import RefusedTables
from tidelog.outputs.lake.delta.options import DeltaOptions
from tidelog.outputs.lake.delta.table import DeltaTable, path_of
from tidelog.outputs.lake.delta.tasks import RewriteWork
from tidelog.outputs.lake.settling.settle import FileChanges
from tidelog.outputs.lake.table import HOLDS_PROPERTY, application_of
from tidelog.ports import LogExtent
from tidelog.spark.datasource.partitions import schemas_now
from tidelog.spark.datasource.segment_rows import batch_of
from tidelog.spark.transforms import destination_name


def has_whole_log(
    log: LogExtent, root: str, output: str, tables: Sequence[str], options: DeltaOptions
) -> bool:
    """See `tidelog.ports.IdleOutputKind`. A table's offset is the end of its last batch with rows
    of it: beyond it the log must have no rows of the table, and no end of a dump, which removes
    rows.
    """
    refused = RefusedTables(log.state, log.generation, output)
    if refused.messages():
        return False
    opened = EventLog.open(log.path)
    ends: dict[str, int] = {}
    chain, application = opened.chain(), application_of(log.generation, output)
    for table, schema in schemas_now(opened).items():
        if not matches(all_but(tables) or ("*.*",), table):
            continue
        path = path_of(root, table, destination_name(options.steps, table))
        keyless = options.keyless_layout_of(table)
        copy = DeltaTable(path, options.layout_of(table), _rewrite, keyless)
        exists = copy.exists()
        if not schema.match_key and str(table) in refused.keyless():
            held = copy.property(HOLDS_PROPERTY) if exists else (keyless or copy.layout).holds
            if held == "changes":  # by other options than those that left it out
                return False
            continue
        since = copy.committed(application) if exists else chain.head
        if since is None or since > log.end:
            return False
        if any(str(table) in each.rows_by_table for each in chain.between(since, log.end)):
            return False
        if exists:
            ends[str(table)] = since
            copy.check_ours(table, log.generation)
            if copy.find_restore(application, since) is not None or not copy.deletes_are_settled():
                return False
    batch = batch_of(opened, min(ends.values(), default=log.end), log.end)
    return not any(
        done.whole and done.finalized_until > ends.get(done.table, log.end)
        for done in batch.completed
    )


def _rewrite(_: Sequence[RewriteWork]) -> list[FileChanges]:
    raise AssertionError("nothing is written without Spark")
