"""Commits of a Delta table on an object store that holds, loses and repeats what is sent."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator
from itertools import count

import pytest
from tests.support.faulty_network import FaultyNetwork, on_the_way
from tests.support.s3 import S3Server
from tests.unit.lake.delta_log.tables import Table, file, seen

from tidelog.errors import ConflictError, OutcomeUnknownError, OutputRefusedError, StorageError
from tidelog.eventlog import object_storage
from tidelog.outputs.lake.delta.options import DeltaLayout
from tidelog.outputs.lake.delta.table import DeltaTable
from tidelog.outputs.lake.delta.vacuum import Sweep, TableFiles
from tidelog.outputs.lake.delta_log.actions import add, transaction
from tidelog.outputs.lake.delta_log.commits import write_checkpoint
from tidelog.outputs.lake.delta_log.table_state import TableState, clean_up_log
from tidelog.system.processes import unix_ms

pytestmark = pytest.mark.integration
_numbers = count(1)
DAY_NS = 24 * 3_600 * 1_000_000_000


@pytest.fixture
def place(s3: S3Server) -> str:
    return s3.url(f"delta-{next(_numbers)}")


@pytest.fixture
def network(s3: S3Server, place: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultyNetwork]:
    """The way to the server; a client tries nothing again."""
    monkeypatch.setitem(object_storage._RETRY, "max_retries", 0)
    with on_the_way(s3, place, monkeypatch) as network:
        yield network


@pytest.fixture
def table(network: FaultyNetwork, place: str) -> Table:
    return Table(place)


def put_of(s3: S3Server, table: Table, version: int) -> str:
    prefix = table.place.rpartition("/")[2]
    return f"PUT /{s3.bucket}/{prefix}/_delta_log/{version:020d}.json"


def patient(table: Table, monkeypatch: pytest.MonkeyPatch, times: int) -> Table:
    """The table by a client that tries again."""
    monkeypatch.setitem(object_storage._RETRY, "max_retries", times)
    object_storage._open_client.cache_clear()
    return Table(table.place)


def test_a_commit_that_reaches_the_store_after_another_driver_s_replaces_nothing(
    s3: S3Server, table: Table, network: FaultyNetwork
) -> None:
    leader = Table(table.place)
    state = leader.create()
    former = Table(table.place)
    old = former.state()
    network.arm("delay", put_of(s3, table, 1))
    with pytest.raises(OutcomeUnknownError):
        former.commit(old, add(file("former"), data_change=True), transaction("app", 1))
    assert network.struck == 1

    leader.commit(state, add(file("leader"), data_change=True), transaction("app", 1))
    (answer,) = network.deliver()
    assert answer.split()[1] in (b"409", b"412")
    state.refresh()
    leader.commit(state, add(file("next"), data_change=True), transaction("app", 2))
    assert set(table.state().files) == {"leader.parquet", "next.parquet"}

    with pytest.raises(ConflictError):  # it has not looked meanwhile
        former.commit(old, add(file("former"), data_change=True), transaction("app", 1))
    old.refresh()
    assert seen(old) == seen(state)
    assert old.transactions == {"app": 2}


def test_a_commit_whose_answer_is_lost_is_recognised_by_its_content(
    s3: S3Server, table: Table, network: FaultyNetwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    table.create()
    # By the client, which tries again, and, where it does not, by ourselves.
    for version, times in ((1, 1), (2, 0)):
        table = patient(table, monkeypatch, times)
        state = table.state()
        network.arm("lose_answer", put_of(s3, table, version))
        assert table.commit(state, add(file(f"f{version}"), data_change=True)) == version
        assert network.struck == 1
        state.refresh()
    read = table.state()
    assert set(read.files) == {"f1.parquet", "f2.parquet"}
    assert seen(read) == seen(state)


@pytest.mark.parametrize("tries", [0, 2], ids=["once", "again"])
@pytest.mark.parametrize("answer", ["done_500", "done_503"])
def test_a_commit_that_was_done_and_answered_with_an_error_is_ours_once(
    s3: S3Server,
    table: Table,
    network: FaultyNetwork,
    monkeypatch: pytest.MonkeyPatch,
    answer: str,
    tries: int,
) -> None:
    """``tries``: of the client, after the first."""
    table.create()
    table = patient(table, monkeypatch, tries)
    state = table.state()
    network.arm(answer, put_of(s3, table, 1))
    assert table.commit(state, add(file("f1"), data_change=True), transaction("app", 1)) == 1
    assert network.struck == 1
    state.refresh()  # the tag that it took for its own is the file's
    table.commit(state, add(file("f2"), data_change=True), transaction("app", 2))
    read = table.state()
    assert (read.version, set(read.files)) == (2, {"f1.parquet", "f2.parquet"})
    assert seen(read) == seen(state)


@pytest.mark.parametrize("answer", ["done_500", "done_503"])
def test_a_commit_of_another_that_was_answered_with_an_error_stays_theirs(
    s3: S3Server,
    table: Table,
    network: FaultyNetwork,
    monkeypatch: pytest.MonkeyPatch,
    answer: str,
) -> None:
    """The server's "it exists" is what is replaced by the error."""
    for version, tries in ((1, 0), (2, 2)):
        table = patient(table, monkeypatch, tries)
        state = table.create() if version == 1 else table.state()
        table.commit(table.state(), add(file(f"theirs{version}"), data_change=True))
        network.arm(answer, put_of(s3, table, version))
        with pytest.raises(ConflictError):
            table.commit(state, add(file("ours"), data_change=True))
        assert network.struck == 1
    assert set(table.state().files) == {"theirs1.parquet", "theirs2.parquet"}


