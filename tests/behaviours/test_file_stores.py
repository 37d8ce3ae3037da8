"""What outputs ask of the store of their files: on a local disk, an object store and HDFS."""

from __future__ import annotations

import pickle
import time
from itertools import count
from pathlib import Path

import pytest
from tests.support.object_stores import EMULATED
from tests.support.s3 import S3Server

from tidelog.errors import AccessRefusedError, ConfigError, OutputError, TidelogError
from tidelog.outputs.base.stores import FileStore, open_file_store

_numbers = count(1)


@pytest.fixture(
    params=[
        "local",
        pytest.param("s3", marks=pytest.mark.integration),
        pytest.param("hdfs", marks=[pytest.mark.integration, pytest.mark.thorough]),
        *EMULATED,
    ]
)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "local":
        return str(tmp_path / "lake")
    if request.param == "hdfs":
        return f"{request.getfixturevalue('hdfs')}/user/tidelog/files-{next(_numbers)}"
    return str(request.getfixturevalue(request.param).url(f"files-{next(_numbers)}"))


@pytest.fixture
def store(place: str) -> FileStore:
    return open_file_store(place)


def test_what_writes_a_file_makes_its_folder(store: FileStore) -> None:
    with store.open_output("a/b/x") as file:
        file.write(b"1")
    store.sync(["a/b/x", "a/b"])
    store.put("c/d/y", b"2")
    assert store.put_if_absent("e/f/z", b"3")
    assert [store.read(name) for name in ("a/b/x", "c/d/y", "e/f/z")] == [b"1", b"2", b"3"]
    assert store.names("c/d") == ["y"]


def test_a_large_file_is_whole(store: FileStore) -> None:
    """Object stores get it in parts."""
    block = bytes(range(256)) * 2**14
    with store.open_output("a/large") as file:
        for number in range(5):
            file.write(bytes([number]) + block)
    store.sync(["a/large", "a"])
    assert store.read("a/large") == b"".join(bytes([number]) + block for number in range(5))


def test_a_name_is_taken_once(store: FileStore) -> None:
    tag = store.put_if_absent("log/1", b"first")
    assert tag is not None
    assert store.put_if_absent("log/1", b"second") is None
    assert store.put_if_absent("log/1", b"first") == tag  # as after an answer that got lost
    assert store.read("log/1") == b"first"
    assert store.names("log") == ["1"]


def test_what_can_t_be_put_leaves_nothing(store: FileStore, place: str) -> None:
    if not place.startswith(("/", "hdfs:")):
        pytest.skip("a store of objects has no folders")
    store.put("a/x/y", b"1")
    for put in (store.put, store.put_if_absent):
        with pytest.raises(TidelogError, match="a/x can't be"):
            put("a/x", b"2")  # a folder has that name
    assert [each.name for each in store.all_files(lambda _: False)] == ["a/x/y"]


def test_a_full_disk_has_nothing_of_what_did_not_fit(small_disk: Path) -> None:
    store = open_file_store(str(small_disk / "lake"))
    for put in (store.put, store.put_if_absent):
        with pytest.raises(OutputError, match="No space left"):
            put("a/x", b"1" * (4 << 20))
    assert list(store.all_files(lambda _: False)) == []
    store.put("a/x", b"1")


def test_a_tag_changes_with_the_file(store: FileStore) -> None:
    tag = store.put_if_absent("x", b"1")
    assert store.tag("x") == tag
    store.put("x", b"2")
    assert store.tag("x") not in (tag, None)
    assert store.tag("y") is None


def test_what_is_not_there_is_named(store: FileStore) -> None:
    assert store.read_optional("a/b") is None
    assert store.names("a") == []
    assert not store.exists("a")
    for read in (store.read, store.open_input, store.size, lambda n: store.read_range(n, 0, 1)):
        with pytest.raises(TidelogError, match=f"{store.path}/a/b"):
            read("a/b")


