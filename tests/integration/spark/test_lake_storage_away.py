"""A pipeline whose lake is on S3, started while the store is away or does not let it in. Spark has
no client of S3: none is needed to write.
"""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.support.build_log import BuiltLog
from tests.support.pipeline_process import Delivering
from tests.support.s3 import S3Server

from tidelog.eventlog.storage import OPTIONS_VARIABLE

pytestmark = [pytest.mark.spark, pytest.mark.integration]
Start = Callable[..., Delivering]


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Server]:
    """A server of its own, which a test may stop, and which only the configuration knows."""
    monkeypatch.setenv(OPTIONS_VARIABLE, "{}")
    with S3Server() as server:
        monkeypatch.delenv(OPTIONS_VARIABLE)
        yield server


@pytest.fixture
def start(tmp_path: Path, store: S3Server) -> Iterator[Start]:
    """Starts ``tidelog pipeline`` with settings ``fs.s3a.…`` beside those for the store."""
    built = BuiltLog(tmp_path / "log")
    table = built.table("public.t", {"id": "int64", "v": "text"})
    built.insert(table, "1", "text")
    built.flush()
    started: list[Delivering] = []

    def run(bucket: str = "", **conf: str) -> Delivering:
        settings = {
            "endpoint": store.endpoint,
            "access.key": store.access_key_id,
            "secret.key": store.secret_access_key,
            "path.style.access": "true",
            **{name.replace("_", "."): value for name, value in conf.items()},
        }
        spark = {f"spark.hadoop.fs.s3a.{name}": value for name, value in settings.items()}
        document = {
            "source": {"kind": "postgres", "url": "postgresql://u@h/d"},
            "log": {"path": str(tmp_path / "log")},
            "state": {"url": f"sqlite:///{tmp_path}/state.db"},
            "pipeline": {"checkpoint": str(tmp_path / "checkpoint"), "conf": spark},
            "outputs": [{"kind": "delta", "path": f"s3a://{bucket or store.bucket}/lake"}],
        }
        (tmp_path / "tidelog.yaml").write_text(json.dumps(document))
        started.append(Delivering(tmp_path / "tidelog.yaml", tmp_path / "pipeline.log"))
        return started[-1]

    yield run
    for process in started:
        process.close()


def wait_for(held: Callable[[], bool], process: Delivering, timeout_s: float = 60) -> None:
    deadline = time.monotonic() + timeout_s
    while not held():
        assert process.code is None, process.said
        assert time.monotonic() < deadline, process.said
        time.sleep(0.1)


def test_a_lake_whose_store_is_away_is_waited_for(start: Start, store: S3Server) -> None:
    store.stop()
    pipeline = start()
    wait_for(lambda: "output delta is not ready: cannot " in pipeline.said, pipeline)
    assert "Check the endpoint, the network, and" in pipeline.said
    store.start()
    wait_for(lambda: '"total_rows": 1' in pipeline.said, pipeline)
    assert store.parquet("lake/public/t/").column("id").to_pylist() == [1]
    pipeline.send(signal.SIGTERM)
    assert pipeline.wait() == 0, pipeline.said
    assert store.secret_access_key not in pipeline.said


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"bucket": "not-there"}, "NoSuchBucket"),
        ({"secret_key": "wrong"}, "SignatureDoesNotMatch"),
        ({"access_key": "wrong"}, "InvalidAccessKeyId"),
    ],
    ids=["bucket", "secret", "key"],
)
def test_a_wrong_lake_storage_ends_the_start_and_says_what_is_wrong(
    start: Start, wrong: dict[str, str], says: str, store: S3Server
) -> None:
    pipeline = start(**wrong)
    assert pipeline.wait() == 2, pipeline.said
    assert says in pipeline.said
    assert "Check the bucket's name, the endpoint, and that the credentials" in pipeline.said
    assert "output delta" in pipeline.said
    assert store.secret_access_key not in pipeline.said
