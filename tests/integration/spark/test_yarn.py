"""docs/how-to/cluster.md on YARN, as it is written: its commands and its configuration, with a
packed environment, the event log on S3 and the outputs on HDFS.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any, Final

import hdfs_native
import psycopg
import pyarrow.dataset as ds
import pytest
import yaml
from packaging.requirements import Requirement
from tests.integration.spark.test_cluster import section
from tests.integration.spark.test_each_store import hdfs_files
from tests.support.delta_readers import by_duckdb
from tests.support.hadoop import yarn_cluster
from tests.support.pipeline_process import Delivering
from tests.support.postgres import PostgresServer
from tests.support.s3 import S3Server

from tidelog.system import version

PAGE: Final = section("On YARN")
USER: Final = "analyst"
"""Of Hadoop: not ours, which the processes in containers have."""
ROWS: Final = 5_000
NOT_PACKED: Final = ("pyspark", "jars")
pytestmark = [
    pytest.mark.spark, pytest.mark.integration, pytest.mark.thorough, pytest.mark.timeout(1500)
]  # fmt: skip


def required(wanted: str) -> Iterator[metadata.Distribution]:
    """What pip would install for it."""
    ahead, seen = [Requirement(wanted)], set()
    while ahead:
        one = ahead.pop()
        found = metadata.distribution(one.name)
        for extra in {"", *one.extras} - {extra for name, extra in seen if name == one.name}:
            seen.add((one.name, extra))
            for each in map(Requirement, found.requires or ()):
                if each.marker is None or each.marker.evaluate({"extra": extra}):
                    ahead.append(each)
            if not extra:
                yield found


def install(environment: Path, wanted: str) -> None:
    """As pip would, but from what is installed here."""
    [into] = environment.glob("lib/python3*/site-packages")
    for distribution in required(wanted):
        for file in distribution.files or ():
            if ".." not in file.parts and file.parts[:2] != NOT_PACKED:
                target = into / file
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(str(file.locate()), target)
    into.joinpath(*NOT_PACKED).symlink_to(
        Path(str(metadata.distribution("pyspark").locate_file("/".join(NOT_PACKED))))
    )
    shutil.copytree(Path(version.__file__).parents[1], into / "tidelog", dirs_exist_ok=True)
    program = environment / "bin/tidelog"
    program.write_text(f"#!{environment}/bin/python\nfrom tidelog.cli import main\nmain()\n")
    program.chmod(0o755)


class Edge:
    """The host where the page's commands are given."""

    def __init__(
        self, directory: Path, environment: dict[str, str], places: dict[str, str]
    ) -> None:
        self.directory = directory
        self.environment = environment
        self._places = places
        whole, changed = (
            yaml.safe_load(self._here(text))
            for part in (section("Configure"), PAGE)
            for text in re.findall(r"```yaml\n(.*?)```", part, re.DOTALL)
        )
        self.configuration = directory / "tidelog.yaml"
        self.configuration.write_text(json.dumps(whole | changed))

    def run(self, command: str) -> None:
        if command.startswith("export "):
            name, _, value = self._here(command).removeprefix("export ").partition("=")
            self.environment[name] = value
        elif " install " in command:
            install(self.directory / "environment", re.findall(r"'(tidelog[^']*)'", command)[0])
        else:
            done = subprocess.run(
                command, shell=True, cwd=self.directory, env=self.environment, text=True,
                capture_output=True, timeout=900, check=False,
            )  # fmt: skip
            if done.returncode:
                pytest.fail(f"{command}:\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}")

    def _here(self, text: str) -> str:
        """With our servers in place of the page's."""
        for theirs, ours in self._places.items():
            text = text.replace(theirs, ours)
        return text


