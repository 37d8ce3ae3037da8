"""The alert rules that we ship, in a real Prometheus that scrapes captures while things go wrong.

Needs ``prometheus`` and ``promtool`` (Debian: ``apt-get install prometheus``) on the path.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
import yaml
from tests.faults.capture_fixture import Source
from tests.integration.test_control_rest import free_port

from tidelog.demo.servers.postgres import PostgresServer

pytestmark = [
    pytest.mark.integration,
    pytest.mark.thorough,
    pytest.mark.skipif(shutil.which("prometheus") is None, reason="prometheus is not installed"),
]

RULES = Path(__file__).resolve().parents[2] / "docs" / "how-to" / "tidelog-alerts.yaml"
TOKEN = "a-token-to-read"
PATIENCE_S = 60.0


class Prometheus:
    """A server that scrapes one address every second, with our rules, none of which waits."""

    def __init__(self, directory: Path, target: int) -> None:
        self.port = free_port()
        rules = yaml.safe_load(RULES.read_text())
        for rule in rules["groups"][0]["rules"]:
            rule.pop("for", None)
        (directory / "rules.yaml").write_text(yaml.safe_dump(rules))
        config = {
            "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
            "rule_files": ["rules.yaml"],
            "scrape_configs": [
                {
                    "job_name": "tidelog",
                    "authorization": {"credentials": TOKEN},
                    "static_configs": [{"targets": [f"127.0.0.1:{target}"]}],
                }
            ],
        }
        (directory / "prometheus.yml").write_text(yaml.safe_dump(config))
        self._log = (directory / "prometheus.log").open("wb")
        self.process = subprocess.Popen(
            [
                "prometheus", "--config.file=prometheus.yml", "--storage.tsdb.path=data",
                f"--web.listen-address=127.0.0.1:{self.port}",
            ],
            cwd=directory, stdout=self._log, stderr=self._log,
        )  # fmt: skip

    def close(self) -> None:
        self.process.terminate()
        self.process.wait(30)
        self._log.close()

    def firing(self) -> set[str]:
        try:
            with urllib.request.urlopen(
                f"http://127.0.0.1:{self.port}/api/v1/alerts", timeout=5
            ) as answer:
                alerts = json.load(answer)["data"]["alerts"]
        except OSError:
            return set()
        return {alert["labels"]["alertname"] for alert in alerts if alert["state"] == "firing"}

    def wait(self, *wanted: str, gone: str | None = None) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not (set(wanted) <= (found := self.firing()) and gone not in found):
            assert time.monotonic() < deadline, (wanted, gone, found)
            time.sleep(0.5)


@pytest.fixture
def own_server() -> Iterator[PostgresServer]:
    with PostgresServer(port=free_port()) as server:
        yield server


def test_each_fault_makes_its_alert_and_its_end_takes_it_back(
    own_server: PostgresServer, tmp_path: Path
) -> None:
    assert subprocess.run(["promtool", "check", "rules", RULES], check=False).returncode == 0
    dsn = own_server.create_database("alerts")
    port = free_port()
    source = Source(dsn, tmp_path, str(tmp_path / "log"))
    rest = f"control: {{rest: {{port: {port}, token: {TOKEN}-x, metrics_token: {TOKEN}}}}}\n"
    source.config_file.write_text(source.config_file.read_text() + rest)
    prometheus = Prometheus(tmp_path, port)
    try:
        prometheus.wait("TidelogNobodyLeads")
        source.start()
        prometheus.wait(gone="TidelogNobodyLeads")
        with psycopg.connect(dsn, autocommit=True) as sql:
            sql.execute("CREATE TABLE app.keyless (a int)")
            prometheus.wait("TidelogTableRefused")
            sql.execute("DROP TABLE app.keyless")
            prometheus.wait(gone="TidelogTableRefused")
        own_server.stop()
        prometheus.wait("TidelogNobodyLeads")
        own_server.start()
        prometheus.wait(gone="TidelogNobodyLeads")
    finally:
        source.close()
        prometheus.close()
