"""The event trigger: the application's UPDATE does not fail when a key goes, and capture looks."""

from __future__ import annotations

from collections.abc import Callable

import psycopg
import pytest
from tests.integration.windows.live import Live
from tests.integration.windows.rules import Make
from tests.integration.windows.test_changes_undone import agrees

from tidelog.capture.session import session
from tidelog.sources.postgres.catalogue.ddl_trigger import (
    DDL_PREFIX,
    findings,
    install_sql,
)
from tidelog.sources.postgres.catalogue.publication import Publications

pytestmark = pytest.mark.integration

PUBLICATIONS = Publications("tidelog", ["public.*"])
NO_IDENTITY = psycopg.errors.ObjectNotInPrerequisiteState

LOSSES = {
    "key dropped": ("ALTER TABLE t DROP CONSTRAINT t_pkey",),
    "key deferrable": (
        "ALTER TABLE t DROP CONSTRAINT t_pkey",
        "ALTER TABLE t ADD PRIMARY KEY (id) DEFERRABLE",
    ),
    "column of the key dropped": (
        "ALTER TABLE t ADD k int",
        "UPDATE t SET k = id",
        "ALTER TABLE t DROP id",
        "ALTER TABLE t RENAME k TO id",
    ),
    "identity nothing": ("ALTER TABLE t REPLICA IDENTITY NOTHING",),
    "identity's index dropped": (
        "CREATE UNIQUE INDEX by_n ON t (n)",
        "ALTER TABLE t ALTER n SET NOT NULL",
        "ALTER TABLE t REPLICA IDENTITY USING INDEX by_n",
        "DROP INDEX by_n",
    ),
}
BACK = {
    "key dropped": "ALTER TABLE t ADD PRIMARY KEY (id)",
    "key deferrable": "ALTER TABLE t DROP CONSTRAINT t_pkey, ADD PRIMARY KEY (id)",
    "column of the key dropped": "ALTER TABLE t ADD PRIMARY KEY (id)",
    "identity nothing": "ALTER TABLE t REPLICA IDENTITY DEFAULT",
    "identity's index dropped": "ALTER TABLE t REPLICA IDENTITY DEFAULT",
}


def captured(live: Live, *, trigger: bool = True) -> Live:
    live.snapshot = "initial"
    live.sql.execute("CREATE TABLE t (id int PRIMARY KEY, n int)")
    live.sql.execute("INSERT INTO t SELECT i, i FROM generate_series(1, 9) i")
    live.start()
    live.wait_for(live.completions, "the initial dump")
    if trigger:
        live.sql.execute(install_sql(PUBLICATIONS).encode())
    live.catch_up()
    return live


def members(live: Live, publication: str) -> set[str]:
    rows = live.sql.execute(
        "SELECT r.prrelid::regclass::text FROM pg_publication_rel r "
        "JOIN pg_publication p ON p.oid = r.prpubid WHERE p.pubname = %s",
        (publication,),
    )
    return {row[0] for row in rows}


@pytest.mark.parametrize("loss", LOSSES)
def test_updates_do_not_fail_when_the_key_goes_while_capture_is_down(live: Make, loss: str) -> None:
    capture = captured(live())
    capture.stop()
    with capture.connect(autocommit=False) as application:
        for statement in (*LOSSES[loss], "UPDATE t SET n = n + 100 WHERE id < 4"):
            application.execute(statement.encode())
    capture.sql.execute("UPDATE t SET n = n + 100 WHERE id = 4")
    assert "t" in members(capture, "tidelog_inserts") - members(capture, "tidelog")
    capture.sql.execute(BACK[loss].encode())
    capture.sql.execute("DELETE FROM t WHERE id = 9")
    capture.start()
    agrees(capture)
    capture.wait_for(lambda: "t" in members(capture, "tidelog"), "its updates are published again")
    agrees(capture)


@pytest.mark.parametrize("loss", LOSSES)
def test_without_the_trigger_they_fail(live: Make, loss: str) -> None:
    """What the trigger is for; if the server changes, it may go."""
    capture = captured(live(), trigger=False)
    capture.stop()
    with capture.connect() as application, application.transaction(force_rollback=True):
        for statement in LOSSES[loss]:
            application.execute(statement.encode())
        with pytest.raises(NO_IDENTITY, match="does not have a replica identity"):
            application.execute("UPDATE t SET n = n + 100 WHERE id < 4")


def test_partition_that_loses_its_identity(live: Make) -> None:
    capture = live()
    capture.sql.execute("CREATE TABLE p (id int PRIMARY KEY, n int) PARTITION BY RANGE (id)")
    capture.sql.execute("CREATE TABLE p_0 PARTITION OF p FOR VALUES FROM (0) TO (5)")
    captured(capture)
    assert "p" in members(capture, "tidelog")
    capture.stop()
    capture.sql.execute("INSERT INTO p VALUES (1, 1)")
    capture.sql.execute("ALTER TABLE p_0 REPLICA IDENTITY NOTHING")
    capture.sql.execute("UPDATE p SET n = 2")
    assert "p" in members(capture, "tidelog_inserts") - members(capture, "tidelog")


def no_publication(live: Live) -> None:
    live.stop()
    live.sql.execute("DROP PUBLICATION tidelog")


def no_publication_of_inserts(live: Live) -> None:
    live.stop()
    live.sql.execute("DROP PUBLICATION tidelog_inserts")


