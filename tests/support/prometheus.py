"""A real Prometheus that scrapes one process, with the alert rules that we ship.

Needs ``prometheus`` and ``promtool`` (Debian: ``apt-get install prometheus``) on the path.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any

import yaml
from tests.integration.test_control_rest import free_port
from tests.left_out import SAID

ROOT = Path(__file__).resolve().parents[2]
RULES = ROOT / "docs" / "how-to" / "tidelog-alerts.yaml"
TOKEN = "a-token-to-read"
PATIENCE_S = 120.0
INSTALLED = shutil.which("prometheus") is not None and shutil.which("promtool") is not None
WHY = f"{SAID}Prometheus, for tests of alert rules and the dashboard: apt-get install prometheus"


def promtool(*arguments: str | Path, told: str = "") -> subprocess.CompletedProcess[str]:
    """What it says; ``told``: on its standard input."""
    return subprocess.run(
        ["promtool", *map(str, arguments)], input=told, capture_output=True, text=True, check=False
    )


def rules() -> list[dict[str, Any]]:
    """The rules that we ship."""
    found: list[dict[str, Any]] = yaml.safe_load(RULES.read_text())["groups"][0]["rules"]
    return found


class Prometheus:
    """A server that scrapes one address every second. None of the rules waits, and those in
    ``sooner`` compare with another number than ours, so that a test lasts seconds.
    """

    def __init__(self, directory: Path, target: int, sooner: dict[str, tuple[str, str]]) -> None:
        self.port = free_port()
        hastened = rules()
        for rule in hastened:
            rule.pop("for", None)
            ours, other = sooner.get(rule["alert"], ("", ""))
            assert ours in rule["expr"], rule
            rule["expr"] = rule["expr"].replace(ours, other)
        groups = {"groups": [{"name": "tidelog", "rules": hastened}]}
        (directory / "rules.yaml").write_text(yaml.safe_dump(groups))
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
        self._process = subprocess.Popen(
            [
                "prometheus", "--config.file=prometheus.yml", "--storage.tsdb.path=data",
                f"--web.listen-address=127.0.0.1:{self.port}"
            ],
            cwd=directory, stdout=self._log, stderr=self._log,
        )  # fmt: skip

    def close(self) -> None:
        self._process.terminate()
        self._process.wait(30)
        self._log.close()

    def firing(self) -> set[str]:
        try:
            alerts = self._ask("alerts")["alerts"]
        except OSError:
            return set()
        return {alert["labels"]["alertname"] for alert in alerts if alert["state"] == "firing"}

    def query(self, expression: str) -> list[dict[str, Any]]:
        """The series that it gives now. Raises urllib.error.HTTPError if it is none."""
        found: list[dict[str, Any]] = self._ask("query", query=expression)["result"]
        return found

    def names(self) -> set[str]:
        """Of all our metrics that were ever scraped."""
        found = self._ask("label/__name__/values")
        return {name for name in found if name.startswith("tidelog_")}

    def wait(self, *wanted: str, gone: str | None = None) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not (set(wanted) <= (found := self.firing()) and gone not in found):
            assert time.monotonic() < deadline, (wanted, gone, found)
            time.sleep(0.3)

    def _ask(self, what: str, **arguments: str) -> Any:
        query = urllib.parse.urlencode(arguments)
        url = f"http://127.0.0.1:{self.port}/api/v1/{what}?{query}"
        with urllib.request.urlopen(url, timeout=10) as answer:
            return json.load(answer)["data"]