@pytest.mark.parametrize(
    "size",
    [1 << 10, pytest.param(20 << 20, marks=pytest.mark.thorough)],
    ids=["one request", "parts"],
)
@pytest.mark.parametrize("answer", ["done_500", "done_503"])
def test_a_data_file_that_was_stored_and_answered_with_an_error_is_whole_or_an_error(
    s3: S3Server,
    table: Table,
    network: FaultyNetwork,
    monkeypatch: pytest.MonkeyPatch,
    answer: str,
    size: int,
) -> None:
    data = random.Random(size).randbytes(size)
    kinds = ("PUT",) if size < 1 << 20 else ("PUT", "POST")  # parts; begin and end of all
    for tries in (0, 2):
        store = patient(table, monkeypatch, tries).store
        for kind in kinds:
            network.arm(answer, f"{kind} /{s3.bucket}/")
            name = f"{kind}-{tries}.parquet"
            try:
                with store.open_output(name) as file:
                    file.write(data)
            except StorageError:  # the task is tried again, by another name
                # S3Proxy takes no part twice, and completes no upload twice.
                assert not tries or size > 1 << 20
            else:
                assert tries
                assert store.read(name) == data
            assert network.struck == 1


def test_a_lost_answer_to_a_commit_that_another_one_s_took_the_number_of(
    s3: S3Server, table: Table, network: FaultyNetwork
) -> None:
    state = table.create()
    theirs = table.state()
    table.commit(theirs, add(file("theirs"), data_change=True))
    network.arm("lose_answer", put_of(s3, table, 1))
    with pytest.raises(ConflictError):
        table.commit(state, add(file("ours"), data_change=True))
    assert set(table.state().files) == {"theirs.parquet"}


def test_an_own_commit_that_arrives_late_is_seen_by_its_transaction(
    s3: S3Server, table: Table, network: FaultyNetwork
) -> None:
    state = table.create()
    network.arm("delay", put_of(s3, table, 1))
    with pytest.raises(OutcomeUnknownError):
        table.commit(state, add(file("first"), data_change=True), transaction("app", 1))
    state.refresh()
    assert state.transactions == {}
    assert network.deliver() == [b"HTTP/1.1 200 OK"]  # while tasks write once more
    with pytest.raises(ConflictError):
        table.commit(state, add(file("again"), data_change=True), transaction("app", 1))
    state.refresh()
    assert (state.transactions, set(state.files)) == ({"app": 1}, {"first.parquet"})


