"""The shape ``envelope``: all tables in one frame, each row's key and value as Debezium's JSON.

The JSON is put together column-wise by Arrow's string kernels, so its cost is per column and batch,
not per row and cell. Values as Debezium writes them with ``decimal.handling.mode=string`` and
``time.precision.mode=microseconds``: dates are days, timestamps microseconds since 1970, instants
ISO texts, binary is base64, an unchanged TOASTed value is ``__debezium_unavailable_value``.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidelog.eventlog.reader import EventLog
from tidelog.model.records import Bools, Kind
from tidelog.model.schema import TableSchema
from tidelog.pipeline.options import SourceOptions
from tidelog.pipeline.shaping import by_schema, key_struct, timestamps
from tidelog.ports import SourceId
from tidelog.wire.decode import decode
from tidelog.wire.source_blocks import source_block

UNAVAILABLE = "__debezium_unavailable_value"
_ESCAPES = (("\\", "\\\\"), ('"', '\\"'), ("\n", "\\n"), ("\r", "\\r"), ("\t", "\\t"))


def batch(
    block: pa.RecordBatch, log: EventLog, options: SourceOptions, schema: pa.Schema
) -> pa.RecordBatch:
    """Records of any tables in the envelope shape, in log order."""

    def of_one(records: pa.RecordBatch) -> pa.RecordBatch:
        written = log.schemas.get(records.column("schema_id")[0].as_py())
        return _of_table(records, log, written, options, schema)

    return by_schema(block, of_one)


def _of_table(
    records: pa.RecordBatch,
    log: EventLog,
    written: TableSchema,
    options: SourceOptions,
    schema: pa.Schema,
) -> pa.RecordBatch:
    names = list(written.column_names)
    if options.columns is not None:
        names = [name for name in names if name in options.columns]
    asked = list(dict.fromkeys([*names, *written.match_key]))
    decoded = decode(records, written, columns=asked)
    n = len(decoded)
    assert decoded.after is not None
    assert decoded.before is not None
    keys = key_struct(decoded, pa.struct([_field(decoded.after, n) for n in written.match_key]))
    missing = None if decoded.missing is None else decoded.missing[:, : len(names)]
    after = json_rows(decoded.after, names, missing)
    before = json_rows(decoded.before, names, None) if options.before else pa.nulls(n, pa.string())
    value = joined(
        '{"before":',
        before,
        ',"after":',
        after,
        *source_json(records, decoded.commit_ts, log.source, written),
        ',"op":"',
        decoded.op,
        '","ts_ms":',
        milliseconds(decoded.commit_ts),
        "}",
    )
    key = pa.nulls(n, pa.string())
    if written.match_key:
        gone = pc.equal(decoded.op, "t")
        key = pc.if_else(gone, pa.scalar(None, pa.string()), json_rows(keys, written.match_key))
    arrays = [
        pa.repeat(pa.scalar(str(written.table)), n),
        decoded.op,
        decoded.version,
        pa.repeat(pa.scalar(written.schema_id, pa.int32()), n),
        timestamps(decoded.commit_ts),
        key,
        value,
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _field(struct: pa.StructArray, name: str) -> pa.Field:
    return struct.type.field(struct.type.get_field_index(name))


def json_rows(
    rows: pa.StructArray, names: Sequence[str], missing: Bools | None = None
) -> pa.StringArray:
    """Each row as a JSON object of the columns ``names``; null for a null row."""
    n = len(rows)
    if rows.null_count == n:
        return pa.nulls(n, pa.string())
    pieces: list[str | pa.Array] = []
    for number, name in enumerate(names):
        pieces.append(("{" if not number else ",") + json.dumps(name, ensure_ascii=False) + ":")
        text = json_values(rows.field(rows.type.get_field_index(name)))
        if missing is not None and missing[:, number].any():
            text = pc.if_else(pa.array(missing[:, number]), f'"{UNAVAILABLE}"', text)
        pieces.append(text)
    text = joined(*pieces, "}") if names else pa.repeat(pa.scalar("{}"), n)
    if rows.null_count:
        text = pc.if_else(rows.is_valid(), text, pa.scalar(None, pa.string()))
    return text


def json_values(values: pa.Array) -> pa.StringArray:
    """Each value as JSON text; null stays null."""
    kind = values.type
    if pa.types.is_boolean(kind):
        return pc.if_else(values, "true", "false")
    if pa.types.is_integer(kind):
        return values.cast(pa.string())
    if pa.types.is_floating(kind):
        text = values.cast(pa.string())
        special = pc.invert(pc.is_finite(values))
        if pc.any(special).as_py():
            named = pc.if_else(
                pc.is_nan(values),
                '"NaN"',
                pc.if_else(pc.greater(values, 0), '"Infinity"', '"-Infinity"'),
            )
            text = pc.if_else(special, named, text)
        return text
    if pa.types.is_date32(kind):
        return values.view(pa.int32()).cast(pa.string())
    if pa.types.is_timestamp(kind):
        if kind.tz is None:
            return values.view(pa.int64()).cast(pa.string())
        text = values.view(pa.timestamp("us")).cast(pa.string())
        return _joined_or_null('"', pc.replace_substring(text, " ", "T"), 'Z"')
    if pa.types.is_decimal(kind):
        return _joined_or_null('"', values.cast(pa.string()), '"')
    if pa.types.is_binary(kind):
        return pa.array(
            [
                None if v is None else f'"{base64.b64encode(v).decode()}"'
                for v in values.to_pylist()
            ],
            pa.string(),
        )
    return _quoted(values)


def _quoted(texts: pa.StringArray) -> pa.StringArray:
    if not pc.any(pc.match_substring_regex(texts, '[\\x00-\\x1f"\\\\]')).as_py():
        return _joined_or_null('"', texts, '"')
    escaped = texts
    for plain, code in _ESCAPES:
        escaped = pc.replace_substring(escaped, plain, code)
    rest = pc.fill_null(pc.match_substring_regex(escaped, "[\\x00-\\x1f]"), False)
    if pc.any(rest).as_py():  # other control characters: rare, so row by row
        spelled = [
            json.dumps(text, ensure_ascii=False)[1:-1] for text in texts.filter(rest).to_pylist()
        ]
        escaped = pc.replace_with_mask(escaped, rest, pa.array(spelled, pa.string()))
    return _joined_or_null('"', escaped, '"')


def source_json(
    records: pa.RecordBatch, commit_ts: pa.Array, origin: SourceId, schema: TableSchema
) -> list[str | pa.Array]:
    """The member ``source`` with the comma before it, as pieces for `joined`."""
    kinds = records.column("kind").to_numpy()
    dumped = (kinds == Kind.DUMP_ROW) | (kinds == Kind.ABSENT)
    snapshot = pa.array(["false", "incremental"]).take(pa.array(dumped.astype(np.int8)))
    block = source_block(origin, schema.table, records)
    fixed = {
        "version": _version(),
        "connector": block.connector,
        "name": "tidelog",
        **block.same,
    }
    pieces: list[str | pa.Array] = [
        ',"source":' + json.dumps(fixed, ensure_ascii=False, separators=(",", ":"))[:-1],
        ',"ts_ms":',
        milliseconds(commit_ts),
        ',"snapshot":"',
        snapshot,
        '"',
    ]
    for name, texts in block.own.items():
        pieces += [f',"{name}":', texts]
    return [*pieces, "}"]


def milliseconds(microseconds: pa.Array) -> pa.Array:
    """int64 microseconds as texts of milliseconds."""
    return pc.divide(microseconds, 1000).cast(pa.string())


def joined(*pieces: str | pa.Array) -> pa.StringArray:
    """The pieces one after the other, row by row; a null is written ``null``."""
    return pc.binary_join_element_wise(
        *pieces, "", null_handling="replace", null_replacement="null"
    )


def _joined_or_null(*pieces: str | pa.Array) -> pa.StringArray:
    return pc.binary_join_element_wise(*pieces, "", null_handling="emit_null")


@lru_cache(maxsize=1)
def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("tidelog")
    except PackageNotFoundError:
        return "0"
