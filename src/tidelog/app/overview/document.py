"""What an overview holds. Version 1: fields are added to it, never taken away or redefined."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

VERSION = 1


class Severity(StrEnum):
    """Of a problem, and of the whole: that of its worst problem."""

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


@dataclass(frozen=True, slots=True)
class Source:
    """The source's log as capture follows it. None: not known.

    Attributes:
        position: as the server writes it.
        lag_s, lag_bytes: what is committed and not captured yet.
        retained_bytes: what the server keeps of its log for capture.
        spare_bytes: what may be written until it removes what capture needs.
        lost_in_s: when that is, as the last minutes went; for a server that keeps its log for a
            time, when what capture needs next gets too old.
        error: why the server could not be asked.
    """

    position: str | None
    lag_s: float | None
    lag_bytes: int | None
    retained_bytes: int | None
    spare_bytes: int | None
    lost_in_s: float | None
    error: str | None


@dataclass(frozen=True, slots=True)
class Output:
    """An output of a pipeline, as its pipeline noted it in the event log.

    Attributes:
        state: ``following`` or ``stopped``.
        offset: it has all records before it.
        behind_records: records that it lacks.
        lag_s: the age of the oldest of these; 0.0: none; None: not known.
        noted_ms: when its pipeline noted this.
        error: what stopped it.
    """

    pipeline: str
    output: str
    state: str
    offset: int
    behind_records: int
    lag_s: float | None
    noted_ms: int
    error: str | None


@dataclass(frozen=True, slots=True)
class Delivering:
    """Who delivers a pipeline.

    Attributes:
        leader: None: nobody at the moment.
        zone, epoch, since_ms: of who leads, or led last.
        standbys: names of those who would.
    """

    pipeline: str
    leader: str | None
    zone: str
    epoch: int
    since_ms: int
    standbys: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Dumping:
    """A dump that has not ended.

    Attributes:
        tables, tables_done: how many.
        rows: read so far; of about ``estimated_rows``, None if a table's size is not known.
        left_s: seconds to go at the rate so far; while tables are to come whose size is not known,
            as if they were as large as the others.
    """

    dump_id: str
    status: str
    tables: int
    tables_done: int
    rows: int
    estimated_rows: int | None
    left_s: float | None


@dataclass(frozen=True, slots=True)
class Overview:
    """The whole.

    Attributes:
        severity: of the worst problem; ``ok`` if there is none.
        verdict: one sentence.
        at_ms: when capture wrote what this is made of; None: no capture ever led here.
        age_s: how old that is.
        leader, zone, epoch, since_ms: who captures; ``standbys``: names of those who would.
        records: captured since it leads.
        tables_refused: how many tables are left out.
        throttled: what slows dumps down; empty: nothing does.
        problems: the worst first.
        pipelines: that ever ran with this state.
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
    source: Source
    outputs: tuple[Output, ...]
    dumps: tuple[Dumping, ...]
    problems: tuple[Problem, ...]
    pipelines: tuple[Delivering, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """As dicts, lists and scalars."""
        return asdict(self)
