"""Options of ``format("tidelog")``, checked and typed; the positions and keys that they name."""

from __future__ import annotations

import json
import re
import uuid
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal, InvalidOperation
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidelog.codecs.columns import times
from tidelog.errors import ConfigError, OffsetGoneError
from tidelog.eventlog.reader import EventLog, SegmentRef
from tidelog.eventlog.segments import SegmentMeta
from tidelog.model.option_values import ColumnTypes
from tidelog.model.patterns import all_but, check_listed, matches
from tidelog.model.records import RecordKind
from tidelog.model.schema import Column, TableName, TableSchema
from tidelog.model.units import parse_bytes
from tidelog.spark.formats.json_values import ValueModes

# Start and end of a read: as users name them, and the offsets that they mean in a log.

# A commit may be in the log before another one that is older by the duration of a commit. Segments
# are searched by commit time as if they were in order, and this many neighbours are checked as
# well.
_NEIGHBOURS = 4
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

By = Literal["earliest", "latest", "offset", "version", "timestamp", "dump"]


@dataclass(frozen=True, slots=True)
class LogPosition:
    """A position in the log as a user names it. ``value``: a number for ``offset`` and ``version``,
    microseconds since 1970 UTC for ``timestamp``, the id for ``dump``.
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
    """Return the position that the options give for ``edge``, ``starting`` or ``ending``. Raises
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
    """Return a time in ISO 8601, UTC unless it says otherwise, as microseconds since 1970 UTC."""
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
    """Return the offset of the first record to read.

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
    """Return the offset after the last record to read. Raises ConfigError if there is no such
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
    """Raise ConfigError if the end is before the start."""
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
    """Return the offset of the first row change committed (if it is of a dump: read) at ``moment``
    or later, in microseconds since 1970 UTC; the end of the log if there is none yet.
    """
    # Without segments of control records only, whose clock may be another one.
    segments = [segment for segment in log.chain().segments if any(segment.rows_by_schema)]
    newest = bisect_left(segments, moment, key=lambda segment: _newest(log, segment))
    for segment in segments[max(0, newest - _NEIGHBOURS) :]:
        for offsets, committed in _times(log, segment):
            late = np.flatnonzero(committed >= moment)
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
    """Yield the records about dumps in ``[start, end)``, newest first."""
    for segment in reversed(log.chain().between(start, end)):
        if 0 not in segment.rows_by_schema:
            continue
        found = []
        for ref in log.segments(max(start, segment.first), min(end, segment.next)):
            for batch in log.batches(ref, ("offset", "kind", "payload"), schema_ids=(0,)):
                for record in batch.filter(pc.field("kind") == int(RecordKind.CONTROL)).to_pylist():
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
    """Return the start of the dump ``dump_id`` of the tables; ``latest``: the first offset of the
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


# Given keys: their changes are selected before anything but the keys is decoded.

_HEX = re.compile(r"(?:\\x|0x)((?:[0-9a-f]{2})*)", re.IGNORECASE)
_NUMERIC = ("numeric", "decimal")  # without or beyond 38 digits delivered as text: 1.50 is 1.5
_PADDED = ("character", "bpchar", "char")


@dataclass(frozen=True, slots=True)
class KeyFilter:
    """The wanted values, by column of the key. Rows must match in every column."""

    values: Mapping[str, Any]

    @classmethod
    def parse(cls, text: str) -> KeyFilter:
        """Return the filter of a JSON object of one row's key. Raises ConfigError without the
        values.
        """
        try:
            found = json.loads(text, parse_float=str)  # 1.10 is not a binary fraction
        except ValueError:
            found = None
        if not isinstance(found, dict) or not found:
            raise ConfigError(
                "tidelog source: option 'key' must be a JSON object of the key's columns, e.g. "
                '{"id": 42}'
            )
        if any(value is None or isinstance(value, (dict, list)) for value in found.values()):
            raise ConfigError("tidelog source: option 'key': values must be numbers or texts")
        return cls(found)

    def check(self, versions: Sequence[TableSchema]) -> None:
        """Raise ConfigError if no version of the table has these columns in its key.

        Args:
            versions: the table's schemas, the newest last.
        """
        if any(set(self.values) <= set(schema.match_key) for schema in versions):
            return
        newest = versions[-1]
        other = next((n for n in self.values if n not in newest.match_key), next(iter(self.values)))
        key = ", ".join(newest.match_key) or "none"
        raise ConfigError(
            f"tidelog source: option 'key': {other!r} is not of the key of {newest.table} ({key})"
        )

    def select(self, records: pa.RecordBatch, written: TableSchema) -> pa.RecordBatch:
        """Return the records, all of the version ``written``, that have such a key before or after
        the change; and truncates.

        Under a version with another key: records with these values in the columns of these names,
        if the record has them; none if the table had no such column.
        """
        from tidelog.codecs.decode import decode  # planning processes need no decoder

        columns = [column for column in written.columns if column.name in self.values]
        wanted = pc.equal(records.column("kind"), int(RecordKind.TRUNCATE))
        if columns:
            decoded = decode(records, written, columns=[column.name for column in columns])
            for image in (decoded.after, decoded.before):
                assert image is not None
                if image.null_count < len(image):
                    wanted = pc.or_(wanted, self._matching(image, columns, written.match_key))
        return records.filter(wanted)

    def _matching(
        self, image: pa.StructArray, columns: Sequence[Column], key: Sequence[str]
    ) -> pa.BooleanArray:
        found = image.is_valid()
        any_equal = pa.repeat(pa.scalar(False), len(image))
        for column in columns:
            cells = image.field(image.type.get_field_index(column.name))
            same = _equal(cells, self.values[column.name], column)
            any_equal = pc.or_(any_equal, same)
            if column.name not in key:
                # It may be missing: of an old row, often only the key is logged.
                same = pc.or_(same, cells.is_null())
            found = pc.and_(found, same)
        return pc.and_(found, any_equal)


def _equal(cells: pa.Array, value: Any, column: Column) -> pa.BooleanArray:
    """Return bool[n], false for null. Raises ConfigError for a value that no cell can have."""
    kind = cells.type
    base = column.type_name.lower().partition("(")[0].strip()
    try:
        if pa.types.is_binary(kind):
            wanted = pa.array([_bytes(value)], kind)
        else:
            text = json.dumps(value) if isinstance(value, bool) else str(value)
            if pa.types.is_decimal(kind) and text == "NaN":
                return cells.is_null()  # null in a key means NaN (`nan_key`)
            if base == "uuid":
                text = str(uuid.UUID(text))
            elif base in _NUMERIC and pa.types.is_string(kind):
                text = _plain(text)
                cells = _without_zeros(cells)
            elif base in _PADDED and pa.types.is_string(kind):
                text = text.rstrip(" ")
                cells = pc.utf8_rtrim(cells, characters=" ")
            wanted = times.invalid_date_value(text, kind)
            if wanted is None:
                wanted = pa.array([text], pa.string()).cast(kind)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, TypeError, ValueError):
        raise ConfigError(
            f"tidelog source: option 'key': the value of {column.name!r} is not of type "
            f"{column.type_name if base == 'uuid' else kind}"
        ) from None
    return pc.is_in(cells, value_set=wanted)


def _bytes(value: Any) -> bytes:
    r"""Parses a value as keys of dumps are given: hexadecimal digits after ``0x`` or ``\x``, or a
    text.
    """
    if not isinstance(value, str):
        raise TypeError
    digits = _HEX.fullmatch(value)
    return value.encode() if digits is None else bytes.fromhex(digits[1])


def _plain(text: str) -> str:
    """Return a number without exponent and trailing zeros; ``NaN`` and the like unchanged."""
    try:
        number = Decimal(text)
    except InvalidOperation:
        raise ValueError from None
    if not number.is_finite():
        return text
    plain = f"{number:f}"
    plain = plain.rstrip("0").rstrip(".") if "." in plain else plain
    return "0" if plain == "-0" else plain


def _without_zeros(cells: pa.Array) -> pa.Array:
    fraction = pc.match_substring(cells, ".")
    short = pc.utf8_rtrim(pc.utf8_rtrim(cells, characters="0"), characters=".")
    return pc.if_else(fraction, short, cells)


# The options.

SHAPES = ("typed", "events", "envelope", "variant", "raw", "segments")
_CHANGES = "changes"  # internal: the shape that outputs merge, see tidelog.spark.formats.shapes
_DECODED = ("typed", "envelope", "variant")

# The spellings in the docs; Spark compares them in lower case.
_NAMES = {
    "path": "path of the event log (required)",
    "shape": "typed, events, envelope, variant, raw or segments; default: typed if `table` is "
    "given, else envelope",
    "table": "namespace.name of the one table to read",
    "tables": "comma-separated names or patterns (table-patterns.md), e.g. public.*,!public.audit; "
    "default: all",
    "columns": "comma-separated columns to decode (not raw); default: all",
    "startingVersion": "earliest (default), latest or the first version to read",
    "startingTimestamp": "start at the first change committed at that time or later, in ISO 8601, "
    "UTC unless it says otherwise, e.g. 2026-01-31T12:00:00Z",
    "startingDump": "start where this dump (its id) of the chosen tables begins; latest: their "
    "newest complete one",
    "startingOffset": "as startingVersion: versions are offsets",
    "endingVersion": "latest (default) or the last version to read; batch reads only",
    "endingTimestamp": "end before the first change committed later; batch reads only",
    "endingOffset": "latest (default) or the offset before which to end; batch reads only",
    "key": "JSON object of key columns: only changes of that row, also those that gave it this key "
    "or took it away, and truncates; typed, envelope and variant of one table. Also of a key that "
    "the table had before. Bytes: hexadecimal digits after 0x, or a text",
    "maxBytesPerTrigger": "payload bytes a micro-batch takes at most, one record at least; e.g. "
    "64MiB; default 256MiB",
    "maxRecordsPerTrigger": "records of the chosen tables that a micro-batch takes at most; "
    "default: no limit",
    "types": "JSON object, of typed and events: the types of arrays, JSON and numbers without "
    "limits, as an output's option types (configuration.md#sourcetypes); default: {}, i.e. arrays "
    'are arrays. For texts {"arrays": "text"}; {"numeric": {"decimal": [38, 18]}} for decimals; '
    '{"json": "variant"} for VARIANT',
    "schemaVersion": "the table's schema version (number) to read by; default: the one in use",
    "partitions": "partitions a read is split into at most; default: by partitionBytes only",
    "partitionBytes": "payload bytes below which a partition is not split further; default 16m",
    "before": "decode rows' old images (not raw); default true",
    "decimalHandlingMode": "of envelope, as Debezium's decimal.handling.mode: string (default), "
    "precise or double",
    "timePrecisionMode": "of envelope, as Debezium's time.precision.mode: microseconds (default), "
    "adaptive, adaptive_time_microseconds, connect, nanoseconds or isostring",
    "binaryHandlingMode": "of envelope, as Debezium's binary.handling.mode: base64 (default), "
    "bytes (the same in JSON), base64-url-safe or hex",
    "bigintUnsignedHandlingMode": "of envelope, of MySQL's BIGINT UNSIGNED: long (default), a JSON "
    "number, or precise, as decimalHandlingMode says",
}
_REFS = "refs"  # internal: the segments to read, planned by the caller
_LOGICALS = "logicals"  # internal: logical types of columns, by name, in place of `types`
_CATALOGS = {"location", "provider"}  # options that Spark adds for a table in its catalog
_FILE_URI = re.compile(r"^file:(//)?(?=/)")
_NO_TABLE = (
    "Spark does not give a table's options to a source in Python when the table is read, so "
    "CREATE TABLE … USING tidelog makes none that can be read: use CREATE TEMPORARY VIEW … USING "
    "tidelog OPTIONS (path '…', table '…')"
)
_UNITS = {"k": 1 << 10, "m": 1 << 20, "g": 1 << 30}


@dataclass(frozen=True, slots=True)
class PlannedRefs:
    """Segments that the caller has chosen, so that planning need not walk the log's chain."""

    generation: str
    refs: tuple[SegmentRef, ...]

    def to_option(self) -> str:
        return json.dumps([self.generation, [list(astuple(ref)) for ref in self.refs]])

    @classmethod
    def from_option(cls, text: str) -> PlannedRefs:
        generation, refs = json.loads(text)
        return cls(generation, tuple(SegmentRef(*ref) for ref in refs))


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """The checked options of one read."""

    path: str
    shape: str
    table: TableName | None
    tables: tuple[str | TableName, ...]  # patterns, or the one table; empty: all
    columns: tuple[str, ...] | None
    starting: LogPosition
    ending: LogPosition
    max_bytes: int
    max_records: int | None
    schema_version: int | None
    partitions: int | None
    partition_bytes: int
    before: bool
    refs: PlannedRefs | None
    key: KeyFilter | None
    handling: ValueModes
    types: ColumnTypes
    logicals: Mapping[str, str] | None  # in place of types

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> SourceOptions:
        """Return the options. Raises ConfigError that names the wrong option."""
        options = {name.lower(): value for name, value in given.items()}
        if options.pop("filterpushdown", "false").strip().lower() != "false":
            raise ConfigError(
                "tidelog source: option 'filterpushdown' was removed: Spark keeps the filters of "
                "one query for all later ones of the same DataFrame, in which rows are then "
                "missing. Select what is read by the options key, tables, startingVersion and "
                "endingVersion."
            )
        if options.keys() >= _CATALOGS:
            raise ConfigError(f"tidelog source: {_NO_TABLE}")
        unknown = sorted(set(options) - {name.lower() for name in _NAMES} - {_REFS, _LOGICALS})
        if unknown:
            known = "\n".join(f"  {name}: {meaning}" for name, meaning in _NAMES.items())
            raise ConfigError(f"tidelog source: unknown option {unknown[0]!r}. Options:\n{known}")
        if not options:
            raise ConfigError(f"tidelog source: option 'path' is missing. {_NO_TABLE}")
        if not options.get("path"):
            raise ConfigError(
                "tidelog source: option 'path' (the event log's directory) is missing"
            )
        table = _table(options["table"]) if options.get("table") else None
        shape = options.get("shape", "typed" if table else "envelope").lower()
        if shape not in (*SHAPES, _CHANGES):
            raise ConfigError(f"tidelog source: shape {shape!r} is not one of {', '.join(SHAPES)}")
        if shape in ("typed", "events", _CHANGES) and table is None:
            raise ConfigError(f"tidelog source: shape {shape!r} needs the option 'table'")
        columns = _names(options["columns"]) if options.get("columns") else None
        if columns and shape not in (*_DECODED, _CHANGES):
            raise ConfigError(f"tidelog source: option 'columns' does not fit shape {shape!r}")
        if options.get("key") and (table is None or shape not in _DECODED):
            raise ConfigError(
                "tidelog source: option 'key' needs the option 'table', and shape "
                f"{', '.join(_DECODED)}"
            )
        if options.get("types") and shape not in ("typed", "events"):
            raise ConfigError(f"tidelog source: option 'types' does not fit shape {shape!r}")
        return cls(
            path=_FILE_URI.sub("", options["path"]),
            shape=shape,
            table=table,
            tables=_patterns(options.get("tables", "")) if table is None else (table,),
            columns=columns,
            starting=parse_position(options, "starting"),
            ending=parse_position(options, "ending"),
            max_bytes=_size(options, "maxbytespertrigger", 256 << 20),
            max_records=_size(options, "maxrecordspertrigger", 0) or None,
            schema_version=_size(options, "schemaversion", 0) or None,
            partitions=_size(options, "partitions", 0) or None,
            partition_bytes=_size(options, "partitionbytes", 16 << 20),
            before=_flag(options, "before", True),
            refs=PlannedRefs.from_option(options[_REFS]) if options.get(_REFS) else None,
            key=KeyFilter.parse(options["key"]) if options.get("key") else None,
            handling=ValueModes.parse(options),
            types=_types(options["types"]) if options.get("types") else ColumnTypes(),
            logicals=json.loads(options[_LOGICALS]) if options.get(_LOGICALS) else None,
        )


