"""The metrics of a process: what Prometheus' own parser reads of them, and what alerts rest on."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families
from starlette.applications import Starlette
from starlette.testclient import TestClient
from tests.unit.test_overview import REFUSED, dump, output, source, status, table

from tidelog.app.metrics.routes import Health
from tidelog.app.metrics.table import METRICS

ROOT = Path(__file__).resolve().parents[2]
RULES = ROOT / "docs" / "how-to" / "tidelog-alerts.yaml"
TOKEN = "a-token-to-read"


class Process:
    """The routes of a process, with a status as its capture has it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, outputs: list[dict[str, Any]]) -> None:
        self.status: dict[str, Any] | None = status(holder="h:1", dump_counters={})
        self.leader: str | None = "h:1"
        monkeypatch.setattr("tidelog.app.metrics.routes.EventLog.open", lambda _path: None)
        monkeypatch.setattr("tidelog.app.metrics.routes.STATUS_EVERY_S", 0.0)
        monkeypatch.setattr("tidelog.app.metrics.routes.outputs_of", lambda _log, _known: outputs)
        health = Health(lambda: self.status, lambda: self.leader, "log", (TOKEN,))
        self.client = TestClient(Starlette(routes=health.routes()))

    def scrape(self) -> dict[tuple[str, tuple[str, ...]], float]:
        answer = self.client.get("/metrics", headers={"Authorization": f"Bearer {TOKEN}"})
        assert answer.status_code == 200
        return {
            (sample.name, tuple(v for _, v in sorted(sample.labels.items()))): sample.value
            for family in text_string_to_metric_families(answer.text)
            for sample in family.samples
        }


@pytest.fixture
def process(monkeypatch: pytest.MonkeyPatch) -> Process:
    return Process(monkeypatch, [output(behind_records=7, lag_s=2.5), output(output="kafka")])


def test_values_are_those_of_the_status(process: Process) -> None:
    process.status = status(
        holder="h:1", updated_ms=int(time.time() * 1000), refused=[REFUSED],
        **source(lag_s=3.0, lost_in_s=100.0),
        **dump(table(rows_read=5)), dump_counters={"rows": 5, "voided": {"ddl": 2}},
    )  # fmt: skip
    found = process.scrape()
    assert found["tidelog_leading", ()] == 1
    assert found["tidelog_capture_lag_seconds", ()] == 3.0
    assert found["tidelog_source_log_lost_in_seconds", ()] == 100.0
    assert found["tidelog_captured_records_total", ()] == 1234
    assert found["tidelog_dump_rows_total", ()] == 5
    assert found["tidelog_dump_chunks_voided_total", ("ddl",)] == 2
    assert found["tidelog_dumps_unfinished", ()] == 1
    assert found["tidelog_output_lag_seconds", ("delta", "shop")] == 2.5
    assert found["tidelog_output_behind_records", ("delta", "shop")] == 7
    assert found["tidelog_output_up", ("kafka", "shop")] == 1
    assert found["tidelog_problems", ("table-refused", "warning")] == 1
    assert found["tidelog_problems", ("log-nearly-lost", "critical")] == 1


def test_what_is_not_known_is_left_out(process: Process) -> None:
    process.status = status(holder="h:1", **source(spare_bytes=None, lag_s=None))
    names = {name for name, _ in process.scrape()}
    assert "tidelog_source_log_spare_bytes" not in names
    assert "tidelog_capture_lag_seconds" not in names
    assert "tidelog_source_up" in names


def test_names_are_those_of_the_conventions() -> None:
    units = ("_seconds", "_bytes", "_records", "_ratio")
    for metric in METRICS:
        assert re.fullmatch(r"tidelog_[a-z_]+", metric.name)
        assert metric.name.endswith("_total") == (metric.kind == "counter")
        assert "_ms" not in metric.name
        assert not any(f"{unit}_" in metric.name.removesuffix("_total") + "$" for unit in units[3:])


def test_a_process_that_stands_by_tells_only_that(process: Process) -> None:
    process.status = None
    assert process.scrape() == {("tidelog_leading", ()): 0}


@pytest.mark.parametrize("given", [None, "", "Bearer wrong", f"Bearer {TOKEN}x"])
def test_metrics_need_a_token(process: Process, given: str | None) -> None:
    headers = {} if given is None else {"Authorization": given}
    answer = process.client.get("/metrics", headers=headers)
    assert answer.status_code == 401
    assert "tidelog_" not in answer.text


def test_health_needs_no_token_and_tells_who_is_ready(process: Process) -> None:
    def ready() -> tuple[int, str]:
        assert process.client.get("/health/live").status_code == 200
        answer = process.client.get("/health/ready")
        return answer.status_code, answer.json()["role"]

    assert ready() == (200, "leader")
    process.status = status(**source(error="nothing answers"))
    assert ready() == (503, "leader without its source")
    process.status = None
    assert ready() == (200, "standby")
    process.leader = None
    assert ready() == (503, "nobody leads")


def test_alerts_rest_on_metrics_and_problems_that_there_are() -> None:
    rules = yaml.safe_load(RULES.read_text())["groups"][0]["rules"]
    names = {"tidelog_leading", *(metric.name for metric in METRICS)}
    problems = (ROOT / "src/tidelog/app/overview/problems.py").read_text()
    page = (ROOT / "docs" / "how-to" / "monitor.md").read_text()
    for rule in rules:
        assert set(re.findall(r"tidelog_\w+", rule["expr"])) <= names, rule
        for kinds in re.findall(r'kind=~"([^"]+)"', rule["expr"]):
            assert all(f'"{kind}"' in problems for kind in kinds.split("|"))
        assert f"`{rule['alert']}`" in page
    assert len(rules) == page.count("| `Tidelog")
