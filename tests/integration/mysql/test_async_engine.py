"""An engine over MySQL and MariaDB: one task, the dump's rows and changes, and on from there."""

from __future__ import annotations

import pytest
from tests.support.engines import no_threads_left, until
from tests.support.make_engine import MakeEngine
from tests.support.mysql import MySqlFamilyServer

from tidelog.engine.events import Event
from tidelog.engine.ports import Message

pytestmark = pytest.mark.integration


def test_rows_of_a_dump_and_changes_come_and_continue_after_a_restart(
    mysql_family: MySqlFamilyServer, mysql_family_database: str, make_engine: MakeEngine
) -> None:
    name = mysql_family_database
    mysql_family.execute("CREATE TABLE orders (id int PRIMARY KEY, note text)", name)
    mysql_family.execute("INSERT INTO orders VALUES (1, 'one'), (2, 'two')", name)
    make_engine.of(kind=mysql_family.flavor, url=mysql_family.dsn(), tables=[f"{name}.orders"])
    seen: list[Event] = []
    with make_engine(consumer=seen.append, consume_records_async=True, order="key"):
        until(lambda: len(seen) == 2, "the dump")
        mysql_family.execute("UPDATE orders SET id = 3, note = 'three' WHERE id = 1", name)
        mysql_family.execute("DELETE FROM orders WHERE id = 2", name)
        until(lambda: len(seen) == 5, "the changes")
    assert sorted((e.key["id"], e.op) for e in seen[:2]) == [(1, "r"), (2, "r")]
    assert sorted((e.key["id"], e.op) for e in seen[2:]) == [(1, "d"), (2, "d"), (3, "c")]
    assert {(e.source.kind, str(e.table)) for e in seen} == {
        (mysql_family.flavor, f"{name}.orders")
    }

    def show_processes() -> list[str]:
        rows = mysql_family.execute("SHOW PROCESSLIST")
        return [str(row) for row in rows if "Binlog Dump" in str(row)]

    until(lambda: not show_processes(), "the end of the session that reads the binlog")
    assert no_threads_left()

    mysql_family.execute("INSERT INTO orders VALUES (4, 'four')", name)
    messages: list[Message] = []
    with make_engine(consumer=messages.append, format="debezium"):
        until(lambda: messages, "what was missed")
    assert [m.event.after for m in messages] == [{"id": 4, "note": "four"}]
