"""The metrics of a process: what Prometheus' own parser reads of them, and what alerts rest on."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families
from starlette.applications import Starlette
from starlette.testclient import TestClient
from tests.unit.web.test_overview import NOW_MS, REFUSED, dump, output, source, status, table

from tidelog.app.web.metrics import LEADING, METRICS, MetricValues
from tidelog.app.web.metrics_routes import Health
from tidelog.capture.dumps.throttle import Limit
from tidelog.system.processes import unix_ms

ROOT = Path(__file__).resolve().parents[3]
RULES = ROOT / "docs" / "how-to" / "tidelog-alerts.yaml"
TOKEN = "a-token-to-read"
DELIVERED = {
    "batches": 4, "all_records": 900, "all_s": 6.5, "batch_s": 1.5, "committed_ms": NOW_MS,
    "rejected": 2, "rejected_ms": NOW_MS - 5000, "refused": {"public.x": "why"},
}  # fmt: skip
FULL = status(
    holder="h:1", updated_ms=2 * NOW_MS, readers_busy=2, tables_failed=1, refused=[REFUSED],
    **source(lag_s=3.0, lost_in_s=100.0, error="nothing answers"),
    **dump(table(rows_read=5), table("public.u"), status="paused"),
    capture={
        "records": 1234, "segments": 8, "bytes": 5000, "append_s": 0.25, "buffer_bytes": 7,
        "buffer_waited_s": 0.5, "open_windows": 2, "retained_bytes": 11, "unseen_transactions": 3,
        "last_commit_ts": NOW_MS * 1000, "held": False,
    },
    dump_counters={
        "chunks": 9, "rows": 5, "superseded": 1, "failed": 2, "voided": {"ddl": 2},
    },
    throttle={
        "decision": {
            "limited_by": "lag", "parallelism_share": 0.5, "pause_ms": 100, "pace": 0.25,
            "reason": "…",
        }
    },
    state={
        "requests": {"get": 5, "put": 6}, "seconds": {"get": 0.5, "put": 0.75},
        "failures": {"get": 0, "put": 1},
    },
    lease={"remaining_s": 8.5, "renewals": 21, "failures": 1},
    gap={"at_ms": NOW_MS - 60_000},
)  # fmt: skip
"""Of a capture to which everything has happened."""


class Process:
    """The routes of a process, with a status as its capture has it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, outputs: list[dict[str, Any]]) -> None:
        self.status: dict[str, Any] | None = status(holder="h:1", dump_counters={})
        self.leader: str | None = "h:1"
        segments = [SimpleNamespace(payload_bytes=3), SimpleNamespace(payload_bytes=4)]
        log = SimpleNamespace(chain=lambda: SimpleNamespace(segments=segments))
        monkeypatch.setattr("tidelog.app.web.metrics.EventLog.open", lambda _path: log)
        monkeypatch.setattr("tidelog.app.web.metrics.STATUS_EVERY_S", 0.0)
        engine = {"engine": "mail", "offset": 2, "noted_ms": NOW_MS}
        engine |= {"behind_records": 12, "lag_s": 3.5}
        told = {"outputs": outputs, "engines": [engine]}
        monkeypatch.setattr("tidelog.app.web.metrics.consumers_of", lambda _log, _known: told)
        health = Health(MetricValues(lambda: self.status, "log"), lambda: self.leader, (TOKEN,))
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
        holder="h:1", updated_ms=unix_ms(), refused=[REFUSED],
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


def test_each_metric_has_its_value(monkeypatch: pytest.MonkeyPatch) -> None:
    process = Process(monkeypatch, [output(**DELIVERED, behind_records=7, lag_s=2.5)])
    process.status = FULL
    found = process.scrape()
    by_output = ("delta", "shop")
    expected = {
        ("tidelog_capture_lag_seconds", ()): 3.0,
        ("tidelog_leader_since_timestamp_seconds", ()): FULL["since_ms"] / 1000,
        ("tidelog_lease_remaining_seconds", ()): 8.5,
        ("tidelog_lease_renewals_total", ()): 21,
        ("tidelog_lease_renewals_failed_total", ()): 1,
        ("tidelog_state_requests_total", ("put",)): 6,
        ("tidelog_state_request_seconds_total", ("get",)): 0.5,
        ("tidelog_state_requests_failed_total", ("put",)): 1,
        ("tidelog_gap_timestamp_seconds", ()): NOW_MS / 1000 - 60,
        ("tidelog_captured_bytes_total", ()): 5000,
        ("tidelog_captured_commit_timestamp_seconds", ()): NOW_MS / 1000,
        ("tidelog_segment_append_seconds_total", ()): 0.25,
        ("tidelog_event_log_segments", ()): 2,
        ("tidelog_event_log_payload_bytes", ()): 7,
        ("tidelog_windows_unseen_transactions", ()): 3,
        ("tidelog_dumps_paused", ()): 1,
        ("tidelog_dump_tables_unfinished", ()): 2,
        ("tidelog_dump_readers_busy", ()): 2,
        ("tidelog_throttle_readers_ratio", ()): 0.5,
        ("tidelog_throttle_pause_seconds", ()): 0.1,
        ("tidelog_throttle_pace_ratio", ()): 0.25,
        ("tidelog_source_up", ()): 0,
        ("tidelog_engine_behind_records", ("mail",)): 12,
        ("tidelog_engine_lag_seconds", ("mail",)): 3.5,
        ("tidelog_output_batches_total", by_output): 4,
        ("tidelog_output_batch_seconds_total", by_output): 6.5,
        ("tidelog_output_last_batch_seconds", by_output): 1.5,
        ("tidelog_output_committed_timestamp_seconds", by_output): NOW_MS / 1000,
        ("tidelog_output_records_total", by_output): 900,
        ("tidelog_output_dead_letters_total", by_output): 2,
        ("tidelog_output_refused_tables", by_output): 1,
        ("tidelog_output_dead_letter_timestamp_seconds", by_output): NOW_MS / 1000 - 5,
    }
    assert {key: found[key] for key in expected} == pytest.approx(expected)
    limited = {labels[0]: value for (name, labels), value in found.items() if "limited" in name}
    assert limited == {limit: float(limit == "lag") for limit in get_args(Limit)}
    # What comes with time alone: a dump's rate.
    assert {m.name for m in (LEADING, *METRICS)} - {name for name, _ in found} <= {
        "tidelog_dump_left_seconds"
    }


def test_an_output_without_a_batch_has_counts_and_no_times(monkeypatch: pytest.MonkeyPatch) -> None:
    process = Process(monkeypatch, [output()])
    process.status = FULL
    found = process.scrape()
    assert found["tidelog_output_dead_letters_total", ("delta", "shop")] == 0
    names = {name for name, _ in found}
    assert "tidelog_output_committed_timestamp_seconds" not in names
    assert "tidelog_output_dead_letter_timestamp_seconds" not in names


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


def test_a_standby_reports_only_that(process: Process) -> None:
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
    folder = ROOT / "src/tidelog/app/overview"
    problems = "".join(module.read_text() for module in folder.glob("*problems.py"))
    page = (ROOT / "docs" / "how-to" / "monitor.md").read_text()
    for rule in rules:
        assert set(re.findall(r"tidelog_\w+", rule["expr"])) <= names, rule
        for kinds in re.findall(r'kind=~"([^"]+)"', rule["expr"]):
            assert all(f'"{kind}"' in problems for kind in kinds.split("|"))
        assert f"`{rule['alert']}`" in page
    assert len(rules) == page.count("- `Tidelog")
