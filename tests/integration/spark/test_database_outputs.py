"""The documented examples of database outputs run as they stand, with the rights they ask for."""

from __future__ import annotations

import re
import threading
from itertools import pairwise
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import make_conninfo
from tests.behaviours.outputs.database_tables import dialect, live_rows, server
from tests.behaviours.outputs.destinations import Destination, write
from tests.integration.event_messages import capturing
from tests.support.build_log import BuiltLog
from tests.support.engines import until
from tests.support.idle import is_idle

from tidelog import app
from tidelog.app.pipeline.run import run_pipeline
from tidelog.config import Config, load_config
from tidelog.outputs.base import executor_output, scheduling
from tidelog.outputs.base.writer import Delivery
from tidelog.outputs.database.output import DatabaseOutput
from tidelog.outputs.database.postgres import Postgres
from tidelog.spark.datasource.segment_rows import batch_of
from tidelog.spark.pipeline import LoopOptions, run_output_loops
from tidelog.state.sqlite import SqliteState

pytestmark = pytest.mark.spark

DOCS = Path(__file__).parents[3] / "docs/outputs"
KINDS = ["postgres", "mysql", pytest.param("mariadb", marks=pytest.mark.thorough)]


def page(kind: str) -> tuple[str, list[str]]:
    """The configuration and the set-up's statements of a kind's page."""
    text = (DOCS / f"{'postgres' if kind == 'postgres' else 'mysql'}.md").read_text()
    outputs = re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)[0]
    statements = re.findall(r"```sql\n(.*?)```", text, re.DOTALL)[0]
    plain = re.sub(r"--.*", "", statements).replace("(...)", "'change-me'")
    return outputs, [each.strip() for each in plain.split(";") if each.strip()]


def run(path: Path, outputs: str) -> Config:
    (path / "tidelog.yaml").write_text(
        "source: {kind: postgres, url: 'postgresql://u@h/d'}\nlog: {path: ./log}\n"
        f"state: {{url: 'sqlite:///state.db'}}\n{outputs}"
    )
    secrets = {"PGPASSWORD": "change-me", "MYSQL_PASSWORD": "change-me"}
    config = load_config(path / "tidelog.yaml", secrets)
    run_pipeline(config, once=True, stop_event=threading.Event())
    return config


@pytest.fixture
def filled(built: BuiltLog) -> BuiltLog:
    table = built.table("public.orders", {"id": "int64", "v": "text"})
    for key in ("1", "2", "3"):
        built.insert(table, key, f"v{key}")
    built.delete(table, "2")
    built.flush()
    return built


@pytest.mark.parametrize("kind", KINDS)
def test_documented_example_runs(spark: Any, filled: BuiltLog, tmp_path: Path, kind: str) -> None:
    outputs, statements = page(kind)
    place = server(kind)
    if kind == "postgres":
        place.create_database("copy")
        for statement in statements:
            place.execute(statement, "copy")
    else:
        place.execute("CREATE DATABASE IF NOT EXISTS shop")
        place.execute("DELETE FROM mysql.user WHERE user = ''")  # of MariaDB's installation
        place.execute("FLUSH PRIVILEGES")
        for statement in statements:
            place.execute(statement)
    outputs = re.sub(r"@db:\d+", f"@127.0.0.1:{place.port}", outputs)
    config = run(tmp_path, outputs)
    assert is_idle(config)
    read = "SELECT id, v FROM shop.orders ORDER BY id"
    arguments = (read, "copy") if kind == "postgres" else (read,)
    assert place.execute(*arguments) == [(1, "v1"), (3, "v3")]
    # A later run, with a column more.
    wider = filled.table("public.orders", {"id": "int64", "v": "text", "n": "int32"})
    filled.insert(wider, "4", "v4", "4")
    filled.flush()
    assert not is_idle(config)
    run(tmp_path, outputs)
    assert is_idle(config)
    if kind == "postgres":  # beyond the log, as where that was put back
        place.execute("UPDATE tidelog.outputs SET reached = reached + 1", "copy")
        assert not is_idle(config)
    read = "SELECT id, v, n FROM shop.orders ORDER BY id"
    arguments = (read, "copy") if kind == "postgres" else (read,)
    assert place.execute(*arguments) == [(1, "v1", None), (3, "v3", None), (4, "v4", 4)]


