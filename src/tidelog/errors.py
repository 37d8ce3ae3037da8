"""One tree of errors, and the one place that maps each to what is done about it.

::

    TidelogError
     ├── UsageError            bad configuration, arguments or server set-up        stop, exit 2
     │    ├── ConfigError
     │    ├── PreflightError
     │    ├── MissingExtraError
     │    ├── MissingProgramError
     │    ├── EngineStateError    the engine's state does not allow the call
     │    ├── AnotherLeaderError  another process leads, and this one was not to wait
     │    ├── CommandIdReusedError  an id was used before, for another command
     │    └── NewerFormatError    written by a newer version; also an EventLogError
     ├── SourceError           the source database
     │    ├── ConnectionLostError                                                   retry
     │    ├── SourceBusyError  another session holds a lock                         retry
     │    ├── GapError         the source can no longer give what we have not read  stop, exit 1
     │    ├── SourceChangedError  another server, timeline or database              stop, exit 1
     │    │    └── LogResetError  its log was reset
     │    ├── LogInDangerError  the source's log is in danger, and capture was to stop  stop, exit 1
     │    ├── UnsupportedTableError  one table can't be captured or dumped           others continue
     │    │    └── ExcludedKeyError  its rows are matched by an excluded column
     │    └── ChunkError       one chunk's read failed                              void
     │         ├── ChunkVoidError
     │         ├── ChunkBusyError   another session holds a lock
     │         ├── ChunkLostError   the connection broke
     │         ├── ChunkTooSlowError  the read took longer than its time limit
     │         └── ChunkRefusedError  trying again can't help
     │              └── ChunkDeniedError  a right is missing
     ├── EventLogError
     │    ├── SegmentCorruptError                                                   stop, exit 1
     │    ├── ConsumerFileCorruptError  a consumer's position is not readable       stop, exit 1
     │    ├── ForeignSegmentError                                                   stop, exit 1
     │    ├── AppendRaceLostError  another writer owns the tail                     restart
     │    ├── OffsetGoneError  retention removed what is asked for                  stop, exit 1
     │    ├── OffsetAheadError  a reader has read what the log does not hold any more  stop, exit 1
     │    └── StorageError     disk full, I/O error, object store away              retry
     │         ├── OutcomeUnknownError  no answer to a put: it may happen still     retry
     │         └── AccessRefusedError  wrong credentials or no bucket; also a StateError
     │                                                         at a start stop, exit 2; else retry
     ├── LeaseLostError                                                             restart
     ├── TransitionError       a state met what its table lacks: a mistake of ours  restart
     ├── StateError            the state store failed                               retry
     │    └── StateConflictError  compare-and-set lost                              retry
     ├── IncompleteDumpError   an initial dump that was to be all lacks tables      stop, exit 1
     ├── DecodeError           a payload that is not what its schema says           stop, exit 1
     ├── OutputError           a destination refused                                retry
     │    ├── OutputBusyError    another writer or a busy host is in the way         retry
     │    │    └── ConflictError  another writer's commit took the number            retry
     │    └── OutputRefusedError  trying again can't help                            stop, exit 1
     │         ├── ConcurrentCommitError  another pipeline committed first
     │         ├── KeyRequiredError  a table has no key, and the option keyless is fail
     │         └── TableLeftOutError  one table can't be delivered                   others continue
     │              ├── NameRefusedError  a name that the destination can't hold
     │              ├── KeyMissingError  the destination keeps rows by key, and it has none
     │              └── RowsLeftOutError  which writing its rows has shown           others continue
     │                   └── ValueRefusedError  a value that does not fit the option types
     ├── ConsumerError         the program's own code raised in an engine            stop, exit 1
     ├── WaitTimeoutError      what was waited for did not happen in time; it may   stop, exit 1
     └── TaskStartError        a task of an engine did not start in time             stop, exit 1

Messages say what happened, where (source, table, position; never cell values) and what to do.
"""

from __future__ import annotations

from enum import Enum
from typing import Literal


class Policy(Enum):
    """What the engine does when an error of a kind reaches it."""

    RETRY = "retry"
    VOID = "void"
    RESTART = "restart"
    STOP = "stop"


