"""What a table keeps of rows that come twice, late, older, partly, or that it can't take."""

from __future__ import annotations

import itertools
import re
import threading
import time
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
from tests.integration.database.copies import Copy, changes, copy_of
from tests.support.payloads import table_schema
from tests.support.postgres import PostgresServer

from tidelog.errors import (
    LeaseLostError,
    NewerFormatError,
    OutputError,
    OutputRefusedError,
    TableLeftOutError,
)
from tidelog.model.schema import TableSchema
from tidelog.outputs.database import metadata_tables, mysql, postgres, texts
from tidelog.outputs.database.dialect import deleted_keys_name
from tidelog.outputs.database.mysql import MySql
from tidelog.outputs.database.output import AttemptSupersededError
from tidelog.outputs.database.postgres import Postgres
from tidelog.system.version import FORMAT

pytestmark = pytest.mark.integration

SCHEMA = table_schema([("id", "int64"), ("v", "text"), ("n", "int32")], key=["id"])
_numbers = itertools.count(1)


@pytest.fixture(
    params=[
        "postgres",
        "mysql",
        pytest.param("mysql without local_infile", marks=pytest.mark.thorough),
        pytest.param("mariadb", marks=pytest.mark.thorough),
    ]
)
def copy(request: pytest.FixtureRequest) -> Iterator[Copy]:
    kind, number = request.param.split()[0], next(_numbers)
    if kind == "postgres":
        server: Any = request.getfixturevalue("postgres18")
        url = server.create_database(f"copy_{number}")
        yield copy_of(Postgres(url), SCHEMA, "postgres", "shop")
        return
    server = request.getfixturevalue(f"{kind}_server")
    if "without" in request.param:
        server.execute("SET GLOBAL local_infile = OFF")
    yield copy_of(MySql(server.dsn()), SCHEMA, "mysql", f"shop_{number}", own=f"own_{number}")
    server.execute("SET GLOBAL local_infile = ON")


def rows(copy: Copy) -> list[tuple[Any, ...]]:
    return copy.select("SELECT id, v, n FROM {t} ORDER BY id")


def row(key: int, v: str | None = None, n: int | None = None) -> dict[str, Any]:
    return {"id": key, "v": v, "n": n}


def test_only_a_newer_version_replaces_a_row(copy: Copy) -> None:
    table = copy.table
    copy.write(changes(table, ("u", 10, row(1, "a", 1)), ("u", 11, row(2, "b", 2))))
    copy.write(changes(table, ("u", 9, row(1, "old", 0)), ("u", 12, row(2, "new", 3))))
    copy.write(changes(table, ("u", 12, row(2, "same version", 4))))
    assert rows(copy) == [(1, "a", 1), (2, "new", 3)]


def test_a_deleted_row_stays_deleted_when_older_states_come_again(copy: Copy) -> None:
    """The deleted key is remembered with its version, also where there was no row."""
    table = copy.table
    copy.write(changes(table, ("u", 10, row(1, "a"))))
    copy.write(changes(table, ("d", 20, row(1)), ("d", 21, row(5))))
    copy.write(changes(table, ("u", 10, row(1, "a")), ("u", 20, row(5, "late"))))
    assert rows(copy) == []
    copy.write(changes(table, ("d", 15, row(1))))  # an older delete does not lower the version
    copy.write(changes(table, ("u", 19, row(1, "late"))))
    assert rows(copy) == []
    copy.write(changes(table, ("u", 22, row(1, "back"))))
    assert rows(copy) == [(1, "back", None)]
    copy.write(changes(table, ("d", 20, row(1))))
    assert rows(copy) == [(1, "back", None)]


def test_an_older_first_row_is_not_appended_over_a_deleted_key(copy: Copy) -> None:
    """The way of first dumps, straight into the table, looks at deleted keys too."""
    table = copy.table
    copy.write(changes(table, ("d", 20, row(5))))
    copy.write(changes(table, *(("u", n, row(n, "x")) for n in range(1, 10))))
    assert [key for key, *_ in rows(copy)] == [1, 2, 3, 4, 6, 7, 8, 9]