class Copy:
    """The tables of one event log in a database of their own."""

    def __init__(self, spark: Any, built: BuiltLog, path: Path, kind: str) -> None:
        self.built = built
        self.place = dialect(kind)
        self.namespace = f"ns_{path.name}"[:60]
        self._made = (spark, built.path, path)

    def open(self, deletes: str = "hard", **_: Any) -> DatabaseOutput:
        spark, log_path, path = self._made
        return DatabaseOutput(
            spark,
            log_path,
            SqliteState(f"sqlite:///{path / 'state.db'}"),
            Delivery("copy"),
            self.place,
            namespace=self.namespace,
            own=f"own_{self.namespace}"[:60],
            deletes=deletes,
            batch_rows=50_000,
        )

    def bring(self, *ranges: tuple[int, int], **how: Any) -> None:
        write(Destination(self.open, self.rows), self.built, *ranges, **how)

    def try_tables(self, start: int, end: int) -> tuple[dict[str, str], set[str]]:
        """Bring a range as after a restart: tables left out, and those to dump again."""
        output, asked = self.open(), set[str]()
        try:
            output.prepare(self.built.log.generation)
            output.take_again(asked.update)
            output.write(batch_of(self.built.log, start, end))
            return dict(output.left_out_tables()), asked
        finally:
            output.close()

    def rows(self, table: str) -> list[dict[str, Any]]:
        return live_rows(self.place, self.namespace, table.partition(".")[2])

    def execute(self, statement: str) -> None:
        """With ``{t}`` for the table ``t``."""
        session = self.place.connect("test")
        try:
            session.rows(statement.replace("{t}", self.place.quoted(self.namespace, "t")))
        finally:
            session.close()


@pytest.fixture(params=KINDS)
def copy(request: pytest.FixtureRequest, spark: Any, built: BuiltLog, tmp_path: Path) -> Copy:
    return Copy(spark, built, tmp_path, request.param)


def test_a_key_that_changes_in_the_source_is_refused_until_the_table_has_it(
    copy: Copy, built: BuiltLog
) -> None:
    """While the output runs as after a restart. Rows of two new keys may share the old one."""
    columns = {"id": "int64", "tenant": "int64", "v": "text"}
    old = built.table("public.t", columns)
    built.insert(old, "1", "1", "a")
    start, middle = built.log.head_offset, built.flush().next
    new = built.table("public.t", columns, key=("id", "tenant"))
    built.insert(new, "1", "2", "b")
    end = built.flush().next
    for ranges in ([(start, middle), (middle, end)], [(middle, end)]):
        copy.bring(*ranges)
        refused, asked = copy.try_tables(end, end)
        assert "unique index of the columns id, tenant" in refused["public.t"]
        assert not asked
    assert copy.rows("public.t") == [{"id": 1, "tenant": 1, "v": "a"}]
    copy.execute("DROP TABLE {t}")
    assert copy.try_tables(end, end)[1] == {"public.t"}
    first = built.dump_started("public.t").first
    built.chunk(new, [("1", "1", "a"), ("1", "2", "b")])
    until = built.dump_completed("public.t", first).next
    assert copy.try_tables(end, until) == ({}, set())
    assert [row["tenant"] for row in copy.rows("public.t")] == [1, 2]


def test_a_table_that_does_not_fit_is_left_out_until_it_does(copy: Copy, built: BuiltLog) -> None:
    """It alone, and no row is missing then, none too many."""
    first, second = (
        built.table(f"public.{name}", {"id": "int64", "v": "text"}, relation_id=number)
        for number, name in enumerate("tu", 1)
    )
    start = built.log.head_offset
    for key in "123":
        built.insert(first, key, "a")
    middle = built.flush().next
    assert copy.try_tables(start, middle) == ({}, set())
    copy.execute("DELETE FROM {t} WHERE id = 3")
    copy.execute("ALTER TABLE {t} DROP COLUMN v")
    built.insert(first, "4", "b")
    built.delete(first, "2")
    built.insert(second, "1", "b")
    until = built.flush().next
    for since in (middle, until):  # also after a restart
        refused, asked = copy.try_tables(since, until)
        assert list(refused) == ["public.t"]
        assert "has no column v" in refused["public.t"]
        assert not asked
    assert copy.rows("public.u") == [{"id": 1, "v": "b"}]
    assert [row["id"] for row in copy.rows("public.t")] == [1, 2]
    copy.execute("ALTER TABLE {t} ADD COLUMN v varchar(100)")
    refused, asked = copy.try_tables(until, until)
    assert asked == {"public.t"}
    assert "rows are missing until a dump" in refused["public.t"]
    begun = built.dump_started("public.t").first
    built.chunk(first, [("1", "a"), ("3", "a"), ("4", "b")])
    end = built.dump_completed("public.t", begun).next
    assert copy.try_tables(until, end) == ({}, set())
    assert copy.rows("public.t") == [
        {"id": 1, "v": "a"}, {"id": 3, "v": "a"}, {"id": 4, "v": "b"}
    ]  # fmt: skip


