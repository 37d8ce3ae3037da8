"""The envelope beside what Debezium 3.3.1 itself wrote of the same changes, byte for byte.

`debezium/*.jsonl` are key and value of each message, tab between, as its engine with the JSON
format (no schemas) gave them for the statements of `changes`, by the modes in the file's name. Long
texts are shortened.
"""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.support.build_log import BuiltLog
from tests.support.pgoutput_messages import UNCHANGED, Value

from tidelog.outputs.base.tasks import prepare_rows
from tidelog.outputs.formatters.json_formats import Debezium
from tidelog.ports import TargetTable
from tidelog.spark.datasource import executor
from tidelog.spark.datasource.executor import ReadPlan
from tidelog.spark.datasource.options import SourceOptions
from tidelog.spark.formats import shapes
from tidelog.spark.formats.json_values import ValueModes

RECORDED = Path(__file__).parent / "debezium"
MODES: dict[str, dict[str, str]] = {
    "default": {"decimalHandlingMode": "precise", "timePrecisionMode": "adaptive"},
    "string-microseconds": {},
    "double-connect-hex": {
        "decimalHandlingMode": "double",
        "timePrecisionMode": "connect",
        "binaryHandlingMode": "hex",
    },
    "precise-isostring-base64-url-safe": {
        "decimalHandlingMode": "precise",
        "timePrecisionMode": "isostring",
        "binaryHandlingMode": "base64-url-safe",
    },
    "precise-nanoseconds-base64": {
        "decimalHandlingMode": "precise",
        "timePrecisionMode": "nanoseconds",
        "binaryHandlingMode": "base64",
    },
}
# Type name and logical type of each column.
COLUMNS = {
    "id": ("bigint", "int64"),
    "i2": ("smallint", "int16"),
    "i4": ("integer", "int32"),
    "n": ("numeric(10,2)", "decimal(10,2)"),
    "nn": ("numeric", "text"),
    "f4": ("real", "float32"),
    "f8": ("double precision", "float64"),
    "b": ("boolean", "bool"),
    "d": ("date", "date"),
    "ts": ("timestamp without time zone", "timestamp"),
    "ts3": ("timestamp(3) without time zone", "timestamp"),
    "tz": ("timestamp with time zone", "timestamptz"),
    "tm": ("time without time zone", "text"),
    "tm3": ("time(3) without time zone", "text"),
    "ttz": ("time with time zone", "text"),
    "iv": ("interval", "text"),
    "by": ("bytea", "binary"),
    "x": ("text", "text"),
    "j": ("jsonb", "text"),
    "u": ("uuid", "text"),
    "arr": ("integer[]", "text"),
    "bigt": ("text", "text"),
}
# What is the source's text with us (docs/reference/debezium.md).
UNEQUAL = {"ttz", "iv"}

FIRST: tuple[Value, ...] = (
    "1", "7", "-8", "1234.50", "1234.50", "1.5", "0.1", "t", "2024-02-29",
    "2024-02-29 01:02:03.5", "2024-02-29 01:02:03.5", "2024-02-29 01:02:03.5+00",
    "01:02:03.5", "01:02:03.5", "01:02:03.5+02", "1 day 02:00:00", "\\x00ff10",
    'say "é" 𝄞 \\u2028\n/</a>\x7f\x01', '{"a": 1}', "6f8b6f6e-0000-4000-8000-000000000001",
    "{1,2}", "xxxx",
)  # fmt: skip


def row(key: str, **cells: str) -> list[Value]:
    return [key, *(cells.get(name) for name in list(COLUMNS)[1:])]


def changes(path: Path) -> BuiltLog:
    built = BuiltLog(path)
    table = _with_types(built)
    built.insert(table, *FIRST)
    built.insert(table, *row("2"))
    for cells in (
        row(
            "3", n="-0.07", nn="100000000000000000000", f4="1e+20", f8="1e-07", d="1969-12-31",
            ts="1969-12-31 23:59:59.999999", tz="1969-12-31 23:59:59.999999+00",
            tm="23:59:59.999999", by="\\x", x="",
        ),
        row(
            "4", n="NaN", nn="0.5", f4="NaN", f8="Infinity", d="2024-01-01",
            ts="2024-01-01 00:00:00", tz="2024-01-01 00:00:00+00", tm="24:00:00", x="x",
        ),
        row(
            "5", n="0.00", nn="-12345678901234567890.123", f4="3.4e+38",
            f8="1.2345678901234568e+17", d="0001-01-01", ts="2024-01-01 00:00:01",
            tz="2023-12-31 19:00:00.123+00", tm="00:00:00", by="\\x01", x="",
        ),
        row(
            "6", n="99999999.99", nn="0", f4="1.6777216e+07", f8="100", d="9999-12-31",
            ts="2024-01-01 00:00:00.1", tz="2024-01-01 00:00:00.12345+00",
            tm="00:00:00.000001", by="\\x01", x="",
        ),
    ):  # fmt: skip
        built.insert(table, *cells)
    built.update(table, *FIRST[:17], "later", *FIRST[18:21], UNCHANGED)
    built.update(table, *row("20"), key=["2"])
    built.delete(table, "20")
    built.flush()
    return built