def test_rows_below_the_floor_are_passed_over(copy: Copy) -> None:
    copy.floor = 100
    copy.write(changes(copy.table, ("u", 99, row(1, "gone")), ("u", 100, row(2, "stays"))))
    copy.write(changes(copy.table, ("u", 98, row(3, "gone"))))
    assert rows(copy) == [(2, "stays", None)]


def test_a_partial_row_updates_what_it_tells_and_never_inserts(copy: Copy) -> None:
    table = copy.table
    copy.write(changes(table, ("u", 10, row(1, "a", 1)), ("u", 11, row(2, "b", 2))))
    copy.write(changes(table, ("u", 20, row(1, None, 5)), ("u", 21, row(9, None, 9)), untold=["v"]))
    copy.write(changes(table, ("u", 9, row(2, None, 7)), untold=["v"]))
    copy.write(changes(table, ("u", 22, row(2)), untold=["v", "n"]))
    copy.write(changes(table, ("u", 21, row(2, "older", 0))))
    assert rows(copy) == [(1, "a", 5), (2, "b", 2)]


def test_kinds_of_rows_mix_in_one_batch(copy: Copy) -> None:
    table = copy.table
    copy.write(changes(table, *(("u", n, row(n, f"v{n}", n)) for n in range(1, 6))))
    mixed = [
        changes(table, ("u", 20, row(1, "whole", 0)), ("d", 21, row(2))),
        changes(table, ("u", 22, row(3, None, 33)), ("d", 24, row(8)), untold=["v"]),
        changes(table, ("u", 23, row(4, "told", None)), untold=["n"]),
    ]
    copy.write(*mixed)
    copy.write(*mixed)
    assert rows(copy) == [(1, "whole", 0), (3, "v3", 33), (4, "told", 4), (5, "v5", 5)]


def test_a_soft_delete_marks_the_row_and_a_new_one_revives_it(copy: Copy) -> None:
    copy.soft = True
    table = copy.table
    marked = "SELECT id, v, _tidelog_deleted FROM {t} ORDER BY id"
    copy.write(changes(table, ("u", 10, row(1, "a", 1)), ("u", 11, row(2, "b", 2))))
    copy.write(changes(table, ("d", 20, row(1)), ("d", 21, row(7))))
    copy.write(changes(table, ("u", 22, row(1, None, 5)), untold=["v"]))  # there is no row
    copy.write(changes(table, ("u", 19, row(1, "late")), ("u", 20, row(7, "late"))))
    assert copy.select(marked) == [(1, "a", True), (2, "b", False)]
    copy.write(changes(table, ("u", 30, row(1, "back"))))
    assert copy.select(marked) == [(1, "back", False), (2, "b", False)]


def test_a_zombie_of_an_earlier_try_writes_nothing(copy: Copy) -> None:
    """Not even what no version could tell to be late: a key that the later try deleted, in a
    transaction that the zombie does not see.
    """
    zombie = copy.begin()
    copy.write(changes(copy.table, ("d", 20, row(1))))
    with pytest.raises(AttemptSupersededError):
        copy.write(changes(copy.table, ("u", 10, row(1, "late"))), by=zombie)
    assert rows(copy) == []


def test_an_earlier_lease_begins_no_try(copy: Copy) -> None:
    """A driver that was frozen goes on, and finds that another has begun meanwhile."""
    run = metadata_tables.run_name("out", "generation")
    writer = copy.begin()
    session = copy.dialect.connect("test")
    try:
        begin = partial(metadata_tables.next_attempt, session, copy.dialect, copy.own, run)
        first = begin(3)
        assert begin(3) == first + 1
        with pytest.raises(AttemptSupersededError):
            copy.write(changes(copy.table, ("u", 10, row(1, "late"))), by=writer)
        later = begin(5)
        assert later > first
        with pytest.raises(LeaseLostError, match="epoch 5"):
            begin(3)
        assert begin(5) == later + 1
        assert session.usable
        assert begin() == later + 2  # without a lease, as before there were any
    finally:
        session.close()
    copy.write(changes(copy.table, ("u", 10, row(1, "a"))))
    assert len(rows(copy)) == 1


