"""Handles rejected records: writes them as JSON lines, or stops the pipeline."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import IO
from uuid import uuid4

from pyarrow import fs

from tidelog.errors import OutputRefusedError
from tidelog.ports import Rejection, WriteTask
from tidelog.system.private_files import create_directory, create_file


class StopAtRejection:
    """The default: the first rejected record stops the pipeline."""

    def put(self, task: WriteTask, rejections: Sequence[Rejection]) -> None:
        first = rejections[0]
        raise OutputRefusedError(
            f"output {task.output} rejects the record of {first.table} at version {first.version} "
            f"({first.reason}), {len(rejections)} in all of one task. Fix the destination, or set "
            "the output's dead_letter: then such records go there and the others continue."
        )


class JsonDeadLetters:
    """Writes one file for each task with rejections:
    ``path/output/start-end-number-version.jsonl``.

    A task that runs again writes the same file again.
    """

    def __init__(self, path: str) -> None:
        self._path = path

    def put(self, task: WriteTask, rejections: Sequence[Rejection]) -> None:
        found, root = fs.FileSystem.from_uri(self._path)
        folder = f"{root.rstrip('/')}/{task.output}"
        local = isinstance(found, fs.LocalFileSystem)  # the files contain rows
        if local:
            create_directory(Path(root))
            create_directory(Path(folder))
        else:
            found.create_dir(folder, recursive=True)
        # Tasks of two jobs of a batch may have the same number; no two records have the same
        # version.
        number = f"{task.number}-{min(each.version for each in rejections):020d}"
        name = f"{folder}/{task.start:020d}-{task.end:020d}-{number}.jsonl"
        lines = [
            json.dumps({"output": task.output, **asdict(rejection)}) for rejection in rejections
        ]
        # Written under another name and then moved, so that a reader sees a whole file, and so does
        # a duplicate of the task, which may run at the same time.
        part = f"{name}.{uuid4().hex}.part"
        with _private(part) if local else found.open_output_stream(part) as file:
            file.write("".join(f"{line}\n" for line in lines).encode())
        found.move(part, name)


def _private(name: str) -> IO[bytes]:
    return os.fdopen(create_file(Path(name), os.O_WRONLY | os.O_EXCL), "wb")
