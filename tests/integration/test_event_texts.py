"""Debezium's JSON of a row that a dump read (x = 1) and one that was logged (x = 2): values at the
ends of their types, and keys that are spelled as the same columns of the row."""

from __future__ import annotations

import base64
import json
from itertools import product
from pathlib import Path
from typing import Any, get_args

import pyarrow.compute as pc
import pytest
from tests.integration.event_messages import capturing, messages, wait_for
from tests.support.mysql import MySqlFamilyServer
from tests.support.postgres import PostgresServer

from tidelog.app import log_lines
from tidelog.config import Config
from tidelog.errors import OutputRefusedError, UsageError
from tidelog.eventlog.reader import EventLog
from tidelog.model.option_values import BigintUnsignedMode, BinaryMode, DecimalMode, TimeMode
from tidelog.model.schema import TableName
from tidelog.outputs.formatters.json_formats import Debezium
from tidelog.spark.datasource.options import KeyFilter
from tidelog.spark.formats.json_values import ValueModes

pytestmark = pytest.mark.integration

HANDLINGS = [
    ValueModes(*modes)
    for modes in product(
        get_args(DecimalMode),
        get_args(TimeMode),
        get_args(BinaryMode),
        get_args(BigintUnsignedMode),
    )
]
POSTGRES = """
CREATE TABLE t (
  tm time(3), tz timestamptz(3), ts timestamp, d date, n numeric(10,2), by bytea, x int,
  f float8, far timestamptz, farther timestamp, last date, old timestamptz,
  b1 bit, b10 bit(10), v1 bit varying(1), v bit varying, none bit varying,
  PRIMARY KEY (tm, tz, ts, d, n, by, x))
"""
POSTGRES_ROW = (
    "('01:02:03.5', '2024-02-29 01:02:03.25+00', '2024-02-29 01:02:03.5', '2024-02-29', 12.50, "
    "'\\x00ff', {x}, 1e20, '100000-01-01 00:00:00+00', '294246-12-31 23:59:59.5', '5874897-12-31', "
    "'0044-03-15 12:00:00+00 BC', B'1', B'1000000011', B'0', B'00000101', B'')"
)
MYSQL = """
CREATE TABLE t (
  tm TIME, tm6 TIME(6), dt DATETIME, dt6 DATETIME(6), ts TIMESTAMP NOT NULL DEFAULT now(),
  d DATE, n DECIMAL(10,2), b BIGINT UNSIGNED, bin VARBINARY(8), x INT,
  b1 BIT, b10 BIT(10), b64 BIT(64),
  PRIMARY KEY (tm, tm6, dt, dt6, ts, d, n, b, bin, x))
"""
MYSQL_ROW = (
    "('01:02:03', '01:02:03.500000', '2024-02-29 01:02:03', '2024-02-29 01:02:03.500000', "
    "'2024-02-29 01:02:03', '2024-02-29', 12.50, 18446744073709551615, x'00ff', {x}, "
    "b'1', b'1', 18446744073709551614)"
)


@pytest.fixture
def postgres_log(postgres: PostgresServer, database: str, tmp_path: Path) -> Config:
    name = database.rsplit("/", 1)[1].split("?")[0]
    postgres.execute(POSTGRES, name)
    postgres.execute(f"INSERT INTO t VALUES {POSTGRES_ROW.format(x=1)}", name)
    with capturing(tmp_path, "postgres", database) as config:
        wait_for(config, 1)
        postgres.execute(f"INSERT INTO t VALUES {POSTGRES_ROW.format(x=2)}", name)
        wait_for(config, 2)
    return config


@pytest.fixture
def mysql_log(
    mysql_family: MySqlFamilyServer, mysql_family_database: str, tmp_path: Path
) -> Config:
    name = mysql_family_database
    mysql_family.execute(MYSQL, name)
    mysql_family.execute(f"INSERT INTO t VALUES {MYSQL_ROW.format(x=1)}", name)
    url = mysql_family.dsn(name)
    with capturing(tmp_path, url.split(":")[0], url, f"{name}.t") as config:
        wait_for(config, 1)
        mysql_family.execute(f"INSERT INTO t VALUES {MYSQL_ROW.format(x=2)}", name)
        wait_for(config, 2)
    return config


def key_rows(config: Config, handling: ValueModes) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """(key, after) of each."""
    found = messages(config, Debezium(tombstones=False, handling=handling))
    return [(json.loads(key or b""), json.loads(value or b"")["after"]) for key, value in found]


def check_keys(config: Config) -> None:
    for handling in HANDLINGS:
        found = key_rows(config, handling)
        assert len(found) == 2
        for key, after in found:
            assert key == {name: after[name] for name in key}, handling
        dumped, logged = (dict(after) for _, after in found)
        assert (dumped.pop("x"), logged.pop("x")) == (1, 2)
        assert dumped == logged, handling


