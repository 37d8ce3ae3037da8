"""What happens to the log's reader when servers, connections and binlogs go."""

from __future__ import annotations

import dataclasses
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.integration.mysql.log_capture import LogCapture
from tests.integration.mysql.test_log_reader import run
from tests.support.mysql import MariaDbServer, MySqlFamilyServer, MySqlServer

from tidelog.codecs.mysql.flavor import Flavor
from tidelog.codecs.mysql.server_urls import parse_url
from tidelog.errors import (
    ConfigError,
    ConnectionLostError,
    GapError,
    PreflightError,
    SourceChangedError,
    SourceError,
)
from tidelog.model.records import Resume
from tidelog.ports import SourceId
from tidelog.sources.mysql.connect import connect
from tidelog.sources.mysql.stream import log_reader
from tidelog.sources.mysql.stream.replication import BinlogStream
from tidelog.state.sqlite import SqliteState

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module", params=[MySqlServer, MariaDbServer])
def server(request: pytest.FixtureRequest) -> Iterator[MySqlFamilyServer]:
    """A server of this module's own, to be stopped and mistreated."""
    with request.param() as started:
        yield started


@pytest.fixture
def table(server: MySqlFamilyServer) -> Iterator[None]:
    server.create_database("d")
    server.execute("CREATE TABLE d.t (a INT PRIMARY KEY AUTO_INCREMENT, b VARCHAR(20))")
    yield
    server.drop_database("d")


@pytest.fixture
def capture(server: MySqlFamilyServer, table: None) -> Iterator[LogCapture]:
    made = LogCapture(server, ("d.*",))
    yield made
    made.reader.close()


def insert(server: MySqlFamilyServer, *values: int) -> None:
    for value in values:
        server.execute(f"INSERT INTO d.t (a) VALUES ({value})")


def keys(capture: LogCapture) -> list[Any]:
    return [row.new["a"] for row in capture.rows if row.new]


def end_dump_threads(server: MySqlFamilyServer) -> None:
    for row in server.execute("SHOW PROCESSLIST"):
        if row[4] == "Binlog Dump":
            server.execute(f"KILL {row[0]}")


def poll_often(capture: LogCapture) -> None:
    for _ in range(50):
        capture.poll()


def reconnect(capture: LogCapture, resume: Resume) -> None:
    deadline = time.monotonic() + 30
    while True:
        try:
            capture.start(resume)
            return
        except ConnectionLostError:
            assert time.monotonic() < deadline
            time.sleep(0.1)


def test_a_restart_of_the_server_loses_nothing(
    server: MySqlFamilyServer, capture: LogCapture
) -> None:
    capture.start()
    insert(server, 1)
    capture.catch_up()
    server.restart()
    with pytest.raises(ConnectionLostError):
        poll_often(capture)
    insert(server, 2)
    reconnect(capture, capture.resumes[-1])
    capture.catch_up()
    server.kill()
    with pytest.raises(ConnectionLostError):
        poll_often(capture)
    with pytest.raises(ConnectionLostError, match="is the server running"):
        capture.start(capture.resumes[-1])
    server.start()
    insert(server, 3)
    reconnect(capture, capture.resumes[-1])
    capture.catch_up()
    assert keys(capture) == [1, 2, 3]


def test_a_killed_dump_thread_is_a_lost_connection(
    server: MySqlFamilyServer, capture: LogCapture
) -> None:
    capture.start()
    insert(server, 1)
    capture.catch_up()
    end_dump_threads(server)
    insert(server, 2)
    with pytest.raises(ConnectionLostError):
        poll_often(capture)
    reconnect(capture, capture.resumes[-1])
    capture.catch_up()
    assert keys(capture) == [1, 2]


def test_a_purged_binlog_is_a_gap(server: MySqlFamilyServer, capture: LogCapture) -> None:
    resume = capture.start()
    insert(server, 1)
    server.execute("FLUSH BINARY LOGS")
    server.execute("FLUSH BINARY LOGS")
    newest = server.execute("SHOW BINARY LOGS")[-1][0]
    capture.reader.close()
    end_dump_threads(server)
    while server.execute("SHOW BINARY LOGS")[0][0] != newest:
        server.execute(f"PURGE BINARY LOGS TO '{newest}'")  # not those that a dump thread reads
    with pytest.raises(GapError, match=rf"ends at \d+:\d+, but .* begins at {newest}:4"):
        capture.start(resume)
    begin = capture.reader.start_over(resume)
    assert begin.acknowledge > resume.acknowledge
    insert(server, 2)
    capture.catch_up()
    assert keys(capture) == [2]


