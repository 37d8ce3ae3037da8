"""The base class of writers on executors, the handling of records that they reject, and what an
output delivers.

Your own output implements one to four methods of `Writer`. Rejected records are written as JSON
lines, or stop the pipeline.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

import pyarrow as pa

from tidelog.errors import RowsLeftOutError
from tidelog.model.option_values import ColumnTypes
from tidelog.outputs.base.sections import KeylessPolicy
from tidelog.outputs.base.stores import open_file_store
from tidelog.ports import DeadLetters, Formatter, Rejection, TargetTable, WriteTask
from tidelog.system.private_files import create_directory, create_file

if TYPE_CHECKING:
    from tidelog.spark.transforms import Step


class Writer:
    """`tidelog.ports.TaskWriter` with defaults for all methods but `write`.

    ``rows`` with *keyed* delivery: ``_tidelog_op`` (u: the key has this state, d: it is deleted),
    ``_tidelog_version``, the table's columns (a delete has only those of the key), and
    ``_tidelog_missing``, list<string>: names of columns that the log does not have (null: none). A
    row with missing columns may only update the other columns of an existing row; it must never be
    inserted.

    With *ordered* delivery: `tidelog.spark.formats.shapes.events` with ``_tidelog_missing`` as
    above; or, with a formatter, the messages of `tidelog.ports.Formatter`.
    """

    def open(self, task: WriteTask) -> None:
        """Connect to the destination. Here: nothing."""

    def write(self, table: TargetTable, rows: pa.RecordBatch) -> Iterable[Rejection] | None:
        raise NotImplementedError

    def commit(self) -> Iterable[Rejection] | None:
        """Finish what `write` left to do. Here: nothing."""

    def close(self) -> None:
        """Release what `open` opened. Here: nothing."""


def is_retry() -> bool:
    """Is this a retry or a duplicate of a task by Spark?"""
    from pyspark import TaskContext

    context = TaskContext.get()
    return context is not None and context.attemptNumber() > 0


# Rejected records.


class StopAtRejection:
    """The default: the first rejected record leaves out its table or, where every change is
    delivered, stops the output.
    """

    def put(self, task: WriteTask, rejections: Sequence[Rejection]) -> None:
        first = rejections[0]
        raise RowsLeftOutError(
            f"{first.table}: output {task.output} rejects the record of {first.table} at version "
            f"{first.version} ({first.reason}), {len(rejections)} in all of one task. Fix the "
            "cause, or set the output's dead_letter: then such records go there and the "
            "others continue"
        )


class JsonDeadLetters:
    """Writes one file for each task with rejections:
    ``path/output/start-end-number-version.jsonl``.

    A task that runs again writes the same file again.
    """

    def __init__(self, path: str) -> None:
        self._path = path

    def put(self, task: WriteTask, rejections: Sequence[Rejection]) -> None:
        # Tasks of two jobs of a batch may have the same number; no two records have the same
        # version.
        number = f"{task.number}-{min(each.version for each in rejections):020d}"
        name = f"{task.start:020d}-{task.end:020d}-{number}.jsonl"
        lines = [
            json.dumps({"output": task.output, **asdict(rejection)}) for rejection in rejections
        ]
        text = "".join(f"{line}\n" for line in lines).encode()
        root = self._path.removeprefix("file://")
        if "://" in root:
            open_file_store(root).put(f"{task.output}/{name}", text)
            return
        folder = Path(root) / task.output
        create_directory(folder.parent)  # for this user only: the files contain keys
        create_directory(folder)
        # Written under another name and then moved, so that a reader sees a whole file, and so does
        # a duplicate of the task, which may run at the same time.
        part = folder / f"{name}.{uuid4().hex}.part"
        with os.fdopen(create_file(part, os.O_WRONLY | os.O_EXCL), "wb") as file:
            file.write(text)
        part.replace(folder / name)


# One task folds or formats up to this much of a table alone, without a shuffle.
PART_BYTES = 32 << 20


@dataclass(frozen=True)
class Delivery:
    """What an output delivers, and how."""

    name: str
    tables: tuple[str, ...] = ("*.*",)
    keyed: bool = True
    keyless: KeylessPolicy = "skip"  # of a table without a key, where one is needed
    order: str = "key"  # of ordered delivery: key, total or none
    formatter: Formatter | None = None
    steps: tuple[Step, ...] = ()
    on_schema_change: str = "evolve"
    dead_letters: DeadLetters = field(default_factory=StopAtRejection)
    parallelism: int = 0  # 0: as Spark has cores
    part_bytes: int = PART_BYTES
    skipped: frozenset[str] = frozenset()  # operations that ordered delivery leaves out
    types: ColumnTypes | None = None  # of new columns that are text without it; None: text
    messages: Formatter | None = None  # for the source's logical messages; None: they are left out
