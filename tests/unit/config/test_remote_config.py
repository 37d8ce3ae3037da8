"""A pipeline's options: its server of Spark Connect, its errors, how often batches come."""

from __future__ import annotations

from pathlib import Path
from traceback import format_exception

import pytest

from tidelog.app.base.outputs import check_spark, remote_of
from tidelog.app.pipeline.run import session
from tidelog.app.pipeline.session import trigger_s
from tidelog.config import Config, load_config
from tidelog.errors import (
    AccessRefusedError,
    ConfigError,
    OutputBusyError,
    OutputError,
    UsageError,
)
from tidelog.spark.sessions.connect import RemoteSession, place_of
from tidelog.spark.sessions.errors import known_error

REMOTE = "sc://spark.example.org:443/;token=hidden-token"


def config(directory: Path, pipeline: str, output: str = "kind: files, path: a") -> Config:
    file = directory / "tidelog.yaml"
    file.write_text(
        "source: {kind: postgres, url: 'postgresql://u@h/d'}\nlog: {path: log}\n"
        f"pipeline: {{{pipeline}}}\noutputs: [{{{output}}}]\n"
    )
    return load_config(file)


def test_the_token_is_not_shown(tmp_path: Path) -> None:
    found = config(tmp_path, f"remote: '{REMOTE}'")
    assert remote_of(found) == REMOTE
    assert "hidden-token" not in f"{found!r} {found} {found.model_dump_json()}"
    assert str(found.pipeline.remote) == "sc://spark.example.org:443/;***"
    assert place_of(REMOTE) == "sc://spark.example.org:443"


@pytest.mark.parametrize(
    ("pipeline", "expected"),
    [
        (f"remote: '{REMOTE}', master: 'local[2]'", "leave out master"),
        ("remote: 'spark://host:7077'", "expected sc://host"),
        # PySpark refuses these too, and shows them whole.
        (f"remote: '{REMOTE}=='", "= / [?] # of a value are written %3D"),
        (f"remote: '{REMOTE}/7'", "expected sc://host"),
        ("remote: 'sc://host:443;token=hidden-token'", "expected sc://host"),
    ],
)
def test_what_can_not_be_is_refused(tmp_path: Path, pipeline: str, expected: str) -> None:
    with pytest.raises(ConfigError, match=expected) as refused:
        config(tmp_path, pipeline)
    assert "hidden-token" not in str(refused.value)


def test_spark_remote_counts_where_nothing_is_configured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPARK_REMOTE", "sc://other")
    assert remote_of(config(tmp_path, "trigger_ms: 0")) == "sc://other"
    assert remote_of(config(tmp_path, f"remote: '{REMOTE}'")) == REMOTE
    local = config(tmp_path, "master: 'local[2]'")
    assert remote_of(local) is None
    with pytest.raises(UsageError, match="sessions of this process are of Spark Connect"):
        check_spark(local)


def test_spark_remote_is_checked_as_the_configuration_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPARK_REMOTE", f"{REMOTE}==")
    with pytest.raises(UsageError, match="SPARK_REMOTE: expected sc://") as refused:
        remote_of(config(tmp_path, "trigger_ms: 0"))
    assert "hidden-token" not in str(refused.value)


def need_client() -> None:
    for package in ("grpc_status", "pandas", "zstandard"):
        pytest.importorskip(package, reason="Spark Connect: pip install 'tidelog[connect]'")


