"""What a peer must be able to do."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Protocol

import pyarrow as pa
import pyarrow.compute as pc
from tests.support.delta_readers import by_delta_rs

from benchmarks.peers.source import COLUMNS, Mark

FRESHNESS_S = 10
"""Seconds between two commits of the peers that are given an interval."""


class Peer(Protocol):
    """A way from PostgreSQL into a lake that keeps all it has in ``directory``."""

    title: str
    slot: str
    directory: Path

    def commands(self) -> Sequence[Sequence[str]]:
        """To be run beside each other: they go on where the last ones were ended."""

    def reached(self, mark: Mark) -> bool:
        """Does the copy show this mark? Others follow it, one a second."""

    def lines(self) -> Iterator[bytes]:
        """The copy's rows, for `benchmarks.peers.source.digest`; nothing is running."""


def mark_in_delta(table: Path) -> int:
    """The number of the last mark that a Delta table shows; −1 without one."""
    from deltalake import DeltaTable, QueryBuilder
    from deltalake.exceptions import TableNotFoundError

    try:
        reader = QueryBuilder().register("t", DeltaTable(str(table)))
    except TableNotFoundError:
        return -1
    found = pa.table(reader.execute("SELECT customer FROM t WHERE id = 0").read_all())
    return int(found.column(0)[0].as_py()) if found.num_rows else -1


def lines_in_delta(table: Path) -> Iterator[bytes]:
    rows = by_delta_rs(str(table)).select(COLUMNS)
    texts = []
    for name in COLUMNS:
        column = rows.column(name)
        if pa.types.is_timestamp(column.type):
            column = pc.strftime(column, "%Y-%m-%d %H:%M:%S")
        texts.append(column.cast(pa.string()))
    joined = pc.binary_join_element_wise(*texts, ",")
    for text in joined:
        yield text.as_py().encode()
