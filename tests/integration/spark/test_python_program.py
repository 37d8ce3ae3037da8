"""Which program Spark starts its Python processes with."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tidelog.spark.datasource.source import register
from tidelog.spark.session import python_program

pytestmark = pytest.mark.spark


def test_python_processes_import_the_installed_pyspark(spark: Any) -> None:
    def origin(_rows: Iterator[Any]) -> Iterator[str]:
        import pyspark

        yield str(pyspark.__file__)

    import pyspark

    [found] = spark.sparkContext.parallelize([1], 1).mapPartitions(origin).collect()
    assert found == pyspark.__file__  # and not that in pyspark.zip, which is compiled each time


def test_a_session_s_own_setting_names_the_python_of_its_workers(
    spark: Any, tmp_path: Path
) -> None:
    def program(_row: int) -> str:
        return os.environ.get("STARTED_BY", "")

    script = tmp_path / "python"
    script.write_text(f'#!/bin/sh\nSTARTED_BY=script exec {sys.executable} "$@"\n')
    script.chmod(0o755)
    context = spark.sparkContext
    before = context.pythonExec
    context._conf.set("spark.pyspark.python", str(script))
    try:
        register(spark)
        assert context.parallelize([1], 1).map(program).collect() == ["script"]
    finally:
        context._conf._jconf.remove("spark.pyspark.python")
        context.pythonExec = before
    assert context.parallelize([1], 1).map(program).collect() == [""]


@pytest.mark.parametrize(
    ("master", "given", "expected"),
    [
        ("local[2]", "/usr/bin/python3", "/usr/bin/python3"),
        ("spark://host:7077", "/usr/bin/python3", "/usr/bin/python3"),
        ("yarn", "./environment/bin/python", "./environment/bin/python"),
        ("local[2]", sys.executable, None),
        ("local[2]", None, None),
        ("spark://host:7077", None, sys.executable),
        ("local-cluster[2,1,1024]", sys.executable, sys.executable),
    ],
)
def test_it_is_ours_only_on_this_machine_and_where_the_user_has_none(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    master: str,
    given: str | None,
    expected: str | None,
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("SPARK_HOME", raising=False)
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    if given is not None:
        monkeypatch.setenv("PYSPARK_PYTHON", given)
    found = python_program(master)
    if expected is not None:
        assert found == expected
        return
    assert Path(found).parent.parent.parent == tmp_path / ".cache"
    monkeypatch.setenv("PYSPARK_PYTHON", found)  # what an earlier session of the process left
    assert python_program("spark://host:7077") == sys.executable
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    monkeypatch.setenv("SPARK_HOME", "/opt/another-spark")
    assert python_program(master) == sys.executable


def test_a_home_that_is_not_to_be_written_to_is_no_obstacle(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HOME", "/proc")
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    assert python_program("local[2]") == sys.executable
