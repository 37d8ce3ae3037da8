"""Start and end of a read: as users name them, and the offsets that they mean in a log."""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

import numpy as np
import pyarrow.compute as pc

from tidelog.errors import ConfigError, OffsetGoneError
from tidelog.eventlog.layout import SegmentMeta
from tidelog.eventlog.reader import EventLog
from tidelog.model.patterns import matches
from tidelog.model.records import Kind
from tidelog.model.schema import TableName

# A commit may be in the log before another one that is older by the duration of a commit. Segments
# are searched by commit time as if they were in order, and this many neighbours are checked as
# well.
_NEIGHBOURS = 4
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

By = Literal["earliest", "latest", "offset", "version", "timestamp", "dump"]


@dataclass(frozen=True, slots=True)
class LogPosition:
    """A position in the log as a user names it.

    ``value``: a number for ``offset`` and ``version``, microseconds since 1970 UTC for
    ``timestamp``, the id for ``dump``.
    """

    by: By
    value: int | str = 0


@dataclass(frozen=True, slots=True)
class DumpRecord:
    """A control record: a table's dump began here, or was complete.

    ``first_offset``: a replay from there gives the dumped rows. ``whole``: the dump was of the
    whole table; ``keyless``: which has no key.
    """

    offset: int
    dump_id: str
    table: str
    completed: bool
    first_offset: int
    whole: bool
    keyless: bool = False


def parse_position(options: Mapping[str, str], edge: str) -> LogPosition:
    """Returns the position that the options give for ``edge``, ``starting`` or ``ending``. Raises
    ConfigError that names the option.
    """
    starts = edge == "starting"
    names = [f"{edge}{by}" for by in ("offset", "version", "timestamp", *(("dump",) * starts))]
    given = [name for name in names if options.get(name)]
    if len(given) > 1:
        raise ConfigError(f"tidelog source: options {' and '.join(given)} exclude one another")
    if not given:
        return LogPosition("earliest" if starts else "latest")
    [name] = given
    text = options[name].strip()
    if name.endswith("timestamp"):
        return LogPosition("timestamp", microseconds(name, text))
    if name.endswith("dump"):
        return LogPosition("dump", text)
    words = ("earliest", "latest") if starts else ("latest",)
    if text.lower() in words:
        return LogPosition("earliest" if text.lower() == "earliest" else "latest")
    if not text.isdigit():
        what = "an offset" if name.endswith("offset") else "a version"
        raise ConfigError(
            f"tidelog source: option {name!r} must be {', '.join(words)} or {what}, not {text!r}"
        )
    return LogPosition("version" if name.endswith("version") else "offset", int(text))


def microseconds(name: str, text: str | datetime) -> int:
    """Returns a time in ISO 8601, UTC unless it says otherwise, as microseconds since 1970 UTC."""
    try:
        moment = text if isinstance(text, datetime) else datetime.fromisoformat(text)
    except ValueError:
        raise ConfigError(
            f"tidelog source: option {name!r} must be a time such as 2026-01-31T12:00:00Z, not "
            f"{text!r}"
        ) from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return (moment - _EPOCH) // timedelta(microseconds=1)


def start_of(log: EventLog, at: LogPosition, tables: Sequence[str | TableName]) -> int:
    """Returns the offset of the first record to read.

    Raises:
        ConfigError: there is no such position.
        OffsetGoneError: retention removed it.
    """
    if at.by == "earliest":
        return log.head_offset
    if at.by == "latest":
        return log.latest_offset()
    if at.by == "timestamp":
        return first_offset_at(log, int(at.value))
    if at.by == "dump":
        start = _dump_start(log, str(at.value), tables)
    else:
        start = int(at.value)
        _check_end(log, f"starting{at.by}", start, start)
    if start < log.head_offset:
        raise OffsetGoneError(
            f"{log.storage!r}: option starting{at.by} asks for offset {start}, but retention "
            f"removed everything before {log.head_offset}. Start at earliest, or dump the tables "
            "again (tidelog dump) and start at that dump."
        )
    return start


def end_of(log: EventLog, at: LogPosition) -> int:
    """Returns the offset after the last record to read. Raises ConfigError if there is no such
    position.
    """
    if at.by == "latest":
        return log.latest_offset()
    if at.by == "timestamp":
        return first_offset_at(log, int(at.value) + 1)
    end = int(at.value) + (at.by == "version")  # a version is included, an offset is the bound
    _check_end(log, f"ending{at.by}", int(at.value), end)
    return end


