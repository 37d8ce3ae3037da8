"""What the history oracle has to know of a kind of source; all else of it is the same for all."""

from __future__ import annotations

import random
from collections.abc import Sequence, Set
from typing import Any, Protocol

from tests.support.oracle.dumps import Sight
from tests.support.oracle.values import Change, Key, Row, Transaction
from tests.support.oracle.workload import Table, Writers

from tidelog.config import Config
from tidelog.model.records import ChunkMeta


class OracleSource(Protocol):
    """One server of a kind, and its tables ``app.*`` of one history.

    Attributes:
        tables: of the workload, by name.
        port: where all clients reach it.
        strategies: ways to place chunks in the log.
        faults: what can befall the source, see `strike`.
        blocking: whether dumps may be blocking.
        prepares: whether transactions of two phases may be part of a random run.
        alters: whether changes of a table's shape may be: the log must tell them wholly.
        writers: of the workload; from `create` on.
    """

    tables: dict[str, Table]
    strategies: tuple[str, ...]
    faults: tuple[str, ...]
    blocking: bool
    prepares: bool
    alters: bool
    writers: Writers

    @property
    def port(self) -> int: ...

    def create(self, name: str, seed: int) -> None:
        """Make the tables of the history ``name``, with some rows, and begin to hold the truth."""
        ...

    def drop(self) -> None:
        """Remove what `create` made, as far as the server can be reached."""
        ...

    def section(self, watermarks: str, initial: str) -> str:
        """The section ``source`` of the configuration: YAML in flow style."""
        ...

    def prepare(self, config: Config) -> None:
        """What the owner does where Tidelog may write nothing."""
        ...

    def run(self, statement: str) -> None:
        """Have it done, and committed."""
        ...

    def strike(self, fault: str, rng: random.Random) -> None: ...

    def promote(self, rng: random.Random) -> str:
        """Lose the server, and have another that follows it take its place. What was done, for
        people; nothing: no other can.
        """
        ...

    def mark(self) -> int:
        """A number between those of transactions that are committed by now and those that begin
        hereafter: of later ones, and of chunks that see them (`begun`), it is not greater.
        """
        ...

    def last_write(self, rng: random.Random) -> int:
        """Write to every table once more, so that the log shows each table's last shape; a mark
        for `reached`.
        """
        ...

    def reached(self, mark: int, xids: Set[int]) -> bool:
        """Do the event log's transactions include `last_write`'s?"""
        ...

    def truth(self, xids: Set[int] = frozenset()) -> list[Transaction]:
        """Every transaction of the tables since they are empty, in commit order.

        ``xids``: those of the event log. What two servers have logged, each in its way, is told as
        the one did that capture had it from.
        """
        ...

    def rows(self, table: Table) -> dict[Key, Row]:
        """The table's rows now, as texts."""
        ...

    def text(self, column: str, value: Any) -> str:
        """What a reader of an output found in a column, as `rows` has it."""
        ...

    def sight(self, snapshot: str) -> Sight: ...

    def begun(self, chunk: ChunkMeta) -> int:
        """When the chunk was read, to be compared with `mark`."""
        ...

    def same(self, change: Change, record: Change) -> bool:
        """Does the event log's record say what the truth's change says?"""
        ...

    def place(self, table: str, key: Sequence[str | None]) -> object:
        """Where a key sorts; keys that the source takes for equal have one place."""
        ...
