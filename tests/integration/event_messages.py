"""A small capture of a real server, and its events as outputs write them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa

import tidelog
from tidelog import app
from tidelog.config import Config, load_config
from tidelog.eventlog.reader import EventLog
from tidelog.outputs.base import tasks
from tidelog.outputs.base.tasks import prepare_rows
from tidelog.outputs.formatters.json_formats import Debezium
from tidelog.ports import Formatter, TargetTable
from tidelog.spark.datasource import executor
from tidelog.spark.datasource.executor import ReadPlan
from tidelog.spark.datasource.options import SourceOptions
from tidelog.spark.datasource.partitions import with_types
from tidelog.spark.formats import shapes

Message = tuple[bytes | None, bytes | None]


@contextmanager
def capturing(
    directory: Path, kind: str, url: str, table: str = "public.t", more: str = ""
) -> Iterator[Config]:
    """One table ``t``, dumped at first; with ``more`` lines in the configuration."""
    file = directory / "tidelog.yaml"
    file.write_text(
        f"source: {{kind: {kind}, url: '{url}', tables: ['{table}']}}\n"
        f"log: {{path: '{directory}/log'}}\nstate: {{url: 'sqlite:///{directory}/state.db'}}\n{more}",
        encoding="utf-8",
    )
    config = load_config(file)
    with tidelog.CaptureGroup([config]):
        yield config


def wait_for(config: Config, changes: int) -> list[dict[str, Any]]:
    """The events, once there are as many changes of rows."""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        if EventLog.exists(str(config.log.path)):
            found = [e for e in app.read_log(config) if e.get("op") in ("r", "c", "u", "d")]
            if len(found) >= changes:
                return found
        time.sleep(0.2)
    raise AssertionError("not captured in time")


def messages(
    config: Config, formatter: Formatter | None = None, name: str = "t", types: str = ""
) -> list[Message]:
    """(key, value) of each message about a table; ``types``: JSON of the option."""
    target, batches = events(config, name, types)
    formatter = formatter or Debezium()
    return [
        (message["key"], message["value"])
        for batch in batches
        for message in formatter.format(target, batch).to_pylist()
    ]


def sent(config: Config, formatter: Formatter, name: str = "t") -> list[dict[str, Any]]:
    """The messages about a table as a Kafka output sends them: key, value, headers."""
    target, batches = events(config, name)
    batches = [tasks.with_other_keys(batch, target.key) for batch in batches]
    return [m for batch in batches for m in formatter.format(target, batch).to_pylist()]


def events(
    config: Config, name: str = "t", types: str = ""
) -> tuple[TargetTable, list[pa.RecordBatch]]:
    """A table and its events, as a formatter gets them; ``types`` as in `messages`."""
    path = str(config.log.path)
    log = EventLog.open(path)
    (table,) = [each for each in log.schemas.tables() if each.name == name]
    schema = log.schemas.latest(table)
    assert schema is not None
    given = {"path": path, "shape": "events", "table": str(table), "types": types}
    options = SourceOptions.parse(given)
    schema = with_types(schema, options) if types else schema
    reading = ReadPlan(options, schema, shapes.events(schema))
    refs = log.segments(log.head_offset, tables=[str(table)])
    kinds = [(f.name, f.type) for f in reading.arrow_schema if f.name in schema.column_names]
    columns = {column.name: column for column in schema.columns}
    target = TargetTable(
        table, name, schema, pa.schema(kinds), schema.key, log.source, unchanged=columns
    )
    found = [prepare_rows(batch, target, {}) for batch in executor.batches(reading, log, refs)]
    return target, found
