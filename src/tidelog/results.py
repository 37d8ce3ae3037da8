"""What functions and commands return, and the overview that a status has.

Fields are added, never removed or redefined.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from enum import StrEnum
from typing import Any

VERSION = 1


class Severity(StrEnum):
    """The severity of a problem; of an overview: that of its worst problem."""

    OK = "ok"
    INFO = "info"
    """Requested by an operator, or it passes by itself."""
    WARNING = "warning"
    """Rows or events are late or left out, or will be."""
    CRITICAL = "critical"
    """Nothing is captured or delivered, or changes are about to be lost."""


@dataclass(frozen=True, slots=True)
class Problem:
    """A problem, with its remedy.

    Attributes:
        kind: a name for programs, e.g. ``table-refused``.
        severity: never ``ok``.
        about: the table, output or dump; empty for capture and source.
        sentence: a description without cell values.
        remedy: what to do, in lines: sentences, or commands and SQL that have lines of their own;
            empty: the sentence says all.
        page: the page of the documentation.
    """

    kind: str
    severity: Severity
    about: str
    sentence: str
    remedy: str
    page: str


@dataclass(frozen=True, slots=True)
class SourceHealth:
    """The source's log, as capture reads it. None: not known.

    Attributes:
        position: the position in the server's form.
        lag_s, lag_bytes: what is committed and not captured yet; ``lag_s`` is an upper bound while
            capture is down.
        retained_bytes: the log that the server keeps for capture.
        spare_bytes: the log that may be written until the server removes what capture needs.
        lost_in_s: seconds until then, at the rate of the last minutes; for a server that keeps its
            log for a time, seconds until what capture needs next gets too old.
        error: why the server did not answer.
        silent_s: seconds since capture, which is down, reported this; ``lag_s`` and ``lost_in_s``
            assume that the source went on. 0.0: it is current.
        paused_ms: since when an operator has paused the reading of the log; None: it is not paused.
        paused_by: who paused it, if known.
        lasts_s: how long ``spare_bytes`` lasts without capture, at the log's growth in the last
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
    """An output of a pipeline, as its pipeline reported it in the event log.

    Attributes:
        state: ``following`` or ``stopped``.
        offset: the output has all records before it.
        behind_records: the number of missing records.
        lag_s: the age of the oldest missing record; 0.0: none; None: not known.
        noted_ms: when the pipeline reported this.
        error: the error that stopped it.
        committed_ms: when its last batch was done; None: there was none, or it is not known. Of
            that batch: ``batch_s``, its duration; ``batch_records``, the number of log records it
            read; ``records_per_s``.
        last_error: the last error, at ``last_error_ms``; it is over if a batch was done since.
        rejected: the number of records in its dead letters; the last ones came at ``rejected_ms``.
        refused: why a table is left out for its name, or lacks rows since then, by table.
        keyless: what is done with tables that have no key, by table.
        unregistered: why a table is not in the output's catalog, by table.
        batches, all_records, all_s: the number, records and duration of all batches so far.
        begun_ms: since when a long batch runs; None: there is none, or nobody delivers. It reads
            ``begun_records``.
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
    keyless: Mapping[str, str] = field(default_factory=dict)
    unregistered: Mapping[str, str] = field(default_factory=dict)
    batches: int = 0
    all_records: int = 0
    all_s: float = 0.0
    begun_ms: int | None = None
    begun_records: int = 0

    @property
    def fails(self) -> bool:
        """Whether nothing was delivered since the last error, although records are waiting."""
        since = self.last_error_ms
        later = since is not None and (self.committed_ms or 0) < since
        return later and self.error is None and bool(self.behind_records)


@dataclass(frozen=True, slots=True)
class EngineHealth:
    """The engines of one name, in programs.

    Attributes:
        offset: it has processed all records before it, as reported at ``noted_ms``.
        behind_records: the number of missing records.
        lag_s: the age of the oldest missing record; 0.0: none; None: not known.
        seen_ms: when an engine of this name last reported that it runs; None: never.
        owners: the processes that have its keys now.
        partitions: the number of partitions of its keys; None: not known.
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
    """The leader and standbys of a pipeline.

    Attributes:
        leader: the leader; None: nobody at the moment.
        zone, epoch, since_ms: those of the leader, or of the last one.
        standbys: the names of the standbys; standby_zones: their zones, empty: none.
        paused_ms: since when it is paused; None: it is not.
        paused_by: who paused it, if known.
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
    """A dump will read it."""
    DUMPING = "dumping"
    """A dump reads it, while its changes are captured."""
    DUMP_FAILED = "dump failed"
    """Its changes are captured; rows that were there before may be missing."""
    INSERTS_ONLY = "inserts only"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class Table:
    """A table that is captured, or should be.

    Attributes:
        reason, remedy: why it is not captured as it should be, and how to fix it; empty: it is.
        records: the number of its records in the event log, changes and rows of dumps.
        last_record_ms: when the last of these was written; None: there are none.
        dumped_ms, dumped_rows: the last dump of the whole table; None: not known any more, or
            never.
        excluded_columns: its columns that `source.exclude_columns` keeps out of the event log.
    """

    table: str
    state: TableCaptureState
    reason: str
    remedy: str
    records: int
    last_record_ms: int | None
    dumped_ms: int | None
    dumped_rows: int | None
    excluded_columns: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class TableInProgress:
    """A table that a dump is reading; ``estimated_rows``: None if not known."""

    table: str
    rows: int
    estimated_rows: int | None


@dataclass(frozen=True, slots=True)
class RunningDump:
    """A dump that has not ended.

    Attributes:
        tables, tables_done: the number of tables, and of those done.
        rows: the rows read, of about ``estimated_rows``; None if a table's size is not known.
        left_s: the remaining seconds at the rate so far; tables of unknown size that have not begun
            count as large as the others. None: not known.
        mode: ``incremental`` or ``blocking``.
        reason: why there is this dump.
        paused_by: who paused it, if known; ``capture`` if that blocks it; empty: it is not paused.
        paused_ms: since when it is paused; None: it is not, or that is not known.
        held: why capture itself blocks it, in sentences; no command resumes it.
        reading: the tables that are being read.
        failed: the number of its tables that could not be dumped.
        share: the share of rows read, from 0.0 to 1.0, with the same assumption. None: not known.
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
        written: whether its high watermark was read; the segment is not durable yet.
        rows, superseded: the rows read, and those dropped.
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
    """The last result of `tidelog verify`.

    Attributes:
        at_ms: when it ran.
        compared: the number of copies of tables that it compared.
        differ: the copies that differed when they were last compared, e.g. ``public.t in lake``,
            and were not repaired.
        left_out: the copies that were not compared, because their output leaves the table out.
        not_compared: the copies that could not be compared for another reason, or were not, as it
            ended early.
        repaired: the copies that differed, and whose differing keys were dumped (``--repair``).
    """

    at_ms: int
    compared: int
    differ: tuple[str, ...]
    repaired: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    not_compared: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class OperationDrop:
    """A sudden drop of a table's operations; `tidelog.capture.activity` has the rule.

    Attributes:
        kind: ``insert``, ``update`` or ``delete``.
        at_ms, until_ms: when it began and ended; None: not yet.
        before_per_min, then_per_min: the rate before, and the greatest rate during the drop.
    """

    table: str
    kind: str
    at_ms: int
    until_ms: int | None
    before_per_min: float
    then_per_min: float


