"""Debezium's JSON, and Avro, read by the programs that people read it with: Kafka Connect's
converters, Debezium's ``ExtractNewRecordState`` and its JDBC sink, and Flink.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any, get_args

import psycopg
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]
from py4j.protocol import Py4JJavaError
from tests.integration.event_messages import capturing, events, messages, sent, wait_for
from tests.support.connect import Connect, ConnectWorker
from tests.support.kafka import KafkaServer
from tests.support.mysql import MySqlFamilyServer
from tests.support.postgres import PostgresServer

from tidelog.config import Config
from tidelog.model.option_values import BinaryMode, DecimalMode, TimeMode
from tidelog.outputs.formatters.avro import Avro
from tidelog.outputs.formatters.json_formats import Debezium
from tidelog.spark.formats.json_values import UNAVAILABLE, ValueModes

pytestmark = pytest.mark.integration

LONG = "x" * 5000
CREATE = """
CREATE TABLE t (
  id int PRIMARY KEY, i2 smallint NOT NULL, i8 bigint, f4 real, f8 double precision, b boolean,
  n numeric(10,2), d date, ts timestamp, tz timestamptz, tm time(3), by bytea, x text NOT NULL,
  j jsonb, u uuid, toast text);
ALTER TABLE t ALTER toast SET STORAGE EXTERNAL
"""
ROW = (
    "({id}, -8, 9007199254740993, 1.5, 0.1, true, -1234.50, '2024-02-29', "
    "'2024-02-29 01:02:03.123456', '2024-02-29 01:02:03.123456+00', '01:02:03.5', '\\x00ff', "
    "'é \"𝄞\"', '{{\"a\": 1}}', '6f8b6f6e-0000-4000-8000-000000000001', '{long}')"
)
COLUMNS = "id, i2, i8, f4, f8, b, n, d, ts, tz, tm, by, x, j, u"
# The modes by which the sink makes of each type the like type of the database.
TYPED = ValueModes("precise", "adaptive_time_microseconds", "bytes", schemas=True)


@pytest.fixture(scope="module")
def connect() -> Iterator[Connect]:
    with Connect() as jvm:
        yield jvm


@pytest.fixture
def log(postgres: PostgresServer, database: str, tmp_path: Path) -> Config:
    """A row dumped; one inserted and updated; one whose key changes, which is read again since the
    log does not hold all of it; one deleted.
    """
    name = database.rsplit("/", 1)[1].split("?")[0]
    postgres.execute(CREATE, name)
    postgres.execute(f"INSERT INTO t VALUES {ROW.format(id=1, long='')}", name)
    with capturing(tmp_path, "postgres", database) as config:
        wait_for(config, 1)
        rows = ", ".join(ROW.format(id=i, long=LONG) for i in (2, 3, 4))
        for sql in (
            f"INSERT INTO t VALUES {rows}",
            "UPDATE t SET x = 'later', n = NULL, by = NULL WHERE id = 2",
            "UPDATE t SET id = 30 WHERE id = 3",
            "DELETE FROM t WHERE id = 4",
        ):
            postgres.execute(sql, name)
        wait_for(config, 7)
    return config


def plain(struct: Any, schema: Any) -> Any:
    """A value of Connect's as what JSON has for it."""
    if struct is None or schema.type().toString() != "STRUCT":
        return struct
    return {field.name(): plain(struct.get(field), field.schema()) for field in schema.fields()}


@pytest.mark.parametrize("decimal", get_args(DecimalMode))
def test_connects_converter_reads_every_mode(
    decimal: DecimalMode, log: Config, connect: Connect
) -> None:
    for times, binary in product(get_args(TimeMode), get_args(BinaryMode)):
        handling = ValueModes(decimal, times, binary, schemas=True)
        written = messages(log, Debezium(handling=handling))
        records = connect.records("t", written)
        assert len(records) == len(written) >= 10
        for record, (key, value) in zip(records, written, strict=True):
            assert plain(record.key(), record.keySchema()) == json.loads(key or b"")["payload"]
            if value is None:
                assert record.value() is None
                continue
            found, payload = record.value(), json.loads(value)["payload"]
            for side in ("before", "after"):
                row = found.get(side)
                assert (row is None) == (payload[side] is None)
                if row is not None:
                    for name in ("id", "i2", "i8", "f4", "f8", "b", "x", "j", "u"):
                        assert row.get(name) == payload[side][name], (name, handling)
            assert found.get("source").get("table") == "t"
            assert found.get("op") == payload["op"]