def _with_types(built: BuiltLog) -> Any:
    """The table with its columns' type names, as the catalogue spells them."""
    plain = built.table("public.t", {name: logical for name, (_, logical) in COLUMNS.items()})
    columns = tuple(replace(c, type_name=COLUMNS[c.name][0]) for c in plain.columns)
    return built.writer.schemas.register(replace(plain, columns=columns, schema_id=0))


def recorded(name: str) -> list[tuple[str, str | None]]:
    found = []
    for line in (RECORDED / f"{name}.jsonl").read_text(encoding="utf-8").splitlines():
        key, value = line.split("\t")
        found.append((key, None if value == "null" else value))
    return found[:12]  # what follows has the replica identity FULL


def formatted(built: BuiltLog, modes: dict[str, str]) -> list[tuple[str, str | None]]:
    log = built.log
    (table,) = log.schemas.tables()
    schema = log.schemas.latest(table)
    assert schema is not None
    options = SourceOptions.parse({"path": built.path, "shape": "events", "table": "public.t"})
    plan = ReadPlan(options, schema, shapes.events(schema))
    (batch,) = executor.batches(plan, log, log.segments(log.head_offset))
    fields = [(f.name, f.type) for f in plan.arrow_schema if f.name in COLUMNS]
    target = TargetTable(table, "t", schema, pa.schema(fields), ("id",), log.source)
    handling = ValueModes.parse({name.lower(): mode for name, mode in modes.items()})
    messages = (
        Debezium(handling=handling).format(target, prepare_rows(batch, target, {})).to_pylist()
    )
    return [(m["key"].decode(), m["value"] and m["value"].decode()) for m in messages]


def normalised(value: str | None) -> str | None:
    """Without what no two captures have alike, and without the columns that are unequal."""
    if value is None:
        return None
    value = re.sub(r'"(version|name|db)":"[^"]*"', r'"\1":""', value)
    value = re.sub(r'"sequence":"\[[^\]]*\]"', '"sequence":""', value)
    value = re.sub(r'"(ts_ms|ts_us|ts_ns|txId|lsn)":\d+', r'"\1":0', value)
    for name in UNEQUAL:
        value = re.sub(rf',"{name}":(null|\[[^\]]*\]|"[^"]*"|[\d.]+)', "", value)
    return value


@pytest.mark.parametrize("name", MODES)
def test_messages_are_debeziums_byte_for_byte(name: str, tmp_path: Path) -> None:
    ours = formatted(changes(tmp_path / "log"), MODES[name])
    theirs = recorded(name)
    assert [key for key, _ in ours] == [key for key, _ in theirs]
    for (_, mine), (key, wanted) in zip(ours, theirs, strict=True):
        if key == '{"id":4}':  # NaN of a decimal is null with us in all modes
            nan = r'"n":(null|"NaN"|"NAN")'
            mine, wanted = (re.sub(nan, "", text or "") for text in (mine, wanted))
        assert normalised(mine) == normalised(wanted), key


def test_the_shape_envelope_is_the_same_text(tmp_path: Path) -> None:
    """But for a change of the key, which is one event there."""
    built = changes(tmp_path / "log")
    log = built.log
    for name, modes in MODES.items():
        options = SourceOptions.parse({"path": built.path, "shape": "envelope", **modes})
        plan = ReadPlan(options, None, shapes.ENVELOPE)
        (batch,) = executor.batches(plan, log, log.segments(log.head_offset))
        found = list(zip(*(batch.column(c).to_pylist() for c in ("key", "value")), strict=True))
        messages = [pair for pair in formatted(built, modes) if pair[1] is not None]
        assert [*found[:7], *found[8:]] == [*messages[:7], *messages[9:]], name
        moved = json.loads(found[7][1])
        assert (moved["op"], moved["before"]["id"], moved["after"]["id"]) == ("u", 2, 20)


def test_times_stand_for_the_commit(tmp_path: Path) -> None:
    _, value = formatted(changes(tmp_path / "log"), {})[0]
    assert value is not None
    event = json.loads(value)
    micros = 1_700_000_000_001_001
    for part in (event, event["source"]):
        assert (part["ts_ms"], part["ts_us"], part["ts_ns"]) == (
            micros // 1000,
            micros,
            micros * 1000,
        )
    assert json.loads(event["source"]["sequence"]) == [None, str(event["source"]["lsn"])]
    assert event["transaction"] is None