@dataclass(frozen=True, slots=True)
class SummaryLine:
    """A short answer to a question that operators ask first.

    Attributes:
        name: ``log``: when the source removes what capture needs; ``tables``: which are refused or
            captured in part; ``dump``: what it still needs; ``paused``: what, and by whom;
            ``verify``: its last result.
        severity: the severity of the worst problem that it is about.
        brief: a word or two.
        text: the answer; ``at_ms`` may follow it, in the reader's time zone; None: nothing follows.
    """

    name: str
    severity: Severity
    brief: str
    text: str
    at_ms: int | None


@dataclass(frozen=True, slots=True)
class Overview:
    """The overview of one Tidelog.

    Attributes:
        severity: the severity of the worst problem; ``ok`` if there is none.
        verdict: one sentence.
        at_ms: when capture wrote the status document; None: no capture ever led here.
        age_s: the age of that document.
        leader, zone, epoch, since_ms: the leader of capture; ``standbys``: the names of the
            standbys; ``standby_zones``: their zones, empty: none.
        records: the number of records captured by this leader.
        tables_refused: the number of tables left out.
        throttled: what slows dumps down; empty: nothing.
        problems: the problems, the worst first.
        pipelines: the pipelines that ever ran with this state, or are paused.
        tables: the tables by name.
        options: how dumps read now; see `tidelog set`.
        lanes: the chunks that began last, in that order.
        verified: the last result of verify; None: never.
        drops: the sudden drops of the last day, those that last first.
        answers: short answers, for every first screen.
        engines: the engines by name.
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

    def to_dict(self) -> dict[str, Any]:
        """Return it as dicts, lists and scalars."""
        return asdict(self)


def _plain(value: Any) -> Any:
    if isinstance(value, CallResult):
        return value.to_dict()
    if isinstance(value, tuple | list):
        return [_plain(each) for each in value]
    return value


class CallResult:
    """A result of a call, with the values of its JSON document as attributes."""

    __slots__ = ()

    def to_dict(self) -> dict[str, Any]:
        """Return the document that the command prints with ``--json``."""
        document = {}
        for each in fields(self):  # type: ignore[arg-type]  # its subclasses are dataclasses
            value = getattr(self, each.name)
            if value is not None or not each.metadata.get("optional"):
                document[each.name.rstrip("_")] = _plain(value)
        return document


_OPTIONAL = {"optional": True}
"""Of a field that the document does not have if it is None."""


@dataclass(frozen=True, slots=True)
class Status:
    """The status of capture, pipelines, outputs and engines.

    Attributes:
        overview: what it means, with its problems.
        document: all of it, as `tidelog status --json` prints it.
    """

    overview: Overview
    document: Mapping[str, Any] = field(repr=False)

    @property
    def leader(self) -> str | None:
        """The process that captures; None: nobody at the moment."""
        return self.overview.leader

    @property
    def dumps(self) -> tuple[DumpSummary, ...]:
        """The dumps that run, and those that ended last."""
        return tuple(DumpSummary(each) for each in self.document.get("dumps", ()))

    def to_dict(self) -> dict[str, Any]:
        """Return the document that `tidelog status --json` prints."""
        return dict(self.document)


@dataclass(frozen=True, slots=True)
class FailedRange(CallResult):
    """A key range ``(low, high]`` that a dump could not read; None: no limit."""

    dump_id: str
    table: str
    key_columns: tuple[str, ...] | None
    low: tuple[str | None, ...] | None
    high: tuple[str | None, ...] | None


@dataclass(frozen=True, slots=True)
class DumpedTable:
    """A table of a dump; ``keys_absent``: how many requested keys it does not have; ``reason``: why
    it was not dumped, empty if it was, or will be.
    """

    table: str
    status: str
    rows_read: int
    keys_absent: int
    reason: str


@dataclass(frozen=True, slots=True)
class DumpSummary:
    """A dump, as `tidelog status` shows it; ``document``: all of it."""

    document: Mapping[str, Any]

    @property
    def dump_id(self) -> str:
        """Its id."""
        return str(self.document["dump_id"])

    @property
    def status(self) -> str:
        """``queued``, ``running``, ``paused``, ``completed`` or ``aborted``."""
        return str(self.document["status"])

    @property
    def tables(self) -> tuple[DumpedTable, ...]:
        """Its tables."""
        return tuple(
            DumpedTable(**{each.name: table[each.name] for each in fields(DumpedTable)})
            for table in self.document["tables"]
        )

    def to_dict(self) -> dict[str, Any]:
        """Return all of it."""
        return dict(self.document)


@dataclass(frozen=True, slots=True)
class KeyRepair:
    """The result of `tidelog.repair`.

    Attributes:
        dump_id: the dump that reads the keys; None: there were no keys.
        status: ``completed``, ``aborted``, ``queued``, or ``waiting``: no capture has handled it.
        keys: the number of distinct keys.
        dump: the dump, if it was waited for.
        missing_keys: with ``missing="list"``, the keys that the source does not have.
    """

    dump_id: str | None
    status: str
    keys: int
    dump: DumpSummary | None = None
    missing_keys: tuple[tuple[str | None, ...], ...] | None = None

    @property
    def tables(self) -> tuple[DumpedTable, ...]:
        """The tables of the dump, if it was waited for."""
        return () if self.dump is None else self.dump.tables

    def to_dict(self) -> dict[str, Any]:
        """Return it as dicts, lists and scalars."""
        document = {} if self.dump is None else self.dump.to_dict()
        document |= {"dump_id": self.dump_id, "status": self.status, "keys": self.keys}
        if self.dump_id is None:
            document["tables"] = []
        if self.missing_keys is not None:
            document["missing_keys"] = _plain(self.missing_keys)
        return document


@dataclass(frozen=True, slots=True)
class HandoverResult(CallResult):
    """The leaders before and after a handover."""

    from_: str
    to: str


@dataclass(frozen=True, slots=True)
class StateCopy(CallResult):
    """The state stores of a copy, and the number of copied documents."""

    from_: str
    to: str
    documents: int


@dataclass(frozen=True, slots=True)
class ForgottenEngine(CallResult):
    """An engine, and the offset that it had; None: it had none."""

    engine: str
    offset: int | None


@dataclass(frozen=True, slots=True)
class StoredKeys(CallResult):
    """Keys that were stored, for `tidelog.commands.StartDump`."""

    tables: tuple[str, ...]
    key_set: str
    key_columns: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class CheckFinding(CallResult):
    """The result of one check; ``level``: ``ok``, ``warning`` or ``error``."""

    check: str
    level: str
    message: str
    fix: str = ""


@dataclass(frozen=True, slots=True)
class TableDelivery(CallResult):
    """A table of a dump that outputs take, or not.

    Attributes:
        finalized_until: an output that has everything before this offset has the dump; None: the
            table is not dumped yet.
        taken: whether an output takes it.
        delivered: whether the outputs have it.
    """

    table: str
    status: str
    reason: str
    finalized_until: int | None
    taken: bool
    delivered: bool


@dataclass(frozen=True, slots=True)
class DumpDelivery(CallResult):
    """How far outputs have a dump.

    Attributes:
        status: the dump's.
        delivered: whether every table that an output takes and that has a key is delivered.
        offset: the outputs have everything before it; None: nothing yet.
        stands: why nothing moves; empty: it moves.
    """

    dump_id: str
    status: str
    delivered: bool
    offset: int | None
    tables: tuple[TableDelivery, ...]
    stands: str


@dataclass(frozen=True, slots=True)
class RepairRequest(CallResult):
    """The dump of keys that differ; ``left_out``: keys that it can't name."""

    dump_id: str | None
    state: str
    error: str | None
    left_out: int

    @property
    def is_requested(self) -> bool:
        """Has capture taken the request of the dump?"""
        return self.dump_id is not None and self.error is None and self.state == "done"