def test_a_try_begins_after_the_transactions_of_those_before(copy: Copy) -> None:
    copy.write(changes(copy.table, ("u", 10, row(1, "a"))))
    earlier = copy.dialect.connect("test")
    later = copy.dialect.connect("test")
    own, run = copy.own, metadata_tables.run_name("out", "generation")
    try:
        earlier.begin()
        assert metadata_tables.current_attempt(earlier, copy.dialect, own, run) == copy.attempt
        begun = threading.Event()

        def begin() -> None:
            metadata_tables.next_attempt(later, copy.dialect, own, run)
            begun.set()

        thread = threading.Thread(target=begin)
        thread.start()
        assert not begun.wait(0.5)
        earlier.commit()
        thread.join(20)
        assert begun.is_set()
    finally:
        earlier.close()
        later.close()


def test_a_session_that_stands_still_amid_a_transaction_holds_nobody_up_for_long(
    copy: Copy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its process is frozen, or its host gone without a word."""
    copy.write(changes(copy.table, ("u", 10, row(1, "a"))))
    for module in (postgres, mysql):
        monkeypatch.setattr(module, "STILL_S", 1)
    still, later = copy.dialect.connect("test"), copy.dialect.connect("test")
    own, run = copy.own, metadata_tables.run_name("out", "generation")
    try:
        still.begin()
        still.lock("task")
        assert metadata_tables.current_attempt(still, copy.dialect, own, run) == copy.attempt
        metadata_tables.next_attempt(later, copy.dialect, own, run)
        later.begin()
        later.lock("task")
        later.commit()
        with pytest.raises(OutputError):
            still.commit()
        time.sleep(1.5)
        assert later.rows("SELECT 1"), "between transactions it may take its time"
    finally:
        still.close()
        later.close()


def test_a_copy_that_gets_no_rows_is_ended(copy: Copy, monkeypatch: pytest.MonkeyPatch) -> None:
    if not isinstance(copy.dialect, Postgres):
        pytest.skip("net_read_timeout is the server's own")
    copy.write(changes(copy.table, ("u", 10, row(1, "a"))))
    lines = texts.lines

    def late(columns: Any) -> Any:
        time.sleep(2)
        return lines(columns)

    batch = changes(copy.table, ("u", 11, row(1, "b")))
    with monkeypatch.context() as patched:
        patched.setattr(postgres, "_COPY_S", 1)
        patched.setattr(texts, "lines", late)
        with pytest.raises(OutputError, match="statement timeout"):
            copy.write(batch)
    copy.write(batch)
    assert rows(copy) == [(1, "b", None)]


def test_duplicates_of_a_task_write_at_once_without_harm(copy: Copy) -> None:
    """As with speculative execution."""
    table = copy.table
    writer, attempt = copy.begin(), copy.attempt
    batch = changes(table, *(("u", n, row(n % 500, f"v{n}")) for n in range(1000, 1500)))
    failures: list[BaseException] = []

    def duplicate() -> None:
        try:
            same = type(writer)(
                copy.dialect, {str(table.source): copy.prepare()}, attempt, copy.own, 100
            )
            copy.write(*(batch.slice(n, 50) for n in range(0, 500, 50)), by=same)
        except BaseException as error:  # noqa: BLE001
            failures.append(error)

    threads = [threading.Thread(target=duplicate) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert len(rows(copy)) == 500


def test_a_row_that_does_not_fit_is_rejected_alone(copy: Copy) -> None:
    """A table of the user's with a narrower column; the others of the batch are written."""
    copy.prepare()
    quoted = "ALTER TABLE {t} ADD CONSTRAINT short CHECK (char_length(v) < 5)"
    if isinstance(copy.dialect, MySql):
        quoted = "ALTER TABLE {t} MODIFY v varchar(4)"
    copy.select(quoted)
    batch = changes(copy.table, *(("u", n, row(n, "ok")) for n in range(1, 40)))
    poison = changes(copy.table, ("u", 100, row(77, "much too long secret")))
    rejected = copy.write(batch.slice(0, 20), poison, batch.slice(20))
    assert [(each.table, each.version) for each in rejected] == [("public.t", 100)]
    assert "secret" not in rejected[0].reason
    assert len(rows(copy)) == 39


def test_special_characters_arrive_as_they_are(copy: Copy) -> None:
    odd = ["", "\\N", "\\", "tab\tand\nline\r\n", 'it\'s "quoted"', "\\.", "a\n\\.\nb", "🌊ß", "%s"]
    copy.write(changes(copy.table, *(("u", n, row(n, v)) for n, v in enumerate(odd, 1))))
    staged = changes(copy.table, *(("u", n + 100, row(n, v)) for n, v in enumerate(odd, 1)))
    assert [v for _, v, _ in rows(copy)] == odd
    copy.write(staged, changes(copy.table, ("d", 200, row(99))))
    assert [v for _, v, _ in rows(copy)] == odd


def test_deleted_keys_widen_with_the_table_s(copy: Copy) -> None:
    narrow = table_schema([("id", "int32"), ("v", "text"), ("n", "int32")], key=["id"])
    how = {"own": copy.own}
    copy_of(copy.dialect, narrow, "postgres", copy.namespace, **how).prepare()
    wider = "ALTER COLUMN id TYPE bigint"
    if isinstance(copy.dialect, MySql):
        wider = "MODIFY id bigint NOT NULL"
    copy.select(f"ALTER TABLE {{t}} {wider}")
    assert copy.write(changes(copy.table, ("d", 20, row(2**40)))) == []
    assert copy.write(changes(copy.table, ("u", 19, row(2**40)))) == []
    assert rows(copy) == []


def test_a_table_recreated_with_another_key_forgets_the_deleted_ones(copy: Copy) -> None:
    copy.write(changes(copy.table, ("d", 20, row(1))))
    copy.select("DROP TABLE {t}")
    columns = [("id", "int64"), ("v", "text"), ("n", "int32")]
    wider = copy_of(
        copy.dialect,
        table_schema(columns, key=["id", "n"]),
        "postgres",
        copy.namespace,
        own=copy.own,
    )
    wider.write(changes(wider.table, ("u", 30, row(1, "a", 1)), ("d", 31, row(1, None, 2))))
    wider.write(changes(wider.table, ("u", 29, row(1, "late", 2))))
    assert rows(wider) == [(1, "a", 1)]


def test_rows_are_cut_into_transactions(copy: Copy) -> None:
    batch = changes(copy.table, *(("u", n, row(n, "x" * 100, n)) for n in range(1, 1001)))
    copy.write(batch, by=copy.begin(batch_rows=300))
    assert len(rows(copy)) == 1000


def test_what_the_log_can_t_bring_again_is_forgotten(copy: Copy) -> None:
    copy.write(changes(copy.table, ("d", 20, row(1)), ("d", 30, row(2))))
    layout = copy.prepare()
    session = copy.dialect.connect("test")
    try:
        metadata_tables.delete_tombstones(session, copy.dialect, layout, 25)
    finally:
        session.close()
    gone = copy.dialect.quoted(copy.own, layout.deleted_keys)
    assert copy.select(f"SELECT id FROM {gone}") == [(2,)]


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ("(id bigint PRIMARY KEY, v varchar(100))", "has no column n"),
        ("(id bigint PRIMARY KEY, v varchar(100), n smallint)", "column n of type smallint"),
        ("(id bigint, v varchar(100), n int)", "no primary key or unique index"),
        ("(id bigint PRIMARY KEY, v varchar(100) UNIQUE, n int)", "another unique index, of v"),
        (
            "(id bigint PRIMARY KEY, v varchar(100), n int, m int NOT NULL)",
            "column m that needs a value",
        ),
        (
            "(id bigint PRIMARY KEY, v varchar(100), n int, p bigint, "
            "CONSTRAINT parent FOREIGN KEY (p) REFERENCES {t} (id))",
            "the foreign key parent",
        ),
        (
            "(id bigint PRIMARY KEY, v varchar(100), n int GENERATED ALWAYS AS (id + 1) STORED)",
            "computes its column n",
        ),
    ],
)
def test_a_table_that_does_not_suffice_is_refused(copy: Copy, table: str, message: str) -> None:
    session = copy.dialect.connect("test")
    copy.dialect.create_namespace(session, copy.namespace)
    session.close()
    copy.select("CREATE TABLE {t} " + table)
    with pytest.raises(OutputRefusedError, match=rf"the table {copy.namespace}\.t .*{message}"):
        copy.prepare()


