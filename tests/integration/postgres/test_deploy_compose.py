"""deploy/compose: its SQL and its configuration lead to a capture, on a real PostgreSQL 18."""

from __future__ import annotations

import os
import subprocess
import threading
from pathlib import Path

import pytest
from tests.support.logged_rows import logged_rows
from tests.support.postgres import PostgresServer

from tidelog import app
from tidelog.app.sources.preflight import check
from tidelog.config import parse_config

pytestmark = pytest.mark.integration

COMPOSE = Path(__file__).parents[3] / "deploy" / "compose"


def test_compose_leads_to_a_capture(tmp_path: Path) -> None:
    with PostgresServer(18, settings={"wal_level": "logical"}) as server:
        server.create_database("shop")
        psql = [server.binary("psql"), "-X", "-q", "-v", "ON_ERROR_STOP=1", server.dsn("shop")]
        done = subprocess.run(
            [*map(str, psql), "-f", str(COMPOSE / "shop.sql")],
            env=os.environ | {"PGPASSWORD_OF_TIDELOG": "it's s3cret"},
            capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        assert (done.returncode, done.stderr) == (0, "")
        host = server.dsn("shop", user="tidelog").rpartition("@")[2].partition("/")[0]
        text = (COMPOSE / "tidelog.yaml").read_text(encoding="utf-8")
        text = text.replace("@db:5432", f"@{host}").replace("/var/lib/tidelog", str(tmp_path))
        text = text.partition("outputs:")[0]
        text = text.replace("  tables:", "  snapshot: initial_only\n  tables:")
        variables = {"PGPASSWORD": "it's s3cret", "TIDELOG_TOKEN": "only-for-this-test"}
        config = parse_config(text, "compose", tmp_path, variables)
        assert [each for each in check(config) if each.level == "error"] == []
        app.run_capture(config, stop_event=threading.Event())  # initial_only: ends by itself
    assert logged_rows(config, "public.orders") >= 1000