def test_names_behind_another_one(store: FileStore) -> None:
    for name in ("log/2.json", "log/3.json", "log/3.crc", "log/_last", "log/_below/4.json"):
        store.put(name, b"1")
    assert store.names("log", ".json") == ["2.json", "3.json"]
    assert store.names("log", ".json", after="2.json") == ["3.json"]
    files = [name for name in store.names("log", after="2.json") if name != "_below"]
    assert files == ["3.crc", "3.json", "_last"]


def test_what_is_deleted_is_gone_and_what_was_gone_matters_not(store: FileStore) -> None:
    for name in ("a/1", "a/2", "a/3", "b/c/4", "b/5"):
        store.put(name, b"1")
    store.delete(["a/1", "a/none", "a/2"])
    store.delete([])
    assert store.names("a") == ["3"]
    store.delete_folder("b")
    assert not store.exists("b")


def test_all_files_are_listed_but_those_that_are_passed_over(store: FileStore) -> None:
    assert list(store.all_files(bool)) == []
    before = time.time() - 2  # object stores tell whole seconds
    names = ["1", "a/2", "a/_b/3", "p=a%2F b/q=+&/4", "_log/_5", "_log/b/6"]
    for name in names:
        store.put(name, name.encode())
    found = list(store.all_files(lambda folder: folder == "_log"))
    assert sorted(each.name for each in found) == sorted(names[:4])
    for each in found:
        assert each.size == len(store.read(each.name))
        assert before * 1000 <= each.modified_ms <= time.time() * 1000
    store.delete(each.name for each in found)
    left = sorted(each.name for each in store.all_files(lambda folder: folder == "b"))
    assert left == names[4:]


@pytest.mark.parametrize("size", [10, 200_000])
def test_parts_of_a_file_are_read(store: FileStore, size: int) -> None:
    data = bytes(range(256)) * (size // 256) + b"x" * (size % 256)
    store.put("x", data)
    assert store.size("x") == size
    assert store.read_range("x", 3, 4) == data[3:7]
    assert store.read_range("x", size - 2, 100) == data[-2:]
    with store.open_input("x") as file:
        file.seek(5)
        assert file.read(3) == data[5:8]
        assert file.size() == size


def test_a_store_goes_to_another_process_without_its_options(store: FileStore, place: str) -> None:
    store.put("x", b"1")
    sent = pickle.dumps(store)
    assert b"secret" not in sent
    assert pickle.loads(sent).read("x") == b"1"


@pytest.mark.integration
def test_s3_and_s3a_are_one_place(s3: S3Server) -> None:
    place = s3.url(f"files-{next(_numbers)}")
    open_file_store(place).put("x", b"1")
    assert open_file_store("s3a" + place.removeprefix("s3")).read("x") == b"1"


@pytest.mark.integration
@pytest.mark.thorough
def test_what_hdfs_denies_is_reported_in_a_line(hdfs: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HADOOP_USER_NAME", "stranger")
    with pytest.raises(AccessRefusedError, match="Permission denied: user=stranger") as caught:
        open_file_store(f"{hdfs}/theirs").put("x", b"1")
    assert "org.apache" not in str(caught.value)


@pytest.mark.integration
@pytest.mark.thorough
def test_an_executor_is_hdfs_user_of_its_application(
    hdfs: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HADOOP_USER_NAME", "set by the store")  # and unset after the test
    monkeypatch.delenv("HADOOP_USER_NAME")
    monkeypatch.setenv("SPARK_USER", "stranger")
    with pytest.raises(AccessRefusedError, match="Permission denied: user=stranger"):
        open_file_store(f"{hdfs}/theirs").put("x", b"1")


@pytest.mark.parametrize("place", ["hdfs:///lake", "hdfs://host", "ftp://host/lake"])
def test_a_place_that_no_store_has_is_refused(place: str) -> None:
    with pytest.raises(ConfigError, match=place):
        open_file_store(place).names("")
