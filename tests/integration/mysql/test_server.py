"""The embedded MySQL and MariaDB servers do what tests of the sources rely on."""

from __future__ import annotations

import subprocess
import tempfile
import threading
import time
from pathlib import Path

import pymysql
import pytest
from tests.support.mysql import MariaDbServer, MySqlFamilyServer, MySqlServer

pytestmark = pytest.mark.integration

SERVERS = [MySqlServer, MariaDbServer]
both = pytest.mark.parametrize("kind", SERVERS, ids=["mysql", "mariadb"])
CREATE = "CREATE TABLE t (id INT PRIMARY KEY, v VARCHAR(20))"


def ids(server: MySqlFamilyServer, database: str = "d") -> list[int]:
    return [number for (number,) in server.execute("SELECT id FROM t ORDER BY id", database)]


def filled(server: MySqlFamilyServer) -> None:
    server.create_database("d")
    server.execute(CREATE, "d")
    server.execute("INSERT INTO t VALUES (1, 'a')", "d")


def test_rows_are_logged_in_full_with_gtids_and_checksums(
    mysql_family: MySqlFamilyServer, mysql_family_database: str
) -> None:
    server = mysql_family
    names = "log_bin, @@binlog_format, @@binlog_row_image, @@binlog_checksum, @@log_slave_updates"
    assert server.execute(f"SELECT @@{names}") == [(1, "ROW", "FULL", "CRC32", 1)]
    before = server.gtid_position()
    server.execute(CREATE, mysql_family_database)
    assert server.gtid_position() != before
    if server.flavor == "mysql":
        assert server.execute("SELECT @@gtid_mode, @@enforce_gtid_consistency") == [("ON", "ON")]
    assert server.dsn("d") == f"{server.flavor}://root@127.0.0.1:{server.port}/d"


@both
def test_a_restart_keeps_data_and_port_and_takes_settings(
    kind: type[MySqlFamilyServer],
) -> None:
    with kind() as server:
        filled(server)
        port = server.port
        server.restart({"binlog_row_image": "MINIMAL"})
        assert (ids(server), server.port) == ([1], port)
        assert server.execute("SELECT @@binlog_row_image") == [("MINIMAL",)]


@both
def test_what_is_committed_survives_a_crash(kind: type[MySqlFamilyServer]) -> None:
    with kind() as server:
        filled(server)
        port = server.port
        with server.connect("d", autocommit=False) as open_transaction:
            open_transaction.cursor().execute("INSERT INTO t VALUES (2, 'open')")
            server.execute("INSERT INTO t VALUES (3, 'b')", "d")
            server.kill()
            assert not server.running
            server.start()
            assert (ids(server), server.port) == ([1, 3], port)


@both
def test_a_data_directory_of_ones_own_stays(
    kind: type[MySqlFamilyServer],
) -> None:
    # Not pytest's own directory: an ordinary user can't enter it.
    with tempfile.TemporaryDirectory() as parent:
        Path(parent).chmod(0o755)
        data = Path(parent) / "data"
        with kind(data_dir=data) as server:
            filled(server)
        with kind(data_dir=data) as server:
            assert ids(server) == [1]


@both
def test_a_replica_follows_and_is_read_only(kind: type[MySqlFamilyServer]) -> None:
    with kind() as primary:
        filled(primary)
        with kind.replica_of(primary) as replica:
            replica.caught_up()
            assert ids(replica) == [1]
            primary.execute("INSERT INTO t VALUES (2, 'b')", "d")
            replica.caught_up()
            assert ids(replica) == [1, 2]
            assert replica.execute("SELECT @@read_only") == [(1,)]
            assert replica.gtid_position() == primary.gtid_position()
            uuid = "@@server_uuid" if kind is MySqlServer else "@@server_id"
            assert primary.execute(f"SELECT {uuid}") != replica.execute(f"SELECT {uuid}")


def test_commits_of_mariadb_wait_for_the_semi_synchronous_replica() -> None:
    settings = {
        "rpl_semi_sync_master_enabled": True,
        "rpl_semi_sync_master_wait_point": "AFTER_SYNC",
        "rpl_semi_sync_master_timeout": 60_000,
    }
    with MariaDbServer(settings=settings) as primary:
        follower = MariaDbServer.replica_of(primary, {"rpl_semi_sync_slave_enabled": True})
        with follower as replica:
            clients = "SHOW STATUS LIKE 'Rpl_semi_sync_master_clients'"
            deadline = time.monotonic() + 20
            while primary.execute(clients)[0][1] != "1" and time.monotonic() < deadline:
                time.sleep(0.05)
            filled(primary)
            replica.pause()
            insert = ("INSERT INTO t VALUES (2, 'late')", "d")
            writer = threading.Thread(target=primary.execute, args=insert)
            before = primary.gtid_position()
            writer.start()
            deadline = time.monotonic() + 20
            while primary.gtid_position() == before and time.monotonic() < deadline:
                time.sleep(0.05)
            # Logged, counted in the position, and invisible.
            assert primary.gtid_position() != before
            assert ids(primary) == [1]
            replica.resume()
            writer.join(timeout=30)
            assert ids(primary) == [1, 2]


