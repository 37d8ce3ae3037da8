"""What runs the tests: as on a machine without servers, and one part whatever the other did."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests.left_out import SAID

ROOT = Path(__file__).parents[3]
TOOLS = ROOT / "tools"
FIRST = """\
from tidelog.errors import MissingProgramError

def test_fails():
    raise AssertionError

def test_is_left_out():
    raise MissingProgramError("a server is not on this machine")

def test_holds():
    pass
"""
MAKEFILE = """\
first:
\t{tools}/run_tests.sh first {python} -n 1 first.py
second:
\t{tools}/run_tests.sh second {python} second.py
"""
UNSEEN = """\
from types import SimpleNamespace

from tidelog.demo.servers import mysql

def test_hides_what_it_starts():
    mysql.MySqlProcess.start(SimpleNamespace(flavor="mariadb"))
"""


# Of two overlays Linux may not take a third, where this machine's own root is one.
hides = pytest.mark.skipif(
    "TIDELOG_NEWCOMER" in os.environ, reason=f"{SAID}programs to hide: they are hidden already"
)


def run(*command: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    directory = environment.pop("directory", str(ROOT))
    return subprocess.run(
        list(map(str, command)),
        cwd=directory,
        env=os.environ | {"PYTHONPATH": str(ROOT)} | environment,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


@hides
def test_a_newcomer_has_none_of_debians_programs() -> None:
    before = shutil.which("mariadbd", path="/usr/sbin")

    done = run(
        TOOLS / "as_newcomer.sh", "bash", "-c",
        "type -P mariadbd mysqld mariadb mysql chromium promtool; compgen -G '/usr/lib/*/libaio*'",
        PATH=f"{os.environ['PATH']}:/usr/sbin",
    )  # fmt: skip

    if "can not hide" in done.stderr:
        pytest.skip(done.stderr)
    hidden = done.stdout.splitlines()[:1] if "hides" in done.stdout else []
    assert done.stdout.splitlines() == hidden, done.stdout
    assert shutil.which("mariadbd", path="/usr/sbin") == before


@hides
def test_a_newcomer_without_java_has_none() -> None:
    done = run(
        TOOLS / "as_newcomer.sh", "bash", "-c", "type -P java; ls /usr/lib/jvm/*/bin/java",
        TIDELOG_WITHOUT_JAVA="1",
    )  # fmt: skip

    if "can not hide" in done.stderr:
        pytest.skip(done.stderr)
    hidden = done.stdout.splitlines()[:1] if "hides" in done.stdout else []
    assert done.stdout.splitlines() == hidden, done.stdout


@hides
def test_what_can_not_be_hidden_from_a_newcomer_is_named(tmp_path: Path) -> None:
    program = tmp_path / "mariadbd"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)

    done = run(TOOLS / "as_newcomer.sh", "echo", "it ran", PATH=f"{tmp_path}:{os.environ['PATH']}")

    assert done.returncode == 1
    assert f"{program}" in done.stderr
    assert "it ran" not in done.stdout


def test_each_part_runs_and_the_last_lines_say_what_it_did(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text("from tests.left_out import *\n")
    (tmp_path / "first.py").write_text(FIRST)
    (tmp_path / "second.py").write_text("def test_holds():\n    pass\n")
    (tmp_path / "Makefile").write_text(MAKEFILE.format(tools=TOOLS, python=sys.executable))

    done = run(
        TOOLS / "run_each.sh", "first", "second",
        directory=str(tmp_path), TIDELOG_RESULTS=str(tmp_path / "results"),
    )  # fmt: skip

    assert done.returncode == 1
    *_, last = done.stdout.partition("=== in all:\n")
    assert [line.rpartition(", ")[0] if "===" in line else line for line in last.splitlines()] == [
        "=== make first: FAILED (exit 2)",
        "      1 failed, 1 passed, 1 skipped",
        "      1 test was left out: a server is not on this machine",
        "      1 failed; each once more, alone:",
        "      1 failed",
        "=== make second: passed",
        "      1 passed",
    ]


def test_a_test_that_starts_a_server_without_being_marked_fails(tmp_path: Path) -> None:
    (tmp_path / "test_unseen.py").write_text(UNSEEN)

    done = run(
        sys.executable, "-m", "pytest", "-p", "tests.mysql_family", "test_unseen.py",
        directory=str(tmp_path),
    )  # fmt: skip

    assert done.returncode == 1
    assert "starts mariadb, and tests.mysql_family did not see that it may" in done.stdout