@dataclass(frozen=True, slots=True)
class TableComparison(CallResult):
    """The comparison of a table with an output's copy; `tidelog verify` explains its numbers."""

    output: str
    table: str
    equal: bool
    rows: int = 0
    missing: int = 0
    surplus: int = 0
    different: int = 0
    unsettled: int = 0
    keys: tuple[tuple[str | None, ...], ...] = ()
    method: str = ""
    because: str = ""
    ranges: int = 0
    ranges_read: int = 0
    note: str = ""
    left_out: bool | None = field(default=None, metadata=_OPTIONAL)
    repair: RepairRequest | None = field(default=None, metadata=_OPTIONAL)

    @property
    def copy(self) -> str:
        """The copy's name, e.g. ``public.t in lake``."""
        return f"{self.table} in {self.output}"

    @property
    def is_incomplete(self) -> bool:
        """Was it not compared to the end, and no difference found? A missing table is one."""
        found = self.equal or self.missing or self.surplus or self.different
        return bool(self.note) and not (found or self.note.startswith("the output has no "))


@dataclass(frozen=True, slots=True)
class Verification(CallResult):
    """The result of a comparison; ``not_compared``: copies of tables without a key; those left, if
    it ended early, and of tables that are refused, which are not equal. ``repaired``: which copies'
    keys were dumped again.
    """

    equal: bool
    tables: tuple[TableComparison, ...]
    not_compared: tuple[str, ...] | None = field(default=None, metadata=_OPTIONAL)
    repaired: str | None = field(default=None, metadata=_OPTIONAL)