def test_a_column_that_was_an_array_leaves_out_its_table_until_it_is_converted(
    spark: Any, built: BuiltLog, tmp_path: Path
) -> None:
    """As text[] that became jsonb: both come as text, and each row would be rejected."""
    copy = Copy(spark, built, tmp_path, "postgres")
    before = built.table("public.t", {"id": "int64", "v": "text[]"})
    start = built.log.head_offset
    built.insert(before, "1", "{a}")
    middle = built.flush().next
    assert copy.try_tables(start, middle) == ({}, set())
    now = built.table("public.t", {"id": "int64", "v": "jsonb"})
    other = built.table("public.u", {"id": "int64", "v": "text"}, relation_id=2)
    built.insert(now, "2", '{"b": 1}')
    built.insert(other, "1", "c")
    until = built.flush().next
    refused, _ = copy.try_tables(middle, until)
    assert refused.keys() == {"public.t"}
    assert copy.rows("public.u") == [{"id": 1, "v": "c"}]
    found = re.search(r"Change the table: (ALTER TABLE .*); or have it", refused["public.t"])
    assert found is not None
    copy.execute(found[1])
    _, asked = copy.try_tables(until, until)
    assert asked == {"public.t"}


def test_tables_that_the_user_may_not_touch_are_left_out_alone(
    spark: Any, built: BuiltLog, tmp_path: Path
) -> None:
    """Until somebody runs what the messages say."""
    copy = Copy(spark, built, tmp_path, "postgres")
    names, namespace = ("created", "owned", "seen", "well"), copy.namespace
    for statement in (
        f'CREATE SCHEMA "{namespace}"',
        "CREATE ROLE guest LOGIN",
        f'GRANT USAGE ON SCHEMA "{namespace}" TO guest',
        f'CREATE SCHEMA "own_{namespace}" AUTHORIZATION guest',
        f'CREATE TABLE "{namespace}".owned (id bigint PRIMARY KEY, v text)',
        *(
            f'CREATE TABLE "{namespace}".{name} '
            "(id bigint PRIMARY KEY, v text, _tidelog_version bigint)"
            for name in ("seen", "well")
        ),
        f'GRANT SELECT ON ALL TABLES IN SCHEMA "{namespace}" TO guest',
        f'GRANT ALL ON "{namespace}".well TO guest',
    ):
        copy.execute(statement)
    owner = copy.place
    assert isinstance(owner, Postgres)
    copy.place = Postgres(make_conninfo(owner.url, user="guest"))
    tables = {
        name: built.table(f"public.{name}", {"id": "int64", "v": "text"}, relation_id=number)
        for number, name in enumerate(names, 1)
    }
    start = built.log.head_offset
    for table in tables.values():
        built.insert(table, "1", "a")
    middle = built.flush().next
    told, asked = copy.try_tables(start, middle)
    assert told.keys() == {"public.created", "public.owned", "public.seen"}
    assert not asked
    assert copy.rows("public.well") == [{"id": 1, "v": "a"}]
    guest, copy.place = copy.place, owner
    for statement in ("CREATE TABLE .*", "ALTER TABLE .*"):
        said = [found[0] for why in told.values() if (found := re.search(statement, why))]
        copy.execute(said[0])
    assert "permission denied for table seen" in told["public.seen"]
    copy.execute(f'GRANT ALL ON ALL TABLES IN SCHEMA "{namespace}" TO guest')
    copy.place = guest
    assert copy.try_tables(middle, middle)[1] == told.keys()
    for name in ("created", "owned", "seen"):
        first = built.dump_started(f"public.{name}").first
        built.chunk(tables[name], [("1", "a"), ("2", "b")])
        end = built.dump_completed(f"public.{name}", first).next
    assert copy.try_tables(middle, end) == ({}, set())
    for name in ("created", "owned", "seen"):
        assert copy.rows(f"public.{name}") == [{"id": 1, "v": "a"}, {"id": 2, "v": "b"}]
    wider = built.table("public.owned", {"id": "int64", "v": "text", "n": "int32"}, relation_id=2)
    built.insert(wider, "3", "c", "3")
    built.insert(tables["well"], "2", "b")
    told, _ = copy.try_tables(end, built.flush().next)
    assert told.keys() == {"public.owned"}
    assert 'ADD COLUMN "n"' in told["public.owned"]
    assert [row["id"] for row in copy.rows("public.well")] == [1, 2]


