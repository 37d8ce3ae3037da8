"""Duplicate and late tasks, duplicate and late drivers, and what crashes leave."""

from __future__ import annotations

from pathlib import Path

import pytest

from tidelog.errors import OutputError, OutputRefusedError
from tidelog.outputs.base.stores import open_file_store
from tidelog.outputs.files.commits import Attempt, Commit, Commits, StagedFile
from tidelog.system import failpoints


class Crash(BaseException):
    """The driver's end."""


def crash() -> None:
    raise Crash


class Directory:
    """An output's directory as its driver and its tasks use it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.store = open_file_store(str(root))

    def driver(self) -> Commits:
        return Commits(self.store, "files")

    def task(self, staging: str, task: str, attempt: str, *texts: str) -> None:
        """An attempt of a task stages a file for each text, then says so."""
        files = []
        for number, text in enumerate(texts):
            name = f"{staging}/{attempt}-{number}.staged"
            with self.store.open_output(name) as file:
                file.write(text.encode())
            files.append(StagedFile(name, "date=2026-01-01", "public.t", 1))
        self.store.put(f"{staging}/{attempt}.json", Attempt(task, tuple(files)).to_json())

    def staged(self) -> list[Path]:
        """Staging folders."""
        return sorted((self.root / "_tidelog" / "files" / "staging").iterdir())

    def seen(self) -> list[str]:
        """What a plain reader finds."""
        found = [path for path in self.root.rglob("*.parquet") if "_tidelog" not in path.parts]
        return sorted(path.read_text() for path in found)


@pytest.fixture
def directory(tmp_path: Path) -> Directory:
    return Directory(tmp_path / "lake")


def publish(driver: Commits, staging: str, start: int, end: int) -> Commit:
    return driver.publish(staging, "g", start, end, "files-", ".parquet")


def test_of_a_task_s_attempts_one_is_published(directory: Directory) -> None:
    driver = directory.driver()
    staging = driver.staging("try")
    directory.task(staging, "0:public.t", "a", "first", "second")
    directory.task(staging, "0:public.t", "b", "first", "second")
    directory.task(staging, "1:public.t", "c", "third")
    publish(driver, staging, 0, 10)
    assert directory.seen() == ["first", "second", "third"]
    # A zombie that ends after the commit.
    staging = driver.staging("try")
    directory.task(staging, "0:public.t", "d", "first", "second")
    publish(driver, driver.staging("next"), 10, 20)
    assert directory.seen() == ["first", "second", "third"]


@pytest.mark.parametrize(
    ("point", "visible"),
    [("before", False), ("after", True), ("move", True), ("moved", True)],
)
def test_a_crash_leaves_all_or_nothing_to_the_next_driver(
    directory: Directory, point: str, visible: bool
) -> None:
    driver = directory.driver()
    staging = driver.staging("try")
    directory.task(staging, "0:public.t", "a", "first", "second", "third")

    hits = 0

    def crash_once() -> None:
        nonlocal hits
        hits += 1
        if point != "move" or hits == 2:
            raise Crash

    with failpoints.arm({f"files.commit.{point}": crash_once}), pytest.raises(Crash):
        publish(driver, staging, 0, 10)
    after = directory.driver()
    newest = after.newest
    assert (newest is not None and newest.end == 10) is visible
    after.finish()
    assert directory.seen() == (["first", "second", "third"] if visible else [])
    staging = after.staging("again")
    if not visible:
        directory.task(staging, "0:public.t", "b", "first", "second", "third")
    publish(after, staging, 0, 15)
    assert directory.seen() == ["first", "second", "third"]
    # The dead driver's staged files are gone too.
    assert directory.staged() == []


def test_files_that_were_put_in_place_may_be_deleted(directory: Directory) -> None:
    driver = directory.driver()
    staging, others = driver.staging("try"), driver.staging("other")
    directory.task(staging, "0:public.t", "a", "first", "second")
    directory.task(others, "0:public.t", "b", "late")
    with failpoints.arm({"files.commit.moved": crash}), pytest.raises(Crash):
        publish(driver, staging, 0, 10)
    directory.driver().finish()  # after the crash
    assert directory.seen() == ["first", "second"]
    assert [path.name for path in directory.staged()] == ["other"]
    for path in directory.root.glob("date=*/*"):
        path.unlink()
    directory.driver().finish()
    assert directory.seen() == []
    after = directory.driver()
    staging = after.staging("next")
    directory.task(staging, "0:public.t", "c", "third")
    publish(after, staging, 10, 20)
    assert directory.seen() == ["third"]


@pytest.mark.parametrize("kept", ["try", "all"])
def test_a_crash_in_the_middle_of_cleaning_up_ends_well(directory: Directory, kept: str) -> None:
    driver = directory.driver()
    staging = driver.staging("try")
    directory.task(staging, "0:public.t", "a", "first", "second")
    with failpoints.arm({"files.commit.moved": crash}), pytest.raises(Crash):
        publish(driver, staging, 0, 10)
    if kept == "try":  # the folder is the last that goes
        (directory.root / staging / "a.json").unlink()
    after = directory.driver()
    after.finish()
    assert directory.seen() == ["first", "second"]
    assert directory.staged() == []


@pytest.mark.parametrize("failing", ["put_if_absent", "names"])
def test_a_commit_that_was_made_though_it_seemed_to_fail_is_recognised(
    directory: Directory, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    driver = directory.driver()
    assert driver.newest is None
    staging = driver.staging("try")
    directory.task(staging, "0:public.t", "a", "once")

    def fails(*args: object) -> object:
        if failing == "names" and not str(args[0]).endswith("/commits"):
            return whole(*args)
        whole(*args)
        raise OutputError("no answer in time")

    whole = getattr(directory.store, failing)
    with monkeypatch.context() as patch:
        patch.setattr(directory.store, failing, fails)
        with pytest.raises(OutputError, match="no answer"):
            publish(driver, staging, 0, 10)
    # The next try, in the same process.
    driver.finish()
    assert driver.newest is not None
    assert driver.newest.end == 10
    assert directory.seen() == ["once"]
    staging = driver.staging("next")
    directory.task(staging, "0:public.t", "b", "later")
    publish(driver, staging, 10, 20)
    assert directory.seen() == ["later", "once"]


def test_a_driver_that_was_overtaken_publishes_nothing(directory: Directory) -> None:
    late, other = directory.driver(), directory.driver()
    assert late.newest is None
    staging = late.staging("late")
    directory.task(staging, "0:public.t", "a", "twice")
    mine = other.staging("other")
    directory.task(mine, "0:public.t", "b", "once")
    publish(other, mine, 0, 10)
    with pytest.raises(OutputRefusedError, match="another pipeline"):
        publish(late, staging, 0, 10)
    assert directory.seen() == ["once"]


def test_a_driver_that_stood_still_for_many_commits_publishes_nothing(
    directory: Directory,
) -> None:
    late, other = directory.driver(), directory.driver()
    assert late.newest is None
    for number in range(30):
        mine = other.staging(f"other{number}")
        directory.task(mine, "0:public.t", "b", f"once{number}")
        publish(other, mine, number, number + 1)
    staging = late.staging("late")
    directory.task(staging, "0:public.t", "a", "twice")
    # Its number is free again: old commits are removed.
    assert not (directory.root / "_tidelog/files/commits" / f"{1:020d}.json").exists()
    with pytest.raises(OutputRefusedError, match="another pipeline"):
        publish(late, staging, 0, 1)
    assert len(directory.seen()) == 30
    newest = directory.driver().newest
    assert newest is not None
    assert newest.number == 30


def test_a_disk_that_takes_nothing_is_an_error_with_its_reason(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(OutputError, match=r"can't be created: (Not a directory|File exists)"):
        Commits(open_file_store(str(tmp_path / "file" / "lake")), "files").staging("try")


@pytest.mark.parametrize("scheme", ["file://", ""])
def test_local_urls_are_local(tmp_path: Path, scheme: str) -> None:
    store = open_file_store(f"{scheme}{tmp_path}/a lake".replace(" ", "%20" if scheme else " "))
    store.make_folder("x")
    assert store.put_if_absent("x/y", b"1")
    assert not store.put_if_absent("x/y", b"2")
    assert store.put_if_absent("x/y", b"1")  # as a network's file system repeats what it has done
    assert (tmp_path / "a lake" / "x" / "y").read_bytes() == b"1"
