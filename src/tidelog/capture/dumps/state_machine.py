"""The states of dumps, their tables and their chunks, and the transitions between them.

`DUMPS`, `TABLES`, `TABLE_RUNS` and `CHUNKS` are applied by the objects whose states they describe;
`docs/reference/dump-states.md` prints them. The states of windows are in
`tidelog.capture.windows.state_machine`.
"""

from __future__ import annotations

from enum import Enum, StrEnum, auto

from tidelog.model.state_machine import Row, Transitions


class DumpStatus(StrEnum):
    """The state of a dump. The values are stored."""

    QUEUED = "queued"
    RUNNING = "running"
    PAUSED = "paused"
    COMPLETED = "completed"
    ABORTED = "aborted"


class DumpInput(Enum):
    """An event in the life of a dump."""

    BEGIN = "its turn comes"
    PAUSE = "it is paused"
    RESUME = "it is resumed"
    RESUME_UNBEGUN = "it is resumed, and none of its tables has begun"
    TABLES_ENDED = "all its tables have ended, one at least is done"
    NONE_DONE = "all its tables have ended, none is done"


_Dump = Row[DumpStatus, DumpInput]
_IN, _TO = DumpInput, DumpStatus
DUMPS = Transitions(
    "dump",
    "As `tidelog status` shows it, and as it is stored.",
    DumpStatus.QUEUED,
    (
        _Dump(_TO.QUEUED, _IN.BEGIN, _TO.RUNNING, "report it, and the rejected tables"),
        _Dump(_TO.QUEUED, _IN.PAUSE, _TO.PAUSED, "no chunk is begun"),
        _Dump(_TO.RUNNING, _IN.PAUSE, _TO.PAUSED, "no chunk is begun; those being read end"),
        _Dump(_TO.PAUSED, _IN.RESUME, _TO.RUNNING),
        _Dump(_TO.PAUSED, _IN.RESUME_UNBEGUN, _TO.QUEUED),
        *(
            _Dump(status, ended, to, "delete its key sets")
            for status in (_TO.QUEUED, _TO.RUNNING, _TO.PAUSED)
            for ended, to in (
                (_IN.TABLES_ENDED, _TO.COMPLETED),
                (_IN.NONE_DONE, _TO.ABORTED),
            )
        ),
    ),
)


UNFINISHED = frozenset({DumpStatus.QUEUED, DumpStatus.RUNNING, DumpStatus.PAUSED})


class TableStatus(StrEnum):
    """The state of a table of a dump. The values are stored."""

    PENDING = "pending"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"


class TableInput(Enum):
    """An event in the life of a table of a dump."""

    BEGIN = "reading its rows begins"
    BEGIN_ANEW = "all its rows are to be read again"
    COMPLETE = "its last record is durable"
    FAIL = "it can't be read"
    CANCEL = "it is cancelled"


_Table = Row[TableStatus, TableInput]
TABLES = Transitions(
    "table of a dump",
    "As `tidelog status` shows it, and as it is stored.",
    TableStatus.PENDING,
    (
        _Table(TableStatus.PENDING, TableInput.BEGIN, TableStatus.RUNNING),
        _Table(TableStatus.PENDING, TableInput.FAIL, TableStatus.FAILED, "other tables continue"),
        _Table(TableStatus.PENDING, TableInput.CANCEL, TableStatus.CANCELLED),
        _Table(TableStatus.RUNNING, TableInput.BEGIN_ANEW, TableStatus.RUNNING),
        _Table(TableStatus.RUNNING, TableInput.COMPLETE, TableStatus.DONE),
        _Table(TableStatus.RUNNING, TableInput.FAIL, TableStatus.FAILED, "other tables continue"),
        _Table(TableStatus.RUNNING, TableInput.CANCEL, TableStatus.CANCELLED),
        _Table(TableStatus.DONE, TableInput.BEGIN_ANEW, TableStatus.RUNNING),
    ),
    stays=(
        (TableStatus.CANCELLED, (TableInput.COMPLETE, TableInput.FAIL)),
        (TableStatus.FAILED, (TableInput.COMPLETE, TableInput.FAIL)),
        (TableStatus.DONE, (TableInput.COMPLETE, TableInput.FAIL)),
    ),
)
FINISHED = frozenset({TableStatus.DONE, TableStatus.FAILED, TableStatus.CANCELLED})


class TableRunStatus(Enum):
    """The step of capture's work on a table of an incremental dump; in memory only."""

    WAITING = auto()
    LOOKING_UP = auto()
    BEGINNING = auto()
    TAKING_SNAPSHOT = auto()
    READING = auto()
    READING_KEYLESS = auto()
    COMPLETING = auto()
    ENDED = auto()


class TableRunInput(Enum):
    """An event during capture's work on a table."""

    NEXT = "a reader is free for it"
    AWAY = "the source does not answer"
    PAUSED = "its dump was paused in the meantime"
    FOUND = "the source has it, and it can be dumped"
    FOUND_BEGUN = "the same, and it had begun before a restart"
    FOUND_KEYLESS = "the source has it, and it has no key"
    ALTERED = "it was altered while it was read"
    APPENDED = "the record is durable"
    UNSEEN_KNOWN = "the transactions that the snapshot can't see are known"
    ALL_READ = "nothing of it is left to read, or to read again"
    END = "it failed, was cancelled or is done"