def test_postgres_keys_are_spelled_as_the_row(postgres_log: Config) -> None:
    check_keys(postgres_log)


def test_the_commands_lines_are_the_texts_of_messages(postgres_log: Config) -> None:
    lines = [line for line in log_lines(postgres_log) if '"op":"m"' not in line]
    wanted = messages(postgres_log, Debezium())
    assert len(lines) == len(wanted) == 2
    for line, (key, value) in zip(lines, wanted, strict=True):
        assert key is not None
        assert value is not None
        assert line.endswith(f',"key":{key.decode()},{value[1:].decode()}')


def test_the_last_lines_are_those_of_the_whole(postgres_log: Config) -> None:
    whole = list(log_lines(postgres_log))
    for count in (0, 1, 2, len(whole), 1000):
        assert list(log_lines(postgres_log, tail=count)) == whole[max(0, len(whole) - count) :]
    with pytest.raises(
        UsageError, match=r"--from: the event log ends at offset \d+, before 9{12}$"
    ):
        next(log_lines(postgres_log, start=999_999_999_999))
    of_table = list(log_lines(postgres_log, table="public.t"))
    assert list(log_lines(postgres_log, table="public.t", tail=1)) == of_table[-1:]
    following = log_lines(postgres_log, tail=1, follow=True)
    assert next(following) == whole[-1]


def test_mysql_keys_are_spelled_as_the_row(mysql_log: Config) -> None:
    check_keys(mysql_log)


def test_postgres_values_at_the_ends_of_their_types(postgres_log: Config) -> None:
    for event in wait_for(postgres_log, 2):
        row = event["after"]
        assert row["far"] == "+100000-01-01T00:00:00.000000Z"
        assert row["old"] == "-0043-03-15T12:00:00.000000Z"
        assert row["tz"] == "2024-02-29T01:02:03.250Z"
    (_, row), _ = key_rows(postgres_log, ValueModes(time="isostring"))
    assert row["farther"] == "+294246-12-31T23:59:59.5Z"
    assert row["last"] == "+5874897-12-31Z"
    (_, row), _ = key_rows(postgres_log, ValueModes(time="nanoseconds"))
    assert row["farther"] == 2**63 - 1


def test_mysql_datetime_without_precision_is_one_of_milliseconds(mysql_log: Config) -> None:
    seconds = 1_709_168_523
    for mode in ("adaptive", "adaptive_time_microseconds"):
        for _, row in key_rows(mysql_log, ValueModes(time=mode)):
            assert (row["dt"], row["dt6"]) == (seconds * 1000, (seconds * 1000 + 500) * 1000)
            assert row["ts"] == "2024-02-29T01:02:03Z"
    for _, row in key_rows(mysql_log, ValueModes()):
        assert row["dt"] == seconds * 1_000_000
        assert row["b"] == 2**64 - 1


def test_postgres_bits_are_booleans_and_bytes(postgres_log: Config) -> None:
    """As Debezium's ``Bits``: the least byte first; no noughts before the first one."""
    for _, row in key_rows(postgres_log, ValueModes(binary="hex")):
        assert (row["b1"], row["v1"]) == (True, False)
        assert [base64.b64decode(row[name]) for name in ("b10", "v", "none")] == [
            b"\x03\x02", b"\x05", b"",
        ]  # fmt: skip

    value = json.loads(
        messages(postgres_log, Debezium(handling=ValueModes(schemas=True)))[1][1] or b""
    )
    fields = {field["field"]: field for field in value["schema"]["fields"][1]["fields"]}
    assert {name: fields[name]["type"] for name in ("b1", "v1", "b10", "v")} == {
        "b1": "boolean", "v1": "boolean", "b10": "bytes", "v": "bytes",
    }  # fmt: skip
    assert fields["b10"]["name"] == "io.debezium.data.Bits"
    assert fields["b10"]["parameters"] == {"length": "10"}


def test_mysql_bits_are_booleans_and_bytes(mysql_log: Config) -> None:
    for _, row in key_rows(mysql_log, ValueModes(binary="hex")):
        assert row["b1"] is True
        assert base64.b64decode(row["b10"]) == b"\x01\x00"
        assert base64.b64decode(row["b64"]) == b"\xfe" + b"\xff" * 7


UNREAL = ("0000-00-00", "2024-00-10", "2024-02-00", "2024-02-31", "2024-02-29", "0000-02-29")


