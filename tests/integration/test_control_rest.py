"""Commands over HTTP, the signal table and the signal file, against a running capture."""

from __future__ import annotations

import http.client
import json
import logging
import socket
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
from tests.support.payloads import table_schema

from tidelog import app
from tidelog.app import verification
from tidelog.app.capture.run import Capture
from tidelog.capture.notifications import Notification
from tidelog.config import Config, parse_config
from tidelog.control.commands import SetDumpOptions
from tidelog.eventlog.reader import EventLog
from tidelog.model.records import RecordKind

pytestmark = pytest.mark.integration

TOKEN = "hunter2-token"
SQL = """
CREATE SCHEMA schema1; CREATE SCHEMA myschema;
CREATE TABLE schema1.table1 (id int PRIMARY KEY, color text);
INSERT INTO schema1.table1 SELECT i, CASE WHEN i % 4 = 0 THEN 'blue' ELSE 'red' END
  FROM generate_series(1, 400) i;
CREATE TABLE schema1.table2 (id int PRIMARY KEY, color text);
INSERT INTO schema1.table2 SELECT i, 'x' FROM generate_series(1, 50) i;
CREATE TABLE schema1.no_key (a int NOT NULL); INSERT INTO schema1.no_key VALUES (1);
CREATE TABLE myschema.debezium_signal
  (id varchar(42) PRIMARY KEY, type varchar(32) NOT NULL, data varchar(2048) NULL);
"""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Client:
    """Asks the interface of one address."""

    def __init__(self, port: int, token: str | None = TOKEN) -> None:
        self.port = port
        self.token = token

    def __call__(
        self, method: str, path: str, body: Any = None, *, raw: bytes | None = None
    ) -> tuple[int, Any]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        headers = {} if self.token is None else {"Authorization": f"Bearer {self.token}"}
        data = raw if raw is not None else None if body is None else json.dumps(body).encode()
        try:
            connection.request(method, path, data, headers)
            answer = connection.getresponse()
            return answer.status, json.loads(answer.read())
        finally:
            connection.close()


class Running:
    """A capture in a thread of this process."""

    def __init__(self, config: Config) -> None:
        self.notified: list[Notification] = []
        self.capture = Capture(config, on_notification=self.notified.append)
        self.config = config
        self.capture.start()

    def end(self) -> None:
        self.capture.stop()
        assert self.capture.wait(60)


def wait_for(condition: Callable[[], Any], what: str, timeout_s: float = 40) -> Any:
    deadline = time.monotonic() + timeout_s
    while not (found := condition()):
        assert time.monotonic() < deadline, what
        time.sleep(0.05)
    return found


