"""docs/how-to/cluster.md as it is written: hosts of their own that share nothing but a network, and
each command on the host that the page names. A worker's host loses its power amid a batch.
"""

from __future__ import annotations

import os
import random
import re
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import psycopg
import pyarrow.dataset as ds
import pytest
from tests.campaign.paths import PathProxy
from tests.support.delta_readers import by_delta_rs, by_duckdb
from tests.support.postgres import PostgresServer
from tests.support.s3 import S3Server
from tests.support.two_hosts import Host, hosts

from tidelog.spark.sessions.jars import fetch_jars, installed_spark

PAGE: Final = (Path(__file__).parents[3] / "docs/how-to/cluster.md").read_text(encoding="utf-8")
NAMES: Final = ("master", "worker1", "worker2", "worker3", "capture", "driver")
COMMAND: Final = re.compile(r"^(\w+)\$ (.*)$", re.MULTILINE)
GOES_ON: Final = ("spark-class ", "tidelog capture ", "tidelog pipeline ")
BUCKET: Final = "company-cdc"
TABLES: Final = ("customers", "orders", "payments")
ROWS: Final = 10_000
JOBS: Final = "Your own jobs on it"
WAIT_S: Final = 480.0
pytestmark = [
    pytest.mark.spark, pytest.mark.integration, pytest.mark.thorough, pytest.mark.timeout(1500)
]  # fmt: skip


def section(heading: str) -> str:
    parts = re.split(r"^## (.*)$", PAGE, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))[heading]


class Cluster:
    """The page's hosts, and what the page says is done on them."""

    def __init__(self, made: dict[str, Host], bucket: Path) -> None:
        self.hosts = made
        self.bucket = bucket
        self.given: list[tuple[str, str]] = []
        self.answers: dict[str, str] = {}

    def follow(self, heading: str) -> None:
        """Give the section's commands, each where and as the page says."""
        for block in re.findall(r"```console\n(.*?)```", section(heading), re.DOTALL):
            shell: dict[str, str] = {}  # of this block
            for host, command in COMMAND.findall(block):
                self.given.append((host, command))
                if command.startswith("export "):
                    shell[host] = f"{command}; "
                elif command.startswith(GOES_ON):
                    self.hosts[host].start(_in_shell(shell.get(host, ""), command))
                else:
                    whole = _in_shell(shell.get(host, ""), command)
                    self.answers[command] = self.hosts[host].run(whole, timeout_s=WAIT_S)

    def wait_for(self, what: Callable[[], object], every_s: float = 0.5) -> None:
        deadline = time.monotonic() + WAIT_S
        while not what():
            if time.monotonic() >= deadline:
                pytest.fail("\n".join(self.logs()))
            time.sleep(every_s)

    def logs(self) -> Iterator[str]:
        """By all hosts and executors, for who looks at a failure."""
        for name, host in self.hosts.items():
            for file in (host.directory / "output.log", *host.directory.rglob("stderr")):
                if file.exists():
                    yield f"--- {name}: {file.name}\n{file.read_text()[-4000:]}"

    def commits(self, output: str, table: str) -> int:
        """Of a Delta table, with the one that made it."""
        return len(list((self.bucket / "shop" / output / "public" / table).glob("*/*.json")))

    def copied(self, table: str) -> list[tuple[Any, ...]]:
        """As DuckDB reads it."""
        found = by_duckdb(str(self.bucket / "shop/lake/public" / table))
        return [(each["id"], each["n"], each["note"]) for each in found.to_pylist()]

    def changes(self, table: str) -> list[dict[str, Any]]:
        """In their order, as delta-rs reads them."""
        return list(
            by_delta_rs(str(self.bucket / "shop/bronze/public" / table), "version").to_pylist()
        )

    def replayed(self, table: str) -> list[tuple[Any, ...]]:
        """What the changes make of nothing."""
        found: dict[int, tuple[Any, ...]] = {}
        for change in self.changes(table):
            if change["op"] == "d":
                found.pop(change["key"]["id"], None)
            elif change["op"] != "s":
                after = change["after"]
                found[after["id"]] = (after["id"], after["n"], after["note"])
        return [found[key] for key in sorted(found)]

    def in_changes(self) -> list[tuple[str, int]]:
        """Each change, as often as it is there."""
        return sorted(
            (f"public.{table}", each["version"])
            for table in TABLES
            for each in self.changes(table)
            if each["op"] != "s"
        )

    def in_files(self) -> list[tuple[str, int]]:
        """The same of the files: what each change is written to once, by an output of its own."""
        files = ds.dataset(self.bucket / "shop/files", format="parquet", partitioning="hive")
        found = files.to_table(columns=["table", "version"]).to_pylist()
        each = sorted((one["table"], one["version"]) for one in found)
        assert len(set(each)) == len(each)
        return each


