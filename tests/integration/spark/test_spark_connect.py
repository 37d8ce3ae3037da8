"""A pipeline whose tasks run on a server of Spark Connect: a client without a JVM.

The pipeline is a process: sessions of Connect and classic ones don't live in one.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
import yaml
from tests.integration.spark.orders import COLUMNS, orders
from tests.support.build_log import BuiltLog
from tests.support.delta_readers import by_duckdb
from tests.support.pgoutput_messages import UNCHANGED
from tests.support.pipeline_process import Delivering
from tests.support.spark_connect import ConnectServer, need_client

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

HIDES_TIDELOG = (
    "import sys\nsys.path[:] = [each for each in sys.path if not each.endswith('/src')]\n"
)
"""A server's Python, which finds it before all others, has no Tidelog with this."""


def python_with_spark(version: str) -> str:
    """The Python of an environment with that Spark; empty: ours."""
    if not version:
        return sys.executable
    python = Path(__file__).parents[3] / f".venv-spark-{version}" / "bin" / "python"
    if not python.exists():
        pytest.skip(f"Spark {version}: make .make/spark-{version}")
    return str(python)


class Pipeline:
    """A configuration of three outputs, processes that deliver to them, and what they have."""

    def __init__(self, built: BuiltLog, directory: Path, dsn: str, remote: str) -> None:
        self.python = sys.executable
        self.directory = directory
        self.dsn = dsn
        self.config = directory / "tidelog.yaml"
        outputs: list[dict[str, Any]] = [
            {"kind": "delta", "path": "lake"},
            {"kind": "postgres", "url": dsn, "schema": "copies"},
            {"kind": "files", "path": "activity", "format": "json"},
        ]
        self.document: dict[str, Any] = {
            "source": {"kind": "postgres", "url": "postgresql://u@h/d"},
            "log": {"path": built.path},
            "state": {"url": "sqlite:///state.db"},
            "pipeline": {"remote": remote, "trigger_ms": 0},
            "outputs": outputs,
        }

    def write_config(self) -> None:
        self.config.write_text(yaml.safe_dump(self.document))

    def run_once(self) -> subprocess.CompletedProcess[str]:
        self.write_config()
        command = [self.python, "-m", "tidelog", "pipeline", str(self.config), "--once"]
        # No Java where the pipeline runs.
        environment = {**os.environ, "PATH": "/nowhere", "JAVA_HOME": "/nowhere"}
        return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=200)

    def start(self) -> Delivering:
        self.write_config()
        return Delivering(self.config, self.directory / "log.txt")

    def lake(self) -> list[tuple[Any, ...]]:
        path = self.directory / "lake" / "public" / "orders"
        if not list(path.glob("_delta_log/*.json")):
            return []
        found = by_duckdb(str(path), what=", ".join(COLUMNS))
        return [tuple(row.values()) for row in found.to_pylist()]

    def copy(self) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.dsn) as connection:
            columns = ", ".join(COLUMNS)
            try:
                rows = connection.execute(f"SELECT {columns} FROM copies.orders ORDER BY id")
            except psycopg.errors.UndefinedTable:
                return []
            return rows.fetchall()

    def events(self) -> list[tuple[str, str]]:
        """The operation and the id of each record in the files, in order."""
        found = [
            (event["version"], event["op"], event["key"]["id"])
            for file in (self.directory / "activity").rglob("[!_.]*.json")
            if "/_tidelog/" not in str(file)
            for event in map(json.loads, file.open())
        ]
        return [(op, str(key)) for _, op, key in sorted(found)]


