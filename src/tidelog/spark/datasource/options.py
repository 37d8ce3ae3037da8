"""Options of ``format("tidelog")``: names as users write them, checked and typed."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import astuple, dataclass
from typing import Any

from tidelog.errors import ConfigError
from tidelog.eventlog.reader import SegmentRef
from tidelog.model.column_types import ColumnTypes
from tidelog.model.patterns import all_but, check_listed
from tidelog.model.schema import TableName
from tidelog.model.units import parse_bytes
from tidelog.spark.datasource.key_filter import KeyFilter
from tidelog.spark.datasource.positions import LogPosition, parse_position
from tidelog.spark.formats.json_values import Handling

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
    "types": "JSON object, of typed and events: the types of arrays and of numbers without limits, "
    "as an output's option types (configuration.md#outputstypes); default: {}, i.e. arrays are "
    'arrays. For texts {"arrays": "text"}; {"numeric": {"decimal": [38, 18]}} for decimals',
    "schemaVersion": "the table's schema version (number) to read by; default: the newest",
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
    handling: Handling
    types: ColumnTypes
    logicals: Mapping[str, str] | None  # in place of types

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> SourceOptions:
        """Returns the options. Raises ConfigError that names the wrong option."""
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
            handling=Handling.parse(options),
            types=_types(options["types"]) if options.get("types") else ColumnTypes(),
            logicals=json.loads(options[_LOGICALS]) if options.get(_LOGICALS) else None,
        )


def _types(text: str) -> ColumnTypes:
    from pydantic import ValidationError

    from tidelog.kinds.column_types import TypesSection

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
    """Returns a number, or bytes as in the configuration: ``16MiB``; ``k``, ``m`` and ``g`` are
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