def _in_shell(before: str, command: str) -> str:
    return f"sh -c '{before}exec {command}'" if before else command


def caches(host: Host) -> set[str]:
    """The names of its key indexes: of a file's they are the same on each host."""
    return {each.name for each in host.directory.glob("tidelog-spark-*/key-indexes/*")}


def listened_to(host: Host) -> tuple[set[int], int]:
    """The ports that the page names, of those that others reach there; and how many more."""
    named = {int(port) for port in re.findall(r"\b\d{4}\b", section("Ports"))}
    places = [line.split()[3] for line in host.run("ss -Hltn").splitlines()]
    found = {int(place.rpartition(":")[2]) for place in places if "127.0.0.1" not in place}
    return found & named, len(found - named)


@pytest.fixture
def cluster(s3: S3Server, postgres: PostgresServer, tmp_path: Path) -> Iterator[Cluster]:
    with ExitStack() as opened:
        made, network = opened.enter_context(hosts(tmp_path, *NAMES, alone=True))
        bucket = s3.directory.parent / BUCKET
        bucket.mkdir()
        opened.callback(shutil.rmtree, bucket)
        owner = s3.directory.stat()
        os.chown(bucket, owner.st_uid, owner.st_gid)
        at = opened.enter_context(PathProxy(s3.port, address=network.address_of("s3"))).port
        proxy = PathProxy(postgres.port, address=network.address_of("db"), at=5432)
        opened.enter_context(proxy)
        postgres.execute("CREATE ROLE tidelog LOGIN SUPERUSER")
        opened.callback(postgres.execute, "DROP ROLE tidelog")
        postgres.create_database("shop")
        opened.callback(postgres.drop_database, "shop")
        [configuration] = re.findall(r"```yaml\n(.*?)```", section("Configure"), re.DOTALL)
        [program] = re.findall(r"```python\n(.*?)```", section(JOBS), re.DOTALL)
        for name, host in made.items():
            address = f"http://{network.address_of('s3')}:{at}"
            host.environment |= {
                "AWS_ENDPOINT_URL": address,
                "AWS_ALLOW_HTTP": "true",
                "AWS_REGION": "us-east-1",
                "JAVA_TOOL_OPTIONS": "-XX:TieredStopAtLevel=1",  # eight of them start, for a minute
            }
            if name in ("capture", "driver"):
                host.environment |= {
                    "PGPASSWORD": "not-asked-for",
                    "AWS_ACCESS_KEY_ID": s3.access_key_id,
                    "AWS_SECRET_ACCESS_KEY": s3.secret_access_key,
                }
                (host.directory / "tidelog.yaml").write_text(configuration)
                (host.directory / "orders.py").write_text(program)
            opened.callback(host.kill)  # before what it uses ends
        fetch_jars(["delta", "s3"], installed_spark())  # hosts reach no repository
        known = made["driver"].directory / ".cache" / "tidelog"
        known.parent.mkdir()
        known.symlink_to(Path.home() / ".cache" / "tidelog")  # a Spark that has been started before
        yield Cluster(made, bucket)


