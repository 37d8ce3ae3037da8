"""A destination, as the driver sees it: batches of the event log, and kinds of outputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar, runtime_checkable

from tidelog.model.schema import TableName
from tidelog.ports.state import StateStore


@dataclass(frozen=True, slots=True)
class DumpCompleted:
    """A CONTROL record: a table's full dump is complete.

    A replay from ``first_offset`` gives the table. With ``delete_absent``, rows that an output
    has with a version below ``first_offset`` are not in the source any more. An output that has
    written everything below ``finalized_until`` (the offset after this record) has the whole table.
    """

    dump_id: str
    table: str
    first_offset: int
    delete_absent: bool
    finalized_until: int = 0


@dataclass(frozen=True, slots=True)
class TableRange:
    """What a batch has of one table: schema versions, rows and payload bytes of its records.

    Rows and bytes are for planning; they may be somewhat too large.
    """

    table: TableName
    schema_ids: frozenset[int]
    rows: int
    payload_bytes: int


@dataclass(frozen=True, slots=True)
class OutputBatch:
    """Offsets ``[start, end)`` of the event log of ``generation``, to be written by outputs.

    ``resume``: an output that stands before it goes on there. Retention removed what lies between,
    and whole dumps make it good.
    """

    generation: str
    start: int
    end: int
    tables: tuple[TableRange, ...]
    completed: tuple[DumpCompleted, ...] = ()
    resume: int = 0


class Output(Protocol):
    """A destination. Batches come in order, one at a time.

    After a failure or with a new checkpoint a batch, or the end of one with what follows, comes
    again. So an output asks the destination what it has (`committed`) and never replaces a newer
    row by an older one. `write` may use threads of its own.
    """

    name: str

    def prepare(self, generation: str) -> None:
        """Check the destination before the first batch. Raises OutputError if it was filled from
        another generation of the log, or isn't ours.
        """
        ...

    def write(self, batch: OutputBatch) -> None:
        """Write the batch; durable upon return. Raises OutputError; the batch may come again."""
        ...

    def committed(self, table: TableName) -> int | None:
        """The offset below which the destination has everything of the table; None: nothing."""
        ...

    def close(self) -> None: ...


@runtime_checkable
class RejectingOutput(Output, Protocol):
    """An output that can go on where its destination rejects records."""

    def rejected(self) -> int:
        """How many went to its dead letters, ever, in batches that are done. A failure may leave
        some out; a batch that comes again by itself is not counted twice.
        """
        ...

    def refused_tables(self) -> Mapping[str, str]:
        """By table that is left out for its name, or lacks rows since it was: why, and what to
        do.
        """
        ...

    def take_again(self, ask: Callable[[Sequence[str]], None]) -> None:
        """Take the tables that were left out and now have names that the destination can hold.
        ``ask`` asks for dumps of them. Called after `Output.prepare`, once a start.
        """
        ...


class TaskFence(Protocol):
    """What tasks ask before each step. Picklable."""

    def check(self) -> None:
        """Raises LeaseLostError if the lease has ended under which they were begun, as far as it
        can be seen from their host.
        """
        ...


@dataclass(frozen=True)
class WriteLease:
    """The lease under which a pipeline writes.

    Attributes:
        epoch: grows with every new leader of the pipeline: what a destination compares.
        check: raises LeaseLostError if the lease may have ended.
        tasks: the same for tasks.
    """

    epoch: int
    check: Callable[[], None]
    tasks: TaskFence


@runtime_checkable
class LedOutput(Output, Protocol):
    """An output that writes under its pipeline's lease alone."""

    def led_by(self, lease: WriteLease) -> None:
        """Called before `prepare`. Once the lease has ended nothing may be written."""
        ...


@dataclass(frozen=True)
class OutputContext:
    """What an output is made with, beside its section.

    Attributes:
        spark: the pipeline's SparkSession.
        log_path: of the event log.
        open_state: a new handle on the state store, which the output closes.
        deliver: an output of what `TaskWriter` the function makes (on the driver, pickled to each
            task), with all that a section derived from `tidelog.ext.ExecutorSection` says. Its
            arguments: the section, the function, ``keyed`` (the newest state of keys; else every
            change), ``order`` and ``message_format`` (a formatter's name, or ``rows``).
    """

    spark: Any
    log_path: str
    open_state: Callable[[], StateStore]
    deliver: Callable[..., Output]


@dataclass(frozen=True)
class OutputPlace:
    """Where an output writes: what tells it from other places. Kept as digests; without secrets.

    Attributes:
        name: a JSON value, equal for two sections exactly if they write to one place.
        hosts: those that lead there, if several may be named: one in common is enough.
        now: a JSON value that belongs to ``name`` when two outputs are compared, but may change
            from one run to the next while the place stays the same.
        also: JSON values of what it writes to beside that, whichever tables it takes. Two outputs
            must not share one, whatever else they write.
    """

    name: object
    hosts: tuple[str, ...] = ()
    now: object = None
    also: tuple[object, ...] = ()


S = TypeVar("S")
C = TypeVar("C", contravariant=True)


class OutputKind(Protocol[S]):
    """A kind of output: what its section looks like, and what it makes."""

    @property
    def section(self) -> type[S]:
        """The model of its section, derived from `tidelog.ext.OutputSection`; its field ``kind`` is
        a Literal of the kind's name.
        """
        ...

    def open(self, section: S, context: OutputContext) -> Output:
        """The output of a section. Raises ConfigError, OutputError."""
        ...

    def place(self, section: S) -> OutputPlace:
        """Where an output of this section writes. Two outputs must not write to one place."""
        ...


@runtime_checkable
class ProbedOutputKind(Protocol[C]):
    """An `OutputKind` whose destinations `tidelog check` can look at, without Spark."""

    def probe(self, section: C) -> str | None:
        """What answers there, in a few words; None: that can't be known from here. Writes nothing,
        and takes seconds at most. Raises OutputError that says what to do.
        """
        ...


@dataclass(frozen=True)
class LogExtent:
    """Where an event log ends, for who is asked without Spark whether it holds all of it.

    Attributes:
        path: of the event log; this process can open it.
        generation: of the event log.
        end: the offset that the next record gets.
        state: the pipeline's state store; it stays open.
    """

    path: str
    generation: str
    end: int
    state: StateStore


@runtime_checkable
class IdleOutputKind(Protocol[C]):
    """An `OutputKind` that knows without Spark, within seconds, that an output has nothing to do.
    Then `tidelog pipeline --once` ends without starting it.
    """

    def is_idle(self, section: C, log: LogExtent) -> bool:
        """Does the destination hold all records before ``log.end`` and none beyond it, and would
        `Output.prepare` find it as it should be, with nothing to finish? The same settings and
        tables were checked before. False: no, or that can't be known. Writes nothing. Raises
        OutputError where the destination does not answer.
        """
        ...
