"""Metrics by OpenTelemetry: the same as for Prometheus, and an endpoint that disturbs nobody."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from starlette.applications import Starlette
from starlette.testclient import TestClient
from tests.support.otlp_receiver import OtlpReceiver, labels
from tests.unit.monitoring.test_metrics import FULL
from tests.unit.web.test_overview import output

from tidelog.app.web.metrics import LEADING, METRICS, MetricValues
from tidelog.app.web.metrics_routes import Health
from tidelog.app.web.otlp import OtlpPush
from tidelog.config import parse_config
from tidelog.config.control import OtlpSection
from tidelog.errors import ConfigError, MissingExtraError

SECRET = "s3cret-of-the-collector"
Push = Callable[..., OtlpPush]


@pytest.fixture
def receiver() -> Iterator[OtlpReceiver]:
    found = OtlpReceiver()
    yield found
    found.close()


def tell_of(monkeypatch: pytest.MonkeyPatch, outputs: list[dict[str, Any]]) -> None:
    """What the event log says of outputs."""
    found = {"outputs": outputs, "engines": []}
    monkeypatch.setattr("tidelog.app.web.metrics.consumers_of", lambda _log, _known: found)


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> None:
    """An event log without segments, and one output."""
    chain = SimpleNamespace(chain=lambda: SimpleNamespace(segments=()))
    monkeypatch.setattr("tidelog.app.web.metrics.EventLog.open", lambda _path: chain)
    tell_of(monkeypatch, [output()])


@pytest.fixture
def push(receiver: OtlpReceiver, log: None) -> Iterator[Push]:
    made: list[OtlpPush] = []

    def make(**options: Any) -> OtlpPush:
        section = OtlpSection.model_validate(
            {"endpoint": receiver.url, "headers": {"X-Key": SECRET}, "every_ms": 1000, **options}
        )
        made.append(OtlpPush(section, "shop", "host:1", "log"))
        return made[-1]

    yield make
    for each in made:
        each.close()


def surface() -> Any:
    return SimpleNamespace(status=lambda: FULL)


def wait_for(condition: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)


BY_OUTPUT = (("output", "delta"), ("pipeline", "shop"))


def points(receiver: OtlpReceiver) -> dict[tuple[str, Any, float], Any]:
    """Of all requests: the first point of each counter that has the value."""
    found: dict[tuple[str, Any, float], Any] = {}
    for request in receiver.requests:
        for metric in request.resource_metrics[0].scope_metrics[0].metrics:
            for point in metric.sum.data_points:
                found.setdefault((metric.name, labels(point), point.as_double), point)
    return found


def leads(receiver: OtlpReceiver) -> bool:
    return receiver.series().get((LEADING.name, ())) == 1


def test_they_are_those_that_prometheus_scrapes(receiver: OtlpReceiver, push: Push) -> None:
    pushing = push()
    pushing.lead(surface)
    pushing.start()
    wait_for(lambda: leads(receiver), "it is told who leads")
    client = TestClient(
        Starlette(
            routes=Health(MetricValues(lambda: FULL, "log"), lambda: "h", ("t0ken",)).routes()
        )
    )
    scraped = client.get("/metrics", headers={"Authorization": "Bearer t0ken"}).text
    expected = {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(scraped)
        for sample in family.samples
    }
    assert receiver.series() == expected
    assert len(expected) > 50
    assert receiver.headers[0]["x-key"] == SECRET
    assert receiver.resource()["service.name"] == "shop"
    assert receiver.resource()["service.namespace"] == "tidelog"
    assert receiver.resource()["service.instance.id"] == "host:1"


def test_kinds_units_and_texts_are_those_of_the_table(receiver: OtlpReceiver, push: Push) -> None:
    pushing = push()
    pushing.lead(surface)
    pushing.start()
    wait_for(lambda: leads(receiver), "it is told who leads")
    table = {metric.name: metric for metric in (LEADING, *METRICS)}
    units = {"seconds": "s", "bytes": "By", "ratio": "1"}
    for found in receiver.metrics():
        metric = table[found.name]
        assert found.WhichOneof("data") == {"counter": "sum", "gauge": "gauge"}[metric.kind]
        assert found.description == metric.about
        assert found.unit == units.get(found.name.removesuffix("_total").split("_")[-1], "")
        if metric.kind == "counter":
            assert found.sum.is_monotonic
            assert found.sum.aggregation_temporality == 2  # cumulative
            [point, *_] = found.sum.data_points
            if not metric.of_output:  # theirs outlive a leadership
                assert point.start_time_unix_nano == FULL["since_ms"] * 1_000_000
                assert point.time_unix_nano > point.start_time_unix_nano


def test_a_counter_that_goes_down_starts_again(
    receiver: OtlpReceiver, push: Push, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a pipeline counts outlives the leadership: as a value of that, all of it would seem to
    have come since.
    """
    name, rows = "tidelog_output_records_total", [output(all_records=700)]
    tell_of(monkeypatch, rows)
    monkeypatch.setattr("tidelog.app.web.metrics.LOG_EVERY_S", 0.0)
    pushing = push()
    pushing.lead(surface)
    pushing.start()

    def wait_for_point(value: float) -> Any:
        wait_for(lambda: (name, BY_OUTPUT, value) in points(receiver), f"{value} is told")
        return points(receiver)[(name, BY_OUTPUT, value)]

    first = wait_for_point(700.0)
    assert first.start_time_unix_nano == first.time_unix_nano  # who knows since when
    rows[0]["all_records"] = 900
    second = wait_for_point(900.0)
    assert second.start_time_unix_nano == first.start_time_unix_nano
    rows[0]["all_records"] = 20
    third = wait_for_point(20.0)
    assert second.start_time_unix_nano < third.start_time_unix_nano < third.time_unix_nano


