"""Others than Tidelog write a Delta table on S3: by the lines of the docs, and by delta-rs."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from tests.support.faulty_network import FaultyNetwork
from tests.support.s3 import S3Server, hadoop_aws_jars

from tidelog.spark.sessions.jars import S3_LOG_STORE_JAR, delta_jars

pytestmark = [pytest.mark.spark, pytest.mark.integration]
ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "outputs" / "delta.md").read_text(encoding="utf-8")
JOB = """
import os, time
from concurrent.futures import ThreadPoolExecutor
from pyspark.sql import SparkSession

def reached(step):  # the program of spark-submit has no standard input
    print(step, flush=True)
    while not os.path.exists(step):
        time.sleep(0.05)

spark = SparkSession.builder.getOrCreate()

def write(scheme, value):  # to Delta tables of two schemes are two: each is a driver of its own
    spark.range(value, value + 1).write.format("delta").mode("append").save(f"{scheme}://TABLE")

write("s3a", 0)
reached("created")
with ThreadPoolExecutor() as threads:
    former = threads.submit(write, "s3a", 1)
    reached("begun")
    write("s3", 2)
    reached("written")
    former.result()
"""


@pytest.fixture
def network(s3: S3Server) -> Iterator[FaultyNetwork]:
    with FaultyNetwork(s3.port) as network:
        yield network


def wait_for(what: Callable[[], object]) -> None:
    deadline = time.monotonic() + 60
    while not what():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def rows(s3: S3Server, name: str, column: str) -> list[int]:
    table = DeltaTable(s3.url(name), storage_options=s3.options)
    return sorted(table.to_pyarrow_table()[column].to_pylist())


def test_a_session_by_the_lines_of_the_docs_replaces_no_commit(
    s3: S3Server, network: FaultyNetwork, tmp_path: Path
) -> None:
    """With Delta's own class, or without the two settings, the former driver's commit replaces the
    new one's, and row 2 is in no version of the table.
    """
    (command,) = re.findall(r"```console\n\$ (spark-submit .*?)```", PAGE, re.DOTALL)
    (tmp_path / "job.py").write_text(JOB.replace("TABLE", f"{s3.bucket}/others"))
    jars = [jar for jar in delta_jars() if jar != S3_LOG_STORE_JAR] + hadoop_aws_jars()
    settings = {
        "spark.master": "local[1]",
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": "1",
        "spark.databricks.delta.snapshotPartitions": "1",
        "spark.driver.extraClassPath": ":".join(map(str, jars)),
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        "spark.hadoop.fs.s3.impl": "org.apache.hadoop.fs.s3a.S3AFileSystem",
        "spark.hadoop.fs.s3a.endpoint": f"http://127.0.0.1:{network.port}",
        "spark.hadoop.fs.s3a.access.key": s3.access_key_id,
        "spark.hadoop.fs.s3a.secret.key": s3.secret_access_key,
        "spark.hadoop.fs.s3a.path.style.access": "true",
    }
    (tmp_path / "spark-defaults.conf").write_text(
        "".join(f"{name} {value}\n" for name, value in settings.items())
    )
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    with (
        (tmp_path / "job.log").open("w") as log,
        subprocess.Popen(
            ["bash", "-euc", command],
            cwd=tmp_path,
            env={**os.environ, "PATH": path, "SPARK_CONF_DIR": str(tmp_path)},
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        ) as job,
    ):
        assert job.stdout is not None

        def reached(step: str) -> None:
            said = []  # the program's errors, too
            for line in job.stdout or []:
                if line == f"{step}\n":
                    return
                said.append(line)
            pytest.fail("".join(said))

        def let_go(step: str) -> None:
            (tmp_path / step).touch()

        reached("created")
        network.arm("hold", f"PUT /{s3.bucket}/others/_delta_log/{1:020d}.json")
        let_go("created")
        reached("begun")
        wait_for(lambda: network.struck)
        let_go("begun")
        reached("written")
        network.deliver()
        let_go("written")
        assert job.wait(60) == 0, (tmp_path / "job.log").read_text()
    assert rows(s3, "others", "id") == [0, 1, 2]


def test_delta_rs_replaces_no_commit(s3: S3Server, network: FaultyNetwork) -> None:
    slow = s3.options | {"endpoint": f"http://127.0.0.1:{network.port}"}

    def write(value: int, options: dict[str, str]) -> None:
        rows = pa.table({"id": [value]})
        write_deltalake(s3.url("by-rust"), rows, mode="append", storage_options=options)

    write(0, s3.options)
    network.arm("hold", f"PUT /{s3.bucket}/by-rust/_delta_log/{1:020d}.json")
    with ThreadPoolExecutor() as threads:
        former = threads.submit(write, 1, slow)
        wait_for(lambda: network.struck)
        write(2, s3.options)
        network.deliver()
        former.result(60)
    assert rows(s3, "by-rust", "id") == [0, 1, 2]
