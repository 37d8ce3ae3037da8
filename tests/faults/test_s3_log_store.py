"""Our log store class for Delta tables on S3, in a JVM with Hadoop's client of S3 and no Spark."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path
from typing import Any

import pyspark
import pytest
from py4j.java_gateway import GatewayParameters, JavaGateway, launch_gateway
from py4j.protocol import Py4JJavaError
from tests.support.faulty_network import FaultyNetwork
from tests.support.s3 import S3Server, hadoop_aws_jars

from tidelog.spark.sessions.jars import delta_jars

pytestmark = pytest.mark.integration
_numbers = count(1)
EXISTS = "java.nio.file.FileAlreadyExistsException"


@pytest.fixture(scope="module")
def java() -> Iterator[Any]:
    """The classes of a JVM."""
    spark = Path(pyspark.__file__).parent / "jars"
    path = [f"{spark}/*", *map(str, delta_jars()), *map(str, hadoop_aws_jars())]
    port = launch_gateway(
        classpath=os.pathsep.join(path), die_on_exit=True, javaopts=["-XX:TieredStopAtLevel=1"]
    )
    gateway = JavaGateway(gateway_parameters=GatewayParameters(port=port, auto_convert=True))
    yield gateway.jvm
    gateway.shutdown()


@pytest.fixture
def network(s3: S3Server) -> Iterator[FaultyNetwork]:
    with FaultyNetwork(s3.port) as network:
        yield network


@pytest.fixture
def commit(s3: S3Server) -> str:
    """The next commit of a table."""
    return f"{s3.bucket}/table-{next(_numbers)}/_delta_log/{1:020d}.json"


class Driver:
    """A driver's log store, which reaches the server by the network."""

    def __init__(self, java: Any, s3: S3Server, network: FaultyNetwork, **settings: str) -> None:
        self._java = java
        self._conf = java.org.apache.hadoop.conf.Configuration()
        known = {
            "impl.disable.cache": "true",
            "endpoint": f"http://127.0.0.1:{network.port}",
            "access.key": s3.access_key_id,
            "secret.key": s3.secret_access_key,
            "path.style.access": "true",
            "retry.interval": "10ms",
            "retry.limit": "1",
            "attempts.maximum": "1",
        }
        for name, value in (known | settings).items():
            self._conf.set(f"fs.s3a.{name.replace('_', '.')}", value)
        self._conf.set("fs.s3.impl", "org.apache.hadoop.fs.s3a.S3AFileSystem")
        self._store = java.tidelog.delta.S3LogStore(self._conf)

    def write(self, url: str, *actions: object, overwrite: bool = False) -> None:
        lines = self._java.java.util.ArrayList()
        for action in actions:
            lines.append(action)
        path = self._java.org.apache.hadoop.fs.Path(url)
        self._store.write(path, lines.iterator(), overwrite, self._conf)


@pytest.fixture
def driver(java: Any, s3: S3Server, network: FaultyNetwork) -> Callable[..., Driver]:
    return lambda **settings: Driver(java, s3, network, **settings)


def content(s3: S3Server, commit: str) -> str:
    return (s3.directory.parent / commit).read_text()


def refused(error: pytest.ExceptionInfo[Py4JJavaError]) -> str:
    return str(error.value.java_exception)


@pytest.mark.parametrize("scheme", ["s3a", "s3"])
def test_a_commit_that_is_there_is_a_conflict(
    driver: Callable[..., Driver], s3: S3Server, network: FaultyNetwork, commit: str, scheme: str
) -> None:
    driver().write(f"{scheme}://{commit}", "first", "ü")
    with pytest.raises(Py4JJavaError) as error:
        driver().write(f"{scheme}://{commit}", "first", "ü")
    assert refused(error).startswith(EXISTS)
    assert content(s3, commit) == "first\nü\n"
    assert len([line for line in network.asked if line.startswith("PUT")]) == 1


@pytest.mark.parametrize(
    "size", [9, pytest.param(6_000_000, marks=pytest.mark.thorough)], ids=["one put", "in parts"]
)
def test_a_commit_held_up_on_its_way_replaces_nothing(
    driver: Callable[..., Driver], s3: S3Server, network: FaultyNetwork, commit: str, size: int
) -> None:
    """Fails with Delta's own class (S3SingleDriverLogStore), by which the former driver's lines are
    there at the end, and it is told that all went well.
    """
    former, new = driver(multipart_size="5M"), driver(multipart_size="5M")
    network.arm("hold", f"PUT /{commit} " if size == 9 else f"POST /{commit}?uploadId=")
    with ThreadPoolExecutor() as threads:
        writing = threads.submit(former.write, f"s3a://{commit}", "former".ljust(size, "."))
        while not network.struck:
            assert not writing.done()
            time.sleep(0.01)
        new.write(f"s3://{commit}", "new".ljust(size, "."))
        network.deliver()
        with pytest.raises(Py4JJavaError) as error:
            writing.result(60)
    assert refused(error).startswith(EXISTS)
    assert content(s3, commit) == "new".ljust(size, ".") + "\n"


def test_a_commit_whose_answer_is_lost_is_recognised_by_its_content(
    driver: Callable[..., Driver], s3: S3Server, network: FaultyNetwork, commit: str
) -> None:
    network.arm("lose_answer", f"PUT /{commit}")
    driver().write(f"s3a://{commit}", "first", "second")
    assert len([line for line in network.asked if line.startswith("PUT")]) == 2
    assert content(s3, commit) == "first\nsecond\n"


def test_a_commit_that_never_came_is_no_conflict_and_does_no_harm_later(
    driver: Callable[..., Driver], s3: S3Server, network: FaultyNetwork, commit: str
) -> None:
    network.arm("delay", f"PUT /{commit}", times=100)
    with pytest.raises(Py4JJavaError) as error:
        driver().write(f"s3a://{commit}", "former")
    assert EXISTS not in refused(error)
    network.disarm()
    driver().write(f"s3a://{commit}", "new")
    assert {answer.split()[1] for answer in network.deliver()} == {b"412"}
    assert content(s3, commit) == "new\n"


def test_actions_that_fail_in_the_middle_commit_nothing(
    driver: Callable[..., Driver], s3: S3Server, commit: str
) -> None:
    with pytest.raises(Py4JJavaError) as error:
        driver().write(f"s3a://{commit}", "first", 2)  # which is no text
    assert "ClassCastException" in refused(error)
    assert not (s3.directory.parent / commit).exists()


def test_what_may_be_replaced_is(driver: Callable[..., Driver], s3: S3Server, commit: str) -> None:
    checkpoint = commit.rpartition("/")[0] + "/_last_checkpoint"
    for text in ("first", "second"):
        driver().write(f"s3a://{checkpoint}", text, overwrite=True)
    assert content(s3, checkpoint) == "second\n"


def test_a_client_without_conditional_puts_is_refused(
    driver: Callable[..., Driver], s3: S3Server, commit: str, tmp_path: Path
) -> None:
    with pytest.raises(Py4JJavaError) as error:
        driver(create_conditional_enabled="false").write(f"s3a://{commit}", "first")
    assert "Conditional Writes Unavailable" in refused(error)
    with pytest.raises(Py4JJavaError) as error:
        driver().write(f"file://{tmp_path}/1.json", "first")
    assert "take hadoop-aws 3.4.2 or later" in refused(error)
    assert not (s3.directory.parent / commit).exists()
    assert not list(tmp_path.iterdir())
