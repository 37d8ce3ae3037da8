"""Comparing outputs with their source."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from tidelog.config import Config
from tidelog.control.commands import ExecuteSnapshot
from tidelog.control.mailbox import new_id
from tidelog.errors import EventLogError, UsageError
from tidelog.eventlog.reader import EventLog
from tidelog.eventlog.schemas import SchemaStore
from tidelog.model.patterns import matches
from tidelog.model.schema import TableSchema
from tidelog.ports import Catalogue, ChunkReader
from tidelog.runtime.asking import send_command
from tidelog.runtime.copies import copies
from tidelog.runtime.log_place import log_place
from tidelog.runtime.piping import session
from tidelog.runtime.sources import source_kind


class _OpenReader:
    """Opens chunk readers on executors; holds the connection string, so it is never shown."""

    def __init__(self, config: Config) -> None:
        self._config = config

    def __repr__(self) -> str:
        return "OpenReader()"

    def __call__(self) -> ChunkReader:
        registry = SchemaStore(log_place(self._config))
        return source_kind(self._config).plain_reader(registry)


def verify(config: Config, *, tables: Sequence[str] = (), repair: bool = False) -> dict[str, Any]:
    """Compare source and outputs; with ``repair``, dump the keys that differ."""
    from tidelog.pipeline.verify import BEHIND, verify_table

    if not config.outputs:
        raise UsageError("there are no outputs to compare with; add one under 'outputs'")
    path = log_place(config)
    if not EventLog.exists(path):
        raise EventLogError(f"{path} holds no event log; `tidelog run` begins one")
    catalogue = source_kind(config).catalogue()
    spark = session(config)
    log = EventLog.open(path)
    open_reader = _OpenReader(config)
    reports = []
    compared = False
    try:
        chosen = catalogue.tables(config.source.tables)
        for pattern in tables:
            if not any(matches([pattern], table) for table in chosen):
                raise UsageError(f"no captured table matches {pattern!r}")
        behind = not _caught_up(config, log, catalogue)
        for output in config.outputs:
            copy_of = copies(config, output, spark, log.source)
            if copy_of is None:
                continue
            compared = True
            for table in chosen:
                if not matches(output.tables, table) or (tables and not matches(tables, table)):
                    continue
                shape = catalogue.shape(table)
                if shape is None or not shape.schema.match_key:
                    continue
                report = verify_table(
                    spark,
                    copy_of(shape.schema),
                    open_reader=open_reader,
                    caught_up=lambda: _caught_up(config, log, catalogue),
                )
                if behind and not report.equal:
                    report.note = report.note or BEHIND
                found = report.to_json()
                if report.keys and repair:
                    found["repair"] = _repair(config, shape.schema, report.keys)
                reports.append({"output": output.name, **found})
    finally:
        catalogue.close()
    if not compared:
        raise UsageError(
            "no output keeps rows that could be compared: verify knows outputs of the kinds delta, "
            "postgres and mysql"
        )
    return {"equal": all(report["equal"] for report in reports), "tables": reports}


def _caught_up(config: Config, log: EventLog, catalogue: Catalogue, timeout_s: float = 180) -> bool:
    """Wait until the pipeline has passed all that the source has committed by now."""
    from tidelog.eventlog.consumers import Consumers

    target = catalogue.position()
    deadline = time.monotonic() + timeout_s
    offset: int | None = None
    while time.monotonic() < deadline:
        tail = log.tail
        if offset is None and tail is not None and tail.resume is not None:
            reached = max(tail.resume.acknowledge, tail.last_position or 0)
            offset = tail.next if reached >= target else None
        if offset is not None and all(
            _nothing_between(log, consumer.offset, offset)
            for consumer in Consumers(log.storage).all()
        ):
            return True
        time.sleep(0.2)
    return False


def _nothing_between(log: EventLog, start: int, end: int) -> bool:
    """Is there no record for a consumer at ``start`` to take in before ``end``?"""
    return start >= end or not any(ref.rows for ref in log.segments(start, end))


def _repair(
    config: Config, schema: TableSchema, keys: Sequence[tuple[str | None, ...]]
) -> dict[str, Any]:
    dump_id = f"repair-{new_id().lower()}"
    whole = [tuple(part for part in key if part is not None) for key in keys]
    command = ExecuteSnapshot(
        dump_id=dump_id,
        tables=(str(schema.table),),
        keys=tuple(key for key in whole if len(key) == len(schema.match_key)),
        key_columns=schema.match_key,
    )
    outcome = send_command(config, command, timeout_s=30)
    return {"dump_id": dump_id, "state": outcome["state"], "error": outcome["error"]}
