"""What `tidelog verify` refuses ends with code 2 and a text that helps, before Spark starts."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from tests.support.mysql import MySqlFamilyServer
from tests.support.postgres import PostgresServer

from tidelog.app import verification
from tidelog.cli import main
from tidelog.eventlog.writer import EventLogWriter
from tidelog.ports import SourceId
from tidelog.sources.mysql.connect import connect
from tidelog.sources.mysql.stream.failover import identify
from tidelog.sources.postgres.stream.replication import ReplicationStream

pytestmark = pytest.mark.integration

FILES = "{kind: files, path: out, format: json}"
DELTA = "{kind: delta, path: lake, tables: [public.orders]}"


class SparkStartedError(AssertionError):
    """It must not."""


@pytest.fixture(autouse=True)
def no_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    def session(_config: object) -> None:
        raise SparkStartedError

    monkeypatch.setattr(verification, "session", session)


def verify(
    directory: Path,
    capsys: pytest.CaptureFixture[str],
    source: str,
    outputs: str,
    *options: str,
) -> tuple[int, str]:
    """Exit code, and what was said."""
    file = directory / "tidelog.yaml"
    file.write_text(
        f"source: {source}\n"
        f"log: {{path: {directory}/log}}\n"
        f"state: {{url: 'sqlite:///{directory}/state.db'}}\n"
        f"outputs: [{outputs}]\n"
    )
    with pytest.raises(SystemExit) as ended:
        main(["verify", str(file), *options])
    return int(ended.value.code or 0), capsys.readouterr().err


@pytest.fixture
def postgres_source(database: str, postgres: PostgresServer, tmp_path: Path) -> str:
    name = database.rpartition("/")[2]
    postgres.execute("CREATE TABLE orders (id int PRIMARY KEY); CREATE TABLE a (id int)", name)
    begin_log(tmp_path, who_is(database))
    return f"{{kind: postgres, url: '{database}'}}"


NOBODY = SourceId("postgres", "1", "d")


def begin_log(directory: Path, source: SourceId = NOBODY) -> None:
    EventLogWriter.create(str(directory / "log"), source, 1).close()


def test_tables_and_outputs_that_are_not_there(
    postgres_source: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, said = verify(tmp_path, capsys, postgres_source, "")
    assert (code, "no outputs to compare with" in said) == (2, True), said
    code, said = verify(tmp_path, capsys, postgres_source, FILES)
    assert (code, "delta, iceberg, postgres, mysql" in said) == (2, True), said
    code, said = verify(tmp_path, capsys, postgres_source, DELTA, "--table", "public.none")
    assert (code, "no captured table matches 'public.none'" in said) == (2, True), said
    code, said = verify(tmp_path, capsys, postgres_source, DELTA, "--table", "public.a")
    assert (code, "keeps a copy of a table of 'public.a'" in said) == (2, True), said


def test_source_that_lets_nobody_in(
    mysql_server: MySqlFamilyServer,
    mysql_database: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    begin_log(tmp_path)
    mysql_server.create_user("reader", "right")
    url = f"mysql://reader:wrong@127.0.0.1:{mysql_server.port}/{mysql_database}"
    code, said = verify(tmp_path, capsys, f"{{kind: mysql, url: '{url}'}}", DELTA)
    assert code == 2, said
    assert "password" in said
    assert "wrong@" not in said


def test_another_server_than_the_log_s_is_not_compared(
    postgres_source: str,
    database: str,
    postgres18: PostgresServer,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Its rows would differ, or be equal by chance."""
    assert "SparkStartedError" in verify(tmp_path, capsys, postgres_source, DELTA)[1]
    nobody = tmp_path / "nobody"
    nobody.mkdir()
    begin_log(nobody)
    code, said = verify(nobody, capsys, postgres_source, DELTA)
    assert (code, "holds database 'd' of system 1, but source.url leads" in said) == (1, True), said

    captured = who_is(database)
    other = tmp_path / "other"
    other.mkdir()
    begin_log(other, captured)
    copy = postgres18.create_database(captured.database)  # of the same name, with the same table
    postgres18.execute("CREATE TABLE orders (id int PRIMARY KEY)", captured.database)
    try:
        source = f"{{kind: postgres, url: '{copy}'}}"
        code, said = verify(other, capsys, source, DELTA)
    finally:
        postgres18.drop_database(captured.database)
    assert (code, f"of system {captured.system}, but source.url" in said) == (1, True), said

    former = tmp_path / "former"
    former.mkdir()
    begin_log(former, replace(captured, timeline=captured.timeline + 1))
    code, said = verify(former, capsys, postgres_source, DELTA)
    assert (code, "leads to a former primary" in said) == (1, True), said


def who_is(database: str) -> SourceId:
    with closing(ReplicationStream(database, purpose="test")) as stream:
        found = stream.identify()
    return SourceId("postgres", found.system, found.database, found.timeline)


def test_another_mysql_server_than_the_log_s_is_not_compared(
    mysql_family: MySqlFamilyServer,
    mysql_family_database: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    name = mysql_family_database
    source = f"{{kind: {mysql_family.flavor}, url: '{mysql_family.dsn(name)}'}}"
    mysql_family.execute("CREATE TABLE orders (id int PRIMARY KEY)", name)
    output = f"{{kind: delta, path: lake, tables: ['{name}.orders']}}"
    begin_log(tmp_path, SourceId(mysql_family.flavor, "another", ""))
    code, said = verify(tmp_path, capsys, source, output)
    assert (code, "server another, but source.url leads to" in said) == (1, True), said

    other = tmp_path / "other"
    other.mkdir()
    with connect(mysql_family.dsn(name), purpose="test") as connection:
        begin_log(other, identify(connection))
    assert "SparkStartedError" in verify(other, capsys, source, output)[1]