@pytest.fixture
def sql(database: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(SQL.encode())
        yield connection


@pytest.fixture
def config(tmp_path: Path, database: str, sql: psycopg.Connection[Any]) -> Config:
    text = (
        f"source: {{kind: postgres, url: '{database}', tables: ['schema1.*'], snapshot: no_data, "
        "signal_table: myschema.debezium_signal}\n"
        "log: {path: log}\nstate: {url: 'sqlite:///state.db'}\n"
        "capture: {flush_ms: 10, lease_ms: 1500}\n"
        f"control: {{rest: {{port: {free_port()}, token: {TOKEN}}}, signal_file: signals, "
        "notifications: [file, eventlog, log], notification_file: notes}\n"
    )
    return parse_config(text, "test", tmp_path, {})


@contextmanager
def running(config: Config) -> Iterator[tuple[Client, Running]]:
    assert config.control.rest is not None
    client = Client(config.control.rest.port)
    capture = Running(config)
    try:
        wait_for(lambda: leads(client) or capture.capture.wait(0), "no capture leads")
        yield client, capture
    finally:
        capture.end()


def leads(client: Client) -> bool:
    try:
        return bool(client("GET", "/health")[1]["role"] == "leader")
    except OSError:
        return False


def finished(client: Client, dump_id: str) -> dict[str, Any]:
    def look() -> dict[str, Any] | None:
        status, dump = client("GET", f"/dumps/{dump_id}")
        return dump if status == 200 and dump["status"] in ("completed", "aborted") else None

    found: dict[str, Any] = wait_for(look, f"dump {dump_id} does not end")
    return found


def rows_read(dump: dict[str, Any]) -> dict[str, int]:
    return {table["table"]: table["rows_read"] for table in dump["tables"]}


def test_dumps_are_started_watched_and_steered(config: Config) -> None:
    with running(config) as (client, _capture):
        body = {"dump_id": "d1", "tables": ["schema1.table1"], "where": "id <= 10"}
        status, answer = client("POST", "/dumps", body)
        assert (status, answer["state"], answer["dump"]) == (202, "done", "d1")
        assert rows_read(finished(client, "d1")) == {"schema1.table1": 10}
        assert client("GET", f"/commands/{answer['id']}")[1]["details"] == answer["details"]

        again, same = client("POST", "/dumps", body)
        assert (again, same["id"]) == (202, answer["id"])
        assert client("POST", "/dumps", body | {"where": "id <= 11"})[0] == 409

        keys = {"tables": ["schema1.table2"], "keys": [["7"], ["8"], ["999"]]}
        status, answer = client("POST", "/dumps", keys)
        assert status == 202
        dump = finished(client, answer["dump"])
        assert dump["status"] == "completed"

        mixed = {"dump_id": "m", "tables": ["schema1.*", "schema1.table1", "schema1.nope"]}
        status, answer = client("POST", "/dumps", mixed)
        assert status == 202
        assert [entry["table"] for entry in answer["details"]["rejected"]] == ["schema1.nope"]
        rows = {"schema1.no_key": 1, "schema1.table1": 400, "schema1.table2": 50}
        assert sorted(answer["details"]["tables"]) == list(rows)
        assert rows_read(finished(client, "m")) == rows

        status, answer = client("PATCH", "/options", {"chunk_rows": 5, "delay_ms": 300})
        assert status == 202
        options = client("GET", "/options")[1]
        assert (options["chunk_rows"], options["delay_ms"]) == (5, 300)
        client("POST", "/dumps", {"dump_id": "slow", "tables": ["schema1.table1"]})
        assert client("POST", "/dumps/slow/pause")[1]["details"] == {"dumps": ["slow"]}
        assert client("GET", "/dumps/slow")[1]["status"] == "paused"
        assert client("POST", "/resume")[1]["details"] == {"dumps": ["slow"]}
        assert client("POST", "/dumps/slow/cancel?table=schema1.table1")[0] == 202
        assert finished(client, "slow")["status"] == "aborted"

        assert "slow" in [dump["dump_id"] for dump in client("GET", "/dumps")[1]["dumps"]]
        assert client("GET", "/status")[1]["capture"]["next_offset"] > 0
        notes = client("GET", "/notifications?after=1")[1]["notifications"]
        assert [note["number"] for note in notes] == list(range(2, len(notes) + 2))
        assert {"COMPLETED", "TABLE_SCAN_COMPLETED"} <= {note["type"] for note in notes}


def test_a_repair_that_capture_refuses_is_not_done(config: Config) -> None:
    schema = table_schema([("id", "int32")], key=["id"])  # of a table that is not captured
    with running(config):
        request = verification._repair(config, schema, [("1",)])
    assert request.state == "failed"
    assert "no captured table matches" in str(request.error)


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "message"),
    [
        ("POST", "/dumps", {"tables": ["schema1.nope"]}, 400, "no captured table matches"),
        ("POST", "/dumps", {"tables": ["schema1.no_key"], "keys": [["1"]]}, 400, "no primary key"),
        ("POST", "/dumps", {"tables": ["orders"]}, 400, "namespace.table"),
        ("POST", "/dumps", {"tabels": []}, 400, "tabels"),
        ("POST", "/dumps", [], 400, "JSON object"),
        ("POST", "/dumps", {"dump_id": "a b"}, 400, "dump_id"),
        ("POST", "/dumps", {"mode": "sideways"}, 400, "mode"),
        ("PATCH", "/options", {"chunk_rows": 0}, 400, "chunk_rows"),
        ("PATCH", "/options", {}, 400, "at least one of"),
        ("POST", "/signals", {"type": "nonsense"}, 400, "unknown signal type"),
        ("POST", "/signals", {}, 400, "a signal is"),
        ("GET", "/dumps/nope", None, 404, "no such dump"),
        ("POST", "/dumps/nope/pause", None, 404, "no such dump"),
        ("GET", "/commands/nope", None, 404, "no such command"),
        ("GET", "/notifications?after=x", None, 400, "after"),
        ("GET", "/nope", None, 404, "Not Found"),
        ("DELETE", "/dumps", None, 405, "Method Not Allowed"),
    ],
)
def test_bad_request_says_why(
    shared: Client, method: str, path: str, body: Any, status: int, message: str
) -> None:
    found, answer = shared(method, path, body)
    assert (found, message in answer["error"]["message"]) == (status, True), answer


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory, postgres: Any) -> Iterator[Client]:
    """One capture for the requests that change nothing."""
    dsn = postgres.create_database("rest_shared")
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(SQL.encode())
    directory = tmp_path_factory.mktemp("rest")
    text = (
        f"source: {{kind: postgres, url: '{dsn}', tables: ['schema1.*'], snapshot: no_data, "
        f"slot: rest_shared}}\n"
        "log: {path: log}\nstate: {url: 'sqlite:///state.db'}\n"
        f"control: {{rest: {{port: {free_port()}, token: {TOKEN}}}}}\n"
    )
    with running(parse_config(text, "test", directory, {})) as (client, _capture):
        yield client
    postgres.drop_database("rest_shared")


