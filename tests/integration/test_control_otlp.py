"""`control.otlp` of a running capture, without any other extra's interface beside it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from tests.integration.test_control_alerts import running, wait_for
from tests.support.otlp_receiver import OtlpReceiver

from tidelog.app.web.metrics import LEADING
from tidelog.eventlog.reader import EventLog

pytestmark = pytest.mark.integration

CONFIG = """
source: {{kind: postgres, url: "{database}", slot: pushing, tables: ["public.*"]}}
log: {{path: log}}
control: {{otlp: {{endpoint: "{endpoint}", every_ms: 1s, timeout_ms: 1s}}}}
"""


@pytest.fixture
def receiver() -> Iterator[OtlpReceiver]:
    found = OtlpReceiver()
    yield found
    found.close()


def records(directory: Path) -> int:
    chain = EventLog.open(directory / "log").chain()
    return sum(sum(meta.rows_by_table.values()) for meta in chain.segments)


def test_metrics_are_pushed_and_an_endpoint_that_goes_away_stops_nothing(
    database: str,
    receiver: OtlpReceiver,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    text = CONFIG.format(database=database, endpoint=receiver.url)
    with psycopg.connect(database, autocommit=True) as sql:
        sql.execute("CREATE TABLE t (id int PRIMARY KEY)")
        with running(text, tmp_path):
            wait_for(lambda: receiver.series().get((LEADING.name, ())) == 1, "it leads")
            sql.execute("INSERT INTO t SELECT generate_series(1, 100)")

            def pushed(name: str, *labels: tuple[str, str]) -> float:
                return receiver.series().get((name, labels), 0.0)

            wait_for(lambda: pushed("tidelog_captured_records_total") >= 100, "records are counted")
            assert pushed("tidelog_captured_bytes_total") > 100
            assert pushed("tidelog_segment_append_seconds_total") > 0
            assert pushed("tidelog_state_requests_total", ("operation", "put")) > 0
            assert pushed("tidelog_state_request_seconds_total", ("operation", "put")) > 0
            assert pushed("tidelog_lease_remaining_seconds") > 0
            assert pushed("tidelog_event_log_segments") > 0
            assert receiver.resource()["service.name"] == "pushing"
            before = records(tmp_path)
            receiver.close()
            wait_for(lambda: "does not take metrics" in caplog.text, "it is told")
            sql.execute("INSERT INTO t SELECT generate_series(101, 300)")
            wait_for(lambda: records(tmp_path) >= before + 200, "capture goes on")
    assert "tidelog-otlp" not in {each.name for each in threading.enumerate()}