STRUCTURES = """
CREATE TABLE t (
  x int PRIMARY KEY, free numeric, long numeric(50,10), i int[], t text[], f float8[], n numeric[],
  nn numeric(10,2)[], ts timestamp(3)[], by bytea[], deep int[])
"""
STRUCTURES_ROW = (
    "({}, 1234.50, 1.5, '{{1,NULL}}', '{{a}}', '{{0.1}}', '{{1.50,NaN}}', '{{1.5}}', "
    "'{{\"2024-02-29 01:02:03.5\"}}', '{{\"\\\\x00ff\"}}', '{{{{1,2}},{{3,4}}}}')"
)


@pytest.mark.parametrize("decimal", get_args(DecimalMode))
def test_connects_converter_reads_structures(
    decimal: DecimalMode, connect: Connect, postgres: PostgresServer, database: str, tmp_path: Path
) -> None:
    """Arrays and numbers of any scale; of several dimensions and what is no number are null."""
    name = database.rsplit("/", 1)[1].split("?")[0]
    postgres.execute(STRUCTURES, name)
    postgres.execute(f"INSERT INTO t VALUES {STRUCTURES_ROW.format(1)}", name)
    postgres.execute("INSERT INTO t VALUES (2)", name)
    with capturing(tmp_path, "postgres", database) as config:
        wait_for(config, 2)
    handling = ValueModes(decimal, "adaptive", "bytes", schemas=True)
    first, second = (
        record.value().get("after")
        for record in connect.records("t", messages(config, Debezium(handling=handling)))
    )
    fields = [field.name() for field in second.schema().fields()]
    assert [second.get(field) for field in fields] == [2, *[None] * (len(fields) - 1)]
    assert list(first.get("i")) == [1, None]
    assert (list(first.get("t")), list(first.get("f"))) == (["a"], [0.1])
    assert list(first.get("ts")) == [1_709_168_523_500]
    assert first.get("deep") is None
    if decimal == "precise":
        assert (first.get("free").get("scale"), str(first.get("long"))) == (1, "1.5000000000")
        assert (
            first.schema().field("free").schema().name() == "io.debezium.data.VariableScaleDecimal"
        )
        assert [each and each.get("scale") for each in first.get("n")] == [1, None]
        assert [str(each) for each in first.get("nn")] == ["1.50"]
    elif decimal == "double":
        assert (first.get("free"), first.get("long"), list(first.get("nn"))) == (1234.5, 1.5, [1.5])
    else:
        assert (first.get("free"), list(first.get("n"))) == ("1234.50", ["1.50", "NaN"])


def test_names_of_types_are_debeziums(log: Config, connect: Connect) -> None:
    record = connect.records("t", messages(log, Debezium(handling=TYPED)))[0]
    schema = record.valueSchema()
    assert schema.name() == "tidelog.public.t.Envelope"
    row = schema.field("after").schema()
    names = {field.name(): field.schema().name() for field in row.fields()}
    assert {name: names[name] for name in ("n", "d", "ts", "tz", "tm", "j", "u", "x")} == {
        "n": "org.apache.kafka.connect.data.Decimal",
        "d": "io.debezium.time.Date",
        "ts": "io.debezium.time.MicroTimestamp",
        "tz": "io.debezium.time.ZonedTimestamp",
        "tm": "io.debezium.time.MicroTime",
        "j": "io.debezium.data.Json",
        "u": "io.debezium.data.Uuid",
        "x": None,
    }
    assert str(record.value().get("after").get("n")) == "-1234.50"
    assert record.keySchema().name() == "tidelog.public.t.Key"
    assert not record.keySchema().field("id").schema().isOptional()