@dataclass(frozen=True, slots=True)
class NotDumped(CallResult):
    """A table that no dump can read, and why."""

    table: str
    reason: str


@dataclass(frozen=True, slots=True)
class TablePlan(CallResult):
    """The estimated dump of a table; ``rows_from`` and ``speed_from`` say what was measured."""

    table: str
    rows: int
    bytes: int
    chunks: int
    seconds: float | None
    rows_from: str
    speed_from: str


@dataclass(frozen=True, slots=True)
class PlanTotal(CallResult):
    """The sums of a plan."""

    tables: int
    rows: int
    bytes: int
    chunks: int
    seconds: float | None


@dataclass(frozen=True, slots=True)
class DumpPlan(CallResult):
    """The estimated dump of tables, as dumps read with these ``options``."""

    options: Mapping[str, int]
    total: PlanTotal
    tables: tuple[TablePlan, ...]
    not_dumped: tuple[NotDumped, ...]


@dataclass(frozen=True, slots=True)
class ResetPlan(CallResult):
    """The effect of `tidelog reset`: ``tables`` are dumped again; if there is no log, a new one
    is created. ``captured_until_ms``: when the newest captured transaction was committed.
    """

    log: str
    log_exists: bool
    captured_until_ms: int | None
    tables: tuple[str, ...]
    not_dumped: tuple[NotDumped, ...]