def test_a_table_whose_rows_can_not_be_deleted_after_a_dump_is_left_out_alone(
    spark: Any, built: BuiltLog, tmp_path: Path
) -> None:
    copy = Copy(spark, built, tmp_path, "postgres")
    tables = [
        built.table(f"public.{name}", {"id": "int64"}, relation_id=number)
        for number, name in enumerate("tu", 1)
    ]
    start = built.log.head_offset
    for table in tables:
        built.insert(table, "1")
        built.insert(table, "2")
    middle = built.flush().next
    assert copy.try_tables(start, middle) == ({}, set())
    copy.execute(
        f'CREATE FUNCTION "{copy.namespace}".keep() RETURNS trigger LANGUAGE plpgsql AS '
        "$$BEGIN RAISE EXCEPTION 'kept'; END$$"
    )
    copy.execute(
        "CREATE TRIGGER keep BEFORE DELETE ON {t} "
        f'FOR EACH ROW EXECUTE FUNCTION "{copy.namespace}".keep()'
    )
    first = built.dump_started("public.t").first
    built.chunk(tables[0], [("1",)])
    built.insert(tables[1], "3")
    built.flush()
    end = built.dump_completed("public.t", first).next
    told, _ = copy.try_tables(middle, end)
    assert told.keys() == {"public.t"}
    assert "does not have any more can't be deleted" in told["public.t"]
    assert [row["id"] for row in copy.rows("public.u")] == [1, 2, 3]
    copy.execute("DROP TRIGGER keep ON {t}")
    assert copy.try_tables(end, end)[1] == {"public.t"}
    first = built.dump_started("public.t").first
    built.chunk(tables[0], [("1",)])
    assert copy.try_tables(end, built.dump_completed("public.t", first).next) == ({}, set())
    assert copy.rows("public.t") == [{"id": 1}]


@pytest.mark.parametrize("trouble", ["trigger", "dropped"])
def test_a_table_that_takes_no_rows_amid_a_run_is_left_out_until_a_dump_of_it_begins(
    copy: Copy, built: BuiltLog, trouble: str
) -> None:
    """It alone, without a restart."""
    first, second = (
        built.table(f"public.{name}", {"id": "int64", "v": "text"}, relation_id=number)
        for number, name in enumerate("tu", 1)
    )
    ends = [built.log.head_offset]
    for key in "12":
        for table in (first, second):
            built.insert(table, key, "bad" if key == "2" else "a")
        ends.append(built.flush().next)
    judge = copy.place.quoted(copy.namespace, "judge")
    output, asked = copy.open(), set[str]()
    try:
        output.prepare(built.log.generation)
        output.write(batch_of(built.log, ends[0], ends[1]))
        if trouble == "dropped":
            copy.execute("DROP TABLE {t}")
        elif isinstance(copy.place, Postgres):
            copy.execute(
                f"CREATE FUNCTION {judge}() RETURNS trigger LANGUAGE plpgsql AS "
                "$$BEGIN IF NEW.v = 'bad' THEN RAISE EXCEPTION 'bad'; END IF; RETURN NEW; END$$"
            )
            copy.execute(
                "CREATE TRIGGER judge BEFORE INSERT ON {t} "
                f"FOR EACH ROW EXECUTE FUNCTION {judge}()"
            )
        else:
            copy.execute(
                f"CREATE TRIGGER {judge} BEFORE INSERT ON {{t}} FOR EACH ROW "
                "IF NEW.v = 'bad' THEN SIGNAL SQLSTATE '45000'; END IF"
            )
        output.write(batch_of(built.log, ends[1], ends[2]))
        output.take_again(asked.update)
        told = output.left_out_tables()
        assert told.keys() == {"public.t"}
        assert "tidelog dump CONFIG --table public.t" in told["public.t"]
        assert [row["id"] for row in copy.rows("public.u")] == [1, 2]
        if trouble == "trigger":
            ours = isinstance(copy.place, Postgres)
            copy.execute("DROP TRIGGER judge ON {t}" if ours else f"DROP TRIGGER {judge}")
        begun = built.dump_started("public.t").first
        built.chunk(first, [("1", "a"), ("2", "bad")])
        end = built.dump_completed("public.t", begun).next
        output.write(batch_of(built.log, ends[2], end))
        assert output.left_out_tables() == {}
        assert not asked, "the dump was there"
    finally:
        output.close()
    assert copy.rows("public.t") == [{"id": 1, "v": "a"}, {"id": 2, "v": "bad"}]


