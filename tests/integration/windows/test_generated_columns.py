"""Generated columns: log and dumps have them, or neither has; and `check` says which."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.integration.windows.live import Live
from tests.support.postgres import PostgresServer
from tests.support.postgres_parts import preflight

from tidelog import app
from tidelog.sources.findings import Finding

pytestmark = pytest.mark.integration

OLD = "PostgreSQL logs them from version 18 on"
UNPUBLISHED = "stored ones are not published"
VIRTUAL = "PostgreSQL logs no virtual ones"


@pytest.fixture
def begin(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., Live]]:
    """Starts a capture of a server of a version, of tables with these columns, each with a row."""
    made: list[tuple[Live, PostgresServer, str]] = []

    def begin(version: int, **tables: str) -> Live:
        server: PostgresServer = request.getfixturevalue(f"postgres{version}")
        name = f"generated_{version}"
        live = Live(server.create_database(name), tmp_path, monkeypatch, snapshot="initial")
        made.append((live, server, name))
        for table, columns in tables.items():
            live.sql.execute(f"CREATE TABLE {table} (id int PRIMARY KEY, {columns})".encode())
            live.sql.execute(f"INSERT INTO {table} (id, n) VALUES (1, 1)".encode())
        live.start()
        live.wait_for(lambda: len(live.completions("public.t")) == 1, "the initial dump")
        for table in tables:
            live.sql.execute(f"INSERT INTO {table} (id, n) VALUES (2, 2)".encode())
        return live

    yield begin
    for live, server, name in made:
        try:
            live.close()
        finally:
            server.drop_database(name)


def warned(live: Live, *excluded: str) -> dict[str, Finding]:
    """What `check` says of left out columns, by table."""
    slot = live.dsn.rsplit("/", 1)[1]
    checks = preflight(live.dsn, slot=slot, publication="tidelog", exclude_columns=list(excluded))
    found = checks.check()
    return {each.name: each for each in found if "captured and dumped without" in each.message}


def left_out(live: Live) -> dict[str, tuple[list[str], str]]:
    """What status says, by table: columns, and why."""
    found = app.status(live.config).document.get("left_out_columns", ())
    return {each["table"]: (each["columns"], each["reason"]) for each in found}


def columns(live: Live, table: str = "public.t") -> list[set[str]]:
    """The sets of columns that records and rows of dumps have, in order."""
    events = live.events(table)
    found = [set(each.row) for each in events if each.op in "rIU" and each.row is not None]
    return [each for n, each in enumerate(found) if n == 0 or found[n - 1] != each]


def test_a_column_that_is_left_out_is_named_until_it_is_an_ordinary_one(
    begin: Callable[..., Live],
) -> None:
    live = begin(16, t="n int, g int GENERATED ALWAYS AS (n * 2) STORED", plain="n int")
    finding = warned(live)["table public.t"]
    assert list(warned(live)) == [finding.name]
    assert finding.message == f"captured and dumped without 1 generated column: g ({OLD})"
    assert (finding.level, finding.by_hand) == ("warning", True)
    assert not warned(live, "public.t.g")
    live.wait_for(lambda: left_out(live) == {"public.t": (["g"], OLD)}, "it is told")
    live.wait_for(lambda: len(live.events("public.t")) > 1, "the log's row")
    assert columns(live) == [{"id", "n"}], "of dump and log"
    shown = {each["table"]: each for each in app.schemas(live.config).to_dict()["tables"]}
    assert shown["public.t"]["left_out"] == f"g ({OLD})"
    assert "left_out" not in shown["public.plain"]
    live.sql.execute("ALTER TABLE t RENAME g TO twice")
    live.wait_for(lambda: left_out(live) == {"public.t": (["twice"], OLD)}, "by its new name")
    live.sql.execute("ALTER TABLE t ALTER twice DROP EXPRESSION")
    live.sql.execute("INSERT INTO t VALUES (3, 3, 33)")
    live.wait_for(lambda: len(live.completions("public.t")) == 2, "it is dumped again")
    live.wait_for(lambda: not left_out(live), "it is told no more")
    live.check()
    assert columns(live) == [{"id", "n"}, {"id", "n", "twice"}]
    assert not warned(live)


def test_published_generated_columns_are_in_log_and_dump(begin: Callable[..., Live]) -> None:
    """By the SQL that check prints; virtual ones stay out."""
    live = begin(
        18,
        t="n int, g int GENERATED ALWAYS AS (n * 2) STORED",
        u="n int, h int GENERATED ALWAYS AS (n * 3) VIRTUAL, g int GENERATED ALWAYS AS (n) STORED",
    )
    u = "public.u"
    both = {"public.t": (["g"], UNPUBLISHED), u: (["g", "h"], f"{UNPUBLISHED}; {VIRTUAL}")}
    live.wait_for(lambda: left_out(live) == both, "they are told")
    fix = warned(live)["table public.t"].fix
    assert "publish_generated_columns = stored" in fix
    live.sql.execute(fix.encode())
    for table in ("public.t", u):
        live.wait_for(lambda: len(live.completions(table)) == 2, "dumped again")  # noqa: B023
    live.sql.execute("UPDATE t SET n = 5 WHERE id = 1")
    live.sql.execute("UPDATE u SET n = 5 WHERE id = 1")
    live.wait_for(lambda: left_out(live) == {u: (["h"], VIRTUAL)}, "the virtual one stays out")
    live.check()
    assert columns(live) == [{"id", "n"}, {"id", "n", "g"}]
    live.wait_for(lambda: live.events(u)[-1].op == "U", "the log's row")
    assert columns(live, u) == [{"id", "n"}, {"id", "n", "g"}]
    assert list(warned(live)) == [f"table {u}"]
