"""The jar of our log store: what is in it, and which sessions use it."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest
from tools.s3_log_store import NAME, compiled, javac, write_jar

from tidelog.spark import DELTA_CONF, s3_log_store_jar
from tidelog.spark.session import _merge_conf


def test_the_class_in_the_jar_is_what_its_source_compiles_to(tmp_path: Path) -> None:
    compiler = javac()
    if compiler is None:
        pytest.skip("no javac of JDK 17 on the PATH: apt-get install openjdk-17-jdk-headless")
    write_jar(tmp_path / "built.jar", compiled(compiler))
    built = (tmp_path / "built.jar").read_bytes()
    assert built == s3_log_store_jar().read_bytes(), "run tools/s3_log_store.py"


def test_the_class_is_of_java_17_and_has_the_name_that_sessions_are_given() -> None:
    with zipfile.ZipFile(s3_log_store_jar()) as jar:
        assert int.from_bytes(jar.read(NAME)[6:8], "big") == 61
    stores = {name: value for name, value in DELTA_CONF.items() if "logStore" in name}
    assert stores == {
        f"spark.delta.logStore.{scheme}.impl": NAME.removesuffix(".class").replace("/", ".")
        for scheme in ("s3a", "s3")
    }


def test_the_log_stores_of_a_user_win() -> None:
    one = {"spark.delta.logStore.s3a.impl": "org.Mine"}
    assert _merge_conf(DELTA_CONF, one) == DELTA_CONF | one
    # Delta refuses log stores for one file system beside it.
    whole = {"spark.delta.logStore.class": "org.Mine"}
    assert [name for name in _merge_conf(DELTA_CONF, whole) if "logStore" in name] == [*whole]


def test_lists_of_a_user_continue_ours() -> None:
    ours = {"spark.jars": "a.jar", "spark.app.name": "ours"}
    theirs = {"spark.jars": "b.jar", "spark.app.name": "theirs", "spark.sql.extensions": "x"}
    assert _merge_conf(ours, theirs) == theirs | {"spark.jars": "a.jar,b.jar"}
