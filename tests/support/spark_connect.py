"""A server of Spark Connect: a process of the installed pyspark."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
import venv
from collections.abc import Iterable, Mapping
from pathlib import Path

import pytest

PACKAGES = ("grpc_status", "pandas", "zstandard")
CONF = {
    "spark.master": "local[2]",
    "spark.ui.enabled": "false",
    "spark.driver.memory": "1g",
    # Tests bring few rows: to compile Spark's code thoroughly takes a quarter of their CPU.
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1",
}


def need_client() -> None:
    """Skip the test where Spark Connect's client is not installed."""
    for package in PACKAGES:
        pytest.importorskip(package, reason="Spark Connect: pip install 'tidelog[connect]'")


def python_with(directory: Path, packages: Iterable[Path]) -> str:
    """The Python of a new environment that has these packages of ours."""
    venv.create(directory, with_pip=False)
    [site] = directory.glob("lib/python*/site-packages")
    for each in packages:
        (site / each.name).symlink_to(each)
    return str(directory / "bin" / "python")


class ConnectServer:
    """Starts one. ``python`` has its pyspark, and runs its tasks; ``environment`` is added to ours.

    ``port``: of an earlier one, which has ended.
    """

    def __init__(
        self,
        log_file: Path,
        *,
        python: str = sys.executable,
        environment: Mapping[str, str] = {},
        conf: Mapping[str, str] = {},
        port: int = 0,
    ) -> None:
        self.port = port or _free_port()
        self.remote = f"sc://127.0.0.1:{self.port}"
        found = "import pyspark; print(pyspark.__path__[0])"
        home = subprocess.check_output([python, "-c", found], text=True).strip()
        settings = {**CONF, "spark.connect.grpc.binding.port": str(self.port), **conf}
        main = "org.apache.spark.sql.connect.service.SparkConnectServer"
        command = [f"{home}/bin/spark-submit", "--class", main]
        command += [part for n, value in settings.items() for part in ("--conf", f"{n}={value}")]
        added = {"SPARK_HOME": home, "PYSPARK_PYTHON": python, **environment}
        with log_file.open("w") as file:
            self._process = subprocess.Popen(
                [*command, "spark-internal"],
                stdout=file,
                stderr=subprocess.STDOUT,
                env={k: v for k, v in os.environ.items() if k != "SPARK_REMOTE"} | added,
                start_new_session=True,
            )

    def wait(self, timeout_s: float = 120) -> None:
        """Wait until it listens."""
        deadline = time.monotonic() + timeout_s
        while True:
            assert self._process.poll() is None, "the server has ended"
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", self.port)) == 0:
                    return
            assert time.monotonic() < deadline
            time.sleep(0.1)

    def kill(self) -> None:
        """Kill it, and the workers that it started."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
