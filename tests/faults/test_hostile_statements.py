"""Roles that want to harm capture: whatever they run, what is committed after it still arrives.

Statements are drawn by a seed, which a failure prints; TIDELOG_HOSTILE_SEED runs another one.
"""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import sql
from tests.faults.capture_fixture import Source
from tests.support.postgres import PostgresServer

from tidelog import app

pytestmark = [pytest.mark.integration, pytest.mark.slow]
SEED = os.environ.get("TIDELOG_HOSTILE_SEED", "1")
BATCHES, STATEMENTS = 8, 40

NAMES = (
    'quo"te',
    "new\nline",
    " leading",
    "dots.and.more",
    "ünï-ко́д-🐍",
    "x" * 63,
    "é" * 31,
    "%s %(a)s {0} $1",
    "\\back\\slash",
    "a'b;--",
    "\t\x01\x1b[31m",
    "..",
    "watermark",
    "[red]",
    "a/../../b",
)
TEXTS = (
    "",
    "{",
    "null",
    "[]",
    "NaN",
    "[" * 50_000,
    '{"a":' * 20_000,
    '{"data-collections": ["(.|.|.)*!"]}',
    '{"data-collections": ["((a+)+)+!", "*", "(", "\\\\", "\\u0000", "\\udcff"]}',
    '{"data-collections": ["' + "(a?){1000}" * 50 + '"]}',
    '{"data-collections": [' + ",".join(['".*"'] * 5000) + "]}",
    '{"data-collections": ["public.none"], "type": "blocking"}',
    '{"data-collections": 5, "type": [], "additional-conditions": {}}',
    '{"data-collections": ["app.t"], "additional-conditions": '
    '[{"data-collection": "app.t", "filter": "id = 1e999999 OR \\u0000"}]}',
    '{"data-collections": ["app.t"], "surrogate-key": "' + "k" * 3000 + '"}',
    '{"message": "two\\nlines \\u001b[31m {} {0} %s"}',
    "1" * 5000,
    "\x01\x1b[31m\r\n",
    "é🐍" * 1000,
    "x" * 1_200_000,
)
TYPES = ("execute-snapshot", "stop-snapshot", "log", "pause-snapshot", "resume-snapshot")


