"""What is said where a cluster takes no application, or has nothing to give it."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = [pytest.mark.spark, pytest.mark.integration, pytest.mark.thorough]
MASTER = "org.apache.spark.deploy.master.Master"
DRIVER = """
import json, sys
from tidelog.errors import TidelogError
from tidelog.spark import spark_session
from tidelog.spark.sessions.versions import await_executors

said = []
spark = spark_session(sys.argv[1], delta=False)
try:
    await_executors(spark, within_s=0.5)
except TidelogError as error:
    said.append([type(error).__name__, str(error)])
spark.sparkContext._jsc.sc().stop()  # as the JVM does, once its master has removed it
try:
    await_executors(spark, within_s=0.5)
except TidelogError as error:
    said.append([type(error).__name__, str(error)])
spark.stop()
try:
    spark_session(sys.argv[1], conf={"spark.network.timeout": "often"}, delta=False)
except TidelogError as error:
    said.append([type(error).__name__, str(error)])
await_executors(spark_session("local[1]", delta=False), within_s=0.0)
print(json.dumps(said))
"""


@pytest.fixture
def master(tmp_path: Path) -> Iterator[str]:
    """Of a cluster without workers."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    program = Path(sys.executable).with_name("spark-class")
    command = [str(program), MASTER, "--host", "127.0.0.1", "--port", str(port), "--webui-port"]
    with (tmp_path / "master.log").open("w") as log:
        process = subprocess.Popen([*command, "0"], stdout=log, stderr=log)
    try:
        deadline = time.monotonic() + 120
        while "New state: ALIVE" not in (tmp_path / "master.log").read_text():
            assert time.monotonic() < deadline
            time.sleep(0.2)
        yield f"spark://127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait()


def test_a_setting_that_spark_refuses_and_a_cluster_without_workers_are_reported(
    master: str,
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", DRIVER, master], stdout=subprocess.PIPE, text=True, check=True
    )
    alone, removed, refused = json.loads(done.stdout.splitlines()[-1])
    assert removed[0] == "SparkGoneError"
    assert refused[0] == "UsageError"
    assert "spark.network.timeout" in refused[1]
    assert "see pipeline.conf" in refused[1]
    assert alone[0] == "HostBusyError"
    assert f"{master} has given no executor" in alone[1]
    assert "spark.driver.host" in alone[1]