def test_a_store_that_is_busy_is_asked_again(
    s3: S3Server, table: Table, network: FaultyNetwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = table.create()
    network.arm("busy", "")
    with pytest.raises(StorageError):
        state.refresh()
    for request, times in ((put_of(s3, table, 1), 1), ("", 2)):  # and nobody says what was done
        network.arm("busy", request, times)
        with pytest.raises(OutcomeUnknownError):
            table.commit(state, add(file("a"), data_change=True))
    assert state.version == 0
    table = patient(table, monkeypatch, 3)
    state = table.state()
    for _ in range(3):
        network.arm("busy", "", times=2)
        table.fill(state, 1)
        network.arm("busy", "", times=2)
        state.refresh()
    write_checkpoint(table.store, state)
    network.arm("busy", "", times=2)
    assert seen(table.state()) == seen(state)


def test_a_writer_that_ignores_conditions_is_noticed(s3: S3Server, table: Table) -> None:
    state = table.create()
    table.fill(state, 1)
    state.refresh()
    table.foreign(1, [add(file("theirs"), data_change=True)])
    with pytest.raises(OutputRefusedError, match="version 1 was replaced"):
        state.refresh()


def test_a_commit_that_is_replaced_after_the_next_one_is_noticed_by_all_who_read_the_log(
    s3: S3Server, table: Table
) -> None:
    state = table.create()
    table.fill(state, 3)
    table.foreign(2, [{"commitInfo": {}}, add(file("theirs"), data_change=True)])
    said = "version 2 was replaced by another writer's commit"
    with pytest.raises(OutputRefusedError, match=said):  # after a start
        table.state()
    state.refresh()  # the newest one is ours
    with pytest.raises(OutputRefusedError, match=said):
        write_checkpoint(table.store, state)
    for _ in range(2):  # and it stays so
        with pytest.raises(OutputRefusedError, match=said):
            state.refresh()


def test_a_log_with_a_replaced_commit_is_read_once(table: Table, network: FaultyNetwork) -> None:
    """Every batch of the others tries the table again."""
    state = table.create()
    table.fill(state, 15)
    write_checkpoint(table.store, state)
    table.fill(state, 5)
    name = f"_delta_log/{18:020d}.json"
    ours = table.store.read(name)
    table.foreign(18, [{"commitInfo": {}}, add(file("theirs"), data_change=True)])
    read = TableState(table.store)
    asked = []
    for _ in range(3):
        network.asked.clear()
        with pytest.raises(OutputRefusedError, match="version 18 was replaced"):
            read.refresh()
        asked.append(len(network.asked))
    assert asked[0] <= 9  # the hint, a list, the checkpoint, its commit, and five commits
    assert asked[1:] == [2, 2]
    table.store.put(name, ours)
    read.refresh()
    assert seen(read) == seen(state)


def test_a_newest_commit_that_is_replaced_counts_for_nobody_who_starts(
    s3: S3Server, table: Table
) -> None:
    """Its transaction is gone with its rows, which come again."""
    state = table.create()
    for end in (1, 2):
        table.commit(state, add(file(f"f{end}"), data_change=True), transaction("app", end))
    table.foreign(2, [{"commitInfo": {}}, add(file("theirs"), data_change=True)])
    read = table.state()
    assert read.transactions == {"app": 1}
    table.commit(read, add(file("again"), data_change=True), transaction("app", 2))
    assert set(table.state().files) == {"f1.parquet", "theirs.parquet", "again.parquet"}


def test_a_batch_asks_little_of_the_store(
    s3: S3Server, table: Table, network: FaultyNetwork
) -> None:
    state = table.create()
    table.fill(state, 30)
    network.asked.clear()
    state.refresh()
    table.fill(state, 1)
    assert [line.split()[0] for line in network.asked] == ["GET", "HEAD", "PUT", "HEAD"]
    write_checkpoint(table.store, state)
    network.asked.clear()
    assert seen(table.state()) == seen(state)
    # The hint, a list, the checkpoint (its end and its size come together), and the commit's time.
    kinds = [line.split()[0] for line in network.asked]
    assert kinds == ["GET"] * 4


def test_a_vacuum_lists_no_commits(table: Table, network: FaultyNetwork) -> None:
    """Writes to object stores leave nothing there."""
    table.create()
    for name in ("_x/kept", "a/gone"):
        table.store.put(name, b"1")
    copy = DeltaTable(table.place, DeltaLayout(), lambda _: [])
    copy.exists()
    network.asked.clear()
    Sweep(copy, unix_ms() + 10_000, threading.Event()).take_turn(TableFiles.of(copy.state))
    assert not [line for line in network.asked if "_delta_log" in line]
    assert [table.store.exists(name) for name in ("_x/kept", "a/gone")] == [True, False]


@pytest.mark.parametrize("times", [1, 1000], ids=["first", "each"])
@pytest.mark.parametrize("fault", ["busy", "forbid", "lose_answer", "done_503", "delay"])
def test_a_clean_up_whose_requests_fail_leaves_a_table_and_the_rest_to_the_next(
    s3: S3Server,
    table: Table,
    network: FaultyNetwork,
    monkeypatch: pytest.MonkeyPatch,
    fault: str,
    times: int,
) -> None:
    """Of the log, and of data files."""
    clock = time.time_ns
    with monkeypatch.context() as patch:
        patch.setattr("time.time_ns", lambda: clock() - 40 * DAY_NS)
        state = table.create()
        for _ in range(3):
            table.fill(state, 3)
            write_checkpoint(table.store, state)
    wanted = seen(state)
    names = [*state.files, "a/gone", "b/gone"]
    for name in names:
        table.store.put(name, b"1")

    def clean_up() -> None:
        clean_up_log(table.store, table.state())
        copy = DeltaTable(table.place, DeltaLayout(), lambda _: [])
        copy.exists()
        Sweep(copy, unix_ms() + 10_000, threading.Event()).take_turn(TableFiles.of(copy.state))

    network.arm(fault, f"POST /{s3.bucket}?delete", times)  # of many files, then of each
    clean_up()
    assert network.struck >= min(times, 10)
    network.disarm()
    assert seen(table.state()) == wanted
    clean_up()
    network.deliver()
    assert seen(table.state()) == wanted
    assert len(table.store.names("_delta_log")) == 3  # the newest checkpoint, its commit, the hint
    assert [name for name in names if table.store.exists(name)] == names[:9]


@pytest.mark.parametrize("name", ["a#b", "a?b", "a%2Fb", "a%25b", "a b"])
def test_a_name_with_marks_of_a_url_is_a_place_of_its_own(
    table: Table, place: str, name: str
) -> None:
    tables = {"short": Table(f"{place}/a"), "odd": Table(f"{place}/{name}")}
    for path, each in tables.items():
        each.commit(each.create(), add(file(path), data_change=True))
    found = [set(Table(each.place).state().files) for each in tables.values()]
    assert found == [{"short.parquet"}, {"odd.parquet"}]
    assert table.store.names(f"{name}/_delta_log")
