"""The states that dumps, their tables and their chunks go through: which may follow which.

`DUMPS`, `TABLES`, `TABLE_RUNS` and `CHUNKS` are applied by what they are the states of; the docs
print them (`docs/reference/dump-states.md`). Those of windows are in
`tidelog.capture.windows.state_machine`.
"""

from __future__ import annotations

from enum import Enum, StrEnum, auto

from tidelog.capture.state_machine import Row, Transitions


class DumpStatus(StrEnum):
    """Where a dump is. The values are stored."""

    QUEUED = "queued"
    RUNNING = "running"
    PAUSED = "paused"
    COMPLETED = "completed"
    ABORTED = "aborted"


class DumpInput(Enum):
    """What happens to a dump."""

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
        _Dump(_TO.QUEUED, _IN.BEGIN, _TO.RUNNING, "told, with what of it is rejected"),
        _Dump(_TO.QUEUED, _IN.PAUSE, _TO.PAUSED, "no chunk is begun"),
        _Dump(_TO.RUNNING, _IN.PAUSE, _TO.PAUSED, "no chunk is begun; those being read end"),
        _Dump(_TO.PAUSED, _IN.RESUME, _TO.RUNNING),
        _Dump(_TO.PAUSED, _IN.RESUME_UNBEGUN, _TO.QUEUED),
        *(
            _Dump(status, ended, to, "its keys are let go")
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
    """Where a table of a dump is. The values are stored."""

    PENDING = "pending"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"


class TableInput(Enum):
    """What happens to a table of a dump."""

    BEGIN = "its rows begin to be read"
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
        _Table(TableStatus.PENDING, TableInput.FAIL, TableStatus.FAILED, "all others go on"),
        _Table(TableStatus.PENDING, TableInput.CANCEL, TableStatus.CANCELLED),
        _Table(TableStatus.RUNNING, TableInput.BEGIN_ANEW, TableStatus.RUNNING),
        _Table(TableStatus.RUNNING, TableInput.COMPLETE, TableStatus.DONE),
        _Table(TableStatus.RUNNING, TableInput.FAIL, TableStatus.FAILED, "all others go on"),
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
    """What capture does with a table of an incremental dump; in memory only."""

    WAITING = auto()
    LOOKING_UP = auto()
    BEGINNING = auto()
    TAKING_SNAPSHOT = auto()
    READING = auto()
    COMPLETING = auto()
    ENDED = auto()


class TableRunInput(Enum):
    """What happens to a table while capture works at it."""

    NEXT = "a reader could read it"
    AWAY = "the source gives no answer"
    PAUSED = "its dump was paused meanwhile"
    FOUND = "the source has it, and it can be dumped"
    FOUND_BEGUN = "the same, and it had begun before a restart"
    APPENDED = "the record is durable"
    UNSEEN_KNOWN = "what the snapshot can't see is known"
    ALL_READ = "nothing of it is left to read, or to read again"
    END = "it failed, was cancelled or is done"


_Run = Row[TableRunStatus, TableRunInput]
_DOES, _MEETS = TableRunStatus, TableRunInput
TABLE_RUNS = Transitions(
    "table being dumped",
    "What capture does with a table of an incremental dump. It is not stored: a restart begins at "
    "the top, and reads no completed range again.",
    TableRunStatus.WAITING,
    (
        _Run(_DOES.WAITING, _MEETS.NEXT, _DOES.LOOKING_UP, "ask the catalogue for it"),
        _Run(_DOES.LOOKING_UP, _MEETS.AWAY, _DOES.LOOKING_UP, "ask again, later"),
        _Run(_DOES.LOOKING_UP, _MEETS.PAUSED, _DOES.WAITING),
        _Run(
            _DOES.LOOKING_UP,
            _MEETS.FOUND,
            _DOES.BEGINNING,
            "hold its keys, append its first record",
        ),
        _Run(_DOES.LOOKING_UP, _MEETS.FOUND_BEGUN, _DOES.READING, "cut what is left into chunks"),
        _Run(
            _DOES.BEGINNING,
            _MEETS.APPENDED,
            _DOES.TAKING_SNAPSHOT,
            "take a snapshot, ask the event log what it can't see",
        ),
        _Run(_DOES.TAKING_SNAPSHOT, _MEETS.AWAY, _DOES.TAKING_SNAPSHOT, "ask again, later"),
        _Run(_DOES.TAKING_SNAPSHOT, _MEETS.UNSEEN_KNOWN, _DOES.READING, "cut it into chunks"),
        _Run(_DOES.READING, _MEETS.ALL_READ, _DOES.COMPLETING, "append its last record"),
        *(
            _Run(status, _MEETS.END, _DOES.ENDED, "let its keys go")
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
                _MEETS.APPENDED,
                _MEETS.UNSEEN_KNOWN,
            ),
        ),
    ),
)