def test_extract_new_record_state_gives_rows(log: Config, connect: Connect) -> None:
    records = connect.records("t", messages(log, Debezium(handling=TYPED)))
    rows = connect.unwrapped(
        records, {"delete.tombstone.handling.mode": "rewrite", "add.fields": "op,table"}
    )
    found = [(r.value().get("id"), r.value().get("__op"), r.value().get("__deleted")) for r in rows]
    assert [row for row in found if row != (30, "r", "false")] == [
        (1, "r", "false"), (2, "c", "false"), (3, "c", "false"), (4, "c", "false"),
        (2, "u", "false"), (3, "d", "true"), (30, "c", "false"), (4, "d", "true"),
    ]  # fmt: skip
    assert rows[4].value().get("toast") == UNAVAILABLE
    assert rows[4].value().get("by") is None
    assert rows[0].value().get("__table") == "t"


@pytest.mark.parametrize("format_", ["json", "avro"])
def test_debeziums_jdbc_sink_makes_a_copy(
    log: Config, connect: Connect, postgres: PostgresServer, database: str, format_: str
) -> None:
    """The updated row lacks what the log does not hold, so it is not compared."""
    name = database.rsplit("/", 1)[1].split("?")[0]
    server = psycopg.conninfo.conninfo_to_dict(database)
    if format_ == "json":
        records = connect.records("copy", messages(log, Debezium(handling=TYPED)))
    else:
        made = Avro().schemas(events(log)[0])
        assert made.key is not None
        records = connect.avro_records("copy", messages(log, Avro()), (made.key, made.value))
    connect.sink(
        records,
        {
            "topics": "copy",
            "connection.url": f"jdbc:postgresql://{server['host']}:{server['port']}/{name}",
            "connection.username": str(server["user"]),
            "connection.password": "none",
            "insert.mode": "upsert",
            "delete.enabled": "true",
            "primary.key.mode": "record_key",
            "schema.evolution": "basic",
            "collection.name.format": "copy",
        },
    )
    # Avro's instants are numbers, for which Connect has but one name.
    zone = "tz" if format_ == "json" else "tz AT TIME ZONE 'UTC'"
    source = COLUMNS.replace("tz", zone)
    wanted = postgres.execute(f"SELECT {source} FROM t ORDER BY id", name)
    found = postgres.execute(f"SELECT {COLUMNS} FROM copy ORDER BY id", name)
    assert [str(row) for row in found] == [str(row) for row in wanted]
    types = dict(
        postgres.execute(
            "SELECT attname, format_type(atttypid, NULL) FROM pg_attribute "
            "WHERE attrelid = 'copy'::regclass AND attnum > 0",
            name,
        )
    )
    assert types["tz"] == f"timestamp {'with' if format_ == 'json' else 'without'} time zone"
    assert types["ts"] == "timestamp without time zone"
    assert (types["d"], types["n"], types["by"]) == ("date", "numeric", "bytea")
    assert (types["i2"], types["tm"]) == ("smallint", "time without time zone")


@pytest.fixture(scope="module")
def worker(
    connect: Connect, kafka: KafkaServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ConnectWorker]:
    found = ConnectWorker(connect, kafka.servers, tmp_path_factory.mktemp("connect"))
    yield found
    found.stop()


SIMPLE = "org.apache.kafka.connect.storage.SimpleHeaderConverter"
TEXT = "org.apache.kafka.connect.storage.StringConverter"
# A key of numbers and texts Connect's default can't type: neither as Debezium writes it, nor ours.
HEADER_CONVERTERS = {"id int": SIMPLE, "id varchar(9)": SIMPLE, "id int, r varchar(9)": TEXT}


