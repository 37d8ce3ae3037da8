"""What an overview holds. Version 1: fields are added to it, never taken away or redefined."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

VERSION = 1


class Severity(StrEnum):
    """The severity of a problem; of the whole: that of the worst problem."""

    OK = "ok"
    INFO = "info"
    """Somebody wanted it so, or it mends itself."""
    WARNING = "warning"
    """Rows or events are late or left out, or will be."""
    CRITICAL = "critical"
    """Nothing goes on, or changes are about to be lost."""


@dataclass(frozen=True, slots=True)
class Problem:
    """What is wrong.

    Attributes:
        kind: a name for programs, e.g. ``table-refused``.
        severity: never ``ok``.
        about: the table, output or dump; empty for capture and source.
        sentence: without cell values.
        remedy: what to do, or to run; empty if it mends itself.
        page: where the documentation says more.
    """

    kind: str
    severity: Severity
    about: str
    sentence: str
    remedy: str
    page: str


def problem(
    kind: str, severity: Severity, about: str, sentence: str, remedy: str, entry: str
) -> Problem:
    """``entry``: of docs/failure-modes.md."""
    sentence = " ".join(sentence.split())  # a driver's message may be of several lines
    return Problem(kind, severity, about, sentence, remedy, f"docs/failure-modes.md#{entry}")


@dataclass(frozen=True, slots=True)
class SourceHealth:
    """The source's log as capture follows it. None: not known.

    Attributes:
        position: as the server writes it.
        lag_s, lag_bytes: what is committed and not captured yet; ``lag_s`` at most, while nobody
            tells it.
        retained_bytes: what the server keeps of its log for capture.
        spare_bytes: what may be written until it removes what capture needs.
        lost_in_s: when that is, as the last minutes went; for a server that keeps its log for a
            time, when what capture needs next gets too old.
        error: why the server could not be asked.
        silent_s: capture is down, and told the rest so long ago; ``lag_s`` and ``lost_in_s`` are
            what has become of it since, if the source went on. 0.0: it is as of now.
        paused_ms: since when its log is not read because somebody paused that; None: it is read.
        paused_by: by whom, as far as that is known.
        lasts_s: how long ``spare_bytes`` lasts without capture, as its log grew in the last
            minutes.
    """

    position: str | None
    lag_s: float | None
    lag_bytes: int | None
    retained_bytes: int | None
    spare_bytes: int | None
    lost_in_s: float | None
    error: str | None
    silent_s: float = 0.0
    paused_by: str = ""
    paused_ms: int | None = None
    lasts_s: float | None = None


@dataclass(frozen=True, slots=True)
class OutputHealth:
    """An output of a pipeline, as its pipeline noted it in the event log.

    Attributes:
        state: ``following`` or ``stopped``.
        offset: it has all records before it.
        behind_records: records that it lacks.
        lag_s: the age of the oldest of these; 0.0: none; None: not known.
        noted_ms: when its pipeline noted this.
        error: what stopped it.
        committed_ms: when its last batch was done; None: there was none, or it is not known. Of
            that batch: ``batch_s``, how long it took; ``batch_records``, through how many records
            of the log it went; ``records_per_s``.
        last_error: what failed last, at ``last_error_ms``; it is over if a batch was done since.
        rejected: records in its dead letters, the last of which were seen at ``rejected_ms``.
        refused: by table that is left out for its name, or lacks rows since it was, why.
        batches, all_records, all_s: of all batches ever, how many, of how many records, how long.
        begun_ms: since when a batch is under way that takes long; None: none is, or nobody
            delivers. It goes through ``begun_records``.
    """

    pipeline: str
    output: str
    state: str
    offset: int
    behind_records: int
    lag_s: float | None
    noted_ms: int
    error: str | None
    committed_ms: int | None = None
    batch_s: float | None = None
    batch_records: int | None = None
    records_per_s: float | None = None
    last_error: str | None = None
    last_error_ms: int | None = None
    rejected: int = 0
    rejected_ms: int | None = None
    refused: Mapping[str, str] = field(default_factory=dict)
    batches: int = 0
    all_records: int = 0
    all_s: float = 0.0
    begun_ms: int | None = None
    begun_records: int = 0

    @property
    def fails(self) -> bool:
        """Has nothing been brought over since it failed, though there is something?"""
        since = self.last_error_ms
        return bool(since is not None and self.behind_records and (self.committed_ms or 0) < since)


@dataclass(frozen=True, slots=True)
class EngineHealth:
    """Engines of one name, in programs.

    Attributes:
        offset: it has done all records before it, as it noted at ``noted_ms``.
        behind_records: records that it lacks.
        lag_s: the age of the oldest of these; 0.0: none; None: not known.
        seen_ms: when one of this name said last that it runs; None: none ever did.
        owners: processes that have its keys now.
        partitions: that its keys are divided into; None: not known.
    """

    name: str
    offset: int
    behind_records: int
    lag_s: float | None
    noted_ms: int
    seen_ms: int | None
    owners: tuple[str, ...]
    partitions: int | None


@dataclass(frozen=True, slots=True)
class PipelineOverview:
    """Who delivers a pipeline.

    Attributes:
        leader: None: nobody at the moment.
        zone, epoch, since_ms: of who leads, or led last.
        standbys: names of those who would; standby_zones: of each, empty: it has none.
        paused_ms: since when it is paused; None: it is not.
        paused_by: by whom, as far as that is known.
    """

    pipeline: str
    leader: str | None
    zone: str
    epoch: int
    since_ms: int
    standbys: tuple[str, ...]
    paused_by: str = ""
    paused_ms: int | None = None
    standby_zones: tuple[str, ...] = ()


class TableCaptureState(StrEnum):
    """What capture does with a table."""

    CAPTURED = "captured"
    DUMP_WAITS = "dump waits"
    """A dump is to read it."""
    DUMPING = "dumping"
    """A dump reads it; its changes are captured all the while."""
    DUMP_FAILED = "dump failed"
    """Its changes are captured; rows that were there before may be missing."""
    INSERTS_ONLY = "inserts only"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class Table:
    """A table that is captured, or should be.

    Attributes:
        reason, remedy: why it is not as it should be, and what mends that; empty: it is.
        records: that the event log holds of it, changes and rows of dumps.
        last_record_ms: when the last of these were written; None: there are none.
        dumped_ms, dumped_rows: of the last dump of all of it; None: not known any more, or there
            was none.
    """

    table: str
    state: TableCaptureState
    reason: str
    remedy: str
    records: int
    last_record_ms: int | None
    dumped_ms: int | None
    dumped_rows: int | None


@dataclass(frozen=True, slots=True)
class TableInProgress:
    """A table that a dump reads at the moment; ``estimated_rows``: None if not known."""

    table: str
    rows: int
    estimated_rows: int | None


@dataclass(frozen=True, slots=True)
class RunningDump:
    """A dump that has not ended.

    Attributes:
        tables, tables_done: how many.
        rows: read so far; of about ``estimated_rows``, None if a table's size is not known.
        left_s: seconds to go at the rate so far; while tables are to come whose size is not known,
            as if they were as large as the others. None: not known.
        mode: ``incremental`` or ``blocking``.
        reason: why there is this dump.
        paused_by: who paused it, as far as that is known; empty: it is not paused.
        paused_ms: since when it is paused; None: it is not, or that is not known.
        held: why capture itself has paused it, in sentences; nobody's command resumes it.
        reading: the tables that are read at the moment.
        failed: tables of it that could not be dumped.
        share: how much of it is read, from 0.0 to 1.0, of rows, with the same assumption. None: not
            known.
    """

    dump_id: str
    status: str
    tables: int
    tables_done: int
    rows: int
    estimated_rows: int | None
    left_s: float | None
    mode: str = ""
    reason: str = ""
    paused_by: str = ""
    paused_ms: int | None = None
    reading: tuple[TableInProgress, ...] = ()
    failed: int = 0
    held: str = ""
    share: float | None = None


@dataclass(slots=True)
class ChunkSpan:
    """One chunk of a dump between its watermarks.

    Attributes:
        begun_ms, read_ms, ended_ms: when its window began, was read and ended; None: not yet.
        end: ``durable``, ``closed``, ``voided`` or ``failed``; empty: it is open.
        written: its high watermark was met; the segment is not durable yet.
        rows, superseded: read, and dropped of these.
    """

    chunk: str
    table: str
    begun_ms: int
    read_ms: int | None = None
    ended_ms: int | None = None
    end: str = ""
    written: bool = False
    rows: int = 0
    superseded: int = 0


@dataclass(frozen=True, slots=True)
class VerifyResult:
    """What `tidelog verify` found last.

    Attributes:
        at_ms: when.
        compared: copies of tables that it compared.
        differ: copies that differed when they were last compared, e.g. ``public.t in lake``.
    """

    at_ms: int
    compared: int
    differ: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class OperationDrop:
    """A sudden drop of a table's operations; `tidelog.capture.activity.drops` has the rule.

    Attributes:
        kind: ``insert``, ``update`` or ``delete``.
        at_ms, until_ms: when it began and was over; None: not yet.
        before_per_min, then_per_min: how many there were before, and at most while it lasted.
    """

    table: str
    kind: str
    at_ms: int
    until_ms: int | None
    before_per_min: float
    then_per_min: float


@dataclass(frozen=True, slots=True)
class SummaryLine:
    """What an operator asks first, in a line.

    Attributes:
        name: ``log``: when the source removes what capture needs; ``tables``: which are refused or
            captured in part; ``dump``: what it still needs; ``paused``: what, and by whom;
            ``verify``: what it found last.
        severity: of the worst problem that it is about.
        brief: a word or two.
        text: it ends so that ``at_ms`` may follow, in the reader's time zone; None: nothing does.
    """

    name: str
    severity: Severity
    brief: str
    text: str
    at_ms: int | None


@dataclass(frozen=True, slots=True)
class Overview:
    """The whole.

    Attributes:
        severity: of the worst problem; ``ok`` if there is none.
        verdict: one sentence.
        at_ms: when capture wrote what this is made of; None: no capture ever led here.
        age_s: how old that is.
        leader, zone, epoch, since_ms: who captures; ``standbys``: names of those who would;
            ``standby_zones``: of each, empty: it has none.
        records: captured since it leads.
        tables_refused: how many tables are left out.
        throttled: what slows dumps down; empty: nothing does.
        problems: the worst first.
        pipelines: that ever ran with this state, or are paused.
        tables: by name.
        options: how dumps read now; see `tidelog set`.
        lanes: the chunks that began last, in that order.
        verified: None: nothing was compared yet.
        drops: sudden drops of the last day, those that last first.
        answers: what is asked first, for every first screen.
        engines: by name.
    """

    version: int
    severity: Severity
    verdict: str
    at_ms: int | None
    age_s: float | None
    leader: str | None
    zone: str
    epoch: int | None
    since_ms: int | None
    standbys: tuple[str, ...]
    records: int
    tables_refused: int
    throttled: str
    source: SourceHealth
    outputs: tuple[OutputHealth, ...]
    dumps: tuple[RunningDump, ...]
    problems: tuple[Problem, ...]
    standby_zones: tuple[str, ...] = ()
    pipelines: tuple[PipelineOverview, ...] = ()
    tables: tuple[Table, ...] = ()
    options: Mapping[str, int] = field(default_factory=dict)
    lanes: tuple[ChunkSpan, ...] = ()
    verified: VerifyResult | None = None
    drops: tuple[OperationDrop, ...] = ()
    answers: tuple[SummaryLine, ...] = ()
    engines: tuple[EngineHealth, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """As dicts, lists and scalars."""
        return asdict(self)
