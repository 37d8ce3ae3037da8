"""`control.otlp` into a database of metrics of others: its names are those of `/metrics`."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from tests.integration.test_control_alerts import running, wait_for
from tests.left_out import SAID

from tidelog.app.web.metrics import LEADING, METRICS

pytestmark = pytest.mark.integration

PROGRAM, NAMING = "victoria-metrics", "-opentelemetry.usePrometheusNaming"
CONFIG = """
source: {{kind: postgres, url: "{database}", slot: pushing, tables: ["public.*"]}}
log: {{path: log}}
control: {{otlp: {{endpoint: "{url}/opentelemetry/v1/metrics", every_ms: 1s}}}}
"""


@pytest.fixture
def collector(tmp_path: Path) -> Iterator[str]:
    """The URL of a VictoriaMetrics, which takes OTLP by HTTP."""
    program = shutil.which(PROGRAM)
    said = "" if program is None else subprocess.check_output([program, "-help"], text=True)
    if program is None or NAMING not in said:
        pytest.skip(f"{SAID}a {PROGRAM} that takes OTLP, as Debian 13 has it")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        where = f"127.0.0.1:{probe.getsockname()[1]}"
    process = subprocess.Popen(
        [
            program, f"-storageDataPath={tmp_path}/metrics", f"-httpListenAddr={where}",
            NAMING, "-search.latencyOffset=0s",
        ],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        yield f"http://{where}"
    finally:
        process.terminate()
        process.wait(30)


def asked(url: str, path: str, **query: str) -> list[object]:
    try:
        with urllib.request.urlopen(f"{url}{path}?{urllib.parse.urlencode(query)}") as answer:
            data = json.loads(answer.read())["data"]
    except OSError:  # it starts
        return []
    found: list[object] = data["result"] if isinstance(data, dict) else data
    return found


def test_a_collector_has_the_metrics_by_their_names(
    database: str, collector: str, tmp_path: Path
) -> None:
    text = CONFIG.format(database=database, url=collector)
    with psycopg.connect(database, autocommit=True) as sql:
        sql.execute("CREATE TABLE t (id int PRIMARY KEY)")
        with running(text, tmp_path):
            sql.execute("INSERT INTO t SELECT generate_series(1, 200)")

            def value() -> str:
                query = "last_over_time(tidelog_captured_records_total[1m])"
                for found in asked(collector, "/api/v1/query", query=query):
                    assert isinstance(found, dict)
                    assert found["metric"]["service_name"] == "pushing"
                    return str(found["value"][1])
                return ""

            wait_for(lambda: value() == "200", "the records are counted")
            time.sleep(2)  # all of them are pushed together, and found one after the other
            names = asked(collector, "/api/v1/label/__name__/values")
    ours = {LEADING.name} | {metric.name for metric in METRICS}
    assert {str(name) for name in names} <= ours
    assert {LEADING.name, "tidelog_capture_lag_bytes", "tidelog_segments_total"} <= set(names)
