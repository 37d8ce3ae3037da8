"""Java reads Spark's classes from the archive that an earlier session had made."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

SESSION = """
import sys
from tidelog.spark import spark_session
options = f"-Xlog:class+load=info:file={sys.argv[1]}"
spark_session("local[1]", conf={"spark.driver.extraJavaOptions": options}, delta=False)
"""


@pytest.mark.spark
@pytest.mark.thorough
def test_java_takes_classes_from_the_archive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    loaded = tmp_path / "loaded"
    command = [sys.executable, "-c", SESSION, str(loaded)]
    subprocess.run(command, check=True)
    assert loaded.read_text().count("shared objects file (top)") == 0
    classes = tmp_path / ".cache" / "tidelog" / "classes"
    deadline = time.monotonic() + 300
    while not list(classes.glob("*.jsa")) and time.monotonic() < deadline:
        time.sleep(0.5)
    assert not list(classes.glob("*.making"))
    subprocess.run(command, check=True)
    assert loaded.read_text().count("shared objects file (top)") > 5000
