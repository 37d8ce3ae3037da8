"""A pipeline's server of Spark Connect, by configuration, and the errors that come of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tidelog.app.pipeline.outputs import check_spark, remote_of
from tidelog.config import Config, load_config
from tidelog.errors import AccessRefusedError, ConfigError, OutputBusyError, UsageError
from tidelog.spark.sessions.connect import place_of
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


def test_iceberg_is_refused(tmp_path: Path) -> None:
    for package in ("grpc_status", "pandas", "zstandard"):
        pytest.importorskip(package, reason="Spark Connect: pip install 'tidelog[connect]'")
    found = config(tmp_path, f"remote: '{REMOTE}'", "kind: iceberg, path: a")
    with pytest.raises(UsageError, match="not over Spark Connect"):
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
def test_errors_of_the_server_are_told_apart(text: str, kind: type[Exception]) -> None:
    pytest.importorskip("grpc_status", reason="Spark Connect: pip install 'tidelog[connect]'")
    from pyspark.errors.exceptions.connect import SparkConnectGrpcException

    found = known_error(SparkConnectGrpcException(text))
    assert isinstance(found, kind)
    assert "Spark Connect server" in str(found)
