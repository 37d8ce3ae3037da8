"""Which versions of Spark, Java and Python fit each other and the outputs."""

from __future__ import annotations

import sys
from pathlib import Path

import pyspark
import pytest

from tidelog.app.base.outputs import untested_versions
from tidelog.app.sources import preflight
from tidelog.config import load_config
from tidelog.errors import MissingProgramError, UsageError
from tidelog.spark.sessions import installation, versions

PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"


@pytest.fixture
def java_25(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "jdk" / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text("#!/bin/sh\necho 'openjdk version \"25.0.1\" 2025-10-21' >&2\n")
    program.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "jdk"))


def found(tmp_path: Path, output: str) -> tuple[str, str]:
    file = tmp_path / "tidelog.yaml"
    file.write_text(
        "source: {kind: postgres, url: 'postgresql://u@h/d'}\nlog: {path: ./log}\n"
        f"outputs: [{output}]\n"
    )
    [finding] = preflight._check_spark(load_config(file))
    return finding.level, finding.message


@pytest.mark.usefixtures("java_25")
def test_a_java_that_is_too_new_for_spark_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for spark in ("4.0", "4.1"):
        monkeypatch.setattr(versions, "SPARK_VERSION", spark)
        with pytest.raises(MissingProgramError, match=f"Spark {spark} runs on Java 17 to 23.*25"):
            installation.check_java()
    monkeypatch.setattr(versions, "SPARK_VERSION", "4.2")
    installation.check_java()


def test_a_spark_that_is_too_old_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(versions, "SPARK_VERSION", "3.5")
    with pytest.raises(UsageError, match=r"Spark 4\.0 to 4\.3.*pyspark 3\.5: pip install"):
        installation.check_spark_runs()


def test_a_check_tells_the_versions_that_fit(tmp_path: Path) -> None:
    level, message = found(tmp_path, "{kind: delta, path: lake}")
    assert level == "ok"
    assert message.startswith(f"pyspark {pyspark.__version__}, Java ")
    assert message.endswith(f"Python {PYTHON} fit the outputs")


def test_a_check_tells_what_is_not_tested(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert untested_versions() == []
    monkeypatch.setattr(versions, "SPARK_VERSION", "4.9")
    monkeypatch.setattr(installation, "_PYTHON", "3.99")
    level, message = found(tmp_path, "{kind: files, path: a}")
    assert level == "warning"
    assert "not tested on Spark 4.9" in message
    assert message.endswith("and this is 3.99")
