"""Random transactions of everything that writes rows: replaying the log gives the table."""

from __future__ import annotations

import contextlib
import random
from typing import Any

import pymysql
import pytest
from tests.integration.mysql.log_capture import LogCapture, Row

from tidelog.testing.mysql import MySqlFamilyServer

pytestmark = pytest.mark.integration


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


def test_replaying_random_transactions_gives_the_table(
    capture: LogCapture, mysql_family: MySqlFamilyServer, mysql_family_database: str
) -> None:
    seed = random.randrange(1 << 30)
    print("seed", seed)
    chance = random.Random(seed)
    columns = "id int PRIMARY KEY, v varchar(20) COLLATE utf8mb4_general_ci UNIQUE"
    mysql_family.execute(f"CREATE TABLE t ({columns})", mysql_family_database)
    capture.start()
    with (
        mysql_family.connect(mysql_family_database, autocommit=False) as session,
        session.cursor() as cursor,
    ):
        for number in range(300):
            for _ in range(chance.randint(1, 4)):
                with contextlib.suppress(pymysql.MySQLError):
                    for one in statement(chance):
                        cursor.execute(one)
            if chance.random() < 0.8:
                session.commit()
            else:
                session.rollback()
            if number % 100 == 50:  # in the midst of what is to come
                capture.catch_up()
                capture.start(capture.resumes[-1])
        session.commit()
    capture.catch_up()
    expected = dict(mysql_family.execute("SELECT id, v FROM t", mysql_family_database))
    assert replayed(capture.rows) == expected
    assert {row.kind for row in capture.rows} == {"I", "U", "D"}
    assert capture.places == sorted(set(capture.places))
