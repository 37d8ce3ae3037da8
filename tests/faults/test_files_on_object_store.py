"""The files output's commits on an object store that holds, loses and repeats what is sent."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from itertools import count

import pytest
from tests.support.faulty_network import FaultyNetwork, on_the_way
from tests.support.output_options import file_format
from tests.support.s3 import S3Server
from tests.unit.outputs.test_files_writer import TABLE, events

from tidelog.errors import OutcomeUnknownError, OutputBusyError, OutputRefusedError, UsageError
from tidelog.eventlog import object_storage
from tidelog.eventlog.object_storage import ObjectStorage
from tidelog.outputs.base.stores import FileStore, open_file_store
from tidelog.outputs.files.commits import Commit, Commits
from tidelog.outputs.files.writer import FilesLayout, FilesWriter
from tidelog.ports import WriteTask

pytestmark = pytest.mark.integration
_numbers = count(1)


@pytest.fixture
def place(s3: S3Server) -> str:
    return s3.url(f"activity-{next(_numbers)}")


@pytest.fixture
def network(s3: S3Server, place: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultyNetwork]:
    """The way to the server from now on; a client tries nothing again."""
    monkeypatch.setitem(object_storage._RETRY, "max_retries", 0)
    with on_the_way(s3, place, monkeypatch) as network:
        yield network


class Driver:
    """One pipeline's driver and its tasks."""

    def __init__(self, place: str) -> None:
        self.store: FileStore = open_file_store(place)
        self.commits = Commits(self.store, "files")

    def stage(self, attempt: str, first: int, rows: int) -> str:
        """A task stages a file of the keys from ``first`` on."""
        staging = self.commits.staging(attempt)
        store = pickle.loads(pickle.dumps(self.store))  # as it reaches an executor
        writer = FilesWriter(store, staging, FilesLayout("date={date}"), file_format())
        writer.open(WriteTask("files", "g", 0, 10, 0))
        writer.write(TABLE, events(first, rows))
        writer.commit()
        writer.close()
        return staging

    def publish(self, staging: str, start: int, end: int) -> Commit:
        return self.commits.publish(staging, "g", start, end, "files-", ".parquet")


def keys(s3: S3Server, place: str) -> list[int]:
    """What another client reads there."""
    rows = s3.parquet(place.rpartition("/")[2]).column("key").to_pylist()
    return sorted(row["id"] for row in rows)


def put_of_commit(s3: S3Server, place: str, number: int) -> str:
    path = f"{s3.bucket}/{place.rpartition('/')[2]}/_tidelog/files/commits/{number:020d}.json"
    return f"PUT /{path}"


def test_a_commit_that_reaches_the_store_after_another_driver_s_replaces_nothing(
    s3: S3Server, place: str, network: FaultyNetwork
) -> None:
    former, leader = Driver(place), Driver(place)
    assert former.commits.newest is None
    staged = former.stage("former", 1, 100)
    network.arm("delay", put_of_commit(s3, place, 1))
    with pytest.raises(OutcomeUnknownError):
        former.publish(staged, 0, 100)
    assert network.struck == 1

    leader.publish(leader.stage("leader", 1, 150), 0, 150)
    (answer,) = network.deliver()
    assert answer.split()[1] in (b"409", b"412")

    newest = Driver(place).commits.newest
    assert newest is not None
    assert (newest.number, newest.end) == (1, 150)
    assert keys(s3, place) == list(range(1, 151))
    assert former.commits.newest == newest
    leader.publish(leader.stage("next", 151, 50), 150, 200)
    staged = former.stage("late", 151, 10)
    with pytest.raises(OutputRefusedError, match="another pipeline"):
        former.publish(staged, 150, 160)
    assert keys(s3, place) == list(range(1, 201))


def test_a_commit_whose_answer_is_lost_is_recognised_by_its_content(
    s3: S3Server, place: str, network: FaultyNetwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(object_storage._RETRY, "max_retries", 1)
    object_storage._open_client.cache_clear()
    driver = Driver(place)
    staged = driver.stage("try", 1, 100)
    network.arm("lose_answer", put_of_commit(s3, place, 1))
    assert driver.publish(staged, 0, 100).number == 1
    assert network.struck == 1
    assert keys(s3, place) == list(range(1, 101))


def test_an_own_commit_that_arrives_late_is_taken_for_what_it_is(
    s3: S3Server, place: str, network: FaultyNetwork
) -> None:
    driver = Driver(place)
    network.arm("delay", put_of_commit(s3, place, 1))
    with pytest.raises(OutcomeUnknownError):
        driver.publish(driver.stage("first", 1, 100), 0, 100)
    assert driver.commits.newest is None
    staged = driver.stage("again", 1, 100)
    assert network.deliver() == [b"HTTP/1.1 200 OK"]  # while tasks stage once more
    with pytest.raises(OutputBusyError, match="did not answer before"):
        driver.publish(staged, 0, 100)
    driver.commits.finish()
    assert driver.commits.newest is not None
    assert driver.commits.newest.end == 100
    assert keys(s3, place) == list(range(1, 101))
    driver.publish(driver.stage("next", 101, 50), 100, 150)
    assert keys(s3, place) == list(range(1, 151))
    assert driver.store.exists("_tidelog/files/staging") is False


def test_a_store_without_conditional_puts_is_refused(
    place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = ObjectStorage._put

    def unconditional(self: ObjectStorage, name: str, data: bytes, _mode: object) -> object:
        return whole(self, name, data, "overwrite")

    monkeypatch.setattr(ObjectStorage, "_put", unconditional)
    with pytest.raises(UsageError, match="ignores the condition"):
        open_file_store(place).check()