def test_dates_of_no_calendar_are_keys_of_their_own(
    mysql_family: MySqlFamilyServer, mysql_family_database: str, tmp_path: Path
) -> None:
    """From a dump, from the log, and by the source's ``option("key")``."""
    name, url = mysql_family_database, mysql_family.dsn(mysql_family_database)
    with mysql_family.connect(name) as session, session.cursor() as sql:
        sql.execute("SET SESSION sql_mode = 'ALLOW_INVALID_DATES'")
        sql.execute("CREATE TABLE t (d DATE, at DATETIME(3), e DATE, PRIMARY KEY (d, at))")
        rows = [(d, f"{d} 01:02:03.5", d) for d in UNREAL]
        sql.executemany("INSERT INTO t VALUES (%s, %s, %s)", rows)
        with capturing(tmp_path, url.split(":")[0], url, f"{name}.t") as config:
            wait_for(config, len(UNREAL))
            sql.execute("UPDATE t SET e = '2024-01-01'")
            wait_for(config, 2 * len(UNREAL))
    found = key_rows(config, ValueModes())
    dumped, logged = found[: len(UNREAL)], found[len(UNREAL) :]
    assert {str(key) for key, _ in dumped} == {str(key) for key, _ in logged}
    assert len({str(key) for key, _ in found}) == len(UNREAL)
    assert all(key == {"d": row["d"], "at": row["at"]} for key, row in found)
    assert {"d": -1_230_000, "at": (-1_230_000 * 86_400 + 3_723) * 10**6 + 500_000} in [
        key for key, _ in found
    ]
    assert [row["e"] for _, row in dumped].count(None) == len(UNREAL) - 1  # no key: NULL, as ever
    log = EventLog.open(str(config.log.path))
    schema = log.schemas.latest(TableName(name, "t"))
    assert schema is not None
    for text, wanted in (("2024-02-31", 2), ("2024-02-30", 0), ("2024-02-29", 2)):
        chosen = KeyFilter.parse(json.dumps({"d": text}))
        batches = [b for ref in log.segments(log.head_offset) for b in log.batches(ref)]
        records = [b.filter(pc.equal(b.column("schema_id"), schema.schema_id)) for b in batches]
        assert sum(len(chosen.select(each, schema)) for each in records) == wanted


ARRAYS = """
CREATE TYPE mood AS ENUM ('glad');
CREATE TABLE t (
  x int PRIMARY KEY, i2 smallint[], i4 int[], i8 bigint[], t text[], vc varchar(9)[], b bool[],
  f4 real[], f8 float8[], n numeric[], nn numeric(10,2)[], d date[], ts timestamp[],
  tz timestamptz[], by bytea[], u uuid[], j jsonb[], m mood[],
  free numeric, long numeric(50,10))
"""
ARRAYS_ROW = r"""({x}, '{{1,NULL}}', '[5:6]={{1,-2}}', '{{{{1,2}},{{3,4}}}}',
  '{{a,NULL,"NULL","","q\"\\,{{}}"}}',
  '{{é}}', '{{t,f}}', '{{1.5,NaN}}', '{{0.1,-Infinity,1e20}}', '{{1.50,NaN}}', '{{1.5,-2}}',
  '{{2024-02-29}}', '{{"2024-02-29 01:02:03.5"}}', '{{"2024-02-29 01:02:03.5+00"}}',
  '{{"\\x00ff"}}',
  '{{6f8b6f6e-0000-4000-8000-000000000001}}', '{{"{{\"a\": [1]}}"}}', '{{glad}}',
  -12345678901234567890.1230, 1234567890123456789012345678901234567890.5)"""


def test_arrays_and_long_numbers(postgres: PostgresServer, database: str, tmp_path: Path) -> None:
    """As Debezium has them; dumped and logged ones alike."""
    name = database.rsplit("/", 1)[1].split("?")[0]
    postgres.execute(ARRAYS, name)
    postgres.execute(f"INSERT INTO t VALUES {ARRAYS_ROW.format(x=1)}", name)
    with capturing(tmp_path, "postgres", database) as config:
        wait_for(config, 1)
        postgres.execute(f"INSERT INTO t VALUES {ARRAYS_ROW.format(x=2)}", name)
        wait_for(config, 2)
    seconds = 1_709_168_523
    for handling in (
        ValueModes(),
        ValueModes("precise", "adaptive", "bytes"),
        ValueModes("double"),
    ):
        (_, dumped), (_, row) = key_rows(config, handling)
        assert {**dumped, "x": 2} == row
        assert (row["i2"], row["i4"], row["i8"]) == ([1, None], [1, -2], [[1, 2], [3, 4]])
        assert row["t"] == ["a", None, "NULL", "", 'q"\\,{}']
        assert (row["vc"], row["b"], row["f4"]) == (["é"], [True, False], [1.5, "NaN"])
        assert row["f8"] == [0.1, "-Infinity", 1e20]
        assert row["d"] == [19_782]
        assert row["ts"] == [(seconds * 1000 + 500) * 1000]
        assert row["tz"] == ["2024-02-29T01:02:03.500000Z"]
        assert row["by"] == ["AP8="]
        assert row["u"] == ["6f8b6f6e-0000-4000-8000-000000000001"]
        assert (row["j"], row["m"]) == (['{"a": [1]}'], ["glad"])
    (_, text), (_, precise), (_, double) = (
        key_rows(config, ValueModes(mode))[1] for mode in ("string", "precise", "double")
    )
    assert (text["n"], text["nn"]) == (["1.50", "NaN"], ["1.50", "-2.00"])
    assert text["free"] == "-12345678901234567890.1230"
    assert precise["n"] == [{"scale": 1, "value": "Dw=="}, "NaN"]
    assert precise["nn"] == ["AJY=", "/zg="]
    assert precise["free"]["scale"] == 3
    number = int.from_bytes(base64.b64decode(precise["free"]["value"]), "big", signed=True)
    assert number == -12345678901234567890123
    number = int.from_bytes(base64.b64decode(precise["long"]), "big", signed=True)
    assert number == 12345678901234567890123456789012345678905 * 10**9
    assert (double["n"], double["nn"]) == ([1.5, "NaN"], [1.5, -2.0])
    assert double["free"] == -1.2345678901234567e19