class Servers:
    """Starts servers, and kills them at the end of the test."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._started: list[ConnectServer] = []

    def start(self, **options: Any) -> ConnectServer:
        need_client()
        server = ConnectServer(self._directory / f"server{len(self._started)}.log", **options)
        self._started.append(server)
        return server

    def close(self) -> None:
        for server in self._started:
            server.kill()


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[Servers]:
    made = Servers(tmp_path)
    yield made
    made.close()


def without_tidelog(directory: Path) -> dict[str, str]:
    """The environment of a server whose Python has no Tidelog."""
    (directory / "python").mkdir()
    (directory / "python" / "sitecustomize.py").write_text(HIDES_TIDELOG)
    return {"PYTHONPATH": str(directory / "python")}


def wait_for(what: Callable[[], Any], process: Delivering, timeout_s: float = 240) -> None:
    deadline = time.monotonic() + timeout_s
    while not what():
        assert process.code is None, process.said[-3000:]
        assert time.monotonic() < deadline, process.said[-3000:]
        time.sleep(0.1)


def deliver_three(built: BuiltLog, pipeline: Pipeline, server: ConnectServer) -> None:
    table = orders(built)
    built.update(table, "1", "changed", "2.5")
    built.delete(table, "2")
    built.flush()
    server.wait()
    ended = pipeline.run_once()
    assert ended.returncode == 0, ended.stderr[-3000:]
    assert [row[:2] for row in pipeline.lake()] == [(0, "n0"), (1, "changed"), (3, "n3")]
    assert pipeline.copy() == pipeline.lake()
    expected = [*(("c", str(number)) for number in range(4)), ("u", "1"), ("d", "2")]
    assert pipeline.events() == expected


def test_three_outputs_are_written_from_a_client_without_java(
    servers: Servers, built: BuiltLog, tmp_path: Path, database: str
) -> None:
    server = servers.start()
    deliver_three(built, Pipeline(built, tmp_path, database, server.remote), server)


@pytest.mark.thorough
def test_executors_without_tidelog_get_it(
    servers: Servers, built: BuiltLog, tmp_path: Path, database: str
) -> None:
    server = servers.start(environment=without_tidelog(tmp_path))
    deliver_three(built, Pipeline(built, tmp_path, database, server.remote), server)


@pytest.mark.thorough
@pytest.mark.parametrize(("client", "server"), [("", "4.3"), ("4.1", ""), ("4.1", "4.1")])
def test_a_server_may_be_of_the_client_s_version_or_a_later_one(
    servers: Servers, built: BuiltLog, tmp_path: Path, database: str, client: str, server: str
) -> None:
    started = servers.start(python=python_with_spark(server))
    pipeline = Pipeline(built, tmp_path, database, started.remote)
    pipeline.python = python_with_spark(client)
    deliver_three(built, pipeline, started)


@pytest.mark.thorough
def test_a_server_that_is_older_than_the_client_is_refused(
    servers: Servers, built: BuiltLog, tmp_path: Path, database: str
) -> None:
    started = servers.start(python=python_with_spark("4.1"))
    orders(built)
    started.wait()
    ended = Pipeline(built, tmp_path, database, started.remote).run_once()
    assert ended.returncode == 2
    assert "the server is Spark 4.1, older than this client" in ended.stderr


@pytest.mark.thorough
def test_steps_find_what_they_read_without_spark_s_plan(
    servers: Servers, built: BuiltLog, tmp_path: Path, database: str
) -> None:
    server = servers.start()
    table = built.table("public.orders", COLUMNS)
    built.insert(table, "1", "one", "1.5")
    built.insert(table, "2", "two", "2.5")
    built.insert(table, "9", "nine", "9.5")
    built.flush()
    pipeline = Pipeline(built, tmp_path, database, server.remote)
    delta, postgres, _ = pipeline.document["outputs"]
    delta["steps"] = [
        {"filter": "id < 9"},
        {"compute": {"upper": "upper(name)", "double": "amount * 2"}},
    ]
    postgres["steps"] = [{"compute": {"number": "CAST(name AS INT)"}}]
    server.wait()
    ended = pipeline.run_once()
    assert ended.returncode == 1  # a table of the second output is left out
    assert "CAST_INVALID_INPUT: an expression of a step does not take" in ended.stderr
    assert "one" not in ended.stderr
    assert "GRPC" not in ended.stderr

    postgres["steps"] = []
    built.update(table, "1", UNCHANGED, "3.0")  # the row has another amount, and the same name
    built.flush()
    assert "Traceback" not in pipeline.run_once().stderr
    path = tmp_path / "lake" / "public" / "orders"
    found = by_duckdb(str(path), what="id, upper, double").to_pylist()
    assert [(row["id"], row["upper"], float(row["double"])) for row in found] == [
        (1, "ONE", 6.0),
        (2, "TWO", 5.0),
    ]

    delta["steps"] = [{"python": "os:path"}]
    ended = pipeline.run_once()
    assert "step python, table public.orders: which columns a function changes" in ended.stderr


READS = {
    "id < 9": ["id"],
    "amount * 2": ["amount"],
    "'name'": [],
    "s.name": ["s"],
    "transform(xs, name -> upper(name))": ["xs"],
    "`a``b` + `x.y`": ["a`b", "x.y"],
    "user = 'x'": ["user"],  # else current_user()
    "coalesce(current_date, current_date())": ["current_date"],
    "hash(*) AS sum": ["a`b", "amount", "current_date", "id", "name", "s", "user", "x.y", "xs"],
}


@pytest.mark.thorough
@pytest.mark.parametrize("classic", [True, False], ids=["classic", "connect"])
def test_an_expression_reads_the_same_columns_of_each_kind_of_session(
    servers: Servers, classic: bool
) -> None:
    script = f"""
