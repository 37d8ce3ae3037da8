"""The interface of a peer, and how a Delta table is read."""

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
        """Does the copy have all rows, and show this mark? Others follow it, one a second."""

    def lines(self) -> Iterator[bytes]:
        """The copy's rows, for `benchmarks.peers.source.digest`; nothing is running."""


def reached_in_delta(table: Path, mark: Mark, rows: int) -> bool:
    """Does the Delta table have as many rows, and show this mark? It can show the mark while
    the table is still being copied.
    """
    from deltalake import DeltaTable, QueryBuilder
    from deltalake.exceptions import TableNotFoundError

    try:
        reader = QueryBuilder().register("t", DeltaTable(str(table)))
    except TableNotFoundError:
        return False
    asked = f"SELECT count(*) = {rows} AND max((id = 0)::int * customer) >= {mark.number} FROM t"
    (found,) = pa.table(reader.execute(asked).read_all()).column(0)
    return bool(found.as_py())


def lines_in_delta(table: Path) -> Iterator[bytes]:
    return lines_of(by_delta_rs(str(table)).select(COLUMNS))


def lines_of(rows: pa.Table) -> Iterator[bytes]:
    """Rows of `COLUMNS` as `Peer.lines` has them."""
    texts = []
    for name in COLUMNS:
        column = rows.column(name)
        if pa.types.is_timestamp(column.type):
            column = pc.strftime(column, "%Y-%m-%d %H:%M:%S")
        texts.append(column.cast(pa.string()))
    joined = pc.binary_join_element_wise(*texts, ",")
    for text in joined:
        yield text.as_py().encode()
