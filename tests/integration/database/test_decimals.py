"""Decimals of more digits than Arrow's keep all of them, in columns as wide as the source's."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pyarrow.compute as pc
import pytest
from tests.integration.database.copies import Copy, copy_of, folded, numbered
from tests.integration.mysql.value_rows import ValueTable, log_batch, records
from tests.support.mysql import MySqlFamilyServer
from tests.support.postgres import PostgresServer

from tidelog.errors import OutputRefusedError
from tidelog.outputs.database.mysql import MySql
from tidelog.outputs.database.postgres import Postgres

pytestmark = pytest.mark.integration

WIDTHS = ((65, 0), (50, 5), (39, 0), (65, 30), (39, 1), (40, 30), (38, 10))


def edges(precision: int, scale: int) -> list[str]:
    most, least = Decimal((0, (9,) * precision, -scale)), Decimal((0, (1,), -scale))
    return [f"{value:f}" for value in (most, most.copy_negate(), least, least.copy_negate())]


def _copied(
    server: MySqlFamilyServer,
    database: str,
    place: Any,
    widths: tuple[tuple[int, int], ...],
    since: int = 0,
) -> tuple[Copy, list[tuple[Any, ...]]]:
    """A copy of the edges of each width, with versions after ``since``; the source's rows."""
    names = [f"c{n}" for n in range(len(widths))]
    typed = [f"{c} decimal({p},{s})" for c, (p, s) in zip(names, widths, strict=True)]
    with server.connect(database) as session:
        table = ValueTable(server, database, session)
        table.create(f"id int PRIMARY KEY, {', '.join(typed)}")
        for key, row in enumerate(zip(*(edges(*width) for width in widths), strict=True)):
            table.run(f"INSERT INTO t VALUES ({key}, {', '.join(row)})")
        schema = numbered(table.schema())
        batch = records(log_batch(table.logged()))
        rows = table.run("SELECT * FROM t ORDER BY id")
    copy = copy_of(place, schema, server.flavor, f"copy_{database}", own=f"own_{database}")
    written = folded(batch, copy.table)
    versions = pc.add(written.column(1), since)
    assert copy.write(written.set_column(1, "_tidelog_version", versions)) == []
    return copy, rows


@pytest.mark.parametrize("target", ["same", "postgres"])
def test_edges_of_each_width(
    mysql_family: MySqlFamilyServer,
    mysql_family_database: str,
    postgres18: PostgresServer,
    target: str,
) -> None:
    name = f"decimals_{mysql_family_database}"
    place: Any = MySql(mysql_family.dsn())
    if target == "postgres":
        place = Postgres(postgres18.create_database(name))
    copy, rows = _copied(mysql_family, mysql_family_database, place, WIDTHS)
    names = ", ".join(f"c{n}" for n in range(len(WIDTHS)))
    assert copy.select(f"SELECT id, {names} FROM {{t}} ORDER BY id") == rows
    if target == "same":
        mysql_family.drop_database(copy.own)
        mysql_family.drop_database(copy.namespace)


def test_a_column_follows_the_digits_of_the_source(
    mysql_family: MySqlFamilyServer, mysql_family_database: str
) -> None:
    """Else the server would round what it has no digits for, without a word."""
    place = MySql(mysql_family.dsn())
    for since, width in ((0, (39, 0)), (10, (50, 5)), (20, (65, 20)), (30, (65, 0))):
        copy, rows = _copied(mysql_family, mysql_family_database, place, (width,), since)
        assert copy.select("SELECT id, c0 FROM {t} ORDER BY id") == rows
    copy.select("DELETE FROM {t}")
    copy.select("ALTER TABLE {t} DROP COLUMN _tidelog_version, MODIFY c0 decimal(40,0)")
    with pytest.raises(OutputRefusedError, match=r"decimal\(40,0\).*can't store all values"):
        copy.prepare()  # somebody's own table, which is not ours to alter
    copy.select("ALTER TABLE {t} MODIFY c0 decimal(65,0)")
    copy.prepare()
    mysql_family.drop_database(copy.own)
    mysql_family.drop_database(copy.namespace)
