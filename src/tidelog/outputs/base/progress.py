"""How far an output is, for destinations that can't tell: one document of the state store.

``{"done": offset, "begun": offset, "columns": {table: [[name, type], …]}, "rejected": count}``:
everything below ``done`` is in the destination, but for ``rejected`` records, which its dead
letters have; a batch up to ``begun`` was begun. After a failure nothing shorter
than that is brought over, so that a key whose newest state is there already never gets an older one
of a batch that was cut differently. The document is compared and set: of two pipelines with one
output's name, one stops. But where there was none, an earlier leader of the same pipeline may have
created it late: then it is read again, and the batch is tried again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tidelog.errors import OutputError, OutputRefusedError, StateConflictError
from tidelog.ports import StateStore

Columns = list[list[str]]  # name and type of each


class OutputProgress:
    """The document of one output and one generation of the log. Used by one thread."""

    def __init__(self, state: StateStore, generation: str, output: str) -> None:
        self._state = state
        self._output = output
        self._key = f"output/{generation}/{output}"
        self.done: int | None
        self.begun: int
        self.columns: dict[str, Columns]
        self.rejected: int
        self._read()

    def _read(self) -> None:
        found = self._state.get(self._key)
        value: dict[str, Any] = found.value if found else {}
        self._version = found.version if found else 0
        self.done = value.get("done")
        self.begun = value.get("begun", 0)
        self.columns = value.get("columns", {})
        self.rejected = value.get("rejected", 0)

    def begin(self, end: int) -> None:
        """Durable before the first record of a batch up to ``end`` is written."""
        if end > self.begun:
            self._store(self.done, end, self.columns, self.rejected)

    def finish(self, end: int, rejected: int = 0) -> None:
        """Everything below ``end`` is in the destination, durably, except for so many more records
        that it rejected.
        """
        if self.done is None or end > self.done:
            self._store(end, self.begun, self.columns, self.rejected + rejected)

    def remember(self, table: str, columns: Sequence[Sequence[str]]) -> None:
        """The destination's table has these columns."""
        wanted = [list(column) for column in columns]
        if self.columns.get(table) != wanted:
            self._store(self.done, self.begun, {**self.columns, table: wanted}, self.rejected)

    def _store(
        self, done: int | None, begun: int, columns: dict[str, Columns], rejected: int
    ) -> None:
        """Store the document. If that fails, the next call stores it."""
        value: dict[str, Any] = {"done": done, "begun": begun, "columns": columns}
        if rejected:
            value["rejected"] = rejected
        try:
            self._version = self._state.put(self._key, value, self._version)
        except StateConflictError:
            if not self._version:
                self._read()
                raise OutputError(
                    f"output {self._output}: another process noted its progress late, where there "
                    "was none. What it began is taken up"
                ) from None
            raise OutputRefusedError(
                f"output {self._output}: another pipeline moved its progress on meanwhile. Run one "
                "pipeline for each output, or give the outputs names of their own."
            ) from None
        self.done, self.begun, self.columns, self.rejected = done, begun, columns, rejected
