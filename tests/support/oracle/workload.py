"""Random transactions for the history oracle, by several writers over tables of many shapes.

Every write of a key locks the key until its transaction has ended, and then takes a number from one
sequence, so that the numbers of a key grow in commit order. What a transaction did goes to an audit
table in the same transaction, which is not captured. What depends on the kind of server is a
`WorkloadWriter`'s.
"""

from __future__ import annotations

import math
import random
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

AUDIT = "truth.audit"
WIDE_BYTES = 10_000
BULK_FROM, BULK_ROWS = 10_000, 1_500
BULK_TABLE = "app.ints"
PARTS = "app.parts"
LONG_S = 0.4


@dataclass(frozen=True, slots=True)
class Table:
    """A table of the workload. ``key``: the columns that Tidelog matches rows by.

    Attributes:
        draw: a random key, of one of the numbers below ``keys``.
        order: of a key's texts: sorts as the server does; equal, and of equal repr, where the
            server takes keys for equal.
        wide: holds values that the source does not log again when they don't change.
        exact: keys are spelled one way only.
        ddl: its shape is changed.
    """

    name: str
    key: tuple[str, ...]
    draw: Callable[[random.Random, int], tuple[Any, ...]]
    order: Callable[[Sequence[str]], Any]
    wide: bool = False
    keys: int = 200
    exact: bool = True
    ddl: bool = False

    def random_key(self, rng: random.Random) -> tuple[Any, ...]:
        return self.draw(rng, rng.randrange(self.keys))

    def place(self, key: Sequence[Any]) -> Any:
        """Where a key sorts; keys that the server takes for equal have one place."""
        return self.order([str(part) for part in key])

    def lock(self, key: Sequence[Any]) -> str:
        """What names the key for a lock."""
        return f"{self.name} {self.place(key)}"


@dataclass(frozen=True, slots=True)
class Mix:
    """What the writers do besides single writes; no ``tables``: all; ``truncates``: how often;
    ``partial``: leave columns out of the log, so that many keys are read again; ``vanish``: rows of
    a partition go without row events at the very end, so that no later write hides that they went.

    With ``prepared`` transactions beside truncates PostgreSQL now and then failed to decode its log
    (``could not map filenumber … to relation OID``), also for a slot of the test's own. This was
    seen with PostgreSQL 16.14; the cause is not known.
    """

    tables: tuple[str, ...] = ()
    bulk: bool = True
    truncate: bool = True
    truncates: float = 0.005
    ddl: bool = True
    key_changes: bool = True
    prepared: bool = False
    long: bool = True
    partial: bool = True
    vanish: bool = False


class Undo(Exception):  # noqa: N818 - no error
    """Rolls the innermost `WorkloadWriter.transaction` or `WorkloadWriter.savepoint` back, and ends
    with it.
    """


class WorkloadWriter(ABC):
    """Single writes over one connection, each with its audit entry, and what surrounds them."""

    rng: random.Random
    partial: bool = True

    @abstractmethod
    def transaction(self) -> AbstractContextManager[None]:
        """Commits at its end; rolled back by an exception."""

    @abstractmethod
    def savepoint(self) -> AbstractContextManager[None]:
        """Rolled back to by an exception."""

    @abstractmethod
    def put(self, table: Table, key: Sequence[Any]) -> None:
        """Insert, or update all or only some columns, whatever is there."""

    @abstractmethod
    def delete(self, table: Table, key: Sequence[Any]) -> None: ...

    @abstractmethod
    def move(self, table: Table, key: Sequence[Any], to: Sequence[Any]) -> None:
        """Change a key; what was under the new one is deleted first."""

    @abstractmethod
    def bulk(self, table: Table) -> None:
        """Thousands of rows, which no other writer of the table may interleave."""

    @abstractmethod
    def truncate(self, table: Table) -> None:
        """The table, or a part of it."""

    @abstractmethod
    def vanish(self) -> None:
        """Truncate a partition that has rows, if there is one."""

    @abstractmethod
    def ddl(self, table: Table) -> None:
        """Change a table's shape: columns come, with and without a default, widen and go."""

    @abstractmethod
    def prepare(self, write: Callable[[], None]) -> bool:
        """A transaction of two phases; whether it was committed."""


