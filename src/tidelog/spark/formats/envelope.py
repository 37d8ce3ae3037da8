"""The shape ``envelope``: all tables in one frame, each row's key and value as Debezium's JSON.

Members are in the order in which Debezium's JSON converter writes them. docs/reference/debezium.md
lists what is equal byte for byte, and what is not.
"""

from __future__ import annotations

import json
from functools import lru_cache

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidelog.codecs.columns.concatenation import KeyPiece, TextCells
from tidelog.codecs.decode import decode
from tidelog.codecs.source_blocks import connector_of, source_block
from tidelog.eventlog.reader import EventLog
from tidelog.model.records import RecordKind
from tidelog.model.schema import TableName, TableSchema
from tidelog.ports import SourceId
from tidelog.spark.formats.json_values import join_texts as join_texts
from tidelog.spark.formats.json_values import json_rows as json_rows
from tidelog.spark.formats.json_values import json_values as json_values
from tidelog.spark.formats.json_values import type_names
from tidelog.spark.formats.shaping import ShapeOptions, by_schema, key_struct, timestamps


def batch(
    block: pa.RecordBatch, log: EventLog, options: ShapeOptions, schema: pa.Schema
) -> pa.RecordBatch:
    """Return records of any tables in the envelope shape, in log order."""

    def of_one(records: pa.RecordBatch) -> pa.RecordBatch:
        written = log.schemas.get(records.column("schema_id")[0].as_py())
        return _of_table(records, log, written, options, schema)

    return by_schema(block, of_one)


def _of_table(
    records: pa.RecordBatch,
    log: EventLog,
    written: TableSchema,
    options: ShapeOptions,
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
    types = type_names(written)
    handling = options.handling
    after = json_rows(decoded.after, names, missing, handling, types)
    before = pa.nulls(n, pa.string())
    if options.before:
        before = json_rows(decoded.before, names, None, handling, types)
    value = envelope_json(
        before, after, decoded.op, records, decoded.commit_ts, log.source, written
    )
    key = pa.nulls(n, pa.string())
    if written.match_key:
        is_truncate = pc.equal(decoded.op, "t")
        key = pc.if_else(
            is_truncate,
            pa.scalar(None, pa.string()),
            json_rows(keys, written.match_key, None, handling, types),
        )
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


def envelope_json(
    before: KeyPiece,
    after: KeyPiece,
    op: pa.StringArray,
    records: pa.RecordBatch,
    commit_ts: pa.Array,
    origin: SourceId,
    schema: TableSchema,
) -> pa.StringArray:
    """Return Debezium's envelope of ``n`` changes of one table.

    Args:
        before: the old rows as JSON objects, null where there is none.
        after: the new rows likewise.
        op: c, u, d, r or t.
        records: the log's columns about the origin of each change.
        commit_ts: int64[n], microseconds since 1970 UTC.
        origin: the log's source.
        schema: the table's schema.
    """
    return join_texts(
        '{"before":',
        before,
        ',"after":',
        after,
        *source_pieces(records, commit_ts, origin, schema.table),
        ',"transaction":null,"op":"',
        op,
        '","ts_ms":',
        milliseconds(commit_ts),
        ',"ts_us":',
        commit_ts,
        ',"ts_ns":',
        commit_ts,
        "000}",
    )


def source_pieces(
    records: pa.RecordBatch, commit_ts: pa.Array, origin: SourceId, table: TableName
) -> list[KeyPiece]:
    """Return the member ``source`` with the comma before it, as pieces for `join_texts`."""
    block = source_block(origin, table, records)
    pieces: list[KeyPiece] = [
        f',"source":{{"version":"{tidelog_version()}","connector":"{connector_of(origin)}","name":"tidelog"',
        ',"ts_ms":',
        milliseconds(commit_ts),
        ',"snapshot":"',
        snapshots(records),
        f'","db":{_text(block.db)},"sequence":',
        block.sequence,
        ',"ts_us":',
        commit_ts,
        ',"ts_ns":',
        commit_ts,
        "000",
    ]
    for name, value in block.own.items():
        pieces += [f',"{name}":', value if isinstance(value, TextCells) else _text(value)]
    return [*pieces, "}"]


def snapshots(records: pa.RecordBatch) -> pa.StringArray:
    """Return Debezium's ``snapshot`` of each of the log's records: is it a dump's?"""
    kinds = records.column("kind").to_numpy()
    dumped = (kinds == RecordKind.DUMP_ROW) | (kinds == RecordKind.ABSENT)
    return pa.array(["false", "incremental"]).take(pa.array(dumped.astype(np.int8)))


def _text(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


def milliseconds(microseconds: pa.Array) -> pa.Array:
    """Return int64[n] of int64 microseconds."""
    return pc.divide(microseconds, 1000)


@lru_cache(maxsize=1)
def tidelog_version() -> str:
    """Return this program's version."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("tidelog")
    except PackageNotFoundError:
        return "0"
