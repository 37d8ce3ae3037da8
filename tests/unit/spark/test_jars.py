"""Fetching Delta's jars, from a local repository only: tests use no network."""

from __future__ import annotations

import hashlib
import os
import time
from pathlib import Path

import pytest

from tidelog.demo.servers import mysql_binaries, postgres_binaries
from tidelog.demo.servers.opensearch import OPENSEARCH_JARS
from tidelog.errors import UsageError
from tidelog.spark.sessions import jars
from tidelog.spark.sessions.versions import SPARK_VERSION
from tidelog.system import maven
from tidelog.system.download_progress import Download, report_downloads
from tidelog.system.maven import Jar


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A home directory without anything, and pinned jars of our own making."""
    data = b"a jar"
    jar = Jar("org.made", "up", "1.0", hashlib.sha256(data).hexdigest())
    monkeypatch.setattr(jars, "DELTA_SPARK_JARS", {SPARK_VERSION: jar})
    monkeypatch.setattr(jars, "DELTA_JARS", ())
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("TIDELOG_MAVEN_URL", raising=False)
    monkeypatch.setattr(maven, "_from_ivy", lambda jars, scratch, told: None)
    monkeypatch.setattr(maven, "_from_mvn", lambda jars, scratch, told: None)
    return tmp_path


def put(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


LOCAL = ".m2/repository/org/made/up/1.0/up-1.0.jar"


def test_a_jar_of_the_local_repository_is_taken_once(offline: Path) -> None:
    put(offline / LOCAL, b"a jar")
    found = jars.delta_jars(offline / "cache")
    assert found[1:] == [jars.S3_LOG_STORE_JAR]
    assert found[0].read_bytes() == b"a jar"
    (offline / LOCAL).unlink()
    assert jars.delta_jars(offline / "cache") == found


def test_a_jar_with_another_checksum_is_not_used(offline: Path) -> None:
    put(offline / LOCAL, b"torn")
    with pytest.raises(UsageError, match="could not be fetched"):
        jars.delta_jars(offline / "cache")


def test_a_damaged_cached_jar_is_fetched_again(offline: Path) -> None:
    put(offline / "cache" / "up-1.0.jar", b"torn")
    put(offline / LOCAL, b"a jar")
    assert jars.delta_jars(offline / "cache")[0].read_bytes() == b"a jar"


def test_a_repository_of_ones_own(offline: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(offline / "mirror/org/made/up/1.0/up-1.0.jar", b"a jar")
    monkeypatch.setenv("TIDELOG_MAVEN_URL", (offline / "mirror").as_uri())
    assert jars.delta_jars(offline / "cache")[0].read_bytes() == b"a jar"


def test_whoever_waits_is_told_how_much_has_come(
    offline: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = bytes(3 * maven._PIECE_BYTES)
    jar = Jar("org.made", "large", "1", hashlib.sha256(data).hexdigest(), size=len(data))
    put(offline / "mirror" / jar.repository_path, data)
    monkeypatch.setenv("TIDELOG_MAVEN_URL", (offline / "mirror").as_uri())
    told: list[Download] = []
    with report_downloads(told.append):
        maven.fetch([jar], "a large jar", offline / "cache")
        maven.fetch([jar], "a large jar", offline / "cache")  # it is there
    assert [each.share for each in told] == [0.0, 1 / 3, 2 / 3, 0.99, 1.0]
    assert {(each.what, each.size) for each in told} == {("a large jar", len(data))}


def test_whoever_is_told_can_end_it(offline: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def end(_now: Download) -> None:
        raise KeyboardInterrupt

    put(offline / "mirror/org/made/up/1.0/up-1.0.jar", b"a jar")
    monkeypatch.setenv("TIDELOG_MAVEN_URL", (offline / "mirror").as_uri())
    with pytest.raises(KeyboardInterrupt), report_downloads(end):
        jars.delta_jars(offline / "cache")
    assert list((offline / "cache").iterdir()) == []
    jars.delta_jars(offline / "cache")


def test_a_program_that_fetches_is_looked_at_and_ended(tmp_path: Path) -> None:
    looked: list[float] = []

    def look() -> None:
        looked.append(time.monotonic())
        if len(looked) == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        maven._run(["/bin/sh", "-c", "echo $$ > pid; exec sleep 60"], look, tmp_path)
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)
    with pytest.raises(ValueError, match="exit code 3: why"):
        maven._run(["/bin/sh", "-c", "echo why >&2; exit 3"], lambda: None)


def test_pinned_sizes_are_those_of_the_jars() -> None:
    pinned = [*jars.DELTA_SPARK_JARS.values(), *jars.DELTA_JARS, *jars.ICEBERG_JARS]
    pinned += postgres_binaries.JARS.values()
    pinned += [*mysql_binaries._MYSQL_JARS.values(), *mysql_binaries._MARIADB_JARS.values()]
    assert all(jar.size for jar in pinned)
    for jar in pinned:
        there = maven.cache_directory() / jar.file_name
        if there.exists():
            assert there.stat().st_size == jar.size


def test_without_network_the_error_says_how_to_go_on(offline: Path) -> None:
    with pytest.raises(UsageError) as caught:
        jars.delta_jars(offline / "cache")
    text = str(caught.value)
    assert "org.made:up:1.0" in text
    assert "TIDELOG_JARS" in text
    assert "TIDELOG_MAVEN_URL" in text
    assert str(offline / "cache") in text
    path = "https://repo1.maven.org/maven2/org/made/up/1.0/up-1.0.jar"
    assert f"curl --fail --remote-name-all {path}" in text


def test_a_spark_that_delta_has_no_jars_for_is_told_of_the_way_on(
    offline: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jars, "DELTA_SPARK_JARS", {"3.8": jars.DELTA_SPARK_JARS[SPARK_VERSION]})
    with pytest.raises(UsageError, match=rf"for Spark {SPARK_VERSION}.*spark_session\(delta=False"):
        jars.delta_jars(offline / "cache")


def test_jars_are_read_from_a_list() -> None:
    found = maven.parse_jar_list(
        "# coordinates, SHA-256\norg.made:up:1.0 abc\n\norg.made:down:2 d\n"
    )
    assert found == (Jar("org.made", "up", "1.0", "abc"), Jar("org.made", "down", "2", "d"))


def test_every_jar_of_the_list_is_pinned() -> None:
    assert len(OPENSEARCH_JARS) == len({jar.file_name for jar in OPENSEARCH_JARS})
    assert all(len(bytes.fromhex(jar.sha256)) == 32 for jar in OPENSEARCH_JARS)