def _types(text: str) -> ColumnTypes:
    from pydantic import ValidationError

    from tidelog.kinds.sections import TypesSection

    try:
        return TypesSection.model_validate_json(text).column_types()
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"])
        raise ConfigError(
            f"tidelog source: option 'types': {place + ': ' if place else ''}{first['msg']}; write "
            'a JSON object, e.g. {"arrays": "text", "numeric": {"decimal": [38, 18]}}'
        ) from None


def _names(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _patterns(text: str) -> tuple[str, ...]:
    found = _names(text)
    for pattern in found:
        try:
            check_listed(pattern)
        except ValueError as error:
            raise ConfigError(
                f"tidelog source: option 'tables': {error}, not {pattern!r}"
            ) from None
    return all_but(found)


def _table(text: str) -> TableName:
    try:
        return TableName.parse(text)
    except ValueError as error:
        raise ConfigError(f"tidelog source: {error}") from None


def _size(options: Mapping[str, Any], name: str, default: int) -> int:
    """Return a number, or bytes as in the configuration: ``16MiB``; ``k``, ``m`` and ``g`` are
    1024s.
    """
    text = str(options.get(name, default)).strip()
    unit = _UNITS.get(text[-1:].lower(), 0)
    if unit and text[:-1].isdigit():
        return int(text[:-1]) * unit
    if text.isdigit():
        return int(text)
    try:
        return parse_bytes(text)
    except ValueError:
        raise ConfigError(
            f"tidelog source: option {name!r} must be a number or a size such as 16MiB, not "
            f"{text!r}"
        ) from None


def _flag(options: Mapping[str, Any], name: str, default: bool) -> bool:
    text = str(options.get(name, default)).strip().lower()
    if text not in ("true", "false"):
        raise ConfigError(f"tidelog source: option {name!r} must be true or false, not {text!r}")
    return text == "true"