def function_that_fails(live: Live) -> None:
    live.sql.execute(
        'ALTER FUNCTION tidelog.tidelog_ddl() SET search_path = "nowhere"; '
        "ALTER FUNCTION tidelog.tidelog_ddl() SET default_transaction_read_only = on"
    )


@pytest.mark.parametrize(
    "trouble", [no_publication, no_publication_of_inserts, function_that_fails]
)
def test_ddl_never_fails_by_the_trigger(live: Make, trouble: Callable[[Live], None]) -> None:
    capture = captured(live())
    trouble(capture)
    for statement in (
        "CREATE TABLE u (id int PRIMARY KEY)",
        "ALTER TABLE t DROP CONSTRAINT t_pkey",
        "CREATE INDEX by_n ON t (n)",
        "DROP INDEX by_n",
        "CREATE TEMPORARY TABLE temp (id int)",
        "CREATE TYPE mood AS ENUM ('a')",
        "COMMENT ON TABLE t IS 'x'",
        "DROP TABLE u",
    ):
        capture.sql.execute(statement.encode())


def test_ddl_does_not_wait_for_who_alters_the_publication(live: Make) -> None:
    """The table stays published then: capture's next look moves it."""
    capture = captured(live(poll_interval_s=60.0))
    with capture.connect(autocommit=False) as other:
        other.execute("ALTER PUBLICATION tidelog SET (publish = 'insert, update, delete')")
        other.execute("LOCK TABLE pg_publication_rel IN EXCLUSIVE MODE")
        capture.sql.execute("SET statement_timeout = '20s'")
        capture.sql.execute("ALTER TABLE t DROP CONSTRAINT t_pkey")
        other.rollback()
    capture.sql.execute("ALTER TABLE t ADD PRIMARY KEY (id)")


def test_user_without_rights_may_alter_a_table_of_its_own(live: Make) -> None:
    capture = captured(live())
    capture.sql.execute("DROP ROLE IF EXISTS tidelog_app")
    capture.sql.execute("CREATE ROLE tidelog_app")
    try:
        capture.sql.execute("ALTER TABLE t OWNER TO tidelog_app")
        capture.stop()
        capture.sql.execute("SET ROLE tidelog_app")
        capture.sql.execute("ALTER TABLE t DROP CONSTRAINT t_pkey")
        capture.sql.execute("UPDATE t SET n = 5 WHERE id = 5")
    finally:
        capture.sql.execute("RESET ROLE")
        capture.sql.execute("ALTER TABLE t OWNER TO postgres; DROP ROLE tidelog_app")


def test_capture_looks_at_once(live: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    capture = captured(live(poll_interval_s=0.2))
    monkeypatch.setattr(session, "HINT_LEAST_S", 0.2)
    capture.poll_interval_s = 3600.0
    capture.restart()
    capture.catch_up()
    capture.one("SELECT pg_sleep(1)")  # the look at start
    capture.sql.execute("CREATE TABLE late (id int PRIMARY KEY)")
    capture.wait_for(lambda: "public.late" in capture.published(), "it is published")


def test_capture_looks_at_once_if_the_log_shows_another_shape(
    live: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the trigger: the table takes inserts, which show that its key is gone."""
    capture = captured(live(), trigger=False)
    monkeypatch.setattr(session, "HINT_LEAST_S", 0.2)
    capture.poll_interval_s = 3600.0
    capture.restart()
    capture.sql.execute("UPDATE t SET n = 5 WHERE id = 5")
    capture.catch_up()
    capture.one("SELECT pg_sleep(1)")  # the look at start
    capture.sql.execute("ALTER TABLE t DROP CONSTRAINT t_pkey")
    capture.sql.execute("INSERT INTO t VALUES (10, 10)")
    capture.wait_for(lambda: "t" in members(capture, "tidelog_inserts"), "it is moved")
    capture.sql.execute("UPDATE t SET n = 6 WHERE id = 5")


def test_message_of_anyone_says_nothing(live: Make) -> None:
    capture = captured(live())
    for content in ("", "\\xff", "{}", "x" * 100_000):
        for transactional in (True, False):
            capture.sql.execute(
                "SELECT pg_logical_emit_message(%s, %s, %s)", (transactional, DDL_PREFIX, content)
            )
    agrees(capture)
    assert len(capture.completions()) == 1


def test_check_reports(live: Make) -> None:
    capture = captured(live(), trigger=False)

    def found() -> tuple[str, str]:
        (finding,) = findings(capture.sql, PUBLICATIONS)
        return finding.level, finding.fix

    level, sql = found()
    assert level == "ok"
    capture.sql.execute(sql.encode())
    assert found() == ("ok", "")
    capture.sql.execute("ALTER EVENT TRIGGER tidelog_ddl DISABLE")
    level, sql = found()
    assert level == "warning"
    capture.sql.execute(sql.encode())
    assert found() == ("ok", "")
    source = capture.one("SELECT prosrc FROM pg_proc WHERE proname = 'tidelog_ddl'")
    capture.sql.execute(
        "CREATE OR REPLACE FUNCTION tidelog.tidelog_ddl() RETURNS event_trigger LANGUAGE plpgsql "
        f"AS $tidelog${source}-- older\n$tidelog$".encode()
    )
    level, sql = found()
    assert level == "warning"
    capture.sql.execute(sql.encode())
    assert found() == ("ok", "")
    # as docs/sources/postgresql.md says
    capture.sql.execute("DROP EVENT TRIGGER tidelog_ddl; DROP FUNCTION tidelog.tidelog_ddl()")
    assert found()[1]
