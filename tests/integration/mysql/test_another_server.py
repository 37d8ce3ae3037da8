"""An address that comes to lead to another server while the log of the first one is read."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.campaign.paths import PathProxy
from tests.support.mysql import MySqlFamilyServer

from tidelog.app.sources.kinds import source_kind
from tidelog.config import parse_config
from tidelog.errors import ConnectionLostError, SourceChangedError
from tidelog.model.records import LogBatch
from tidelog.model.schema import TableName
from tidelog.ports import ChunkReader, ChunkRequest, NullRegistry
from tidelog.state.sqlite import SqliteState

pytestmark = pytest.mark.integration


@pytest.fixture
def other(mysql_family: MySqlFamilyServer) -> Iterator[MySqlFamilyServer]:
    with type(mysql_family)() as server:
        yield server


def test_nothing_is_read_from_another_server_than_the_logs(
    mysql_family: MySqlFamilyServer,
    mysql_family_database: str,
    other: MySqlFamilyServer,
    tmp_path: Path,
) -> None:
    name, table = mysql_family_database, TableName(mysql_family_database, "t")
    other.create_database(name)
    for server, value in ((mysql_family, 1), (other, 2)):
        server.execute(f"CREATE TABLE {name}.t (a int PRIMARY KEY)")
        server.execute(f"INSERT INTO {name}.t VALUES ({value})")
    request = ChunkRequest(table)
    with PathProxy(mysql_family.port) as address:
        url = mysql_family.url.replace(f":{mysql_family.port}", f":{address.port}")
        source = {"kind": mysql_family.flavor, "url": url, "tables": [f"{name}.*"]}
        config = parse_config(
            json.dumps({"source": source, "log": {"path": "log"}}), "", tmp_path, {}
        )
        kind, registry = source_kind(config), NullRegistry()
        log = kind.log_reader(registry, SqliteState(tmp_path / "state.db"), None)
        open_reader = kind.parts(registry).open_reader
        readers: list[ChunkReader] = []

        def reader() -> ChunkReader:
            readers.append(open_reader())
            return readers[-1]

        try:
            begin = log.start(None)
            first = reader()
            first.write_watermark("before")
            assert len(first.read(request).rows) == 1
            first.release()
            address.lead_to(other.port)
            for read in (
                lambda: reader().read(request),
                lambda: reader().write_watermark("another"),
                lambda: reader().current_snapshot(),
                lambda: reader().boundaries(request, 1),
                lambda: kind.catalogue().tables([f"{name}.*"]),
            ):
                with pytest.raises(ConnectionLostError, match="leads to server"):
                    read()
            assert len(first.read(request).rows) == 1, "what is open goes on"
            mysql_family.execute(f"INSERT INTO {name}.t VALUES (3)")
            rows = 0
            for _ in range(100):
                rows += sum(len(e) for e in log.poll(0.1) if isinstance(e, LogBatch))
                if rows:
                    break
            assert rows == 1
            if mysql_family.flavor == "mysql":  # MariaDB's servers have no lasting name
                with pytest.raises(SourceChangedError):
                    log.start(begin)
        finally:
            log.close()
            for each in readers:
                each.close()