@pytest.fixture
def edge(postgres: PostgresServer, s3: S3Server, hdfs: str, tmp_path: Path) -> Iterator[Edge]:
    settings = tmp_path / "hadoop"
    of_store = {
        "AWS_REGION": "us-east-1", "AWS_ENDPOINT_URL": s3.endpoint, "AWS_ALLOW_HTTP": "true"
    }  # fmt: skip
    environment = {
        **{name: os.environ[name] for name in os.environ if not name.startswith("PY")},
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        **of_store,
        "HADOOP_USER_NAME": USER,
        "PGPASSWORD": "not-asked-for",
        "AWS_ACCESS_KEY_ID": s3.access_key_id,
        "AWS_SECRET_ACCESS_KEY": s3.secret_access_key,
    }
    places = {
        "spark.executorEnv.AWS_REGION: eu-central-1": "\n    ".join(
            f"spark.executorEnv.{name}: '{value}'" for name, value in of_store.items()
        ),
        "s3://company-cdc": s3.url(f"yarn-{os.getpid()}"),
        "hdfs://namenode:8020/user/shop": f"{hdfs}/user/{USER}",
        "tidelog:${PGPASSWORD}@db:5432": f"{postgres.user}@127.0.0.1:{postgres.port}",
        "/etc/hadoop/conf": str(settings),
    }
    client = hdfs_native.Client(hdfs)
    client.mkdirs(f"/user/{USER}", create_parent=True)
    client.set_owner(f"/user/{USER}", USER, USER)
    postgres.create_database("shop")
    try:
        with yarn_cluster(hdfs, settings):
            yield Edge(tmp_path, environment, places)
    finally:
        postgres.drop_database("shop")


def test_a_pipeline_on_yarn_copies_to_hdfs(
    edge: Edge, postgres: PostgresServer, hdfs: str, tmp_path: Path
) -> None:
    *prepare, deliver = re.findall(r"^edge\$ (.*)$", PAGE, re.MULTILINE)
    for command in prepare:
        edge.run(command)
    with psycopg.connect(postgres.dsn("shop"), autocommit=True) as connection:
        connection.execute("CREATE TABLE orders (id int PRIMARY KEY, n int, note text)")
        connection.execute(
            f"INSERT INTO orders SELECT i, i, repeat('x', 40) FROM generate_series(1, {ROWS}) i"
        )

        def rows() -> list[tuple[Any, ...]]:
            return connection.execute("SELECT id, n, note FROM orders ORDER BY id").fetchall()

        capture = Delivering(
            edge.configuration,
            tmp_path / "capture.log",
            command="capture",
            environment=edge.environment | {"PYTHONPATH": os.pathsep.join(sys.path)},
        )
        try:
            log_all = "environment/bin/tidelog dump --wait --table public.orders tidelog.yaml"
            edge.run(log_all)
            edge.run(deliver)
            assert copied(hdfs, tmp_path) == rows()
            connection.execute("UPDATE orders SET n = n + 1 WHERE id % 3 = 0")
            connection.execute("DELETE FROM orders WHERE id % 7 = 0")
            edge.run(log_all)  # its rows are in the event log, and so is all before them
            edge.run(deliver)
            assert copied(hdfs, tmp_path) == rows()
        finally:
            capture.close()
    files = ds.dataset(hdfs_files(hdfs, f"/user/{USER}/files", tmp_path / "files"))
    ops = files.to_table(columns=["op"])["op"].to_pylist()
    assert (ops.count("u"), ops.count("d")) == (ROWS // 3, ROWS // 7)
    found = hdfs_native.Client(hdfs).list_status(f"/user/{USER}", recursive=True)
    assert {each.owner for each in found} == {USER}


def copied(hdfs: str, tmp_path: Path) -> list[tuple[Any, ...]]:
    """As DuckDB reads it."""
    lake = tmp_path / "lake"
    shutil.rmtree(lake, ignore_errors=True)
    table = by_duckdb(str(hdfs_files(hdfs, f"/user/{USER}/lake", lake) / "public/orders"))
    return [(each["id"], each["n"], each["note"]) for each in table.to_pylist()]