def test_a_table_of_the_user_s_is_filled(copy: Copy) -> None:
    """Columns in another order, wider types, others with defaults or computed, rows that were
    there.
    """
    session = copy.dialect.connect("test")
    copy.dialect.create_namespace(session, copy.namespace)
    session.close()
    copy.select(
        "CREATE TABLE {t} (n bigint, extra int NOT NULL DEFAULT 7, v varchar(100), "
        "twice bigint GENERATED ALWAYS AS (n * 2) STORED, id decimal(20,0) PRIMARY KEY)"
    )
    copy.select("INSERT INTO {t} (id, v, n) VALUES (1, 'mine', 1), (50, 'mine', 50)")
    copy.write(changes(copy.table, ("u", 10, row(1, "theirs", 2)), ("u", 11, row(2, "new", 3))))
    copy.write(changes(copy.table, ("u", 9, row(1, "late", 2)), ("d", 12, row(2))))
    copy.write(changes(copy.table, ("u", 13, row(3, "more", 4))))
    assert copy.select("SELECT id, v, n, extra, twice FROM {t} ORDER BY id") == [
        (1, "theirs", 2, 7, 4),
        (3, "more", 4, 7, 8),
        (50, "mine", 50, 7, 100),
    ]


def test_long_names_of_tables_keep_their_deleted_keys_apart() -> None:
    one, two = deleted_keys_name("public." + "x" * 63), deleted_keys_name("publik." + "x" * 63)
    assert one != two
    assert max(len(one), len(two)) <= 63
    assert deleted_keys_name("public.t") == "deleted.public.t"