def receive_all(stream: BinlogStream) -> None:
    while (received := stream.receive(5.0)) is not None and not received.ended:
        pass


@pytest.mark.parametrize("place", ["behind its end", "another file"])
def test_a_place_that_the_server_does_not_have_is_a_gap(
    server: MySqlFamilyServer, place: str
) -> None:
    """As after a crash of a server that does not sync its binlog."""
    name, size = server.execute("SHOW BINARY LOGS")[-1][:2]
    stream = BinlogStream(parse_url(server.url), None, purpose="test")
    if place == "another file":
        name, size = f"{name[:-6]}999999", 4
    stream.start(name, size + 1000, wait=False)
    try:
        with pytest.raises(GapError, match="no longer has this part"):
            receive_all(stream)
    finally:
        stream.close()


@pytest.mark.parametrize("grown", [False, True])
def test_reset_master_is_noticed(
    grown: bool, server: MySqlFamilyServer, table: None, tmp_path: Path
) -> None:
    capture = LogCapture(
        server, ("d.*",), options={"state": SqliteState(f"sqlite:///{tmp_path}/state.db")}
    )
    capture.start()
    insert(server, *range(1, 6))
    server.execute("FLUSH BINARY LOGS")
    insert(server, *range(6, 9))
    capture.catch_up()
    resume = capture.resumes[-1]
    capture.reader.close()
    time.sleep(1.1)  # files are told apart by the second in which they were made
    server.reset_binlog()
    if grown:
        number = resume.acknowledge >> 39
        while len(server.execute("SHOW BINARY LOGS")) < number:
            server.execute("FLUSH BINARY LOGS")
        while server.binlog_end()[1] <= resume.acknowledge & (1 << 39) - 1:
            server.execute("INSERT INTO d.t (b) VALUES ('again')")
    with pytest.raises(SourceChangedError, match="RESET MASTER"):
        capture.start(resume)
    capture.reader.close()