def test_geometries_are_structures_of_wkb(
    mysql_family: MySqlFamilyServer, mysql_family_database: str, tmp_path: Path
) -> None:
    """From a dump and from the log. The SRID is not kept."""
    name, url = mysql_family_database, mysql_family.dsn(mysql_family_database)
    insert = (
        "INSERT INTO t VALUES ({}, ST_GeomFromText('POINT(1.5 -2)', 4326), "
        "ST_GeomFromText('LINESTRING(0 0, 1 1)'), NULL)"
    )
    mysql_family.execute("CREATE TABLE t (x int PRIMARY KEY, p POINT, g GEOMETRY, n POLYGON)", name)
    mysql_family.execute(insert.format(1), name)
    with capturing(tmp_path, url.split(":")[0], url, f"{name}.t") as config:
        wait_for(config, 1)
        mysql_family.execute(insert.format(2), name)
        wait_for(config, 2)
    with mysql_family.connect(name) as session, session.cursor() as sql:
        sql.execute("SELECT p, g FROM t WHERE x = 1")
        point, line = (base64.b64encode(value[4:]).decode() for value in sql.fetchone())
    (_, dumped), (_, row) = key_rows(config, ValueModes(binary="hex"))
    assert {**dumped, "x": 2} == row
    assert list(row["p"]) == ["x", "y", "wkb", "srid"]
    assert sorted((row["p"]["x"], row["p"]["y"])) == [-2.0, 1.5]
    assert (row["p"]["wkb"], row["p"]["srid"]) == (point, None)
    assert (row["g"], row["n"]) == ({"wkb": line, "srid": None}, None)


def test_nan_is_a_key_of_its_own(postgres: PostgresServer, database: str, tmp_path: Path) -> None:
    """It is null in JSON, and no other key is."""
    name = database.rsplit("/", 1)[1].split("?")[0]
    postgres.execute("CREATE TABLE t (k numeric(4,2) PRIMARY KEY, v int)", name)
    postgres.execute("INSERT INTO t VALUES ('NaN', 1)", name)
    with capturing(tmp_path, "postgres", database) as config:
        wait_for(config, 1)
        postgres.execute("UPDATE t SET v = 2", name)
        postgres.execute("UPDATE t SET k = 1.5", name)
        postgres.execute("UPDATE t SET k = 'NaN'", name)
        postgres.execute("DELETE FROM t", name)
        wait_for(config, 5)
    found = messages(config, Debezium(tombstones=False))
    assert [(json.loads(value or b"")["op"], key) for key, value in found] == [
        ("r", b'{"k":null}'), ("u", b'{"k":null}'), ("d", b'{"k":null}'), ("c", b'{"k":"1.50"}'),
        ("d", b'{"k":"1.50"}'), ("c", b'{"k":null}'), ("d", b'{"k":null}'),
    ]  # fmt: skip
    with pytest.raises(OutputRefusedError, match=r"column k is null.*NaN"):
        messages(config, Debezium(handling=ValueModes(schemas=True)))
    log = EventLog.open(str(config.log.path))
    (schema,) = log.schemas.versions(TableName("public", "t"))
    chosen = KeyFilter.parse('{"k": "NaN"}')
    batches = [b for ref in log.segments(log.head_offset) for b in log.batches(ref)]
    records = [b.filter(pc.equal(b.column("schema_id"), schema.schema_id)) for b in batches]
    assert sum(len(chosen.select(each, schema)) for each in records) == 5
