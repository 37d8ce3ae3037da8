"""Random transactions of everything that writes rows, with kills: the log replays to the table."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pymysql
import pytest
from tests.integration.mysql.log_capture import LogCapture, Row
from tests.support.mysql import MariaDbServer, MySqlFamilyServer, MySqlServer

from tidelog.errors import ConnectionLostError
from tidelog.ports import NullRegistry
from tidelog.state.sqlite import SqliteState

pytestmark = pytest.mark.integration

Make = Callable[..., LogCapture]


def statement(chance: random.Random) -> list[str]:
    """One that may fail, or change a row of another key: the unique key is of any case."""
    i, j = chance.randint(1, 30), chance.randint(1, 30)
    v = chance.choice("abcdeABCDE") + str(chance.randint(0, 9))
    return chance.choice(
        [
            [f"INSERT INTO t VALUES ({i}, '{v}') ON DUPLICATE KEY UPDATE v = '{v}'"],
            [f"INSERT INTO t VALUES ({i}, '{v}') ON DUPLICATE KEY UPDATE id = {j}"],
            [f"REPLACE INTO t VALUES ({i}, '{v}'), ({j}, '{v.swapcase()}')"],
            ["SAVEPOINT s", f"DELETE FROM t WHERE id > {i}", "ROLLBACK TO SAVEPOINT s"],
            [f"UPDATE t SET v = upper(v) WHERE v = '{v}'"],
            [f"INSERT IGNORE INTO t VALUES ({i}, '{v}'), ({j}, '{v}')"],
            [f"UPDATE IGNORE t SET id = {j} WHERE id = {i}"],
            [f"UPDATE t SET id = id + 100 WHERE id < {i}", "UPDATE t SET id = id - 100"],
            [f"DELETE FROM t WHERE id = {i}"],
        ]
    )


def replayed(rows: list[Row]) -> dict[int, str]:
    """Every record must fit what the ones before it made."""
    table: dict[int, Any] = {}
    for row in rows:
        if row.old is not None:
            assert table.pop(row.old["id"]) == row.old["v"]
        if row.new is not None:
            assert row.new["id"] not in table
            table[row.new["id"]] = row.new["v"]
    return table


def killed(
    capture: LogCapture, make: Make, state: SqliteState, chance: random.Random
) -> LogCapture:
    """Capture that goes on after a kill -9 at which some of what it had read was not durable."""
    resume = chance.choice(capture.resumes[-10:])
    capture.reader.close()
    again = make(state=state, schemas=capture.schemas)
    durable = (resume.position, resume.ordinal)
    again.rows = [row for row in capture.rows if (row.position, row.ordinal) <= durable]
    again.resumes = [resume]
    again.start(resume)
    return again


def replay_random(
    server: MySqlFamilyServer, database: str, make: Make, directory: Path, *, server_too: bool
) -> None:
    seed = random.randrange(1 << 30)
    print("seed", seed)
    chance = random.Random(seed)
    state = SqliteState(directory / "state.db")
    columns = "id int PRIMARY KEY, v varchar(20) COLLATE utf8mb4_general_ci UNIQUE"
    server.execute(f"CREATE TABLE t ({columns})", database)
    capture = make(state=state)
    capture.start()
    session = server.connect(database, autocommit=False)
    for number in range(300):
        with session.cursor() as cursor:
            for _ in range(chance.randint(1, 4)):
                with contextlib.suppress(pymysql.MySQLError):
                    for one in statement(chance):
                        cursor.execute(one)
        if server_too and number % 60 == 40:
            server.kill()  # in the midst of a transaction
            server.start()
            session = server.connect(database, autocommit=False)
        elif chance.random() < 0.8:
            session.commit()
        else:
            session.rollback()
        if number % 20 == 10:
            with contextlib.suppress(ConnectionLostError):
                capture.poll()
            if capture.resumes:
                capture = killed(capture, make, state, chance)
    session.commit()
    session.close()
    capture.catch_up()
    expected = dict(server.execute("SELECT id, v FROM t", database))
    assert replayed(capture.rows) == expected
    assert {row.kind for row in capture.rows} == {"I", "U", "D"}
    assert capture.places == sorted(set(capture.places))


def test_replaying_random_transactions_gives_the_table(
    make_capture: Make,
    mysql_family: MySqlFamilyServer,
    mysql_family_database: str,
    tmp_path: Path,
) -> None:
    replay_random(mysql_family, mysql_family_database, make_capture, tmp_path, server_too=False)


@pytest.mark.thorough
@pytest.mark.parametrize("run", range(3))
@pytest.mark.parametrize("kind", [MySqlServer, MariaDbServer])
def test_replaying_random_transactions_of_a_server_that_is_killed(
    kind: type[MySqlFamilyServer], run: int, tmp_path: Path
) -> None:
    made: list[LogCapture] = []

    def make(**options: Any) -> LogCapture:
        schemas = options.pop("schemas", None) or NullRegistry()
        made.append(LogCapture(server, ("shop.*",), schemas=schemas, options=options))
        return made[-1]

    with kind() as server:
        server.create_database("shop")
        replay_random(server, "shop", make, tmp_path, server_too=True)
        for capture in made:
            capture.reader.close()
