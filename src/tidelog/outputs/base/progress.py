"""Stores how far an output is, for destinations that can't report it: one document of the state
store.

Members of the document:

- ``done``: the destination has everything below this offset, except for rejected records, which are
  in the output's dead letters
- ``begun``: a batch up to this offset was begun
- ``columns``: by table, name and type of each column that the destination's table has
- ``dropped``: by table, those of them that the source had dropped at the last check
- ``rejected``: the number of records that the destination rejected, in all
- ``written``: the highest offset that a destination which stores offsets has stored

After a failure no shorter batch than the one that was begun is written. Otherwise a key whose
newest state is already in the destination could get an older one from a batch that ends earlier.

The document is written by compare-and-set: of two pipelines with the same output name, one stops.
There is one exception. If there was no document, an earlier leader of the same pipeline may have
created it late: then it is read again, and the batch is retried.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tidelog.errors import OutputError, OutputRefusedError, StateConflictError
from tidelog.outputs.base.left_out import LeftOutTableStore, second_pipeline_error
from tidelog.ports import LogExtent, StateStore
from tidelog.system.version import check_format

Columns = list[list[str]]  # name and type of each


class OutputProgress:
    """The progress of one output in one generation of the log. Used by one thread."""

    def __init__(self, state: StateStore, generation: str, output: str) -> None:
        self._state = state
        self._output = output
        self._key = f"output/{generation}/{output}"
        self.done: int | None
        self.begun: int
        self.columns: dict[str, Columns]
        self.dropped: dict[str, list[str]]
        self.rejected: int
        self.written: int
        """An offset that the destination stored with rows; the next call of `finish` stores it."""
        self._read()

    def _read(self) -> None:
        found = self._state.get(self._key)
        value: dict[str, Any] = found.value if found else {}
        check_format(value.get("format"), f"the progress of output {self._output}")
        self._version = found.version if found else 0
        self.done = value.get("done")
        self.begun = value.get("begun", 0)
        self.columns = value.get("columns", {})
        self.dropped = value.get("dropped", {})
        self.rejected = value.get("rejected", 0)
        self.written = value.get("written", 0)

    def begin(self, end: int) -> None:
        """Store that a batch up to ``end`` begins, durably, before its first record is written."""
        if end > self.begun:
            self._store(self.done, end, self.columns, self.rejected)

    def finish(self, end: int, rejected: int = 0) -> None:
        """Store that all below ``end`` is in the destination, but for ``rejected`` more records."""
        if self.done is None or end > self.done:
            self._store(end, self.begun, self.columns, self.rejected + rejected)

    def forget_written(self) -> None:
        """Store that what was written was lost at the destination, and is dumped again."""
        self.written = 0
        self._store(self.done, self.begun, self.columns, self.rejected)

    def store_columns(
        self, table: str, columns: Sequence[Sequence[str]], dropped: Sequence[str] = ()
    ) -> None:
        """Store which columns the destination's table has, and which of them the source dropped."""
        wanted = [list(column) for column in columns]
        if self.columns.get(table) != wanted or self.dropped.get(table, []) != list(dropped):
            self.dropped = {**self.dropped, table: list(dropped)}
            self._store(self.done, self.begun, {**self.columns, table: wanted}, self.rejected)

    def _store(
        self, done: int | None, begun: int, columns: dict[str, Columns], rejected: int
    ) -> None:
        """Store the document. If that fails, the next call stores it."""
        value: dict[str, Any] = {"done": done, "begun": begun, "columns": columns}
        if dropped := {table: names for table, names in self.dropped.items() if names}:
            value["dropped"] = dropped
        if rejected:
            value["rejected"] = rejected
        if self.written:
            value["written"] = self.written
        try:
            self._version = self._state.put(self._key, value, self._version)
        except StateConflictError:
            if not self._version:
                self._read()
                raise OutputError(
                    f"output {self._output}: another process stored its progress late, where there "
                    "was none. This process continues from that progress"
                ) from None
            raise second_pipeline_error(self._output) from None
        self.done, self.begun, self.columns, self.rejected = done, begun, columns, rejected


def has_whole_log(log: LogExtent, output: str) -> bool:
    """Does the state say that the output has all of the log and nothing beyond it, with no batch
    begun but not done, and no table left out?
    """
    try:
        check_generation(log.state, log.generation, output)
    except OutputRefusedError:
        return False
    progress = OutputProgress(log.state, log.generation, output)
    left_out = LeftOutTableStore(log.state, log.generation, output)
    return progress.done == log.end and progress.begun <= log.end and not left_out.messages()


def check_generation(state: StateStore, generation: str, output: str) -> None:
    """Raise OutputRefusedError if the output was filled from another log."""
    for key in state.keys("output/"):
        _, other, name = key.split("/")[:3]
        if name == output and other != generation:
            raise OutputRefusedError(
                f"output {output} was filled from generation {other} of the event log, this log "
                f"is generation {generation}: it was recreated. Empty the destination and give the "
                "output another name, then dump the tables again."
            )