import json
from pyspark.sql import SparkSession, functions as f
from tidelog.spark.step_actions import columns_read
spark = SparkSession.builder{".master('local[1]')" if classic else ""}.getOrCreate()
spark.conf.set("spark.sql.caseSensitive", "true")
frame = spark.sql(
    "SELECT 1 AS id, 'n' AS name, 1.5 AS amount, 'u' AS user, date'2020-01-01' AS current_date, "
    "5 AS `a``b`, 3 AS `x.y`, array('a') AS xs, named_struct('name', 'z') AS s"
)
print(json.dumps({{each: sorted(columns_read(frame, f.expr(each))) for each in {list(READS)!r}}}))
"""
    environment = dict(os.environ)
    if not classic:
        server = servers.start()
        server.wait()
        environment["SPARK_REMOTE"] = server.remote
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, timeout=200
    )
    assert done.stdout, done.stderr[-3000:]
    assert json.loads(done.stdout.splitlines()[-1]) == READS


@pytest.mark.thorough
def test_a_setting_that_a_running_server_does_not_take_is_named(
    servers: Servers, built: BuiltLog, tmp_path: Path, database: str
) -> None:
    started = servers.start()
    pipeline = Pipeline(built, tmp_path, database, started.remote)
    pipeline.document["pipeline"]["conf"] = {"spark.sql.extensions": "some.Extension"}
    orders(built)
    started.wait()
    ended = pipeline.run_once()
    assert ended.returncode == 2
    assert "takes spark.sql.extensions only at its own start" in ended.stderr


@pytest.mark.thorough
def test_a_session_ends_for_good_also_while_a_thread_waits_for_its_server(
    servers: Servers,
) -> None:
    server = servers.start()
    server.wait()
    script = f"""
