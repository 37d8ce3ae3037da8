"""Who reads a slot, where the server's two lists are of different moments."""

from __future__ import annotations

from typing import Any, cast

from tidelog.sources.postgres.connect import Connection
from tidelog.sources.postgres.stream.slots import reader_of


class Answers:
    """A session that gives these rows, one a query."""

    def __init__(self, *rows: tuple[Any, ...] | None) -> None:
        self.rows = list(rows)

    def execute(self, *_query: Any) -> Answers:
        return self

    def fetchone(self) -> tuple[Any, ...] | None:
        return self.rows.pop(0)


def test_a_reader_that_ended_while_the_server_answered_is_asked_for_again() -> None:
    """It is in the list of slots, and in the list of processes no more: about 1 in 1,000 answers
    while readers come and go.
    """
    ended = (False, 8633, "", False, "the local socket", "?")
    assert reader_of(cast(Connection, Answers(ended, None)), "s") is None
    present = (True, 8634, "tidelog-s", True, "the local socket", "2026-11-30 12:00:00")
    reader = reader_of(cast(Connection, Answers(ended, present)), "s")
    assert reader is not None
    assert reader.is_capture