class TidelogError(Exception):
    """Base of every error that Tidelog raises on purpose."""

    policy: Policy = Policy.STOP
    exit_code: int = 1


def message_without_values(error: BaseException) -> str:
    """Return the message of our own errors, which have no values; else only the kind, since the
    text of another error may quote a row or a password.
    """
    return str(error) if isinstance(error, TidelogError) else type(error).__name__


class UsageError(TidelogError):
    """The user must change something before a retry can help."""

    exit_code = 2


class ConfigError(UsageError):
    """The configuration file, an option or an environment variable is wrong.

    Attributes:
        refused: what the source's server refused while a connection was opened; empty: nothing.
            ``login``: no such account, or another password; ``blocked``: the account may not log
            in; ``database``: the account has no right to it; ``no database``: there is none.
    """

    refused: Literal["", "login", "blocked", "database", "no database"] = ""


class PreflightError(UsageError):
    """The source server is not set up for capture; the message holds the SQL that fixes it."""


class MissingExtraError(UsageError):
    """An optional dependency is not installed; the message names the pip extra."""

    def __init__(self, package: str, extra: str, purpose: str = "this") -> None:
        super().__init__(
            f"{package} is needed for {purpose} and is not installed: "
            f"pip install 'tidelog[{extra}]'"
        )
        self.package = package
        self.extra = extra
        self.purpose = purpose

    def __reduce__(self) -> tuple[type[MissingExtraError], tuple[str, str, str]]:
        return type(self), (self.package, self.extra, self.purpose)


class MissingProgramError(UsageError):
    """A program or library of the system is not installed; the message has the command for it."""


class EngineStateError(UsageError):
    """The engine is in a state that does not allow the call; a stopped one never starts again."""


class AnotherLeaderError(UsageError):
    """Raised when another process leads and a command needs the lease for itself."""


class CommandIdReusedError(UsageError):
    """The id of a command was used before, for another command."""


class SourceError(TidelogError):
    """The source database refused or failed."""


class ConnectionLostError(SourceError):
    """The connection to the source broke; reconnecting may help."""

    policy = Policy.RETRY


class SourceBusyError(SourceError):
    """Another session is in the way, e.g. holds a lock; trying again may help."""

    policy = Policy.RETRY


class GapError(SourceError):
    """Changes exist that the source can no longer deliver; going on would lose them silently."""


class SourceChangedError(SourceError):
    """The server behind the URL is not the one the event log was captured from."""


class LogResetError(SourceChangedError):
    """The source's log was reset, or put back: the event log's end is not in it."""


class LogInDangerError(SourceError):
    """The source is about to remove log that is needed, or its disk fills; capture was to stop."""


class UnsupportedTableError(SourceError):
    """A table can't be captured or dumped as it is; all others can.

    Attributes:
        table: ``namespace.name``.
        reason: without values.
        remedy: the SQL that fixes it, if it is known.
        only_dumps: whether its changes are captured all the same.
    """

    def __init__(
        self, table: object, reason: str, remedy: str | None = None, only_dumps: bool = False
    ) -> None:
        super().__init__(f"{table}: {reason}" + (f": {remedy}" if remedy else ""))
        self.table = str(table)
        self.reason = reason
        self.remedy = remedy
        self.only_dumps = only_dumps

    def __reduce__(self) -> tuple[type[UnsupportedTableError], tuple[str, str, str | None, bool]]:
        return type(self), (self.table, self.reason, self.remedy, self.only_dumps)


class ExcludedKeyError(UnsupportedTableError):
    """``source.exclude_columns`` excludes a column by which the table's rows are matched."""


class ChunkError(SourceError):
    """A chunk could not be read; the log continues and the chunk is tried again."""

    policy = Policy.VOID


class ChunkVoidError(ChunkError):
    """The table changed since its dump began: it has another key, or it was altered after a
    blocking dump took its snapshot. Reading again can't help.
    """


class ChunkBusyError(ChunkError):
    """Another session holds a lock that the chunk's read waits for, e.g. while DDL is running; or
    it has just altered the table behind the read's snapshot.
    """


class ChunkTooSlowError(ChunkError):
    """The chunk's read took longer than ``dump.statement_timeout_ms``; a smaller one may not."""


class ChunkLostError(ChunkError):
    """The connection broke while a chunk was read; the next read reconnects."""


