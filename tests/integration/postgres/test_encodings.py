"""Databases that are not UTF-8: no byte of a value or a name ends the stream, and all pass."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from tests.integration.postgres.conftest import Capture, rows_of
from tests.integration.windows.live import Live, replay
from tests.support.postgres import PostgresServer
from tests.support.postgres_parts import preflight

from tidelog.codecs.postgres import server_texts
from tidelog.codecs.postgres.server_texts import server_text
from tidelog.errors import PreflightError
from tidelog.model.schema import TableName
from tidelog.ports import ChunkRequest, NullRegistry
from tidelog.sources.postgres.chunks.reader import PostgresChunkReader
from tidelog.sources.postgres.stream.replication import ReplicationStream

pytestmark = pytest.mark.integration

_numbers = itertools.count(1)

# A literal's bytes, and what they are as text.
TEXTS = {
    "SQL_ASCII": {
        r"caf\xE9": "caf\uefe9",
        r"caf\xC3\xA9": "café",
        r"\xEE\xBF\xA9": "\uefee\uefbf\uefa9",  # U+EFE9 itself: another value than \xE9
        r"\xFF\\\t": "\uefff\\\t",
    },
    "WIN1252": {r"\x81": "\uef81", r"\x80 caf\xE9": "€ café", r"\xC3\xA9": "Ã©"},
    "LATIN1": {r"\x81": "\x81", r"caf\xE9": "café"},
    "EUC_JP": {
        r"\xC6\xFC\xCB\xDC": "日本",
        r"\xAD\xA1": "①",  # the server has it, Python's codec not
        r"\xA1\xC1": "～",
        r"\xAD\xFE\xC6\xFC": "\uefad\ueffe日",  # the first is valid, and no character
        r"\xAD\xE2": "№",
        r"\x8F\xF4\xAC": "\uef8f\ueff4\uefac",  # a second code of the same character
    },
    "EUC_KR": {r"\xC7\xD1\xB1\xB9": "한국", r"\xA2\xE8": "㉾"},
}


def database_of(server: PostgresServer, encoding: str) -> str:
    name = f"encoded_{next(_numbers)}"
    server.execute(
        f"CREATE DATABASE {name} ENCODING '{encoding}' TEMPLATE template0 "
        "LC_COLLATE 'C' LC_CTYPE 'C'"
    )
    return name


@pytest.fixture(params=TEXTS)
def encoding(request: pytest.FixtureRequest) -> str:
    found: str = request.param
    return found


@pytest.fixture
def database(postgres: PostgresServer, encoding: str) -> Iterator[str]:
    name = database_of(postgres, encoding)
    yield postgres.dsn(name)
    postgres.drop_database(name)


@pytest.fixture
def sql(database: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(database, autocommit=True, client_encoding="utf8") as connection:
        yield connection


def write(sql: psycopg.Connection[Any], literals: dict[str, str]) -> None:
    for literal in literals:
        sql.execute(f"INSERT INTO t VALUES (E'{literal}', E'v{literal}')".encode("ascii"))


def test_log_and_dump_agree_on_every_byte(
    make_capture: Callable[..., Capture], sql: psycopg.Connection[Any], database: str, encoding: str
) -> None:
    literals = TEXTS[encoding]
    sql.execute("CREATE TABLE t (k text PRIMARY KEY, v text)")
    capture = make_capture(tables=("public.*",))
    capture.start()
    write(sql, literals)
    first = next(iter(literals))
    sql.execute(f"UPDATE t SET k = k || 'x' WHERE k = E'{first}'".encode("ascii"))
    capture.catch_up(sql)
    inserted = [row.new for row in capture.rows if row.kind == "I"]
    assert inserted == [{"k": text, "v": f"v{text}"} for text in literals.values()]
    (update,) = [row for row in capture.rows if row.kind == "U"]
    assert update.old == {"k": literals[first]}
    reader = PostgresChunkReader(database, NullRegistry(), strategy="snapshot")
    try:
        table, after, found = TableName("public", "t"), None, []
        while True:  # a row a chunk: every key is a bound
            request = ChunkRequest(table, after=after, limit_rows=1)
            chunk = reader.read(request)
            reader.release()
            found += [row.new for row in rows_of(chunk.rows, reader._registry)]
            after = chunk.last_key
            if chunk.exhausted:
                break
        expected = {text: f"v{text}" for text in literals.values()}
        expected[literals[first] + "x"] = expected.pop(literals[first])
        assert {row["k"]: row["v"] for row in found} == expected
        assert len(found) == len(expected)
        ends = reader.boundaries(ChunkRequest(table, limit_rows=1), 100)
        assert [end[0] for end in ends] == [row["k"] for row in found]
        keys = tuple((text,) for text in [*expected, "absent"])
        chunk = reader.read(ChunkRequest(table, keys=keys))
        reader.release()
        assert len(chunk.rows) == len(keys)
    finally:
        reader.close()


def test_names_pass_as_values_do(
    make_capture: Callable[..., Capture], sql: psycopg.Connection[Any], encoding: str
) -> None:
    text = next(iter(TEXTS[encoding].values()))
    converted = server_text(encoding)
    assert converted is not None
    raw = converted.encode(text)
    quoted = b'"' + raw + b'"'
    raw_sql = sql.pgconn.exec_
    sql.execute(f"SET client_encoding = '{encoding}'")
    raw_sql(b"CREATE TABLE " + quoted + b" (" + quoted + b" int PRIMARY KEY, v text)")
    capture = make_capture(tables=("public.*",))
    capture.start()
    raw_sql(b"INSERT INTO " + quoted + b" VALUES (1, 'a')")
    sql.execute("SET client_encoding = 'UTF8'")
    (row,) = capture.catch_up(sql)
    assert (row.table, row.new) == (f"public.{text}", {text: "1", "v": "a"})
    reader = PostgresChunkReader(capture.dsn, capture.schemas, strategy="snapshot")

    chunk = reader.read(ChunkRequest(TableName("public", text)))
    assert chunk.schema == capture.schemas.latest(TableName("public", text))
    assert [r.new for r in rows_of(chunk.rows, capture.schemas)] == [row.new]
    reader.close()


@pytest.mark.parametrize("encoding", ["SQL_ASCII", "WIN1252"])
def test_capture_and_dumps_continue_over_such_values(
    postgres: PostgresServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, encoding: str
) -> None:
    name = database_of(postgres, encoding)
    live = Live(postgres.dsn(name), tmp_path, monkeypatch, snapshot="initial", chunk_rows=2)
    try:
        texts = TEXTS[encoding]
        live.sql.execute("CREATE TABLE t (k text PRIMARY KEY, n int)")
        for literal in texts:
            live.sql.execute(f"INSERT INTO t VALUES (E'{literal}', 1)")
        live.start()
        live.wait_for(live.completions, "the initial dump")
        live.sql.execute("UPDATE t SET n = 2")
        live.sql.execute(f"DELETE FROM t WHERE k = E'{next(iter(texts))}'")
        live.catch_up()
        live.dumped(live.dump())
        replayed = replay(live.events("public.t"))
        assert replayed == {(k,): {"k": k, "n": "2"} for k in [*texts.values()][1:]}
    finally:
        live.close()
        postgres.drop_database(name)


@pytest.mark.parametrize("encoding", [*server_texts._CODECS])
def test_characters_are_the_servers_own(postgres: PostgresServer, encoding: str) -> None:
    """Every code that the server converts, but for the second codes of a character."""
    texts = server_text(encoding)
    assert texts is not None
    codes = codes_of(encoding)
    with psycopg.connect(postgres.dsn(), autocommit=True) as sql:
        sql.execute(
            "CREATE OR REPLACE FUNCTION pg_temp.converted(b bytea, e text) RETURNS text "
            "LANGUAGE plpgsql AS $$ BEGIN RETURN convert_from(b, e); "
            "EXCEPTION WHEN OTHERS THEN RETURN NULL; END $$"
        )
        name = "UTF8" if encoding == "SQL_ASCII" else encoding
        rows = sql.execute(
            "SELECT pg_temp.converted(b, %s) FROM unnest(%s::bytea[]) WITH ORDINALITY u (b, n) "
            "ORDER BY n",
            (name, codes),
        ).fetchall()
    seen: set[str] = set()
    differ = []
    for code, (text,) in zip(codes, rows, strict=True):
        ours = texts.decode(code)
        assert texts.encode(ours) == code
        assert ours not in seen
        seen.add(ours)
        kept = "".join(chr(0xEF00 + byte) for byte in code)
        if ours != (kept if text is None else text):
            differ.append((code, text, ours == kept))
    assert [code for code, _, as_bytes in differ if not as_bytes] == []
    assert len(differ) == (23 if encoding == "EUC_JP" else 0)


def codes_of(encoding: str) -> list[bytes]:
    if encoding == "SQL_ASCII":
        return [bytes([byte]) for byte in range(0x80, 0x100)] + [
            chr(c).encode() for c in range(0x80, 0x3000)
        ]
    if not encoding.startswith("EUC"):
        return [bytes([byte]) for byte in range(0x80, 0x100)]
    high = range(0xA1, 0xFF)
    codes = [bytes(pair) for pair in itertools.product(high, high)]
    if encoding == "EUC_JP":
        codes += [bytes([0x8E, byte]) for byte in high]
        codes += [bytes([0x8F, *pair]) for pair in itertools.product(high, high)]
    return codes


@pytest.mark.parametrize("encoding", ["EUC_TW", "EUC_JIS_2004", "MULE_INTERNAL"])
def test_an_encoding_that_we_can_not_convert_is_refused(database: str, encoding: str) -> None:
    """Before anything is made in the source: one value could end capture later."""
    said = f"encoding is {encoding}, whose texts Tidelog can't convert"
    [found] = preflight(database).check()
    assert (found.name, found.level) == ("connection", "error")
    assert said in found.message
    with pytest.raises(PreflightError, match=said):
        Capture(database).start()
    with pytest.raises(PreflightError, match=said):
        ReplicationStream(database).identify()