def test_the_second_table_that_goes_to_one_place_is_left_out(copy: Copy, built: BuiltLog) -> None:
    """Also by an output that restarts and meets it first."""
    first = built.table("b.t", {"id": "int64"})
    second = built.table("a.t", {"id": "int64"}, relation_id=2)
    offsets = [built.log.head_offset]
    for table, key in ((first, "1"), (second, "2"), (second, "3"), (first, "4")):
        built.insert(table, key)
        offsets.append(built.flush().next)
    for ranges in (list(pairwise(offsets[:3])), list(pairwise(offsets[2:]))):
        copy.bring(*ranges)
    assert copy.rows("b.t") == [{"id": 1}, {"id": 4}]
    output = copy.open()
    refused = output.left_out_tables()
    output.close()
    assert list(refused) == ["a.t"]
    assert "b.t and a.t both go to the table" in refused["a.t"]


@pytest.mark.parametrize("statement", ["ALTER", "DROP"])
def test_a_column_of_another_type_is_followed_once_the_table_holds_it(
    copy: Copy, built: BuiltLog, statement: str
) -> None:
    """What the refusal says, as it stands there."""
    old = built.table("public.t", {"id": "int64", "v": "int32"})
    built.insert(old, "1", "7")
    start, middle = built.log.head_offset, built.flush().next
    copy.bring((start, middle))
    new = built.table("public.t", {"id": "int64", "v": "text"})
    built.insert(new, "2", "seven")
    until = built.flush().next
    for since in (middle, until):
        refused, asked = copy.try_tables(since, until)
        assert "columns v changed their type" in refused["public.t"]
        assert not asked
    assert copy.rows("public.t") == [{"id": 1, "v": 7}]
    said = re.search(rf"({statement} TABLE [^;]*?)[;.] ", refused["public.t"])
    assert said, refused["public.t"]
    copy.execute(said[1])
    assert copy.try_tables(until, until)[1] == {"public.t"}
    first = built.dump_started("public.t").first
    built.chunk(new, [("1", "7"), ("2", "seven")])
    end = built.dump_completed("public.t", first).next
    assert copy.try_tables(until, end) == ({}, set())
    assert copy.rows("public.t") == [{"id": 1, "v": "7"}, {"id": 2, "v": "seven"}]


def test_a_dump_in_one_batch_shows_readers_the_rows_all_the_time(
    copy: Copy, built: BuiltLog
) -> None:
    """What is not in the source any more goes last."""
    table = built.table("public.t", {"id": "int64", "v": "text"})
    for key in "123":
        built.insert(table, key, f"v{key}")
    start, middle = built.log.head_offset, built.flush().next
    copy.bring((start, middle))
    first = built.dump_started("public.t").first
    built.chunk(table, [("1", "v1"), ("2", "v2")])
    end = built.dump_completed("public.t", first).next
    output = copy.open()
    seen: list[list[int]] = []
    make = output.writer

    def observed() -> Any:  # asked for before the first row is written
        seen.append([row["id"] for row in copy.rows("public.t")])
        return make()

    output.writer = observed  # type: ignore[method-assign]
    try:
        output.prepare(built.log.generation)
        output.write(batch_of(built.log, middle, end))
    finally:
        output.close()
    assert seen == [[1, 2, 3]]
    assert copy.rows("public.t") == [{"id": 1, "v": "v1"}, {"id": 2, "v": "v2"}]


@pytest.mark.parametrize("deletes", ["hard", "soft"])
def test_rows_that_the_output_never_wrote_stay(copy: Copy, built: BuiltLog, deletes: str) -> None:
    """Through a dump and a truncate, as the page says; but for keys that the source has."""
    table = built.table("public.t", {"id": "int64", "v": "text"})
    for key in "123":
        built.insert(table, key, f"v{key}")
    ends = [built.log.head_offset, built.flush().next]
    copy.bring((ends[0], ends[1]), deletes=deletes)
    copy.execute("INSERT INTO {t} (id, v) VALUES (7, 'theirs'), (8, 'theirs'), (9, 'theirs')")
    first = built.dump_started("public.t").first
    built.chunk(table, [("1", "v1"), ("8", "ours now")])
    ends.append(built.dump_completed("public.t", first).next)
    copy.bring((ends[1], ends[2]), deletes=deletes)
    kept = [(row["id"], row["v"]) for row in copy.rows("public.t")]
    assert kept == [(1, "v1"), (7, "theirs"), (8, "ours now"), (9, "theirs")]
    built.truncate(table)
    built.delete(table, "9")  # asked for by its key, as a repair does
    ends.append(built.flush().next)
    copy.bring((ends[2], ends[3]), deletes=deletes)
    assert copy.rows("public.t") == [{"id": 7, "v": "theirs"}]