@dataclass(frozen=True, slots=True)
class SchemaVersion(CallResult):
    """A version of a table's schema; ``excluded``: columns that are kept out of the event log."""

    version: int
    key: tuple[str, ...]
    columns: str | tuple[Mapping[str, Any], ...]
    excluded: tuple[str, ...] | None = field(default=None, metadata=_OPTIONAL)


@dataclass(frozen=True, slots=True)
class NotedVersion(CallResult):
    """The version of a table from a position of the source's log on, or ``not known``."""

    from_: str
    version: int | str


@dataclass(frozen=True, slots=True)
class TableVersions(CallResult):
    """The versions of a table's schema.

    Attributes:
        captured: whether the table is captured now; None: not known.
        left_out: columns that records do not have, and why; None: none.
        noted: where each version starts in the source's log; None: the source has no such notes.
    """

    table: str
    captured: bool | None = field(default=None, metadata=_OPTIONAL)
    left_out: str | None = field(default=None, metadata=_OPTIONAL)
    versions: tuple[SchemaVersion, ...] = ()
    noted: tuple[NotedVersion, ...] | None = field(default=None, metadata=_OPTIONAL)


@dataclass(frozen=True, slots=True)
class SchemaVersions(CallResult):
    """The versions of the schemas of tables."""

    tables: tuple[TableVersions, ...]


@dataclass(frozen=True, slots=True)
class FixedSchema(CallResult):
    """The version that a table has from a position of the source's log on."""

    table: str
    from_: str
    version: int
    key: tuple[str, ...]
    columns: str | tuple[Mapping[str, Any], ...]
    excluded: tuple[str, ...] | None = field(default=None, metadata=_OPTIONAL)
