"""A table that can't be captured or dumped is reported, can be repaired, and delays no other."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.integration.windows.live import Live
from tests.support.postgres import PostgresServer

from tidelog import app
from tidelog.capture import unsupported_tables
from tidelog.errors import PreflightError
from tidelog.eventlog.reader import EventLog
from tidelog.model.schema import TableName
from tidelog.system.backoff import Backoff

pytestmark = pytest.mark.integration

_numbers = itertools.count(1)
ROLE = "gatherer"
Make = Callable[..., Live]


@pytest.fixture
def gathered(
    postgres: PostgresServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Make]:
    """Makes a `Live` whose capture has a role without more rights than the docs ask for."""
    name = f"gathered_{next(_numbers)}"
    dsn = postgres.create_database(name)
    postgres.execute(f"CREATE ROLE {ROLE} LOGIN REPLICATION")
    postgres.execute("CREATE ROLE shop LOGIN")
    postgres.execute("CREATE ROLE stranger LOGIN")
    postgres.execute(f"GRANT shop TO {ROLE}")
    postgres.execute(f"GRANT CREATE ON DATABASE {name} TO {ROLE}")
    made: list[Live] = []

    def make(**options: Any) -> Live:
        live = Live(
            dsn, tmp_path, monkeypatch, url=postgres.dsn(name, user=ROLE), snapshot="initial",
            **options,
        )  # fmt: skip
        made.append(live)
        live.sql.execute("GRANT ALL ON SCHEMA public TO shop, stranger")
        live.sql.execute("ALTER TABLE tick OWNER TO shop")
        live.sql.execute("CREATE TABLE t (id int PRIMARY KEY, n int)")
        live.sql.execute("ALTER TABLE t OWNER TO shop")
        live.sql.execute("INSERT INTO t SELECT i, 1 FROM generate_series(1, 10) i")
        return live

    yield make
    for live in made:
        live.close()
    postgres.drop_database(name)
    for role in (ROLE, "shop", "stranger"):
        postgres.execute(f"DROP ROLE {role}")


def refused(live: Live) -> dict[str, dict[str, Any]]:
    return {entry["table"]: entry for entry in app.status(live.config).document.get("refused", ())}


def goes_on(live: Live) -> None:
    """What is done to ``t`` comes still."""
    live.sql.execute("UPDATE t SET n = n + 1 WHERE id < 4")
    live.check()


def strangers_table(live: Live) -> None:
    live.sql.execute("CREATE TABLE theirs (id int PRIMARY KEY, n int)")
    live.sql.execute("INSERT INTO theirs VALUES (1, 1)")
    live.sql.execute("ALTER TABLE theirs OWNER TO stranger")


def mended(live: Live, table: str = "public.theirs") -> None:
    live.wait_for(lambda: not refused(live), "it is refused no more")
    live.wait_for(lambda: live.completions(table), "it is dumped")
    live.sql.execute(f"INSERT INTO {table} VALUES (9, 1)")
    live.check(table)
    goes_on(live)


@pytest.mark.parametrize("when", ["before the first start", "while it runs", "while it is down"])
def test_table_of_another_role_waits_for_a_right_to_it(gathered: Make, when: str) -> None:
    live = gathered()
    if when == "before the first start":
        strangers_table(live)
    live.start()
    live.wait_for(live.completions, "the initial dump")
    if when == "while it runs":
        strangers_table(live)
    elif when == "while it is down":
        live.stop()
        strangers_table(live)
        live.start()
    live.wait_for(lambda: refused(live), "it is told")
    entry = refused(live)["public.theirs"]
    assert "does not own it (its owner is stranger)" in entry["reason"]
    assert entry["remedy"].startswith("ALTER PUBLICATION")
    assert 'all rights of its owner: GRANT "stranger" TO "gatherer"' in entry["remedy"]
    assert not entry["only_dumps"]
    live.sql.execute("INSERT INTO theirs VALUES (2, 1)")
    goes_on(live)
    live.restart()  # it is stored, and no start fails
    goes_on(live)
    assert not live.completions("public.theirs")
    assert "public.theirs" in refused(live)
    live.sql.execute(f"GRANT stranger TO {ROLE}")
    mended(live)


def test_publication_that_a_superuser_extends_takes_the_table_in(gathered: Make) -> None:
    """The first remedy that is told; the role must still be given SELECT."""
    live = gathered()
    strangers_table(live)
    live.start()
    live.wait_for(lambda: refused(live), "it is told")
    remedy = refused(live)["public.theirs"]["remedy"].splitlines()[0].partition(" -- ")[0]
    live.sql.execute(remedy)
    select = 'GRANT SELECT ON "public"."theirs" TO "gatherer";'
    live.wait_for(
        lambda: refused(live).get("public.theirs", {}).get("remedy") == select, "what it lacks now"
    )
    live.sql.execute(select)
    mended(live)


def test_no_table_that_can_be_published_fails_the_first_start(gathered: Make) -> None:
    live = gathered()
    strangers_table(live)
    live.sql.execute("ALTER TABLE t OWNER TO stranger")
    live.sql.execute("ALTER TABLE tick OWNER TO stranger")
    live.watermarks = "message"
    with pytest.raises(AssertionError, match=r"ended: public\.t: .*does not own it"):
        live.start()
    assert isinstance(live.failure, PreflightError)


def test_lost_right_to_read_a_table_is_reported_and_its_dump_made_up_for(gathered: Make) -> None:
    live = gathered()
    live.start()
    live.wait_for(live.completions, "the initial dump")
    live.sql.execute("CREATE TABLE theirs (id int PRIMARY KEY, n int)")
    live.sql.execute("INSERT INTO theirs SELECT i, 1 FROM generate_series(1, 10) i")
    live.sql.execute("ALTER TABLE theirs OWNER TO stranger")
    live.sql.execute(f"GRANT stranger TO {ROLE}")
    live.wait_for(lambda: live.completions("public.theirs"), "it is dumped")
    before = len(live.completions("public.theirs"))
    live.sql.execute(f"REVOKE stranger FROM {ROLE}")
    # Published it is: what the log holds of it comes, but for what it does not show.
    live.wait_for(lambda: refused(live), "it is told")
    assert refused(live)["public.theirs"]["remedy"] == (
        'GRANT SELECT ON "public"."theirs" TO "gatherer";'
    )
    assert refused(live)["public.theirs"]["only_dumps"]
    live.sql.execute("UPDATE theirs SET n = 2 WHERE id = 1")
    live.sql.execute("ALTER TABLE theirs ADD more int NOT NULL DEFAULT 7")
    goes_on(live)
    live.restart()
    goes_on(live)
    assert len(live.completions("public.theirs")) == before
    live.sql.execute("GRANT SELECT ON theirs TO gatherer")
    live.wait_for(lambda: len(live.completions("public.theirs")) > before, "it is dumped again")
    live.wait_for(lambda: not refused(live), "it is refused no more")
    live.check("public.theirs")


def test_initial_dump_that_met_a_lost_right_is_made_up_for(gathered: Make) -> None:
    live = gathered()
    live.sql.execute("CREATE TABLE theirs (id int PRIMARY KEY, n int)")
    live.sql.execute("INSERT INTO theirs VALUES (1, 1)")
    live.sql.execute("ALTER TABLE theirs OWNER TO shop")
    live.sql.execute("REVOKE SELECT ON theirs FROM shop")
    live.start()
    live.wait_for(live.completions, "the others are dumped")
    live.wait_for(lambda: refused(live), "it is told")
    assert not live.completions("public.theirs")
    live.sql.execute("GRANT SELECT ON theirs TO shop")
    mended(live)


@pytest.mark.parametrize(
    ("first_retry_s", "remedy"),
    [
        (0.5, f"ALTER ROLE {ROLE} BYPASSRLS"),
        (600.0, "ALTER TABLE theirs NO FORCE ROW LEVEL SECURITY"),
    ],
)
def test_denied_read_of_rows_is_tried_again_less_and_less_often_and_once_the_table_is_altered(
    gathered: Make, monkeypatch: pytest.MonkeyPatch, first_retry_s: float, remedy: str
) -> None:
    """No privilege that the catalogue tells of is missing: a policy hides rows."""
    monkeypatch.setattr(unsupported_tables, "RETRY_MS", Backoff(first_retry_s * 1000, 3_600_000))
    live = gathered()
    live.sql.execute("CREATE TABLE theirs (id int PRIMARY KEY, n int)")
    live.sql.execute("INSERT INTO theirs VALUES (1, 1)")
    live.sql.execute("ALTER TABLE theirs ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY")
    live.sql.execute("ALTER TABLE theirs OWNER TO shop")
    live.start()
    live.wait_for(lambda: refused(live), "it is told")
    assert "row-level security" in refused(live)["public.theirs"]["reason"]
    goes_on(live)
    live.sql.execute(remedy)
    mended(live)


@pytest.mark.parametrize(
    "revoked", ["USAGE ON SCHEMA tidelog", "INSERT, UPDATE, SELECT ON tidelog.watermark"]
)
def test_lost_right_to_write_watermarks_leaves_the_log(gathered: Make, revoked: str) -> None:
    live = gathered()
    live.start()
    live.wait_for(live.completions, "the initial dump")
    before = len(live.completions())
    live.sql.execute(f"REVOKE {revoked} FROM {ROLE}")
    live.wait_for(lambda: "tidelog.watermark" in refused(live), "it is told")
    entry = refused(live)["tidelog.watermark"]
    assert "no table can be dumped" in entry["reason"]
    live.sql.execute("ALTER TABLE t ADD more int NOT NULL DEFAULT 7")  # calls for a dump
    live.sql.execute("UPDATE t SET n = 5 WHERE id = 1")
    live.restart()
    live.sql.execute("UPDATE t SET n = 6 WHERE id = 1")
    live.catch_up()
    assert [e.n for e in live.events("public.t") if e.op == "U"] == [5, 6]
    assert len(live.completions()) == before
    live.sql.execute(entry["remedy"])
    live.wait_for(lambda: len(live.completions()) > before, "what is due is dumped")
    live.wait_for(lambda: not refused(live), "nothing is refused any more")
    goes_on(live)


def test_dump_that_a_refused_table_needs_holds_up_no_other(gathered: Make) -> None:
    """The log tells of both: what it tells is judged in turn."""
    live = gathered()
    live.sql.execute("CREATE TABLE other (id int PRIMARY KEY, n int)")
    live.sql.execute("ALTER TABLE other OWNER TO shop")
    live.start()
    live.wait_for(lambda: live.completions("public.tick"), "the initial dump")
    before = len(live.completions())
    live.sql.execute("ALTER TABLE other OWNER TO stranger")
    live.sql.execute(f"REVOKE SELECT ON other FROM {ROLE}")
    live.wait_for(lambda: "public.other" in refused(live), "it is told")
    with live.connect(autocommit=False) as session:
        session.execute("ALTER TABLE other RENAME TO aside")
        session.execute("INSERT INTO aside VALUES (1, 1)")
        session.execute("ALTER TABLE aside RENAME TO other")
    live.sql.execute("ALTER TABLE t RENAME n TO m")
    live.sql.execute("UPDATE t SET m = 5 WHERE id = 1")
    live.wait_for(lambda: len(live.completions()) > before, "the other one is dumped")
    assert "public.other" in refused(live)
    done = len(live.completions("public.other"))
    live.sql.execute(f"GRANT SELECT ON other TO {ROLE}")
    live.wait_for(lambda: len(live.completions("public.other")) > done, "what is due is dumped")
    live.check("public.other")


def test_table_of_inserts_only_is_shown_until_it_is_fixed(gathered: Make) -> None:
    live = gathered()
    live.sql.execute("CREATE TABLE keyless (id int NOT NULL, n int)")
    live.sql.execute("ALTER TABLE keyless OWNER TO shop")
    live.start()

    def shown() -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = app.status(live.config).document.get("inserts_only", [])
        return found

    live.wait_for(lambda: len(shown()) == 1, "it is told")
    [entry] = shown()
    assert (entry["table"], entry["reason"]) == ("public.keyless", "it has no primary key")
    live.sql.execute(entry["remedy"].split(" --")[0].encode())
    live.wait_for(lambda: shown() == [], "it is told no more")
    assert not refused(live)


def test_new_table_is_dumped_by_the_index_that_identifies_its_rows(gathered: Make) -> None:
    live = gathered()
    live.start()
    live.wait_for(live.completions, "the initial dump")
    live.sql.execute("CREATE TABLE late (n int, b int NOT NULL, a int NOT NULL)")
    live.sql.execute("INSERT INTO late SELECT i, i % 3, i FROM generate_series(1, 9) i")
    live.sql.execute("CREATE UNIQUE INDEX late_ab ON late (a, b)")
    live.sql.execute("ALTER TABLE late REPLICA IDENTITY USING INDEX late_ab")
    live.sql.execute("ALTER TABLE late OWNER TO shop")
    live.wait_for(lambda: live.completions("public.late"), "it is dumped")
    live.sql.execute("UPDATE late SET n = 40 WHERE a = 4")
    live.sql.execute("DELETE FROM late WHERE a = 5")
    live.wait_for(lambda: [e for e in live.events() if e.op == "D"], "its changes come")
    live.check("public.late", key=("b", "a"))
    schemas = EventLog.open(live.directory / "log").schemas.versions(TableName("public", "late"))
    assert {(each.key, each.match_key) for each in schemas if each.match_key} == {
        (("a", "b"), ("b", "a"))
    }