_Run = Row[TableRunStatus, TableRunInput]
_DOES, _MEETS = TableRunStatus, TableRunInput
TABLE_RUNS = Transitions(
    "table being dumped",
    "Capture's work on a table of an incremental dump. It is not stored: a restart begins at "
    "the top, and reads no completed range again.",
    TableRunStatus.WAITING,
    (
        _Run(_DOES.WAITING, _MEETS.NEXT, _DOES.LOOKING_UP, "query the catalogue for it"),
        _Run(_DOES.LOOKING_UP, _MEETS.AWAY, _DOES.LOOKING_UP, "query again later"),
        _Run(_DOES.LOOKING_UP, _MEETS.PAUSED, _DOES.WAITING),
        _Run(
            _DOES.LOOKING_UP,
            _MEETS.FOUND,
            _DOES.BEGINNING,
            "retain its keys, append its first record",
        ),
        _Run(_DOES.LOOKING_UP, _MEETS.FOUND_BEGUN, _DOES.READING, "cut the rest into chunks"),
        _Run(
            _DOES.LOOKING_UP,
            _MEETS.FOUND_KEYLESS,
            _DOES.READING_KEYLESS,
            "read it whole under one snapshot, then append its last record",
        ),
        _Run(_DOES.READING_KEYLESS, _MEETS.ALTERED, _DOES.WAITING),
        _Run(
            _DOES.BEGINNING,
            _MEETS.APPENDED,
            _DOES.TAKING_SNAPSHOT,
            "take a snapshot, search the event log for what it can't see",
        ),
        _Run(_DOES.TAKING_SNAPSHOT, _MEETS.AWAY, _DOES.TAKING_SNAPSHOT, "try again later"),
        _Run(_DOES.TAKING_SNAPSHOT, _MEETS.UNSEEN_KNOWN, _DOES.READING, "cut it into chunks"),
        _Run(_DOES.READING, _MEETS.ALL_READ, _DOES.COMPLETING, "append its last record"),
        *(
            _Run(status, _MEETS.END, _DOES.ENDED, "release its keys")
            for status in TableRunStatus
            if status is not TableRunStatus.ENDED
        ),
    ),
    stays=(
        (
            _DOES.ENDED,
            (
                _MEETS.AWAY,
                _MEETS.PAUSED,
                _MEETS.FOUND,
                _MEETS.FOUND_BEGUN,
                _MEETS.FOUND_KEYLESS,
                _MEETS.ALTERED,
                _MEETS.APPENDED,
                _MEETS.UNSEEN_KNOWN,
            ),
        ),
    ),
)


class ChunkStatus(StrEnum):
    """The state of a chunk. Status shows those of chunks being read; none is stored."""

    WAITING = "waiting"
    GIVEN = "given"
    READING = "reading"
    READ = "read"
    CLOSING = "closing"
    DOUBTFUL = "doubtful"
    STUCK = "stuck"
    DURABLE = "durable"
    LEFT_OUT = "left out"
    DROPPED = "dropped"


class ChunkInput(Enum):
    """An event in the life of a chunk."""

    GIVE = "a reader takes it"
    BEGIN = "the reader registers its window"
    ROWS = "its SELECT has ended"
    CLOSE = "its window closes"
    APPENDED = "its rows are durable"
    VOID = "its window is void"
    FAIL = "it could not be read"
    FAIL_OFTEN = "it could not be read several times, or may never be"
    AGAIN = "its table has not changed, or can't be looked up now"
    ONE_ROW = "it is one row, whose key is not known"
    BEHIND_KNOWN = "the key of that row is known"
    ANSWERED = "it is not needed: its key is given up, or its keys have changed"
    DROP = "its table was cancelled, or has failed"


_Chunk = Row[ChunkStatus, ChunkInput]
_AT, _SEES = ChunkStatus, ChunkInput
CHUNKS = Transitions(
    "chunk",
    "In memory only: a chunk that is not durable is read again after a restart. Status shows "
    "those that are `reading`, `read` and `closing`.",
    ChunkStatus.WAITING,
    (
        _Chunk(_AT.WAITING, _SEES.GIVE, _AT.GIVEN),
        _Chunk(_AT.GIVEN, _SEES.BEGIN, _AT.READING, "low watermark, SELECT"),
        _Chunk(_AT.READING, _SEES.ROWS, _AT.READ, "high watermark"),
        _Chunk(_AT.READ, _SEES.CLOSE, _AT.CLOSING, "append its rows except superseded ones"),
        _Chunk(_AT.CLOSING, _SEES.APPENDED, _AT.DURABLE, "store the progress"),
        _Chunk(_AT.READING, _SEES.VOID, _AT.WAITING, "read again, with a growing delay"),
        _Chunk(_AT.READ, _SEES.VOID, _AT.WAITING, "read again, with a growing delay"),
        _Chunk(_AT.READING, _SEES.FAIL, _AT.WAITING, "read again, with a growing delay"),
        _Chunk(_AT.READ, _SEES.FAIL, _AT.WAITING, "read again, with a growing delay"),
        _Chunk(_AT.READING, _SEES.FAIL_OFTEN, _AT.DOUBTFUL, "look up its table"),
        _Chunk(_AT.READ, _SEES.FAIL_OFTEN, _AT.DOUBTFUL, "look up its table"),
        _Chunk(_AT.DOUBTFUL, _SEES.AGAIN, _AT.WAITING, "read again, half of it"),
        _Chunk(_AT.DOUBTFUL, _SEES.ONE_ROW, _AT.STUCK, "the planner finds its key"),
        _Chunk(_AT.DOUBTFUL, _SEES.ANSWERED, _AT.LEFT_OUT),
        _Chunk(_AT.STUCK, _SEES.BEHIND_KNOWN, _AT.LEFT_OUT, "report it; read the rows after it"),
        *(
            _Chunk(status, _SEES.DROP, _AT.DROPPED)
            for status in (
                _AT.WAITING,
                _AT.GIVEN,
                _AT.READING,
                _AT.READ,
                _AT.DOUBTFUL,
                _AT.STUCK,
            )
        ),
    ),
    stays=((_AT.DROPPED, (_SEES.DROP,)),),
)