class Hostile:
    """Draws statements that `run` runs as the role ``mallory``; the server may refuse them."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng

    def draw(self) -> Callable[[psycopg.Connection[Any]], Any]:
        return self._rng.choice(
            (
                *[self._message] * 3,
                *[self._signal] * 3,
                self._mark,
                self._create,
                self._create,
                self._change,
                self._change,
                self._subtransactions,
                self._temporary,
            )
        )()

    def _plain(
        self, statement: str, *values: Any, names: tuple[str, ...] = ()
    ) -> Callable[[psycopg.Connection[Any]], Any]:
        composed = sql.SQL(statement).format(*map(sql.Identifier, names))  # type: ignore[arg-type]
        return lambda connection: connection.execute(composed, values or None)

    def _message(self) -> Callable[[psycopg.Connection[Any]], Any]:
        prefix = self._rng.choice(("tidelog.watermark", "tidelog", "", "app", "p" * 70_000, "\n"))
        content = self._rng.choice(
            (
                b"",
                b"\xff",
                b"\0",
                b"x" * 2_000_000,
                b"\xed\xa0\x80",
                b"00" * 16 + b":high",
                os.urandom(40),
            )
        )
        statement = "SELECT pg_logical_emit_message(%s, %s, %s::bytea)"
        return self._plain(statement, self._rng.random() < 0.5, prefix, content)

    def _signal(self) -> Callable[[psycopg.Connection[Any]], Any]:
        id_, type_ = (
            self._rng.choice((*NAMES, None, "", "x" * 70_000)),
            self._rng.choice((*TYPES, *TYPES, *TYPES, None, "", "\n", "y" * 2_000_000)),
        )
        data = self._rng.choice((*TEXTS, None))
        return self._plain("INSERT INTO public.signals VALUES (%s, %s, %s)", id_, type_, data)

    def _mark(self) -> Callable[[psycopg.Connection[Any]], Any]:
        return self._plain(
            *self._rng.choice(
                (
                    ("UPDATE tidelog.watermark SET mark = %s", "m" * 1_000_000),
                    ("UPDATE tidelog.watermark SET mark = %s", "\x01\n"),
                    ("DELETE FROM tidelog.watermark",),
                    ("TRUNCATE tidelog.watermark, public.signals",),
                    ("INSERT INTO tidelog.watermark VALUES (1, %s)", ""),
                    ("DELETE FROM public.signals",),
                    ("UPDATE public.signals SET type = 'pause-snapshot'",),
                )
            )
        )

    def _create(self) -> Callable[[psycopg.Connection[Any]], Any]:
        table, column, other = self._rng.choices(NAMES, k=3)
        return self._plain(
            self._rng.choice(
                (
                    "CREATE TABLE mallory.{} ({} int PRIMARY KEY, {} text)",
                    "CREATE TABLE mallory.{} ({} text, {} text)",
                    "CREATE TABLE mallory.{} ({} int PRIMARY KEY, {} mallory.mood)",
                )
            ),
            names=(table, column, other),
        )

    def _change(self) -> Callable[[psycopg.Connection[Any]], Any]:
        table, name = self._rng.choices(NAMES, k=2)
        statement = self._rng.choice(
            (
                "INSERT INTO mallory.{} VALUES (1, 'happy')",
                "INSERT INTO mallory.{} SELECT i, 'sad' FROM generate_series(2, 500) i",
                "DELETE FROM mallory.{}",
                "TRUNCATE mallory.{}",
                "DROP TABLE mallory.{}",
                "COMMENT ON TABLE mallory.{} IS E'\\n\\x01 */ -- ;'",
                "ALTER TABLE mallory.{} ADD {} text DEFAULT E'\\n'",
                "ALTER TABLE mallory.{} DROP {}",
                "ALTER TABLE mallory.{} RENAME TO {}",
                "ALTER TABLE mallory.{} REPLICA IDENTITY FULL",
                "ALTER TABLE mallory.{} REPLICA IDENTITY NOTHING",
            )
        )
        return self._plain(statement, names=(table, name)[: statement.count("{}")])

    def _subtransactions(self) -> Callable[[psycopg.Connection[Any]], Any]:
        """Of which some are rolled back, with messages that are not."""

        def run(connection: psycopg.Connection[Any]) -> None:
            with connection.transaction():
                for i in range(30):
                    with suppress(psycopg.Error), connection.transaction():
                        connection.execute(
                            "SELECT pg_logical_emit_message(%s, 'tidelog.watermark', %s)",
                            (i % 2 == 0, "00" * 16 + ":low"),
                        )
                        if i % 3:
                            raise psycopg.Error
                raise psycopg.Rollback

        return run

    def _temporary(self) -> Callable[[psycopg.Connection[Any]], Any]:
        return self._plain(
            self._rng.choice(
                (
                    "CREATE TEMPORARY TABLE watermark (id int PRIMARY KEY, mark text)",
                    "DROP TABLE IF EXISTS pg_temp.watermark",
                    "SELECT lo_create(0) FROM generate_series(1, 100)",
                    "DO $$ BEGIN CREATE TYPE mallory.mood AS ENUM ('happy', 'sad'); END $$",
                )
            )
        )


@pytest.fixture
def source(database: str, tmp_path: Path) -> Iterator[Source]:
    made = Source(database, tmp_path)
    yield made
    made.close()


@pytest.fixture
def mallory(source: Source, postgres: PostgresServer) -> Iterator[psycopg.Connection[Any]]:
    """A role that owns a captured schema, and may write to our tables."""
    name = "mallory_" + source.dsn.rsplit("/", 1)[1]
    source.sql.execute(
        f"CREATE ROLE {name} LOGIN; CREATE SCHEMA mallory AUTHORIZATION {name};"
        "CREATE TABLE public.signals (id text, type text, data text);"
        f"GRANT ALL ON public.signals TO {name}".encode()
    )
    with psycopg.connect(source.dsn, user=name, autocommit=True) as connection:
        yield connection
    source.sql.execute(f"DROP OWNED BY {name} CASCADE; DROP ROLE {name}".encode())


def arrived(source: Source) -> set[int]:
    changes = (change for change in source.records() if change.table == "app.t")
    return {int(change.new["id"] or 0) for change in changes if change.op == "I" and change.new}


@pytest.mark.parametrize(
    "watermarks", ["table", pytest.param("message", marks=pytest.mark.thorough)]
)
@pytest.mark.timeout(900)
def test_changes_arrive_whatever_a_hostile_role_runs(
    source: Source, mallory: psycopg.Connection[Any], watermarks: str
) -> None:
    slot = "slot_" + source.dsn.rsplit("/", 1)[1]
    section = {
        "kind": "postgres",
        "url": source.dsn,
        "tables": ["app.*", "mallory.*"],
        "slot": slot,
        "watermarks": watermarks,
        "signal_table": "public.signals",
    }
    source.config_file.write_text(
        f"source: {json.dumps(section)}\nlog: {{path: '{source.directory}/log'}}\n"
        f"state: {{url: 'sqlite:///{source.directory}/state.db'}}\n"
        "capture: {flush_ms: 10, lease_ms: 5000}\n"
    )
    print(f"TIDELOG_HOSTILE_SEED={SEED}")
    hostile = Hostile(random.Random(f"{SEED} {watermarks}"))
    capture = source.start()
    source.write(1, 10)
    source.wait_led()
    if watermarks == "table":
        source.sql.execute(
            f"GRANT USAGE ON SCHEMA tidelog TO {mallory.info.user};"
            f"GRANT ALL ON tidelog.watermark TO {mallory.info.user}".encode()
        )
    refused = 0
    for batch in range(BATCHES):
        for _ in range(STATEMENTS):
            try:
                hostile.draw()(mallory)
            except psycopg.Error:
                refused += 1
        sentinel = 1000 + batch
        source.write(sentinel, sentinel)
        source.wait_for(lambda sentinel=sentinel: capture.died or sentinel in arrived(source))
        assert not capture.died, capture.log_file.read_text()
    assert refused < BATCHES * STATEMENTS * 0.7
    assert app.status(source.config).document["leader"]
    assert "Traceback" not in capture.log_file.read_text()
    assert "\x1b" not in capture.log_file.read_text()
    assert capture.stop() == 0
