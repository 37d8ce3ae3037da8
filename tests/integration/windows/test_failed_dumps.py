"""A dump that capture needs and that failed is asked for again, once its cause may have passed."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.integration.windows.live import Live

from tidelog import app
from tidelog.app.pipeline.session import request_dumps
from tidelog.capture.dumps import automatic
from tidelog.system.backoff import Backoff

pytestmark = pytest.mark.integration
Make = Callable[..., Live]

BROKEN = """
CREATE FUNCTION helper(int) RETURNS int IMMUTABLE LANGUAGE sql AS 'SELECT $1';
CREATE FUNCTION outer_one(int) RETURNS int IMMUTABLE LANGUAGE plpgsql
  AS 'BEGIN RETURN public.helper($1); END';
CREATE TABLE t (id int PRIMARY KEY, n int);
INSERT INTO t SELECT i, i FROM generate_series(1, 10) i;
CREATE INDEX ON t (outer_one(1 + n * 0)) WHERE outer_one(1) = 1;
DROP FUNCTION helper;
"""
MENDED = "CREATE FUNCTION helper(int) RETURNS int IMMUTABLE LANGUAGE sql AS 'SELECT $1'"


@pytest.mark.parametrize("restarts", [False, True])
def test_failed_dump_is_asked_for_again(
    live: Make, monkeypatch: pytest.MonkeyPatch, restarts: bool
) -> None:
    monkeypatch.setattr(automatic, "REPEAT_EVERY_S", 0.1)
    monkeypatch.setattr(automatic, "REPEAT_MS", Backoff(500, 3_600_000))
    one = live(snapshot="initial")
    one.sql.execute(BROKEN)
    one.start()

    def failed() -> list[str]:
        entries = app.status(one.config).document.get("to_repeat", ())
        return [entry["failed"] for entry in entries if entry["table"] == "public.t"]

    one.wait_for(failed, "it is told that the dump failed")
    assert "helper" in failed()[0]
    if restarts:
        one.restart()
        one.wait_for(failed, "it is told after a restart")
    assert not one.completions()
    one.sql.execute(MENDED)
    one.wait_for(one.completions, "it is dumped")
    one.wait_for(lambda: not failed(), "nothing is left to repeat")
    one.sql.execute("UPDATE t SET n = 0 WHERE id = 3")
    one.check()


def test_failed_dump_that_an_output_needs_is_asked_for_again(
    live: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(automatic, "REPEAT_EVERY_S", 0.1)
    monkeypatch.setattr(automatic, "REPEAT_MS", Backoff(500, 3_600_000))
    one = live(snapshot="initial")
    one.sql.execute(BROKEN + MENDED)
    one.start()
    one.wait_for(one.completions, "it is dumped at first")
    one.sql.execute("DROP FUNCTION helper")
    request_dumps(one.config, "lake", ["public.t"])
    one.wait_for(lambda: app.status(one.config).document.get("to_repeat"), "its dump failed")
    one.sql.execute(MENDED)
    one.wait_for(lambda: len(one.completions()) > 1, "it is dumped again")
    one.wait_for(lambda: not app.status(one.config).document["to_repeat"], "nothing is left")