class Shop:
    """The source, written to until it is told to end."""

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._write)
        with psycopg.connect(dsn) as connection:
            for table in TABLES:
                connection.execute(f"CREATE TABLE {table} (id int PRIMARY KEY, n int, note text)")
                connection.execute(
                    f"INSERT INTO {table} SELECT i, i, repeat('x', 40)"
                    f" FROM generate_series(1, {ROWS}) i"
                )

    def __enter__(self) -> Shop:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def update_all(self) -> None:
        with psycopg.connect(self._dsn) as connection:
            for table in TABLES:
                connection.execute(f"UPDATE {table} SET n = n + 1")

    def rows(self, table: str) -> list[tuple[Any, ...]]:
        with psycopg.connect(self._dsn) as connection:
            return connection.execute(f"SELECT id, n, note FROM {table} ORDER BY id").fetchall()

    def _write(self) -> None:
        rng, free = random.Random(7), ROWS
        with psycopg.connect(self._dsn, autocommit=True) as connection:
            while not self._over.wait(0.1):
                table, free = rng.choice(TABLES), free + 1
                for statement in (
                    f"INSERT INTO {table} VALUES ({free}, 0, 'new')",
                    f"UPDATE {table} SET note = 'changed' WHERE id = {rng.randint(1, free)}",
                    f"DELETE FROM {table} WHERE id = {rng.randint(1, free)}",
                ):
                    connection.execute(statement)


def test_a_worker_s_host_is_lost_amid_a_batch_and_all_outputs_are_right(
    cluster: Cluster, postgres: PostgresServer
) -> None:
    made = cluster.hosts
    shop = Shop(postgres.dsn("shop"))
    cluster.follow("Start the cluster")
    cluster.follow("Start")
    with shop:
        cluster.wait_for(lambda: all(cluster.commits("lake", table) > 1 for table in TABLES))
        cluster.wait_for(lambda: caches(made["worker1"]))
        lost = caches(made["worker1"])
        assert listened_to(made["master"]) == ({7077, 8080, 6066}, 0)
        assert listened_to(made["worker1"]) == ({7078, 8081}, 1)
        assert listened_to(made["driver"]) == (set(), 2)
        shop.update_all()
        # It has written a file of the lake, and the driver has not, or only just, been told.
        cluster.wait_for(lambda: caches(made["worker1"]) - lost, every_s=0.01)
        made["worker1"].lose_power()
        cluster.follow("When a worker dies")
        shop.update_all()
        cluster.wait_for(lambda: caches(made["worker3"]))
    rows = {table: shop.rows(table) for table in TABLES}
    cluster.wait_for(lambda: all(cluster.copied(table) == rows[table] for table in TABLES))
    assert lost & (caches(made["worker2"]) | caches(made["worker3"]))  # made again
    cluster.wait_for(lambda: all(cluster.replayed(table) == rows[table] for table in TABLES))
    cluster.wait_for(lambda: cluster.in_files() == cluster.in_changes())
    cluster.follow("Look at it")
    assert cluster.answers["tidelog verify tidelog.yaml"].startswith("equal: yes")
    elsewhere = ("each", "edge")  # what is installed, and YARN's (test_yarn.py)
    here = COMMAND.findall(PAGE.replace(section(JOBS), ""))
    not_here = [each for each in here if each[0] in elsewhere]
    assert sorted(cluster.given + not_here) == sorted(here)


def test_a_job_of_one_s_own_writes_a_table_on_s3(
    cluster: Cluster, postgres: PostgresServer
) -> None:
    Shop(postgres.dsn("shop"))
    cluster.follow("Start the cluster")
    capture = cluster.hosts["capture"]
    capture.start("tidelog capture tidelog.yaml")
    capture.run("tidelog dump tidelog.yaml --table public.orders --wait", timeout_s=WAIT_S)
    cluster.follow(JOBS)
    fetched = cluster.answers["tidelog jars --for delta,s3"]
    assert {"hadoop-aws", "delta-spark"} <= set(re.findall(r"/([a-z-]+)[-_]\d", fetched))
    rows = by_delta_rs(str(cluster.bucket / "own/orders"), "version").to_pylist()
    assert {each["after"]["id"] for each in rows if each["op"] == "r"} == set(range(1, ROWS + 1))