def test_a_table_of_another_log_is_refused_until_it_is_empty(copy: Copy) -> None:
    """Versions of two logs can't be compared."""
    copy.prepare()
    session = copy.dialect.connect("test")
    name = f"{copy.namespace}.t"

    def claim(owner: metadata_tables.Owner, *, empty: bool) -> int:
        return metadata_tables.claim(session, copy.dialect, copy.own, name, owner, empty=empty)

    mine, other = (
        metadata_tables.Owner("out", "public.t", "g1"),
        metadata_tables.Owner("out", "public.t", "g2"),
    )
    try:
        assert claim(mine, empty=False) == 0
        metadata_tables.raise_floor(session, copy.dialect, copy.prepare(), 50)
        assert claim(mine, empty=False) == 50
        with pytest.raises(TableLeftOutError, match=r"filled by output out from public\.t"):
            claim(other, empty=False)
        copy.write(changes(copy.table, ("d", 20, row(1))))
        assert claim(other, empty=True) == 0
        # Nor do keys that the other log deleted hold back what this one brings.
        copy.write(changes(copy.table, ("u", 10, row(1, "of the new log"))))
        assert rows(copy) == [(1, "of the new log", None)]
        with pytest.raises(TableLeftOutError, match="Empty the table"):
            claim(mine, empty=False)
    finally:
        session.close()


