"""Java reads Spark's classes from the archive that an earlier session had made."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SESSION = """
import sys
from tidelog.spark import spark_session
options = f"-Xlog:class+load=info:file={sys.argv[1]}"
spark_session("local[1]", conf={"spark.driver.extraJavaOptions": options}, delta=False)
"""


MAKE = """
from tidelog.spark.sessions.class_archive import ClassArchive
archive = ClassArchive({})
archive.make()
archive._maker.wait()
archive.close()
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
    assert not classes.exists()  # nobody delivers
    subprocess.run([sys.executable, "-c", MAKE], check=True)
    assert [file.suffix for file in classes.iterdir()] == [".jsa"]
    subprocess.run(command, check=True)
    assert loaded.read_text().count("shared objects file (top)") > 5000