def test_log_and_pipelines_are_paused(config: Config, sql: psycopg.Connection[Any]) -> None:
    def logged() -> list[int]:
        return [each["after"]["id"] for each in app.read_log(config, table="schema1.table2")]

    with running(config) as (client, _capture):
        sql.execute("INSERT INTO schema1.table2 VALUES (1001, 'x')")
        wait_for(lambda: client("GET", "/status")[1]["capture"]["records"], "it is captured")
        status, answer = client("POST", "/log/pause")
        assert (status, answer["state"], answer["details"]["log"]) == (202, "done", "paused")
        assert answer["details"]["paused"]["by"] == "the HTTP interface"
        sql.execute("INSERT INTO schema1.table2 VALUES (1002, 'x')")
        time.sleep(0.5)
        found = client("GET", "/status")[1]
        assert found["log_paused"] == answer["details"]["paused"]
        assert logged() == [1001]
        assert client("POST", "/log/resume")[1]["details"] == {"log": "read", "resumed": True}
        assert client("POST", "/log/resume")[1]["details"] == {"log": "read", "resumed": False}
        wait_for(lambda: logged() == [1001, 1002], "it is read on")
        status, answer = client("POST", "/pipelines/nightly/pause")
        assert (status, answer["details"]["pipeline"]) == (202, "nightly")
        told = app.status(config).document["paused_pipelines"]
        assert told == {"nightly": answer["details"]["paused"]}
        assert client("POST", "/pipelines/nightly/resume")[1]["details"]["resumed"] is True
        assert app.status(config).document["paused_pipelines"] == {}
        assert client("POST", "/pipelines/a%20b/pause")[0] == 400


def test_a_dump_of_a_partition_is_refused_with_the_table_to_name(
    config: Config, sql: psycopg.Connection[Any]
) -> None:
    sql.execute("CREATE TABLE schema1.parted (id int PRIMARY KEY) PARTITION BY RANGE (id)")
    sql.execute("CREATE TABLE schema1.low PARTITION OF schema1.parted FOR VALUES FROM (0) TO (9)")
    with running(config) as (client, _capture):
        _status, answer = client("POST", "/dumps?wait=10", {"tables": ["schema1.low"]})
    said = "schema1.low is a partition of schema1.parted, which has its rows: name schema1.parted"
    assert said in json.dumps(answer)