def test_a_key_that_is_another_one_now_has_a_way_out(copy: Copy) -> None:
    """The statements that the refusal names are those that mend it."""
    copy.write(changes(copy.table, ("u", 10, row(1, "a", 5)), ("d", 11, row(2))))
    renamed = table_schema([("no", "int64"), ("v", "text"), ("n", "int32")], key=["no"])
    other = table_schema([("no", "int64"), ("v", "text"), ("n", "int32")], key=["n"])

    def as_now(schema: TableSchema) -> Copy:
        how = {"own": copy.own, "soft": copy.soft}
        return copy_of(copy.dialect, schema, copy.table.origin.kind, copy.namespace, **how)

    def run(statement: str) -> None:
        session = copy.dialect.connect("test")
        try:
            session.rows(statement)
        finally:
            session.close()

    with pytest.raises(OutputRefusedError, match="but of id: the key has changed") as refused:
        as_now(renamed).prepare()
    found = re.search(r"renamed the column: (ALTER TABLE .*)\. Else have", str(refused.value))
    assert found is not None
    run(found[1])
    now = as_now(renamed)
    now.attempt = copy.attempt
    now.write(changes(now.table, ("u", 12, {"no": 1, "v": "b", "n": 5})))
    assert now.select("SELECT no, v, n FROM {t}") == [(1, "b", 5)]

    with pytest.raises(OutputRefusedError, match="but of no: the key has changed") as refused:
        as_now(other).prepare()
    assert "RENAME" not in str(refused.value), "the column is there"
    found = re.search(r"(DROP TABLE .*)\. It is dumped then", str(refused.value))
    assert found is not None
    run(found[1])
    now = as_now(other)
    now.write(changes(now.table, ("u", 12, {"no": 1, "v": "b", "n": 5})))
    assert now.select("SELECT no, v, n FROM {t}") == [(1, "b", 5)]


def test_a_key_is_spelled_as_its_newest_state_is(postgres18: PostgresServer) -> None:
    """1.5 and 1.50 are one key to PostgreSQL."""
    schema = table_schema([("id", "numeric"), ("v", "text")], key=["id"])
    url = postgres18.create_database("spelled")
    copy = copy_of(Postgres(url), schema, "postgres", "shop")
    copy.write(changes(copy.table, ("u", 10, {"id": "1.5", "v": "a"})))
    copy.write(
        changes(copy.table, ("d", 20, {"id": "1.5"}), ("u", 21, {"id": "1.50", "v": "b"})),
    )
    assert copy.select("SELECT id::text, v FROM {t}") == [("1.50", "b")]
    both = [
        changes(copy.table, ("d", 30, {"id": "1.50"}), ("u", 31, {"id": "1.500", "v": "c"})),
        changes(copy.table, ("d", 32, {"id": "1.500"}), ("u", 9, {"id": "1.5", "v": "late"})),
    ]
    copy.write(*both)
    assert copy.select("SELECT id::text, v FROM {t}") == []
    copy.write(changes(copy.table, ("u", 31, {"id": "1.50", "v": "late"})))
    assert copy.select("SELECT id::text, v FROM {t}") == [], "the newest delete is remembered"
    copy.write(changes(copy.table, ("u", 41, {"id": "2.5", "v": "d"}), ("u", 40, {"id": "2.50"})))
    assert copy.select("SELECT id::text, v FROM {t}") == [("2.5", "d")]


@pytest.mark.parametrize("soft", [False, True], ids=["removed", "marked"])
def test_an_update_that_only_respells_the_key_loses_no_row(
    soft: bool, postgres18: PostgresServer
) -> None:
    """Its delete and its write have one version, and tasks commit them in any order."""
    schema = table_schema([("id", "numeric"), ("v", "text")], key=["id"])
    url = postgres18.create_database(f"spelled_anew_{soft}".lower())
    copy = copy_of(Postgres(url), schema, "postgres", "shop", soft=soft)
    copy.write(changes(copy.table, ("u", 10, {"id": "2.5", "v": "a"})))
    deleted = changes(copy.table, ("d", 20, {"id": "2.5"}))
    for each in (deleted, changes(copy.table, ("u", 20, {"id": "2.50", "v": "b"})), deleted):
        copy.write(each)
    alive = "WHERE NOT _tidelog_deleted" if soft else ""
    assert copy.select(f"SELECT id::text, v FROM {{t}} {alive}") == [("2.50", "b")]


def test_tables_that_a_newer_version_wrote_to_are_refused(copy: Copy) -> None:
    copy.prepare()
    session = copy.dialect.connect("test")
    try:
        table = copy.dialect.quoted(copy.own, "outputs")
        columns = "(name, attempt, reached)"
        session.rows(f"INSERT INTO {table} {columns} VALUES ('format', {FORMAT + 1}, 0)")
    finally:
        session.close()
    with pytest.raises(NewerFormatError, match=rf"{copy.own}.outputs has format {FORMAT + 1}"):
        copy.prepare()