def test_a_real_worker_s_jdbc_sink_follows_changed_keys(
    worker: ConnectWorker, connect: Connect, kafka: KafkaServer, postgres: PostgresServer,
    database: str, tmp_path: Path,
) -> None:  # fmt: skip
    """By the worker's own converters, with the headers that messages have in Kafka."""
    name = database.rsplit("/", 1)[1].split("?")[0]
    server = psycopg.conninfo.conninfo_to_dict(database)
    for number, key in enumerate(HEADER_CONVERTERS):
        columns = ", ".join(part.split()[0] for part in key.split(", "))
        sql = f"CREATE TABLE t{number} ({key}, x text, PRIMARY KEY ({columns}))"
        postgres.execute(sql, name)
        more = ", 'r\"'" if ", r" in key else ""
        for row in (1, 2, 3):
            postgres.execute(f"INSERT INTO t{number} VALUES ('{row}'{more}, 'v')", name)
    tables = [f"t{number}" for number in range(len(HEADER_CONVERTERS))]
    with capturing(tmp_path, "postgres", database, "public.*") as config:
        wait_for(config, 3 * len(tables))
        for table in tables:
            postgres.execute(f"UPDATE {table} SET id = '30' WHERE id = '3'", name)
            postgres.execute(f"DELETE FROM {table} WHERE id = '2'", name)
        wait_for(config, 5 * len(tables))
    producer = Producer({"bootstrap.servers": kafka.servers})
    admin = AdminClient({"bootstrap.servers": kafka.servers})
    topics = {table: f"{tmp_path.name}-{table}" for table in tables}
    for created in admin.create_topics([NewTopic(each, 1, 1) for each in topics.values()]).values():
        created.result(30)
    for table, converter in zip(tables, HEADER_CONVERTERS.values(), strict=True):
        for message in sent(config, Debezium(handling=TYPED), table):
            headers = [("tidelog-version", b"1"), ("tidelog-schema", b"1")]
            headers += [(header, text.encode()) for header, text in message["headers"] or ()]
            producer.produce(topics[table], message["value"], message["key"], headers=headers)
        worker.add(
            topics[table],
            {
                "connector.class": "io.debezium.connector.jdbc.JdbcSinkConnector",
                "topics": topics[table],
                "connection.url": f"jdbc:postgresql://{server['host']}:{server['port']}/{name}",
                "connection.username": str(server["user"]),
                "connection.password": "none",
                "insert.mode": "upsert",
                "delete.enabled": "true",
                "primary.key.mode": "record_key",
                "schema.evolution": "basic",
                "collection.name.format": f"copy_{table}",
                "consumer.override.auto.offset.reset": "earliest",
                **({} if converter == SIMPLE else {"header.converter": converter}),
            },
        )
    assert producer.flush(30) == 0
    for table in tables:
        wanted = postgres.execute(f"SELECT * FROM {table} ORDER BY id", name)
        deadline = time.monotonic() + 120
        while (found := _rows_of(postgres, f"copy_{table}", name)) != wanted:
            failed = worker.failure(topics[table])
            assert failed is None, failed
            assert time.monotonic() < deadline, found
            time.sleep(0.1)


def _rows_of(postgres: PostgresServer, table: str, database: str) -> list[tuple[Any, ...]]:
    try:
        return postgres.execute(f"SELECT * FROM {table} ORDER BY id", database)
    except psycopg.errors.UndefinedTable:
        return []


def test_a_changed_key_s_headers_are_what_connect_writes_of_its_struct(
    connect: Connect, postgres: PostgresServer, database: str, tmp_path: Path
) -> None:
    """As ``SimpleHeaderConverter`` spells the struct that Connect's JSON converter reads."""
    name = database.rsplit("/", 1)[1].split("?")[0]
    key = '(id, "o""dd", n, b, by)'
    postgres.execute(
        'CREATE TABLE t (id int, "o""dd" text, n numeric(10,2), b boolean, by bytea, '
        f"PRIMARY KEY {key})",
        name,
    )
    row = r"""(1, E'é"\\\n\t𝄞', -1234.50, true, '\x00ff')"""
    postgres.execute(f"INSERT INTO t VALUES {row}", name)
    with capturing(tmp_path, "postgres", database) as config:
        wait_for(config, 1)
        postgres.execute("UPDATE t SET id = 2", name)
        wait_for(config, 2)
    for decimal in get_args(DecimalMode):
        handling = ValueModes(decimal, "adaptive", "bytes", schemas=True)
        found = sent(config, Debezium(handling=handling))
        assert [[n for n, _ in each["headers"] or ()] for each in found] == [
            [], ["__debezium.newkey"], ["__debezium.newkey"], ["__debezium.oldkey"],
        ]  # fmt: skip
        keys = [
            each.key()
            for each in connect.records("t", [(each["key"], each["value"]) for each in found])
        ]
        values = connect.jvm.org.apache.kafka.connect.data.Values
        old, new = (values.convertToString(key.schema(), key) for key in (keys[0], keys[-1]))
        assert [each["headers"][0][1] for each in found[1:]] == [new, new, old]