def test_malformed_and_oversized_bodies_are_refused(shared: Client) -> None:
    assert shared("POST", "/dumps", raw=b"{")[1]["error"]["message"] == "the body is not JSON"
    status, answer = shared("POST", "/signals", raw=b" " * (16 << 20) + b"{}")
    assert (status, answer["error"]["kind"]) == (413, "TooLarge")


@pytest.mark.parametrize("token", [None, "", "wrong", TOKEN + "x", TOKEN[:-1], "é"])
def test_without_the_token_nothing_but_health_answers(
    shared: Client, token: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    stranger = Client(shared.port, token)
    with caplog.at_level(logging.DEBUG):
        assert stranger("GET", "/health") == (200, {"status": "ok", "role": "leader"})
        for method, path in [("GET", "/status"), ("POST", "/cancel"), ("GET", "/openapi.json")]:
            status, answer = stranger(method, path)
            told = status, answer["error"]["kind"]
            assert told in ((401, "Unauthorized"), (429, "TooMany"))  # as there were many before
    assert TOKEN not in caplog.text
    assert shared("GET", "/status")[0] == 200  # nobody is locked out by that


def test_document_describes_every_route(shared: Client) -> None:
    document = shared("GET", "/openapi.json")[1]
    assert document["openapi"] == "3.1.0"
    operations = [
        (method, path, operation)
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    ]
    assert len({operation["operationId"] for *_, operation in operations}) == len(operations) == 21
    for method, path, _operation in operations:
        status, _answer = shared(method.upper(), path.replace("{id}", "nope"), {"type": "x"})
        assert status not in (401, 405, 500), (method, path)
    references = set(_references(document))
    names = {f"#/components/schemas/{name}" for name in document["components"]["schemas"]}
    assert references == names


def _references(node: Any) -> Iterator[str]:
    if isinstance(node, dict):
        if "$ref" in node:
            yield node["$ref"]
        for value in node.values():
            yield from _references(value)
    elif isinstance(node, list):
        for value in node:
            yield from _references(value)


# The statements of Debezium's manual for PostgreSQL; ids as its users number them.
SIGNALS = [
    """INSERT INTO myschema.debezium_signal (id, type, data)
values ('ad-hoc-1',
    'execute-snapshot',
    E'{"data-collections": ["schema1.table1", "schema1.table2"],
    "type":"incremental",
    "additional-conditions":[{"data-collection": "schema1.table1" ,"filter":"color=\\'blue\\'"}]}');
""",
    """INSERT INTO myschema.debezium_signal (id, type, data) VALUES('ad-hoc-2', 'execute-snapshot',
'{"data-collections": ["schema1\\.table.*"],"type":"INCREMENTAL", "additional-conditions":
[{"data-collection": "schema1.table2", "filter": "color=''x'' AND id>40"}]}');""".replace(
        "\\.", "\\\\."
    ),
]


def test_published_statements_start_the_dumps_they_should(
    config: Config, sql: psycopg.Connection[Any]
) -> None:
    with running(config) as (client, _capture):
        for statement in SIGNALS:
            sql.execute(statement.encode())
        assert rows_read(finished(client, "ad-hoc-1")) == {
            "schema1.table1": 100,
            "schema1.table2": 50,
        }
        assert rows_read(finished(client, "ad-hoc-2")) == {
            "schema1.table1": 400,
            "schema1.table2": 10,
        }


def test_bad_signal_is_reported_and_the_log_continues(
    config: Config, sql: psycopg.Connection[Any], caplog: pytest.LogCaptureFixture
) -> None:
    with running(config) as (client, capture):
        for number, (kind, data) in enumerate(
            [
                ("execute-snapshot", "{s3cret"),
                ("s3cret", None),
                ("execute-snapshot", '{"data-collections": ["schema1.absent"]}'),
                ("execute-snapshot", "{}"),
                ("stop-snapshot", '{"data-collections": ["schema1.absent"]}'),
            ]
        ):
            sql.execute(
                "INSERT INTO myschema.debezium_signal VALUES (%s, %s, %s)",
                (f"bad-{number}", kind, data),
            )
        sql.execute(
            "INSERT INTO myschema.debezium_signal VALUES ('good', 'execute-snapshot', %s)",
            ('{"data-collections": ["schema1.table2"]}',),
        )
        assert finished(client, "good")["status"] == "completed"
        skipped = {n.dump_id for n in capture.notified if n.type == "SKIPPED"}
        assert skipped == {"bad-0", "bad-1", "bad-3"}
        ended = {n.type for n in capture.notified if n.dump_id == "bad-2"}
        assert ended == {"STARTED", "TABLE_SCAN_COMPLETED", "COMPLETED"}, "as Debezium's"
    assert "s3cret" not in caplog.text


def test_signals_left_while_capture_was_down_are_acted_on_once(
    config: Config, sql: psycopg.Connection[Any]
) -> None:
    assert config.control.signal_file is not None
    with running(config):
        pass
    sql.execute(SIGNALS[0].encode())
    config.control.signal_file.write_text(
        '{"id":"d139b9b7-7777-4547-917d-111111111111", "type":"execute-snapshot", "data":'
        '{"data-collections": ["schema1.table1", "schema1.table2"]}}'
    )
    with running(config) as (client, _capture):
        assert finished(client, "ad-hoc-1")["status"] == "completed"
        assert finished(client, "d139b9b7-7777-4547-917d-111111111111")["status"] == "completed"
    with running(config) as (client, _capture):
        time.sleep(0.5)
        assert len(client("GET", "/dumps")[1]["dumps"]) == 2


def test_signal_id_that_is_used_again_starts_another_dump(config: Config) -> None:
    with running(config) as (client, _capture):
        body = {
            "id": "ad-hoc",
            "type": "execute-snapshot",
            "data": {"data-collections": ["schema1.table2"]},
        }
        first = client("POST", "/signals", body)[1]["dump"]
        second = client("POST", "/signals", body)[1]["dump"]
        assert first == "ad-hoc"
        assert second != first
        for dump in (first, second):
            assert rows_read(finished(client, dump)) == {"schema1.table2": 50}


def noted(client: Client) -> list[str]:
    return [note["type"] for note in client("GET", "/notifications")[1]["notifications"]]


def test_notifications_reach_every_channel(config: Config) -> None:
    with running(config) as (client, capture):
        client("POST", "/dumps", {"dump_id": "n", "tables": ["schema1.table2"]})
        finished(client, "n")
        wait_for(lambda: "COMPLETED" in noted(client), "never completed")
        kinds = noted(client)
    assert config.control.notification_file is not None
    lines = [json.loads(line) for line in config.control.notification_file.read_text().splitlines()]
    assert [line["type"] for line in lines] == kinds
    assert [str(n.type) for n in capture.notified] == kinds
    log = EventLog.open(str(config.log.path))
    stored = [
        json.loads(record["payload"])
        for ref in log.segments(log.head_offset, log.latest_offset())
        for record in log.read(ref, ["kind", "payload"], schema_ids=[0]).to_pylist()
        if record["kind"] == RecordKind.CONTROL
    ]
    in_log = [v["notification"]["type"] for v in stored if v["type"] == "notification"]
    assert in_log == kinds


def test_in_process_commands(config: Config) -> None:
    with running(config) as (client, capture):
        outcome = capture.capture.send(SetDumpOptions(chunk_rows=7))
        assert outcome is not None
        assert outcome.error is None
        assert client("GET", "/options")[1]["chunk_rows"] == 7


def test_standby_takes_the_port_over(config: Config) -> None:
    standby: Running | None = None
    try:
        with running(config) as (client, _leader):
            standby = Running(config)
            time.sleep(0.5)
            assert client("GET", "/status")[1]["epoch"] == 1
        wait_for(lambda: leads(client), "the standby does not lead")
        assert client("GET", "/status")[1]["epoch"] == 2
    finally:
        if standby is not None:
            standby.end()


def test_standby_with_a_port_of_its_own_names_the_leader(config: Config) -> None:
    assert config.control.rest is not None
    port = free_port()
    rest = config.control.rest.model_copy(update={"port": port})
    control = config.control.model_copy(update={"rest": rest})
    with running(config) as (_client, leader):
        standby = Running(config.model_copy(update={"control": control}))
        standby.capture.holder = "standby"
        try:
            client = Client(port)
            wait_for(lambda: _answers(client), "the standby does not answer")
            status, answer = client("GET", "/status")
            assert (status, answer["error"]["leader"]) == (503, leader.capture.holder)
            assert client("POST", "/cancel")[0] == 503
            assert client("GET", "/health")[1]["role"] == "standby"
        finally:
            standby.end()


def test_standby_sends_on_to_where_the_leader_says_it_is(config: Config) -> None:
    rest = config.control.rest
    assert rest is not None
    there = f"http://127.0.0.1:{rest.port}"

    def with_rest(**update: Any) -> Config:
        control = {"rest": rest.model_copy(update=update)}
        return config.model_copy(update={"control": config.control.model_copy(update=control)})

    port = free_port()
    with running(with_rest(url=there + "/")) as (_client, leader):
        standby = Running(with_rest(port=port, url=f"http://127.0.0.1:{port}"))
        standby.capture.holder = "standby"
        try:
            wait_for(lambda: _answers(Client(port)), "the standby does not answer")
            status, answer = Client(port)("POST", "/options?wait=0", {"chunk_rows": 7})
            assert status == 405
            # Where the leader is stands in its status, which it writes once a second.
            wait_for(lambda: Client(port)("GET", "/status")[0] == 307, "the leader is not named")
            status, answer = Client(port)("POST", "/cancel?wait=1")
            assert status == 307
            found = answer["error"]
            assert found["leader"] == leader.capture.holder
            assert found["url"] == f"{there}/cancel?wait=1"
            assert Client(port, None)("GET", "/status")[0] == 401
            # What a client does that follows: the same method, at the place that is named.
            asked = urllib.request.Request(
                f"http://127.0.0.1:{port}/status", headers={"Authorization": f"Bearer {TOKEN}"}
            )
            with urllib.request.urlopen(asked, timeout=30) as answered:
                assert answered.url == f"{there}/status"
                assert json.loads(answered.read())["url"] == there + "/"
            wait_for(lambda: app.status(config).document["standbys"], "nobody stands by")
            assert app.status(config).document["standbys"][0]["url"] == f"http://127.0.0.1:{port}"
            assert app.status(config).document["url"] == there + "/"
        finally:
            standby.end()


def _answers(client: Client) -> bool:
    try:
        return client("GET", "/health")[0] == 200
    except OSError:
        return False


def test_port_of_another_program_stops_no_capture(
    config: Config, sql: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidelog.app.web.http_server.BIND_PATIENCE_S", 0.5)
    rest = config.control.rest
    assert rest is not None
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        other.bind(("127.0.0.1", rest.port))
        other.listen()
        capture = Running(config)
        found = wait_for(lambda: problems_of(config), "the port is no problem")
        assert found == [
            "The web page and the HTTP interface are away: control.rest: "
            f"127.0.0.1:{rest.port} is taken by another program, or by a capture of this host "
            "that led before."
        ]
        before = EventLog.open(config.log.path).latest_offset()
        sql.execute("INSERT INTO schema1.table1 VALUES (1000, 'while the port is taken')")
        wait_for(lambda: EventLog.open(config.log.path).latest_offset() > before, "no capture")
    client = Client(rest.port)
    wait_for(lambda: _answers(client), "it does not listen once the port is free")
    assert client("GET", "/status")[0] == 200
    wait_for(lambda: not problems_of(config), "the problem stays")
    capture.end()


def problems_of(config: Config) -> list[str]:
    found = app.status(config).overview.problems
    return [each.sentence for each in found if each.kind == "channel-fails"]
