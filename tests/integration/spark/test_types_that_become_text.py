"""A column's type becomes text in the source, by real servers: the copy has the text, or its table
is left out with the statement that alters it. Each type beside all others of its source.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from tests.behaviours.outputs.database_tables import dialect
from tests.integration.event_messages import capturing, wait_for
from tests.support.mysql import MySqlFamilyServer

from tidelog.eventlog.reader import EventLog
from tidelog.outputs.base.writer import Delivery
from tidelog.outputs.database.output import DatabaseOutput
from tidelog.spark.datasource.segment_rows import batch_of
from tidelog.state.sqlite import SqliteState

pytestmark = [pytest.mark.spark, pytest.mark.integration, pytest.mark.timeout(600)]

# A type, a value of it, and a text that the type would read as another one.
MARIADB = [
    ("bigint unsigned", "7", "007"), ("decimal(65,30)", "1", "007.50"),
    ("decimal(10,2)", "1", "007.555"), ("decimal(20,0)", "1", " 1e3"), ("int", "7", "007"),
    ("uuid", "ABCDEF00-0000-0000-0000-00000000000A", "ABCDEF00-0000-0000-0000-00000000000A"),
    ("inet6", "::2", "0:0:0:0:0:0:0:1"), ("inet4", "1.2.3.4", "1.2.3.4/32"),
    ("json", "{}", '{"b": 1,  "a": 1}'), ("time", "01:02:03", "1:2:3"), ("year", "2001", "07"),
    ("date", "2020-01-01", "2020-1-2"), ("datetime", "2020-01-01 00:00:00", "2020-1-2 3:4"),
    ("timestamp", "2020-01-01 00:00:00", "2020-1-2 3:4"), ("enum('a','b')", "a", "A"),
    ("set('a','b')", "a,b", "b,a"), ("bit(3)", "\x01", "01"), ("double", "1.5", "1.50"),
    ("float", "1.5", "1.50"), ("varchar(5)", "a", "a  "), ("char(5)", "a", "a  "),
    ("blob", "a", "\\x61"), ("tinyint(1)", "1", "01"),
]  # fmt: skip
POSTGRES = [
    ("numeric", "1", "007.50"), ("numeric(10,2)", "1", "007.555"), ("int", "7", "007"),
    ("bigint", "7", "007"), ("boolean", "t", "true"), ("double precision", "1.5", "1.50"),
    ("uuid", "ABCDEF00-0000-0000-0000-00000000000A", "ABCDEF00-0000-0000-0000-00000000000A"),
    ("inet", "::2", "0:0:0:0:0:0:0:1"), ("cidr", "10.0.0.0/8", "10.0/16"),
    ("macaddr", "00:00:00:00:00:0a", "00-00-00-00-00-0A"), ("json", "{}", '{"b": 1,  "a": 1}'),
    ("jsonb", "{}", '{"b": 1,  "a": 1}'), ("time", "01:02:03", "1:2:3"),
    ("timetz", "01:02:03+00", "1:2:3+0"), ("interval", "1 day", "24 hours 61 minutes"),
    ("date", "2020-01-01", "2020-1-2"), ("timestamp", "2020-01-01", "2020-1-2 3:4"),
    ("timestamptz", "2020-01-01", "2020-1-2 3:4"), ("bytea", "\\x61", "\\x61"),
    ("int[]", "{1}", "{ 01}"), ("numeric[]", "{1}", "{ 01}"), ("text[]", "{a}", "{ a}"),
    ("int4range", "[1,2)", "[1,1]"), ("point", "(1,2)", "1,2"), ("tsvector", "a", "b a"),
    ("pg_lsn", "0/1", "0/01"), ("bit varying", "1", "B1"),
    ("varchar(5)", "a", "a  "), ("char(5)", "a", "a  "),
]  # fmt: skip
_NEVER_LEFT_OUT = ("varchar(5)", "char(5)", "json", "enum('a','b')", "set('a','b')")


class Source:
    """Tables ``t<number>``, each with a key and a column ``v`` of one of the types."""

    def __init__(self, kind: str, request: pytest.FixtureRequest) -> None:
        self.kind = kind
        if kind == "postgres":
            self.url = request.getfixturevalue("database")
            self.pattern = "public.*"
            session: Any = psycopg.connect(self.url, autocommit=True)
            self.types = POSTGRES
        else:
            server: MySqlFamilyServer = request.getfixturevalue(f"{kind}_server")
            name = request.getfixturevalue(f"{kind}_database")
            self.url, self.pattern = server.dsn(name), f"{name}.*"
            session = server.connect(name)
            self.types = MARIADB
        self.session = session
        self.cursor = session.cursor()

    def create(self) -> None:
        for n, (kind, value, _) in enumerate(self.types):
            self.cursor.execute(f"CREATE TABLE t{n} (id int PRIMARY KEY, v {kind})")
            self.cursor.execute(f"INSERT INTO t{n} VALUES (1, %s)", (value,))

    def change(self) -> None:
        for n, (_, _, text) in enumerate(self.types):
            how = "MODIFY v varchar(60)"
            if self.kind == "postgres":
                how = "ALTER v TYPE text USING v::text"
                if self.types[n][0] == "bytea":
                    how = "ALTER v TYPE text USING convert_from(v, 'UTF8')"
            self.cursor.execute(f"ALTER TABLE t{n} {how}")
            self.cursor.execute(f"INSERT INTO t{n} VALUES (2, %s)", (text,))


@pytest.fixture(params=[("mariadb", "postgres"), ("postgres", "postgres"), ("postgres", "mysql"),
                        pytest.param(("mariadb", "mariadb"), marks=pytest.mark.thorough)],
                ids="-".join)  # fmt: skip
def pair(request: pytest.FixtureRequest) -> Iterator[tuple[Source, str]]:
    kind, target = request.param
    source = Source(kind, request)
    yield source, target
    source.session.close()


def test_a_copy_has_the_text_or_its_table_is_left_out(
    spark: Any, pair: tuple[Source, str], tmp_path: Path
) -> None:
    source, target = pair
    place, number = dialect(target), len(source.types)
    own = f"own_{source.kind}_{target}"
    source.create()
    with capturing(tmp_path, source.kind, source.url, source.pattern) as config:
        wait_for(config, number)
        log = EventLog.open(config.log.path)

        def deliver(start: int, end: int) -> tuple[dict[str, str], set[str]]:
            output = DatabaseOutput(
                spark, str(config.log.path), SqliteState(f"sqlite:///{tmp_path / 'copy.db'}"),
                Delivery("copy"), place, namespace="copies", own=own, batch_rows=50_000,
            )  # fmt: skip
            asked = set[str]()
            try:
                output.prepare(log.generation)
                output.take_again(asked.update)
                output.write(batch_of(log, start, end))
                return dict(output.left_out_tables()), asked
            finally:
                output.close()

        start, middle = log.head_offset, log.latest_offset()
        assert deliver(start, middle) == ({}, set())
        source.change()
        wait_for(config, 2 * number)
        until = log.latest_offset()
    told, _ = deliver(middle, until)
    left_out = {int(table.rpartition(".t")[2]): why for table, why in told.items()}
    session = place.connect("test")
    wrong, told_well = {}, {}
    shown = "v::text" if target == "postgres" else "CAST(v AS CHAR)"
    for n, (kind, _, text) in enumerate(source.types):
        rows = session.rows(f"SELECT {shown} FROM copies.t{n} WHERE id = 2")
        if n not in left_out and rows != [(text,)]:
            wrong[kind] = (text, rows)
        said = re.search(r"Change the table: (ALTER TABLE .*); or have it", left_out.get(n, ""))
        if said is not None:
            told_well[n] = said[1]
    assert not wrong
    assert told_well.keys() == left_out.keys()
    assert not {source.types[n][0] for n in left_out} & set(_NEVER_LEFT_OUT[:2])
    for statement in told_well.values():
        session.rows(statement)
    session.close()
    assert deliver(until, until)[1] == told.keys()  # dumps are asked for