def test_flink_reads_the_changes(
    postgres: PostgresServer, database: str, tmp_path: Path, connect: Connect
) -> None:
    """Its ``debezium-json``, with schemas and without. It wants old rows, and no truncate."""
    name = database.rsplit("/", 1)[1].split("?")[0]
    postgres.execute(CREATE + ";ALTER TABLE t REPLICA IDENTITY FULL", name)
    postgres.execute(f"INSERT INTO t VALUES {ROW.format(id=9, long='')}", name)
    with capturing(tmp_path, "postgres", database) as config:
        wait_for(config, 1)
        for sql in (
            f"INSERT INTO t VALUES {ROW.format(id=1, long='')}, {ROW.format(id=2, long=LONG)}",
            "UPDATE t SET x = 'later', n = NULL WHERE id = 1",
            "UPDATE t SET id = 30 WHERE id = 2",
            "DELETE FROM t WHERE id = 1",
        ):
            postgres.execute(sql, name)
        wait_for(config, 6)
    columns = {"id": "INT", "i2": "SMALLINT", "i8": "BIGINT", "f8": "DOUBLE", "b": "BOOLEAN",
               "n": "DECIMAL", "x": "STRING", "j": "STRING", "u": "STRING"}  # fmt: skip
    for schemas in (False, True):
        written = messages(config, Debezium(handling=ValueModes(schemas=schemas)))
        rows = connect.flink(written, columns, schemas=schemas)
        assert [(kind, row["id"]) for kind, row in rows] == [
            ("+I", "9"), ("+I", "1"), ("+I", "2"), ("-U", "1"), ("+U", "1"),
            ("-D", "2"), ("+I", "30"), ("-D", "1"),
        ]  # fmt: skip
        assert rows[1][1] == {
            "id": "1", "i2": "-8", "i8": "9007199254740993", "f8": "0.1", "b": "True",
            "n": "-1234.5000000000", "x": 'é "𝄞"', "j": '{"a": 1}',
            "u": "6f8b6f6e-0000-4000-8000-000000000001",
        }  # fmt: skip
        assert (rows[3][1]["x"], rows[4][1]["x"], rows[4][1]["n"]) == ('é "𝄞"', "later", None)
    truncate = json.dumps({"before": None, "after": None, "op": "t"}).encode()
    with pytest.raises(Py4JJavaError, match="Corrupt Debezium JSON"):
        connect.flink([(None, truncate)], columns, schemas=False)


def test_mysql_partial_rows_fit_their_schema(
    mysql_family: MySqlFamilyServer, mysql_family_database: str, tmp_path: Path, connect: Connect
) -> None:
    """A minimal image lacks columns, also of types that have no place for a placeholder."""
    name = mysql_family_database
    mysql_family.execute(
        "CREATE TABLE t (id BIGINT UNSIGNED PRIMARY KEY, a INT, b DECIMAL(10,2), c VARBINARY(9), "
        "d TEXT, e DATETIME)",
        name,
    )
    url = mysql_family.dsn(name)
    row = "(18446744073709551615, 1, 2.50, x'00ff', 'x', '2024-02-29 01:02:03')"
    with capturing(tmp_path, url.split(":")[0], url, f"{name}.t") as config:
        mysql_family.execute(f"INSERT INTO t VALUES {row}", name)
        wait_for(config, 1)
        with mysql_family.connect(name) as connection, connection.cursor() as cursor:
            cursor.execute("SET SESSION binlog_row_image = 'MINIMAL'")
            cursor.execute("UPDATE t SET a = 2")
            connection.commit()
        wait_for(config, 2)
    records = connect.records("t", messages(config, Debezium(handling=TYPED)))
    # On MariaDB the row is read again behind the update.
    after = next(each.value() for each in records if each.value().get("op") == "u").get("after")
    found = {column: after.get(column) for column in "abde"}
    assert found == {"a": 2, "b": None, "d": UNAVAILABLE, "e": None}
    assert bytes(after.get("c")).decode() == UNAVAILABLE