def check_order(starting: LogPosition, start: int, ending: LogPosition, end: int) -> None:
    """Raises ConfigError if the end is before the start."""
    if starting.by == ending.by == "timestamp":
        wrong = int(starting.value) > int(ending.value)
    else:
        wrong = start > end and starting.by not in ("earliest", "latest")
    if wrong:
        raise ConfigError(
            f"tidelog source: option starting{starting.by} is after ending{ending.by}: nothing "
            "is between them"
        )


def _check_end(log: EventLog, name: str, given: int, offset: int) -> None:
    end = log.latest_offset()
    if offset > end:
        raise ConfigError(
            f"tidelog source: option {name} is {given}, but {log.storage!r} ends at offset {end}"
        )


def first_offset_at(log: EventLog, moment: int) -> int:
    """Returns the offset of the first row change committed (if it is of a dump: read) at ``moment``
    or later, in microseconds since 1970 UTC; the end of the log if there is none yet.
    """
    # Without segments of control records only, whose clock may be another one.
    segments = [segment for segment in log.chain().segments if any(segment.rows_by_schema)]
    newest = bisect_left(segments, moment, key=lambda segment: _newest(log, segment))
    for segment in segments[max(0, newest - _NEIGHBOURS) :]:
        for offsets, times in _times(log, segment):
            late = np.flatnonzero(times >= moment)
            if len(late):
                return int(offsets[late[0]])
    return log.latest_offset()


def _newest(log: EventLog, segment: SegmentMeta) -> int:
    return max(int(times.max()) for _, times in _times(log, segment))


def _times(log: EventLog, segment: SegmentMeta) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    for ref in log.segments(segment.first, segment.next):
        for batch in log.batches(ref, ("offset", "commit_ts", "schema_id")):
            offsets, times, schemas = (column.to_numpy() for column in batch.columns)
            if schemas.any():
                yield offsets[schemas != 0], times[schemas != 0]


def dump_records(log: EventLog, start: int, end: int) -> Iterator[DumpRecord]:
    """Yields the records about dumps in ``[start, end)``, newest first."""
    for segment in reversed(log.chain().between(start, end)):
        if 0 not in segment.rows_by_schema:
            continue
        found = []
        for ref in log.segments(max(start, segment.first), min(end, segment.next)):
            for batch in log.batches(ref, ("offset", "kind", "payload"), schema_ids=(0,)):
                for record in batch.filter(pc.field("kind") == int(Kind.CONTROL)).to_pylist():
                    found.append((record["offset"], json.loads(record["payload"])))
        for offset, content in reversed(found):
            noted = _dump_record(offset, content)
            if noted is not None:
                yield noted


def _dump_record(offset: int, content: dict[str, Any]) -> DumpRecord | None:
    if content.get("type") not in ("dump-started", "dump-completed"):
        return None
    return DumpRecord(
        offset,
        str(content.get("dump_id")),
        str(content.get("table")),
        content["type"] == "dump-completed",
        int(content.get("first_offset", offset)),
        bool(content.get("delete_absent")) or "rows_ordinal" in content,
        "rows_ordinal" in content,
    )


def _dump_start(log: EventLog, dump_id: str, tables: Sequence[str | TableName]) -> int:
    """Returns the start of the dump ``dump_id`` of the tables; ``latest``: the first offset of the
    newest whole dumps of all tables.
    """
    first: dict[str, int] = {}
    known: dict[str, None] = {}
    for noted in dump_records(log, log.head_offset, log.latest_offset()):
        if tables and not matches(tables, TableName.parse(noted.table)):
            continue
        known[noted.dump_id] = None
        if dump_id == "latest":
            if noted.completed and noted.whole:
                first.setdefault(noted.table, noted.first_offset)
        elif noted.dump_id == dump_id and noted.completed:
            first.setdefault(noted.table, noted.first_offset)
        elif noted.dump_id == dump_id and noted.table not in first:
            # Only its last record says whether it begins before its first one.
            raise ConfigError(
                f"tidelog source: option startingdump: dump {dump_id!r} of {noted.table} is not "
                "complete in this log: wait for it (tidelog wait)"
            )
    if first:
        return min(first.values())
    suffix = f" of {', '.join(map(str, tables))}" if tables else ""
    what = f"whole dump{suffix}" if dump_id == "latest" else f"dump {dump_id!r}{suffix}"
    ids = ", ".join(list(known)[:10]) or "none"
    raise ConfigError(
        f"tidelog source: option startingdump: {log.storage!r} has no {what}. Dumps that it knows: "
        f"{ids}."
    )