class ChunkRefusedError(ChunkError):
    """The server can't understand the dump's condition or keys, whenever it is asked."""


class ChunkDeniedError(ChunkRefusedError):
    """The role lacks a right that the read, or its watermark, needs."""


class EventLogError(TidelogError):
    """The event log cannot be read or written."""


class SegmentCorruptError(EventLogError):
    """A segment on the chain is torn, truncated or not readable."""


class ConsumerFileCorruptError(EventLogError):
    """The file of a consumer's position is torn, truncated or not readable."""


class ForeignSegmentError(EventLogError):
    """A segment belongs to another log or source."""


class NewerFormatError(UsageError, EventLogError):
    """A newer version of Tidelog wrote it, in a format that this one does not know."""


class AppendRaceLostError(EventLogError):
    """Another writer created the segment at our tail: we are not the leader any more."""

    policy = Policy.RESTART


class OffsetGoneError(EventLogError):
    """Retention has removed the offset that was asked for."""


class OffsetAheadError(EventLogError):
    """A reader has read beyond where the event log ends, or ended when it was restored: the records
    that come now are not the ones that it has read.
    """


class StorageError(EventLogError):
    """The storage under the event log failed (disk full, permission, I/O, network)."""

    policy = Policy.RETRY


class OutcomeUnknownError(StorageError):
    """An object store did not answer a put; it may have happened, or happen later."""


class LeaseLostError(TidelogError):
    """Leadership ended or is in doubt; nothing more may be appended."""

    policy = Policy.RESTART


class TransitionError(TidelogError):
    """Something happened that a table of states has no row for: a mistake of Tidelog's own. What
    is in memory can't be trusted any more; what is stored can.
    """

    policy = Policy.RESTART


class StateError(TidelogError):
    """The state store cannot be read or written."""

    policy = Policy.RETRY


class StateConflictError(StateError):
    """A compare-and-set on a state document found another version."""


class AccessRefusedError(StorageError, StateError):
    """An object store, which holds event log or state, does not let us in, or lacks the bucket.

    Whoever starts, and commands, end by it. What has begun tries again: credentials may be about to
    be renewed.
    """

    exit_code = 2


class IncompleteDumpError(TidelogError):
    """Capture ended with its initial dump, which lacks tables; the event log has all else."""


class DecodeError(TidelogError):
    """A payload does not parse as its schema says."""


class OutputError(TidelogError):
    """A destination refused a write."""

    policy = Policy.RETRY


class OutputBusyError(OutputError):
    """Another writer of the destination, or a busy host, is in the way: it soon passes."""


class ConflictError(OutputBusyError):
    """Another writer committed to a table since it was read; of ours nothing is there. Read what
    the other one did, and settle the batch again.
    """


class OutputRefusedError(OutputError):
    """A destination will not take a record or a table however often it is tried."""

    policy = Policy.STOP


class ConcurrentCommitError(OutputRefusedError):
    """Another pipeline committed to the destination first."""


class KeyRequiredError(OutputRefusedError):
    """A table has no key, and the output's option ``keyless`` is ``fail``."""


class TableLeftOutError(OutputRefusedError):
    """A destination can't hold one table: it is left out, the others continue."""


class NameRefusedError(TableLeftOutError):
    """A destination can't hold a name of a table or its columns, or not beside another's. The
    message has the step to write.
    """


class RowsLeftOutError(TableLeftOutError):
    """Rows of one table can't be written, which no check sees before: a destination rejects one, a
    step fails on one, or a file of the table is damaged. The table is left out until a whole dump
    of it begins, which the next start requests, once. Messages begin with the table where an output
    writes several.
    """


class ValueRefusedError(RowsLeftOutError):
    """A value does not fit the type that the option ``types`` gives its column. The message has the
    option to write.
    """


class KeyMissingError(TableLeftOutError):
    """A table has no key, and the destination keeps rows by key. The message has the line that
    gives it one.
    """


class ConsumerError(TidelogError):
    """A consumer or a transform raised, which is the cause. The message names events, no values."""


class WaitTimeoutError(TidelogError):
    """What was waited for did not happen in time; it may happen later."""


class TaskStartError(TidelogError):
    """A task of an engine had not started when the time for it was over."""