@pytest.mark.parametrize("grown", [False, True])
def test_reset_master_is_noticed_while_the_log_is_read(
    grown: bool, capture: LogCapture, server: MySqlFamilyServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server goes on with the file that it deleted, until the new one is as long."""
    monkeypatch.setattr(log_reader, "CHECK_S", 0.1)
    capture.start()
    insert(server, *range(1, 6))
    capture.catch_up()
    poll_often(capture)  # nothing is amiss
    time.sleep(1.1)  # files are told apart by the second in which they were made
    server.reset_binlog()
    while grown and capture.end <= capture.resumes[-1].acknowledge:
        server.execute("INSERT INTO d.t (b) VALUES ('again')")
    with pytest.raises((ConnectionLostError, SourceError)):
        poll_often(capture)
    with pytest.raises(SourceChangedError, match="RESET MASTER"):
        capture.start(capture.resumes[-1])


def test_another_server_is_noticed(server: MySqlFamilyServer, table: None) -> None:
    expected = SourceId(server.flavor, "someone-else", "")
    capture = LogCapture(server, ("d.*",), options={"expected": expected})
    with pytest.raises(SourceChangedError, match=r"someone-else.*correct source.url"):
        capture.start(Resume(1 << 39, 0, -1))
    capture.reader.close()
    other = Flavor.MARIADB if server.flavor == "mysql" else Flavor.MYSQL
    capture = LogCapture(server, ("d.*",), options={"kind": other})
    with pytest.raises(ConfigError, match=f"set source.kind: {server.flavor}"):
        capture.start()
    capture.reader.close()


def test_two_captures_with_one_server_id_don_t_clash_silently(
    server: MySqlFamilyServer, table: None
) -> None:
    first = LogCapture(server, ("d.*",), options={"name": "x"})
    second = LogCapture(server, ("d.*",), options={"name": "x"})
    other = LogCapture(server, ("d.*",), options={"name": "y"})
    first.start()
    other.start()
    second.start()
    with pytest.raises(SourceError, match=r"own source\.server_id"):
        poll_often(first)
    insert(server, 1)
    for capture in (second, other):
        capture.catch_up()
        assert keys(capture) == [1]
    for capture in (first, second, other):
        capture.reader.close()
    own = int(server.execute("SELECT @@server_id")[0][0])
    clash = LogCapture(server, ("d.*",), options={"server_id": own})
    with pytest.raises(ConfigError, match="the source's own server_id"):
        clash.start()
    clash.reader.close()


def test_two_captures_with_one_explicit_server_id(server: MySqlFamilyServer, table: None) -> None:
    """MySQL tells replicas apart by their uuid; MariaDB keeps the one that came last."""
    first, second = (
        LogCapture(server, ("d.*",), options={"name": name, "server_id": 4242}) for name in "xy"
    )
    first.start()
    second.start()
    insert(server, 1)
    second.catch_up()
    assert keys(second) == [1]
    if server.flavor == "mysql":
        first.catch_up()
        assert keys(first) == [1]
    else:
        with pytest.raises(
            SourceError, match=r"server_id 4242 has connected.*own source\.server_id"
        ):
            poll_often(first)
    first.reader.close()
    second.reader.close()


@pytest.mark.parametrize("rotated", [False, True], ids=["file cut", "file made anew"])
def test_a_data_directory_that_was_put_back_is_reported(
    rotated: bool, server: MySqlFamilyServer, table: None, tmp_path: Path
) -> None:
    """The same server by its ids, written on beyond where capture had come to."""
    state = SqliteState(tmp_path / "state.db")
    capture = LogCapture(server, ("d.*",), options={"state": state})
    capture.start()
    insert(server, 1)
    capture.catch_up()
    copy = tmp_path / "copy"
    subprocess.run(["cp", "-a", server.data_dir, copy], check=True)
    if rotated:
        server.restart()
        capture.start(capture.resumes[-1])
    insert(server, 2)
    capture.catch_up()
    capture.reader.close()
    server.kill()
    shutil.rmtree(server.data_dir)
    subprocess.run(["cp", "-a", copy, server.data_dir], check=True)
    time.sleep(1.1)  # files are told apart by the second in which they were made
    server.start()
    insert(server, *range(3, 20))
    again = LogCapture(server, ("d.*",), schemas=capture.schemas, options={"state": state})
    said = "recreated since it was read" if rotated else "restored to an earlier state"
    with pytest.raises(SourceChangedError, match=said):
        again.start(capture.resumes[-1])
    again.reader.close()


def test_two_captures_of_one_configuration_have_ids_of_their_own(
    server: MySqlFamilyServer, table: None
) -> None:
    """A configuration copied to another host: the same URL and paths, another event log."""
    captures = [LogCapture(server, ("d.*",), options={"name": "x"}) for _ in range(2)]
    for capture, generation in zip(captures, ("one", "two"), strict=True):
        capture.reader.belongs_to(generation)
        capture.start()
    insert(server, 1)
    for capture in captures:
        capture.catch_up()
        assert keys(capture) == [1]
        capture.reader.close()


@pytest.mark.parametrize("mode", ["disabled", "required", "verify-identity"])
def test_the_log_comes_over_tls(mode: str, server: MySqlFamilyServer, table: None) -> None:
    url = f"{server.url}?ssl-mode={mode}"
    url += f"&ssl-ca={server.ca_file}" if mode == "verify-identity" else ""
    capture = LogCapture(server, ("d.*",), url=url)
    capture.start()
    wrapped = type(capture.reader._streaming()[0].connection.raw_socket).__name__
    assert wrapped == ("socket" if mode == "disabled" else "SSLSocket")
    server.execute("INSERT INTO d.t (b) VALUES " + ",".join(["('x')"] * 20_000))
    capture.catch_up()
    assert len(capture.rows) == 20_000
    capture.reader.close()


def test_a_certificate_that_is_not_trusted_is_refused(
    server: MySqlFamilyServer, tmp_path: Path
) -> None:
    with MySqlServer() as other, pytest.raises(ConfigError, match="TLS failed"):
        connect(f"{server.url}?ssl-ca={other.ca_file}", purpose="test")


PLUGINS = [
    *((MySqlServer, f"{name}_password") for name in ("mysql_native", "caching_sha2", "sha256")),
    *((MariaDbServer, name) for name in ("mysql_native_password", "ed25519")),
]
PASSWORD = "p@ss:wörd/€'"


@pytest.mark.parametrize(("server", "plugin"), PLUGINS, indirect=["server"])
def test_every_authentication_plugin_lets_the_log_be_read(
    server: MySqlFamilyServer, table: None, plugin: str
) -> None:
    rights = ["SELECT", "REPLICATION SLAVE", "REPLICATION CLIENT"]
    if server.flavor == "mariadb":
        rights[-1] = "BINLOG MONITOR"
    if plugin == "mysql_native_password" and not server.offers(plugin):
        pytest.skip("MySQL 9 has it no more")
    url = server.create_user(f"u_{plugin}", PASSWORD, plugin=plugin, privileges=rights)
    for mode in ("required", "disabled"):
        capture = LogCapture(server, ("d.*",), url=f"{url}?ssl-mode={mode}")
        capture.start()
        server.execute("INSERT INTO d.t (b) VALUES ('x')")
        capture.catch_up()
        assert len(capture.rows) == 1
        capture.reader.close()


def test_refusals_say_what_to_do_and_hold_no_password(server: MySqlFamilyServer) -> None:
    good = server.create_user("plain", PASSWORD, privileges=["SELECT"])
    wrong = server.dsn(user="plain", password="not-it-at-all")
    cases: list[tuple[str, type[Exception], str]] = [
        (wrong, ConfigError, "user name or password"),
        (server.dsn("nowhere"), ConfigError, "no such database"),
        (server.url.replace("127.0.0.1", "nowhere.invalid"), ConfigError, "host name"),
        (server.url + "?sslmode=x", ConfigError, "unknown option 'sslmode'. Known are ssl-mode"),
        ("mysql://u:p@ss@host/db", ConfigError, "percent-encode"),
        ("mysql://u:pass@host:port/db", ConfigError, "port"),
        ("postgresql://host/db", ConfigError, "mysql://"),
    ]
    for url, kind, words in cases:
        with pytest.raises(kind, match=words) as caught:
            connect(url, purpose="test")
        for secret in ("not-it-at-all", "p@ss", "pass@"):
            assert secret not in str(caught.value)
    capture = LogCapture(server, url=good)
    with pytest.raises(PreflightError, match=r"GRANT|grant"):
        capture.start()
    capture.reader.close()
    stream = BinlogStream(good, None)
    stream.start("binlog.000001", 4)
    with pytest.raises(PreflightError, match=r"GRANT REPLICATION SLAVE ON \*\.\*"):
        stream.receive(5)
    stream.close()


def test_the_url_never_shows_its_password() -> None:
    url = parse_url("mysql://me:s%40cret@[::1]:3307/shop?ssl_mode=REQUIRED")
    assert (url.host, url.port, url.user, url.password) == ("::1", 3307, "me", "s@cret")
    assert (url.database, url.ssl_mode) == ("shop", "required")
    assert "s@cret" not in repr(url) + str(url)
    assert dataclasses.replace(url, unix_socket="/x").where == "/x"


def test_a_large_transaction_takes_little_memory(server: MySqlFamilyServer, table: None) -> None:
    import resource

    capture = LogCapture(server, ("d.*",), keep_rows=False)
    capture.start()
    with server.connect("d") as sql:
        run(sql, "BEGIN")
        for _ in range(20):
            run(sql, "INSERT INTO t (b) VALUES " + ",".join(["(REPEAT('x', 20))"] * 10_000))
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        run(sql, "COMMIT")
    batches: list[int] = []
    end = capture.end
    while not capture.resumes or capture.resumes[-1].acknowledge < end:
        count = capture.count
        capture.poll()
        batches.append(capture.count - count)
    assert capture.count == 200_000
    assert max(batches) < 60_000
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 40 << 10
    capture.reader.close()