def test_tls_is_checked_against_the_servers_authority(
    mysql_family: MySqlFamilyServer, mysql_server: MySqlServer, mariadb_server: MariaDbServer
) -> None:
    trusted = {"ca": str(mysql_family.ca_file)}
    with mysql_family.connect(ssl=trusted) as connection, connection.cursor() as cursor:
        cursor.execute("SHOW STATUS LIKE 'Ssl_version'")
        assert cursor.fetchall()[0][1].startswith("TLSv1")
    other = mariadb_server if mysql_family is mysql_server else mysql_server
    with pytest.raises(pymysql.err.OperationalError, match="CERTIFICATE_VERIFY_FAILED"):
        mysql_family.connect(ssl={"ca": str(other.ca_file)})
    with mysql_family.connect() as connection, connection.cursor() as cursor:
        cursor.execute("SHOW STATUS LIKE 'Ssl_version'")
        assert cursor.fetchall()[0][1] == ""


@pytest.mark.parametrize(
    ("fixture", "plugin"),
    [
        ("mysql_server", "mysql_native_password"),
        ("mysql_server", "caching_sha2_password"),
        ("mysql_server", None),
        ("mariadb_server", "mysql_native_password"),
        ("mariadb_server", "ed25519"),
        ("mariadb_server", None),
    ],
)
def test_users_log_in_by_each_authentication(
    request: pytest.FixtureRequest, fixture: str, plugin: str | None
) -> None:
    server: MySqlFamilyServer = request.getfixturevalue(fixture)
    if plugin == "mysql_native_password" and not server.offers(plugin):
        pytest.skip("MySQL 9 has it no more")
    name = f"user_{plugin}"
    server.create_user(name, "s3cret'", plugin=plugin, privileges=["SELECT", "REPLICATION SLAVE"])
    try:
        with server.connect(user=name, password="s3cret'") as connection:
            cursor = connection.cursor()
            cursor.execute("SHOW GRANTS")
            assert "REPLICATION SLAVE" in str(cursor.fetchall())
        with pytest.raises(pymysql.err.OperationalError, match="denied"):
            server.connect(user=name, password="wrong")
    finally:
        server.execute(f"DROP USER {name}")


def test_a_user_may_be_held_to_tls(mysql_family: MySqlFamilyServer) -> None:
    mysql_family.create_user("careful", "pw", require_tls=True)
    try:
        with pytest.raises(pymysql.err.OperationalError, match="denied"):
            mysql_family.connect(user="careful", password="pw")
        mysql_family.connect(
            user="careful", password="pw", ssl={"ca": str(mysql_family.ca_file)}
        ).close()
    finally:
        mysql_family.execute("DROP USER careful")


def test_a_stopped_server_keeps_connections_and_answers_later(
    mysql_family: MySqlFamilyServer,
) -> None:
    with mysql_family.connect(read_timeout=1) as connection:
        mysql_family.pause()
        try:
            with pytest.raises(pymysql.err.OperationalError, match="timed out"):
                connection.cursor().execute("SELECT 1")
        finally:
            mysql_family.resume()
    assert mysql_family.execute("SELECT 1") == [(1,)]


def test_mysqlbinlog_copies_the_log_of_either(
    mysql_family: MySqlFamilyServer, mysql_family_database: str, tmp_path: Path
) -> None:
    server = mysql_family
    server.execute(CREATE, mysql_family_database)
    server.execute("INSERT INTO t VALUES (1, 'a')", mysql_family_database)
    ((name, *_),) = server.execute("SHOW BINARY LOGS")[-1:]
    server.execute("FLUSH BINARY LOGS")  # a closed log's bytes don't change any more
    subprocess.run(
        [
            str(server.binlog_program()),
            "--no-defaults",
            "--read-from-remote-server",
            "--raw",
            "--host=127.0.0.1",
            f"--port={server.port}",
            "--user=root",
            f"--result-file={tmp_path}/",
            str(name),
        ],
        check=True,
    )
    copied = (tmp_path / str(name)).read_bytes()
    assert copied == (server.data_dir / str(name)).read_bytes()


def test_the_process_belongs_to_an_ordinary_user(mysql_family: MySqlFamilyServer) -> None:
    assert Path(f"/proc/{mysql_family.pid}").stat().st_uid != 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "version"), [(MySqlServer, "8.0.15"), (MariaDbServer, "11.4")], ids=str
)
def test_other_versions_start(kind: type[MySqlFamilyServer], version: str) -> None:
    with kind(version) as server:
        filled(server)
        assert server.installation.version.startswith(version)
        assert server.execute("SELECT VERSION()")[0][0].startswith(version)