class Writers(Protocol):
    """Where a workload's writers come from.

    Attributes:
        tables: by name.
        lost: raised where the server goes away, or ends the connection; a new one is opened.
        refused: raised where the server rolled a transaction back.
    """

    tables: dict[str, Table]
    lost: tuple[type[BaseException], ...]
    refused: tuple[type[BaseException], ...]

    def open(self, rng: random.Random, number: int) -> AbstractContextManager[WorkloadWriter]:
        """Writer ``number``, over a new connection; ends what its last one left prepared."""
        ...

    def end_prepared(self, writers: int) -> None:
        """Decide what is prepared by any of so many."""
        ...


class OracleWorkload:
    """Writers that commit random transactions until stopped; they survive a server's restart.

    They rest while they have committed ``most``, which may be raised.
    """

    def __init__(
        self,
        source: Writers,
        seed: int,
        mix: Mix,
        *,
        writers: int = 3,
        pause_s: float = 0.004,
        most: float = math.inf,
    ) -> None:
        self._source = source
        self._mix = mix
        self._tables = [source.tables[name] for name in mix.tables or source.tables]
        self._shaped = [table for table in self._tables if table.ddl]
        self._pause_s = pause_s
        self._stop = threading.Event()
        self._failure: BaseException | None = None
        self._turns = [threading.Lock() for _ in range(writers)]
        self.committed = 0
        self.most = most
        self._threads = [
            threading.Thread(target=self._run, args=(random.Random(f"{seed} {i}"), i), daemon=True)
            for i in range(writers)
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Let the open transactions end, prepared ones too; then rows vanish, if the mix says so.
        Raises what made a writer fail.
        """
        self._stop.set()
        for thread in self._threads:
            thread.join(60)
        if self._failure is not None:
            raise self._failure
        self._source.end_prepared(len(self._threads))
        if self._mix.vanish and any(table.name == PARTS for table in self._tables):
            with self._source.open(random.Random(0), 0) as writer, writer.transaction():
                writer.vanish()

    @contextmanager
    def still(self) -> Iterator[None]:
        """Within it no transaction is open."""
        with ExitStack() as held:
            for turn in self._turns:
                held.enter_context(turn)
            yield

    def _run(self, rng: random.Random, number: int) -> None:
        while not self._stop.is_set() and self._failure is None:
            try:
                with self._source.open(rng, number) as writer:
                    writer.partial = self._mix.partial
                    while not self._stop.is_set():
                        with self._turns[number]:
                            if self.committed < self.most:
                                self._transaction(writer, rng, number)
                        time.sleep(rng.random() * 2 * self._pause_s)
            except self._source.lost:
                time.sleep(0.1)  # the server restarts, or it chose us to break a deadlock
            except BaseException as failure:  # noqa: BLE001 - raised by stop
                self._failure = failure

    def _transaction(self, writer: WorkloadWriter, rng: random.Random, number: int) -> None:
        choice = rng.random()
        mix = self._mix
        bulk = next((table for table in self._tables if table.name == BULK_TABLE), None)
        try:
            if choice > 0.985 and mix.prepared:
                self.committed += writer.prepare(lambda: self._some(writer, rng))
                return
            with writer.transaction():
                if choice < 0.010 and mix.ddl and number == 0:
                    if self._shaped:
                        writer.ddl(rng.choice(self._shaped))
                elif choice < 0.018 and mix.bulk and bulk is not None:
                    writer.bulk(bulk)
                elif choice < 0.018 + mix.truncates and mix.truncate:
                    writer.truncate(rng.choice(self._tables))
                else:
                    self._writes(writer, rng)
                    if choice < 0.025 + mix.truncates and mix.long:
                        time.sleep(rng.random() * LONG_S)
                if rng.random() < 0.05:
                    raise Undo
            self.committed += 1
        except self._source.refused:
            pass

    def _some(self, writer: WorkloadWriter, rng: random.Random) -> None:
        for _ in range(rng.choice((1, 2, 5))):
            self._write(writer, rng)

    def _writes(self, writer: WorkloadWriter, rng: random.Random) -> None:
        for _ in range(rng.choice((1, 1, 1, 2, 3, 8))):
            if rng.random() < 0.1:
                with writer.savepoint():
                    self._write(writer, rng)
                    if rng.random() < 0.5:
                        raise Undo
            else:
                self._write(writer, rng)

    def _write(self, writer: WorkloadWriter, rng: random.Random) -> None:
        table = rng.choice(self._tables)
        key, choice = table.random_key(rng), rng.random()
        if choice < 0.62:
            writer.put(table, key)
        elif choice < 0.75:
            writer.delete(table, key)
        elif choice < 0.85:
            writer.delete(table, key)
            writer.put(table, key)
        elif self._mix.key_changes:
            writer.move(table, key, table.random_key(rng))