@pytest.mark.thorough
def test_a_table_whose_name_changes_in_case_is_another_one_at_postgres(
    spark: Any, tmp_path: Path
) -> None:
    source, place = server("mysql"), server("postgres")
    url, copy = source.create_database("renamed"), place.create_database("of_renamed")
    source.execute("CREATE TABLE t (id INT PRIMARY KEY, v INT)", "renamed")
    source.execute("INSERT INTO t VALUES (1, 1), (2, 2), (3, 3)", "renamed")
    outputs = (
        f"outputs: [{{kind: postgres, url: '{copy}'}}]\n"
        f"pipeline: {{checkpoint: '{tmp_path}/checkpoint'}}\n"
    )

    def rows(name: str) -> list[tuple[Any, ...]] | None:
        try:
            return place.execute(f'SELECT id, v FROM renamed."{name}" ORDER BY id', "of_renamed")
        except psycopg.Error:
            return None

    try:
        with capturing(tmp_path, "mysql", url, "renamed.*", outputs) as config:
            until(lambda: rows("t") == [(1, 1), (2, 2), (3, 3)], "the dump", 60)
            source.execute("RENAME TABLE t TO T", "renamed")
            source.execute("UPDATE T SET v = 9 WHERE id = 1", "renamed")
            source.execute("DELETE FROM T WHERE id = 3", "renamed")
            until(lambda: rows("T") == [(1, 9), (2, 2)], "the table by its new name", 60)
            source.execute("RENAME TABLE T TO t", "renamed")
            source.execute("INSERT INTO t VALUES (4, 4)", "renamed")
            until(lambda: rows("t") == [(1, 9), (2, 2), (4, 4)], "the table by its old name", 60)
            (output,) = app.status(config).document["overview"]["outputs"]
            assert not output.get("refused"), output
    finally:
        source.drop_database("renamed")
        place.drop_database("of_renamed")


def test_a_batch_of_copies_has_what_a_task_takes_without_a_shuffle(
    spark: Any, built: BuiltLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Records of tables that the output does not deliver do not count."""
    columns = {"id": "int64", "v": "text"}
    table, other = (built.table(f"public.{name}", columns) for name in ("orders", "others"))
    for first in range(0, 60, 10):
        for each in (table, other):
            for key in range(first, first + 10):
                built.insert(each, str(key), f"v{key:02}")
            built.flush()
    head, end = built.log.head_offset, built.log.latest_offset()
    size = max(map(scheduling.bytes_of, built.log.segments(head)))
    for module in (scheduling, executor_output):
        monkeypatch.setattr(module, "SHARED_BYTES", 2 * size)
    shuffled: list[str] = []

    def frame(*arguments: Any, **options: Any) -> Any:
        shuffled.append(str(arguments[2].source))
        return run_frame(*arguments, **options)

    run_frame = scheduling.run_frame
    monkeypatch.setattr(scheduling, "run_frame", frame)

    def output(name: str) -> DatabaseOutput:
        return DatabaseOutput(
            spark,
            built.path,
            SqliteState(f"sqlite:///{tmp_path / name}.db"),
            Delivery(name, tables=("public.orders",), part_bytes=size),
            dialect("postgres"),
            namespace=f"{name}_{tmp_path.name}"[:60],
            own=f"own_{name}_{tmp_path.name}"[:60],
            batch_rows=50_000,
        )

    rows: list[int] = []
    run_output_loops(
        spark,
        built.path,
        [cut := output("cut")],
        LoopOptions(once=True),
        on_progress=lambda batch: rows.append(batch.rows_by_table["public.orders"]),
    )
    cut.close()
    assert (rows, shuffled) == ([20, 20, 20], [])
    whole = output("whole")
    whole.prepare(built.log.generation)
    whole.write(batch_of(built.log, head, end))
    whole.close()
    assert shuffled == ["public.orders"], "a larger batch goes through one"