def test_master_of_the_environment_is_refused_without_the_token(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    need_client()
    monkeypatch.setenv("MASTER", "local")
    with pytest.raises(UsageError, match="unset it"):
        check_spark(config(tmp_path, f"remote: '{REMOTE}'"))


def test_an_error_of_pyspark_that_has_the_address_is_not_shown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    need_client()
    monkeypatch.setenv("MASTER", "local")
    with pytest.raises(OutputError, match="CANNOT_CONFIGURE_SPARK_CONNECT_MASTER") as refused:
        RemoteSession(REMOTE, {})
    assert "hidden-token" not in "".join(format_exception(refused.value))


@pytest.mark.parametrize(
    "setting",
    ["caseSensitive: false", "session.timeZone: Europe/Berlin", "ansi.enabled: false"],
)
def test_a_setting_that_outputs_do_not_share_is_refused(tmp_path: Path, setting: str) -> None:
    """In a classic session each output has its own."""
    need_client()
    found = config(tmp_path, f"remote: '{REMOTE}', conf: {{spark.sql.{setting}}}")
    with pytest.raises(UsageError, match="all outputs share a session"):
        session(found)


def test_a_catalog_that_http_reaches_is_not_refused(tmp_path: Path) -> None:
    need_client()
    catalog = "catalog: {type: unity, uri: 'http://unity:8080', name: main}"
    check_spark(config(tmp_path, f"remote: '{REMOTE}'", f"kind: delta, path: a, {catalog}"))


@pytest.mark.parametrize(
    ("pipeline", "expected"),
    [
        ("remote_token_file: token", "remote names no server"),
        (f"remote: '{REMOTE}', remote_token_file: token", "leave out the token"),
    ],
)
def test_a_token_is_in_one_place(tmp_path: Path, pipeline: str, expected: str) -> None:
    with pytest.raises(ConfigError, match=expected) as refused:
        config(tmp_path, pipeline)
    assert "hidden-token" not in str(refused.value)


@pytest.mark.parametrize(("text", "expected"), [(None, "No such file"), (" \n", "is empty")])
def test_a_file_without_a_token_is_named(tmp_path: Path, text: str | None, expected: str) -> None:
    need_client()
    file = tmp_path / "token"
    if text is not None:
        file.write_text(text)
    with pytest.raises(OutputError, match=f"remote_token_file: .*token.*{expected}"):
        RemoteSession("sc://spark.example.org", {}, file)


@pytest.mark.parametrize(
    "output",
    ["kind: iceberg, path: a", "kind: delta, path: a, catalog: {type: hive, uri: 'thrift://h:1'}"],
)
def test_java_libraries_need_the_jars_that_pyspark_client_lacks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, output: str
) -> None:
    need_client()
    found = config(tmp_path, f"remote: '{REMOTE}'", output)
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))
    with pytest.raises(UsageError, match=r"output \w+: .*pip install 'pyspark\[connect\]'"):
        check_spark(found)


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("(org.apache.spark.SparkSQLException) [INVALID_HANDLE.SESSION_CLOSED] The handle x is "
         "invalid. Session was closed. SQLSTATE: HY000", OutputBusyError),
        ("status = StatusCode.UNAVAILABLE details = failed to connect to all addresses",
         OutputBusyError),
        ("status = StatusCode.UNAUTHENTICATED details = Invalid token", AccessRefusedError),
    ],
)  # fmt: skip
def test_errors_of_the_server_are_distinguished(text: str, kind: type[Exception]) -> None:
    pytest.importorskip("grpc_status", reason="Spark Connect: pip install 'tidelog[connect]'")
    from pyspark.errors.exceptions.connect import SparkConnectGrpcException

    found = known_error(SparkConnectGrpcException(text))
    assert isinstance(found, kind)
    assert "Spark Connect server" in str(found)


@pytest.mark.parametrize(
    ("log", "pipeline", "apart_s"),
    [
        ("log", "", [1.0, 0.2]),
        ("log", "trigger_ms: 5s", [5.0, 5.0]),
        ("s3://bucket/log", "", [1.0, 1.0]),  # each batch is requests that cost
    ],
)
def test_batches_come_more_often_where_that_costs_neither_files_nor_requests(
    tmp_path: Path, log: str, pipeline: str, apart_s: list[float]
) -> None:
    file = tmp_path / "tidelog.yaml"
    file.write_text(
        "source: {kind: postgres, url: 'postgresql://u@h/d'}\n"
        f"log: {{path: '{log}'}}\nstate: {{url: 'sqlite:///state.db'}}\npipeline: {{{pipeline}}}\n"
    )
    config = load_config(file)
    assert [trigger_s(config, frequent=each) for each in (False, True)] == apart_s
