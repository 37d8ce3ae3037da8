"""A kind of output and a format, for any `tidelog.yaml` of an environment that has this installed.

outputs:
  - {kind: lines, path: ./lines}
  - {kind: kafka, servers: "broker:9092", format: keys}
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pyarrow as pa

from tidelog.ext import (
    ExecutorSection,
    FormatOptions,
    Output,
    OutputContext,
    OutputLocation,
    TargetTable,
    Writer,
    WriteTask,
)


class LinesSection(ExecutorSection):
    """Each row's newest states as JSON lines, a file for each task."""

    kind: Literal["lines"]
    name: str = "lines"
    path: str


class LinesWriter(Writer):
    """Writes a file under a name that a repeated task has too."""

    def __init__(self, path: str) -> None:
        self.path = Path(path)
        self.lines: list[str] = []

    def open(self, task: WriteTask) -> None:
        self.file = self.path / f"{task.start:020d}-{task.number}.jsonl"

    def write(self, table: TargetTable, rows: pa.RecordBatch) -> None:
        for row in rows.to_pylist():
            self.lines.append(json.dumps({"table": table.name, **row}, default=str))

    def commit(self) -> None:
        self.path.mkdir(parents=True, exist_ok=True)
        self.file.write_text("".join(f"{line}\n" for line in self.lines))


class Lines:
    """The kind; see `tidelog.ext.OutputKind`."""

    section = LinesSection

    def open(self, section: LinesSection, context: OutputContext) -> Output:
        return context.deliver(section, lambda: LinesWriter(section.path), keyed=True)

    def location(self, section: LinesSection) -> OutputLocation:
        return OutputLocation(str(Path(section.path).resolve()))


LINES = Lines()


@dataclass(frozen=True)
class Keys:
    """A message that holds the key alone, for what only has to know that a row changed."""

    options: FormatOptions

    def format(self, table: TargetTable, events: pa.RecordBatch) -> pa.RecordBatch:
        keys = [
            json.dumps(key, default=str).encode()
            for key in events.select(list(table.key)).to_pylist()
        ]
        topic = self.options.topic.format(
            table=table.name, namespace=table.source.namespace, name=table.source.name
        )
        n = events.num_rows
        return pa.RecordBatch.from_arrays(
            [
                pa.array(keys, pa.binary()),
                pa.nulls(n, pa.binary()),
                pa.nulls(n, pa.map_(pa.string(), pa.string())),
                pa.repeat(pa.scalar(topic), n),
                events.column("_tidelog_version"),
            ],
            names=["key", "value", "headers", "topic", "version"],
        )