class ChunkStatus(StrEnum):
    """Where a chunk is. Status shows the values of those that are read; none is stored."""

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
    """What happens to a chunk."""

    GIVE = "a reader takes it"
    BEGIN = "the reader registers its window"
    ROWS = "its SELECT has ended"
    CLOSE = "its window closes"
    APPENDED = "its rows are durable"
    VOID = "its window is void"
    FAIL = "it could not be read"
    FAIL_OFTEN = "it could not be read, time and again, or may never be"
    AGAIN = "its table is as it was, or can't be asked about now"
    ONE_ROW = "it is one row, whose key is not known"
    BEHIND_KNOWN = "what lies behind that row is known"
    ANSWERED = "it is of no more use: its key is given up, or its keys have changed"
    DROP = "its table was cancelled, or has failed"


_Chunk = Row[ChunkStatus, ChunkInput]
_AT, _SEES = ChunkStatus, ChunkInput
CHUNKS = Transitions(
    "chunk",
    "In memory only: what is not durable is read again after a restart. Status shows "
    "those that are `reading`, `read` and `closing`.",
    ChunkStatus.WAITING,
    (
        _Chunk(_AT.WAITING, _SEES.GIVE, _AT.GIVEN),
        _Chunk(_AT.GIVEN, _SEES.BEGIN, _AT.READING, "low watermark, SELECT"),
        _Chunk(_AT.READING, _SEES.ROWS, _AT.READ, "high watermark"),
        _Chunk(_AT.READ, _SEES.CLOSE, _AT.CLOSING, "append its rows, less those superseded"),
        _Chunk(_AT.CLOSING, _SEES.APPENDED, _AT.DURABLE, "store the progress"),
        _Chunk(_AT.READING, _SEES.VOID, _AT.WAITING, "read again, later each time"),
        _Chunk(_AT.READ, _SEES.VOID, _AT.WAITING, "read again, later each time"),
        _Chunk(_AT.READING, _SEES.FAIL, _AT.WAITING, "read again, later each time"),
        _Chunk(_AT.READ, _SEES.FAIL, _AT.WAITING, "read again, later each time"),
        _Chunk(_AT.READING, _SEES.FAIL_OFTEN, _AT.DOUBTFUL, "look its table up"),
        _Chunk(_AT.READ, _SEES.FAIL_OFTEN, _AT.DOUBTFUL, "look its table up"),
        _Chunk(_AT.DOUBTFUL, _SEES.AGAIN, _AT.WAITING, "read again, half of it"),
        _Chunk(_AT.DOUBTFUL, _SEES.ONE_ROW, _AT.STUCK, "the planner looks behind it"),
        _Chunk(_AT.DOUBTFUL, _SEES.ANSWERED, _AT.LEFT_OUT),
        _Chunk(_AT.STUCK, _SEES.BEHIND_KNOWN, _AT.LEFT_OUT, "reported; what is behind it is read"),
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
