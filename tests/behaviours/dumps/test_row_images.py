"""``binlog_row_image`` MINIMAL and NOBLOB: records lack columns, and their keys are read again."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
from tests.behaviours.dumps.dumped import Dumped, Make, gate
from tests.behaviours.dumps.sources import N, Source, series
from tests.behaviours.dumps.ways import BINLOG, Way, only, ways
from tests.integration.windows.live import at, crash

pytestmark = pytest.mark.integration
EVERY_BINLOG = [*BINLOG, Way("table", 4, "mysql"), Way("gtid", 1, "mariadb")]


@pytest.fixture(params=["MINIMAL", "NOBLOB"])
def image(request: pytest.FixtureRequest, place: Source) -> Iterator[str]:
    with place.connect() as sql:
        sql.execute(f"SET GLOBAL binlog_row_image = {request.param}")
    yield request.param
    with place.connect() as sql:
        sql.execute("SET GLOBAL binlog_row_image = FULL")


def started(make: Make, rows: int = 12) -> Dumped:
    dumped = make(chunk_rows=4)
    dumped.table(
        columns="id int PRIMARY KEY, n bigint NOT NULL, v varchar(20) DEFAULT 'none', large text",
        rows=series(rows, "i, 1, concat('v', i), repeat(md5(i), 30)"),
    )
    dumped.start()
    return dumped


def complete(dumped: Dumped) -> None:
    """What lacks columns has been read again."""
    dumped.catch_up()

    def is_whole() -> bool:
        whole: dict[object, bool] = {}
        for e in dumped.events("public.t"):
            if e.row is not None:
                known = whole.get(e.old_key or e.key, False)
                whole[e.key] = not e.partial or (known and e.old_key is None)
            elif e.op in ("D", "a"):
                whole.pop(e.key, None)
        return all(whole.values())

    dumped.wait_for(is_whole, "every row is whole")


@ways(EVERY_BINLOG)
def test_changes_during_dumps(make: Make, image: str) -> None:
    dumped = started(make)
    with gate("chunk.after_read", hit=2) as held:
        dump = dumped.dump()
        dumped.reach(held)
        dumped.do(f"UPDATE t SET n = {N} WHERE id IN (2, 7, 11)")
        dumped.do(f"UPDATE t SET n = {N}, id = 50 WHERE id = 8")
        dumped.do(f"UPDATE t SET n = {N}, large = 'short' WHERE id = 9")
        dumped.do(
            f"INSERT INTO t (id, n) VALUES (60, {N})",
            f"INSERT INTO t (id, n) VALUES (3, {N}) {dumped.on.upsert} n = {N}",
        )
        dumped.do("DELETE FROM t WHERE id = 12")
        held.open()
        dumped.dumped(dump)
    complete(dumped)
    dumped.check()
    lacking = [e for e in dumped.events("public.t") if e.partial]
    assert lacking, "the server leaves columns out"


@ways(BINLOG)
def test_changes_after_the_dump(make: Make, image: str) -> None:
    """A moved key, and an insert that the log holds in part, are read again without any dump."""
    dumped = started(make)
    dumped.dumped(dumped.dump())
    dumped.do(f"INSERT INTO t (id, n) VALUES (60, {N})")
    dumped.do(f"UPDATE t SET n = {N}, id = 50 WHERE id = 8")
    dumped.do(f"UPDATE t SET n = {N} WHERE id = 9")
    complete(dumped)
    dumped.check()


@ways(BINLOG)
def test_a_blocking_dump_beside_keys_to_read_again(make: Make, image: str) -> None:
    """Read before the dump begins and placed beside it; and to be read while the log waits."""
    dumped = started(make)
    dumped.dumped(dumped.dump())
    with gate("blocking.held") as held:
        with gate("chunk.after_read") as read:
            dumped.do(f"UPDATE t SET n = {N}, id = 50 WHERE id = 8")
            dumped.reach(read)
            dumped.do(f"UPDATE t SET n = {N} WHERE id IN (2, 50)")
            dump = dumped.dump(mode="blocking")
        dumped.reach(held)
        dumped.do(f"UPDATE t SET n = {N} WHERE id IN (3, 50)")
        dumped.do(f"UPDATE t SET n = {N}, id = 51 WHERE id = 9")
        held.open()
        dumped.dumped(dump)
    complete(dumped)
    dumped.check()


@pytest.mark.thorough
@ways([Way("table", 1, "mysql")])
def test_dumps_go_on_while_there_are_always_keys_to_read_again(make: Make, image: str) -> None:
    dumped = started(make)
    dumped.patience_s = 200.0  # first what waits already is read, however much it is
    stopping = threading.Event()

    def insert() -> None:
        with dumped.connect() as sql:
            for number in range(-1, -100_000, -1):  # before what the dump has left to read
                if stopping.is_set():
                    return
                sql.execute(f"INSERT INTO t (id, n) VALUES ({number}, {N})")

    writing = threading.Thread(target=insert)
    try:
        with gate("chunk.after_read") as held:
            dump = dumped.dump()
            dumped.reach(held)
            writing.start()
        dumped.dumped(dump)
    finally:
        stopping.set()
        writing.join()
    complete(dumped)


@ways(only("mysql", BINLOG))
def test_crash_before_the_keys_are_read_again(make: Make, image: str) -> None:
    dumped = started(make)
    with at("chunk.durable_before_progress", crash, hit=2):
        dump = dumped.dump()
        for low in (2, 6, 10):
            dumped.do(f"UPDATE t SET n = {N} WHERE id = {low}")
            dumped.do(f"UPDATE t SET n = {N}, id = {low + 100} WHERE id = {low + 1}")
        dumped.crashes()
    dumped.start()
    dumped.dumped(dump)
    complete(dumped)
    dumped.check()


@pytest.fixture(params=["FULL", "MINIMAL", "NOBLOB"])
def parts_of(request: pytest.FixtureRequest, place: Source) -> Iterator[str]:
    """Updates hold what changed of a JSON document, in each of the images."""
    with place.connect() as sql:
        sql.execute("SET GLOBAL binlog_row_value_options = PARTIAL_JSON")
        sql.execute(f"SET GLOBAL binlog_row_image = {request.param}")
    yield request.param
    with place.connect() as sql:
        sql.execute("SET GLOBAL binlog_row_value_options = ''")
        sql.execute("SET GLOBAL binlog_row_image = FULL")


@ways(only("mysql", EVERY_BINLOG))
def test_changes_of_a_part_of_a_document_during_dumps(make: Make, parts_of: str) -> None:
    dumped = make(chunk_rows=4)
    dumped.table(
        columns="id int PRIMARY KEY, n bigint NOT NULL, j json, k json",
        rows=series(
            12,
            "i, 1, json_object('a', i, 'text', repeat(md5(i), 9)), json_array(i, repeat('x', 99))",
        ),
    )
    dumped.start()
    with gate("chunk.after_read", hit=2) as held:
        dump = dumped.dump()
        dumped.reach(held)
        dumped.do(f"UPDATE t SET n = {N}, j = json_set(j, '$.a', 'x') WHERE id IN (2, 7, 11)")
        dumped.do(f"UPDATE t SET k = json_replace(k, '$[0]', 'x'), n = {N} WHERE id IN (3, 6, 12)")
        dumped.do(f"UPDATE t SET n = {N}, id = 50, j = json_remove(j, '$.a') WHERE id = 8")
        held.open()
        dumped.dumped(dump)
    dumped.do(f"UPDATE t SET n = {N}, j = json_set(j, '$.a', true), k = NULL WHERE id IN (2, 9)")
    complete(dumped)
    dumped.check()
    lacking = [e for e in dumped.events("public.t") if e.partial]
    assert bool(lacking) == (parts_of == "MINIMAL")  # NOBLOB holds documents here
