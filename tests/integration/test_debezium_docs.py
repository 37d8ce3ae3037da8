"""The table by type of docs/reference/debezium.md, row by row on a real server."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.integration.event_messages import capturing, messages, wait_for
from tests.support.postgres import PostgresServer

from tidelog.outputs.formatters.json_formats import Debezium
from tidelog.spark.formats.json_values import ValueModes

pytestmark = pytest.mark.integration

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "debezium.md"
DEBEZIUMS_DEFAULTS = ValueModes("precise", "adaptive", "bytes")


def rows() -> list[tuple[str, str, str]]:
    """(type, value, what is written of it) of those that have all three."""
    table = PAGE.read_text(encoding="utf-8").partition("## By type")[2]
    found = []
    for line in table.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split(" | ")]
        if len(cells) == 5 and cells[1].startswith("`"):
            found.append((cells[0].strip("`"), cells[1].strip("`"), cells[3].strip("`")))
    return found


def test_the_table_by_type_is_true(postgres: PostgresServer, database: str, tmp_path: Path) -> None:
    """Of dumped rows and of logged ones."""
    listed = rows()
    assert len(listed) > 25
    name = database.rsplit("/", 1)[1].split("?")[0]
    columns = ", ".join(f"c{n} {kind}" for n, (kind, _, _) in enumerate(listed))
    values = ", ".join("$v$" + value + "$v$" for _, value, _ in listed)
    postgres.execute(f"CREATE TABLE t (id int PRIMARY KEY, {columns})", name)
    postgres.execute(f"INSERT INTO t VALUES (1, {values})", name)
    with capturing(tmp_path, "postgres", database) as config:
        wait_for(config, 1)
        postgres.execute(f"INSERT INTO t VALUES (2, {values})", name)
        wait_for(config, 2)
    found = messages(config, Debezium(handling=DEBEZIUMS_DEFAULTS))
    assert len(found) == 2
    for _, message in found:
        text = (message or b"").decode()
        after = json.loads(text)["after"]
        for n, (kind, value, wanted) in enumerate(listed):
            assert after[f"c{n}"] == json.loads(wanted), (kind, value)
            assert f'"c{n}":{wanted}' in text, (kind, value)