def test_leader_and_standby_are_reported_at_once(receiver: OtlpReceiver, push: Push) -> None:
    pushing = push(every_ms=600_000)
    pushing.start()
    wait_for(lambda: receiver.series() == {(LEADING.name, ()): 0}, "it stands by")
    pushing.lead(surface)
    wait_for(lambda: leads(receiver), "it leads")
    pushing.stand_by()
    wait_for(lambda: receiver.series() == {(LEADING.name, ()): 0}, "it stands by again")
    pushing.lead(surface)
    wait_for(lambda: leads(receiver), "it leads again")
    pushing.close()
    assert receiver.series() == {(LEADING.name, ()): 0}


def test_what_is_refused_is_reported_once_and_without_secrets(
    receiver: OtlpReceiver, push: Push, caplog: pytest.LogCaptureFixture
) -> None:
    receiver.status, receiver.answer = 401, f"no, {SECRET} is wrong"
    pushing = push()
    pushing.start()
    wait_for(lambda: len(receiver.headers) >= 3, "it is tried again and again")
    receiver.status = 200
    wait_for(lambda: receiver.requests, "it is taken in the end")
    wait_for(lambda: "takes metrics again" in caplog.text, "and told so")
    assert caplog.text.count("control.otlp: 127.0.0.1 does not take metrics: HTTP 401") == 1
    assert SECRET not in caplog.text
    assert {record.name for record in caplog.records} == {"tidelog.app.web.otlp"}


def test_an_endpoint_that_is_down_is_reported_and_holds_up_nothing(
    receiver: OtlpReceiver, push: Push, caplog: pytest.LogCaptureFixture
) -> None:
    url = receiver.url
    receiver.close()
    pushing = push(endpoint=url, timeout_ms=200)
    pushing.start()
    wait_for(lambda: "does not take metrics" in caplog.text, "it is told")
    began = time.monotonic()
    pushing.lead(surface)
    pushing.stand_by()
    pushing.close()
    assert time.monotonic() - began < 5
    assert "127.0.0.1 does not take metrics: Connect" in caplog.text
    assert SECRET not in caplog.text


def test_an_endpoint_that_never_answers_holds_up_nothing(
    receiver: OtlpReceiver, push: Push
) -> None:
    receiver.wait.clear()
    pushing = push(timeout_ms=20_000)
    pushing.start()
    wait_for(lambda: receiver.headers, "a request waits for its answer")
    began = time.monotonic()
    pushing.lead(surface)
    pushing.stand_by()
    pushing.close()
    assert time.monotonic() - began < 10  # one second, and what a busy machine takes


def test_headers_go_nowhere_else(
    receiver: OtlpReceiver, push: Push, caplog: pytest.LogCaptureFixture
) -> None:
    elsewhere = OtlpReceiver()
    try:
        receiver.status, receiver.answer = 307, elsewhere.url
        push().start()
        wait_for(lambda: "does not take metrics: HTTP 307" in caplog.text, "it is told")
        assert not elsewhere.headers
    finally:
        elsewhere.close()


def test_what_can_not_be_read_ends_no_push(receiver: OtlpReceiver, push: Push) -> None:
    def ends() -> dict[str, Any]:
        if not receiver.requests:
            raise RuntimeError(SECRET)
        return FULL

    pushing = push()
    pushing.start()
    wait_for(lambda: receiver.requests, "it stands by")
    receiver.requests.clear()
    pushing.lead(lambda: SimpleNamespace(status=ends))
    time.sleep(1.5)
    pushing.stand_by()
    wait_for(lambda: receiver.requests, "it goes on")
    pushing.lead(lambda: SimpleNamespace(status=ends))
    wait_for(lambda: leads(receiver), "and tells all again")


def test_the_extra_is_named_where_it_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.resources", None)
    section = OtlpSection.model_validate({"endpoint": "http://h:4318/v1/metrics"})
    with pytest.raises(MissingExtraError, match=r"pip install 'tidelog\[otlp\]'"):
        OtlpPush(section, "shop", "h:1", "log")


@pytest.mark.parametrize(
    "endpoint", ["collector:4318", "http://u:hunter2@h/v1/metrics", "http://h/v1?key=hunter2"]
)
def test_an_endpoint_has_no_secrets(endpoint: str, tmp_path: Path) -> None:
    text = f"""
source: {{kind: postgres, url: 'postgresql://u@h/shop'}}
log: {{path: log}}
control: {{otlp: {{endpoint: '{endpoint}'}}}}
"""
    with pytest.raises(ConfigError, match="endpoint") as refused:
        parse_config(text, "test", tmp_path, {})
    assert "hunter2" not in str(refused.value)