import threading, time
from tidelog.spark.sessions.connect import RemoteSession
session = RemoteSession({server.remote!r}, {{}})
print("opened", flush=True)
input()
time.sleep(1)  # else it uses the session without asking
threading.Thread(target=session.current, daemon=True).start()
time.sleep(1)
began = time.monotonic()
session.stop()
assert time.monotonic() - began < 15  # the thread waits for a minute
print("stopped", flush=True)
"""
    with subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as client:
        assert client.stdout is not None
        assert client.stdout.readline() == "opened\n"
        server.kill()
        told, _ = client.communicate("\n", timeout=30)  # it ends then
    assert told == "stopped\n"


@pytest.mark.thorough
def test_verify_compares_copies_down_to_the_row(
    request: pytest.FixtureRequest, servers: Servers, tmp_path: Path, database: str
) -> None:
    server = servers.start()
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("CREATE TABLE orders (id int PRIMARY KEY, name text)")
        connection.execute("INSERT INTO orders SELECT i, 'n' || i FROM generate_series(1, 500) i")
    config = tmp_path / "tidelog.yaml"
    document = {
        "source": {"kind": "postgres", "url": database, "tables": ["public.orders"]},
        "log": {"path": "log"},
        "state": {"url": "sqlite:///state.db"},
        "pipeline": {"remote": server.remote},
        "outputs": [
            {"kind": "delta", "path": "lake"},
            {"kind": "postgres", "url": database, "schema": "copies"},
        ],
    }
    config.write_text(yaml.safe_dump(document))

    def tidelog(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "tidelog", *arguments[:1], str(config), *arguments[1:]]
        return subprocess.run(command, capture_output=True, text=True, timeout=250)

    server.wait()
    process = Delivering(config, tmp_path / "run.log", command="run")
    request.addfinalizer(process.close)
    wait_for(lambda: list((tmp_path / "lake").rglob("_delta_log/*.json")), process)
    compared = tidelog("verify", "--json")  # waits until the outputs have caught up
    assert compared.returncode == 0, compared.stderr[-3000:]
    assert json.loads(compared.stdout)["equal"]
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("UPDATE copies.orders SET name = 'other' WHERE id = 77")
    compared = tidelog("verify", "--json")
    tables = {each["output"]: each for each in json.loads(compared.stdout)["tables"]}
    assert tables["delta"]["equal"], compared.stderr[-3000:]
    assert (tables["postgres"]["equal"], tables["postgres"]["different"]) == (False, 1)
    checked = tidelog("check", "--json")
    [spark] = [each for each in json.loads(checked.stdout)["findings"] if each["check"] == "spark"]
    assert (spark["level"], "Spark Connect" in spark["message"]) == ("ok", True)


@pytest.mark.thorough
def test_it_continues_after_a_session_ended_and_a_server_was_killed(
    servers: Servers, built: BuiltLog, tmp_path: Path, database: str
) -> None:
    sessions = "spark.connect.session.manager."
    conf = {f"{sessions}defaultSessionTimeout": "3s", f"{sessions}maintenanceInterval": "1s"}
    server = servers.start(conf=conf)
    table = orders(built)
    pipeline = Pipeline(built, tmp_path, database, server.remote)
    server.wait()
    process = pipeline.start()
    try:
        wait_for(lambda: len(pipeline.events()) == len(pipeline.lake()) == 4, process)
        wait_for(lambda: len(pipeline.copy()) == 4, process)
        time.sleep(6)  # the server ends the idle session
        built.insert(table, "4", "n4", "1.5")
        built.flush()
        wait_for(lambda: len(pipeline.events()) == len(pipeline.copy()) == 5, process)
        wait_for(lambda: len(pipeline.lake()) == 5, process)
        assert "has ended the session" in process.said

        server.kill()
        built.update(table, "0", "late", "1.5")
        built.delete(table, "4")
        built.flush()
        time.sleep(3)
        servers.start(conf=conf, port=server.port).wait()
        wait_for(lambda: len(pipeline.events()) == 7, process)
        expected = [(0, "late"), *((number, f"n{number}") for number in range(1, 4))]
        wait_for(lambda: [row[:2] for row in pipeline.lake()] == expected, process)
        wait_for(lambda: pipeline.copy() == pipeline.lake(), process)
        process.send(signal.SIGTERM)
        assert process.wait() == 0
        assert pipeline.events() == [
            *(("c", str(number)) for number in range(5)),
            ("u", "0"),
            ("d", "4"),
        ]
    finally:
        process.close()


@pytest.mark.thorough
def test_a_token_that_is_renewed_in_its_file_needs_no_restart(
    servers: Servers, built: BuiltLog, tmp_path: Path, database: str
) -> None:
    token = "spark.connect.authenticate.token"
    server = servers.start(conf={token: "the-first-token"})
    remote = server.remote.replace("127.0.0.1", "localhost")  # else the client wants TLS
    table = orders(built)
    pipeline = Pipeline(built, tmp_path, database, remote)
    file = tmp_path / "token"
    file.write_text("the-first-token\n")
    pipeline.document["pipeline"]["remote_token_file"] = "token"
    server.wait()
    process = pipeline.start()
    try:
        wait_for(lambda: len(pipeline.events()) == len(pipeline.lake()) == 4, process)
        server.kill()
        servers.start(conf={token: "another=token/"}, port=server.port).wait()
        built.insert(table, "4", "n4", "1.5")
        built.flush()
        wait_for(lambda: "server denies access" in process.said, process)
        assert len(pipeline.events()) == 4
        file.write_text("another=token/\n")
        wait_for(lambda: len(pipeline.events()) == len(pipeline.lake()) == 5, process)
        wait_for(lambda: len(pipeline.copy()) == 5, process)
        assert "first-token" not in process.said
        assert "another=token" not in process.said
    finally:
        process.close()
