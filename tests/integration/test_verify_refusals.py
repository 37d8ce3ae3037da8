"""What `tidelog verify` refuses ends with code 2 and a text that helps, before Spark starts."""

from __future__ import annotations

from pathlib import Path

import pytest

from tidelog.app.verify import compare
from tidelog.cli import main
from tidelog.demo.servers.mysql import MySqlFamilyServer
from tidelog.demo.servers.postgres import PostgresServer
from tidelog.eventlog.writer import EventLogWriter
from tidelog.ports import SourceId

pytestmark = pytest.mark.integration

FILES = "{kind: files, path: out, format: json}"
DELTA = "{kind: delta, path: lake, tables: [public.orders]}"


class SparkStartedError(AssertionError):
    """It must not."""


@pytest.fixture(autouse=True)
def no_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    def session(_config: object) -> None:
        raise SparkStartedError

    monkeypatch.setattr(compare, "session", session)


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
    begin_log(tmp_path)
    return f"{{kind: postgres, url: '{database}'}}"


def begin_log(directory: Path) -> None:
    EventLogWriter.create(str(directory / "log"), SourceId("postgres", "1", "d"), 1).close()


def test_tables_and_outputs_that_are_not_there(
    postgres_source: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, said = verify(tmp_path, capsys, postgres_source, "")
    assert (code, "no outputs to compare with" in said) == (2, True), said
    code, said = verify(tmp_path, capsys, postgres_source, FILES)
    assert (code, "delta, iceberg, postgres and mysql" in said) == (2, True), said
    code, said = verify(tmp_path, capsys, postgres_source, DELTA, "--table", "public.none")
    assert (code, "no captured table matches 'public.none'" in said) == (2, True), said
    code, said = verify(tmp_path, capsys, postgres_source, DELTA, "--table", "public.a")
    assert (code, "holds a table of 'public.a'" in said) == (2, True), said


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
