"""The alert rules that we ship, in a real Prometheus, while things go wrong with a capture."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from tests.faults.capture_fixture import Source
from tests.integration.test_control_rest import free_port
from tests.support.http_receiver import HttpReceiver
from tests.support.postgres import PostgresServer
from tests.support.prometheus import INSTALLED, TOKEN, WHY, Prometheus, promtool

from tidelog.app.web.metrics import METRICS

pytestmark = [
    pytest.mark.integration,
    pytest.mark.thorough,
    pytest.mark.skipif(not INSTALLED, reason=WHY),
]

SOONER = {
    "TidelogCaptureLate": ("> 300", "> 1"),
    "TidelogOutputLate": ("> 900", "> 1"),
    "TidelogPipelineSilent": ("> 600", "> 2"),
}
SMALL_LOG = {"max_slot_wal_keep_size": "32MB", "checkpoint_timeout": "1h", "max_wal_size": "2GB"}
UNREADABLE = """
CREATE FUNCTION app.helper(int) RETURNS int IMMUTABLE LANGUAGE sql AS 'SELECT $1';
CREATE FUNCTION app.outer_one(int) RETURNS int IMMUTABLE LANGUAGE plpgsql
  AS 'BEGIN RETURN app.helper($1); END';
CREATE TABLE app.unreadable (id int PRIMARY KEY, n int);
INSERT INTO app.unreadable SELECT i, i FROM generate_series(1, 10) i;
CREATE INDEX ON app.unreadable (app.outer_one(1 + n * 0)) WHERE app.outer_one(1) = 1;
DROP FUNCTION app.helper;
"""
NOT_IN_SUCH_A_RUN = {
    "tidelog_source_log_lost_in_seconds": "told after four minutes",
    "tidelog_dump_left_seconds": "these dumps end at once",
    "tidelog_dump_chunks_voided_total": "no chunk is void",
}
SPARK_PATIENCE_S = 240.0


@pytest.fixture
def own_server() -> Iterator[PostgresServer]:
    with PostgresServer(port=free_port(), settings=SMALL_LOG) as server:
        yield server


class Observed:
    """A capture that Prometheus scrapes."""

    def __init__(self, server: PostgresServer, directory: Path, more: str = "") -> None:
        self.server = server
        self.source = Source(server.create_database("alerts"), directory, str(directory / "log"))
        self.port = free_port()
        rest = f"{{port: {self.port}, token: {TOKEN}-x, metrics_token: {TOKEN}}}"
        config = self.source.config_file
        config.write_text(f"{config.read_text()}control: {{rest: {rest}}}\n{more}")
        self.prometheus = Prometheus(directory, self.port, SOONER)

    def execute(self, sql: str, database: str | None = None) -> list[tuple[object, ...]]:
        """On a connection of its own; the faults break others."""
        dsn = self.source.dsn if database is None else self.server.dsn(database)
        with psycopg.connect(dsn, autocommit=True) as connection:
            found = connection.execute(sql.encode())
            return found.fetchall() if found.description else []

    def scraped(self) -> str:
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}/metrics", headers={"Authorization": f"Bearer {TOKEN}"}
        )
        with urllib.request.urlopen(request, timeout=10) as answer:
            return str(answer.read().decode())

    def close(self) -> None:
        self.source.close()
        self.prometheus.close()


def test_each_fault_of_capture_makes_its_alert_and_its_end_takes_it_back(
    own_server: PostgresServer, tmp_path: Path
) -> None:
    here = Observed(own_server, tmp_path)
    alerts = here.prometheus
    try:
        alerts.wait("TidelogNobodyLeads")
        capture = here.source.start()
        alerts.wait(gone="TidelogNobodyLeads")
        here.execute("CREATE TABLE app.keyless (a int)")
        alerts.wait("TidelogTableRefused")
        here.execute("DROP TABLE app.keyless")
        alerts.wait(gone="TidelogTableRefused")
        here.execute(UNREADABLE)
        alerts.wait("TidelogDumpFailed")
        here.execute("DROP TABLE app.unreadable")
        alerts.wait(gone="TidelogDumpFailed")

        [[walsender]] = here.execute("SELECT active_pid FROM pg_replication_slots")
        assert isinstance(walsender, int)
        os.kill(walsender, signal.SIGSTOP)
        try:
            here.source.write(1, 10)
            alerts.wait("TidelogCaptureLate")
            for _ in range(4):  # of 16 MB each
                here.execute("CREATE TABLE app.more (id int PRIMARY KEY); DROP TABLE app.more")
                here.execute("SELECT pg_switch_wal()")
            alerts.wait("TidelogLogNearlyLost")
        finally:
            os.kill(walsender, signal.SIGCONT)
        alerts.wait(gone="TidelogCaptureLate")
        alerts.wait(gone="TidelogLogNearlyLost")

        lint = promtool("check", "metrics", told=here.scraped())
        assert (lint.returncode, lint.stderr) == (0, "")
        wanted = {m.name for m in METRICS if not m.name.startswith("tidelog_output_")}
        wanted -= {*NOT_IN_SUCH_A_RUN, "tidelog_gap_timestamp_seconds"}
        assert wanted <= alerts.names()

        here.execute("ALTER DATABASE alerts ALLOW_CONNECTIONS false", "postgres")
        here.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE datname = 'alerts' AND backend_type = 'client backend'",
            "postgres",
        )
        alerts.wait("TidelogSourceAway")
        here.execute("ALTER DATABASE alerts ALLOW_CONNECTIONS true", "postgres")
        alerts.wait(gone="TidelogSourceAway")

        own_server.stop()
        alerts.wait("TidelogNobodyLeads")
        own_server.start()
        alerts.wait(gone="TidelogNobodyLeads")

        assert "TidelogGap" not in alerts.firing()
        capture.stop()
        alerts.wait("TidelogNobodyLeads")
        here.execute("SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots")
        config = here.source.config_file
        config.write_text(config.read_text().replace("slot:", "snapshot: when_needed, slot:"))
        here.source.start()
        alerts.wait("TidelogGap", gone="TidelogNobodyLeads")
    finally:
        here.close()


@pytest.mark.spark
def test_each_fault_of_an_output_makes_its_alert(
    own_server: PostgresServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.support.prometheus.PATIENCE_S", SPARK_PATIENCE_S)
    api = HttpReceiver(tmp_path / "api.db")
    api.start()
    api.fail(poison="poison")
    url = f"{api.url}/events/{{table}}"
    letters = f"{{kind: http, name: letters, url: '{url}', dead_letter: {{path: {tmp_path}/dead}}}}"
    strict = f"{{kind: http, name: strict, url: '{url}'}}"
    here = Observed(own_server, tmp_path, f"outputs: [{letters}, {strict}]\n")
    alerts = here.prometheus
    pipeline: subprocess.Popen[bytes] | None = None
    try:
        here.source.start()
        here.source.write(1, 3)
        with (tmp_path / "pipeline.log").open("wb") as log:
            pipeline = subprocess.Popen(
                [sys.executable, "-m", "tidelog", "pipeline", str(here.source.config_file)],
                stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip
        here.source.wait_for(lambda: len(api.events()) >= 6, SPARK_PATIENCE_S)
        assert not {"TidelogDeadLetters", "TidelogOutputStopped"} & alerts.firing()

        here.source.sql.execute("INSERT INTO app.t VALUES (4, 'poison')")
        alerts.wait("TidelogDeadLetters", "TidelogOutputStopped")
        [found] = alerts.query("tidelog_output_dead_letters_total{output='letters'}")
        assert float(found["value"][1]) == 1
        wanted = {m.name for m in METRICS if m.name.startswith("tidelog_output_")}
        assert wanted <= alerts.names()

        os.killpg(pipeline.pid, signal.SIGSTOP)
        here.source.write(5, 9)
        alerts.wait("TidelogOutputLate", "TidelogPipelineSilent")
    except BaseException:
        print((tmp_path / "pipeline.log").read_text()[-4000:])
        raise
    finally:
        if pipeline is not None:
            os.killpg(pipeline.pid, signal.SIGKILL)
            pipeline.wait()
        api.kill()
        here.close()
