"""``on_schema_change`` by real servers: what becomes of each change, in a copy and in events.

The tables of docs/outputs/delta.md and files.md, row by row.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psycopg
import pytest
from tests.integration.event_messages import capturing, wait_for
from tests.support.mysql import MySqlFamilyServer
from tests.support.output_options import LAYOUT, file_format

from tidelog import app
from tidelog.config import Config
from tidelog.errors import OutputError
from tidelog.outputs.base.writer import Delivery
from tidelog.outputs.files.output import FilesOutput
from tidelog.outputs.lake.delta.output import DeltaOptions, DeltaOutput
from tidelog.spark.pipeline import LoopOptions, run_output_loops
from tidelog.state.sqlite import SqliteState

pytestmark = [
    pytest.mark.spark,
    pytest.mark.integration,
    pytest.mark.thorough,
    pytest.mark.timeout(1200),
]

STOP = "stops"
POLICIES = ("evolve", "lenient", "ignore", "fail")
CALM_S = 8.0
"""A look at the catalogue, which asks for dumps, is at most 5 s away."""


@dataclass(frozen=True)
class Change:
    """A change of table ``t_<name>``, whose row 2 comes behind it with ``value`` in ``column``.

    ``copies``, ``events``: by policy, what row 2 has beside id and v then, or `STOP`.
    """

    name: str
    postgres: str
    mysql: str
    column: str | None
    value: Any
    copies: tuple[Any, Any, Any, Any]
    events: tuple[Any, Any, Any, Any]
    was: str = "int"


BIG = 5_000_000_000
CHANGES = [
    Change(
        "added", "ADD d text", "ADD d text", "d", "more",
        ({"c": None, "d": "more"}, {"c": None, "d": "more"}, {"c": None}, STOP),
        ({"c": None, "d": "more"}, {"c": None, "d": "more"}, {"c": None}, STOP),
    ),
    Change(
        "dropped", "DROP COLUMN c", "DROP COLUMN c", None, None,
        ({"c": None}, {"c": None}, {"c": None}, STOP), ({}, {}, {}, STOP),
    ),
    Change(
        "renamed", "RENAME c TO d", "CHANGE c d int", "d", 2,
        ({"c": None, "d": 2}, {"c": None, "d": 2}, {"c": None}, STOP),
        ({"d": 2}, {"d": 2}, {}, STOP),
    ),
    Change(
        "widened", "ALTER c TYPE bigint", "MODIFY c bigint", "c", BIG,
        ({"c": BIG}, {"c": BIG}, {"c": None}, STOP), ({"c": BIG}, {"c": BIG}, {}, STOP),
    ),
    Change(
        "texts", "ALTER c TYPE text", "MODIFY c text", "c", "two",
        (STOP, {"c": None}, {"c": None}, STOP), (STOP, {}, {}, STOP),
    ),
    Change(
        "narrowed", "ALTER c TYPE int", "MODIFY c int", "c", 2,
        ({"c": 2}, {"c": 2}, {"c": 2}, {"c": 2}), ({"c": 2}, {"c": 2}, {"c": 2}, STOP),
        was="bigint",
    ),
]  # fmt: skip


@pytest.fixture(params=["postgres", "mysql", "mariadb"])
def changed(request: pytest.FixtureRequest) -> Iterator[tuple[str, str, str, Callable[..., Any]]]:
    """The kind of source, its url, the tables' patterns, and what executes SQL."""
    if request.param == "postgres":
        dsn = request.getfixturevalue("database")
        with psycopg.connect(dsn, autocommit=True) as sql:
            yield "postgres", dsn, "public.*", lambda text: sql.execute(text.encode())
        return
    server: MySqlFamilyServer = request.getfixturevalue(f"{request.param}_server")
    name = request.getfixturevalue(f"{request.param}_database")
    with server.connect(name) as session, session.cursor() as cursor:
        yield request.param, server.dsn(name), f"{name}.*", cursor.execute


def consumer_of(kind: str, tables: str) -> str:
    """A name for the pipeline of these tables: it is a file's, too."""
    return f"{kind}-{tables.removeprefix('*.').replace('*', 'all')}"


def delta(spark: Any, config: Config, place: Path, policy: str, tables: str) -> None:
    options = DeltaOptions(on_schema_change=policy)
    lake = str(place / "lake")
    output = DeltaOutput(spark, str(config.log.path), lake, tables=(tables,), options=options)
    try:
        run_output_loops(
            spark,
            str(config.log.path),
            [output],
            LoopOptions(once=True),
            name=consumer_of("delta", tables),
        )
    finally:
        output.close()


def files(spark: Any, config: Config, place: Path, policy: str, tables: str) -> None:
    delivery = Delivery("files", keyed=False, order="none", tables=(tables,))
    delivery = replace(delivery, on_schema_change=policy)
    state = SqliteState(f"sqlite:///{place}/state.db")
    kind = file_format(kind="json", values="json", compression="none")
    path = str(place / "files")
    output = FilesOutput(
        spark, str(config.log.path), state, delivery, path=path, layout=LAYOUT, file_format=kind
    )  # fmt: skip
    try:
        run_output_loops(
            spark,
            str(config.log.path),
            [output],
            LoopOptions(once=True),
            name=consumer_of("files", tables),
        )
    finally:
        output.close()
        state.close()


def settle(config: Config) -> None:
    """Wait until no dump has run for a while."""
    calm, deadline = time.monotonic(), time.monotonic() + 180
    while time.monotonic() < calm + CALM_S:
        assert time.monotonic() < deadline
        dumps = app.status(config).document.get("dumps", ())
        if any(dump["status"] not in ("completed", "aborted") for dump in dumps):
            calm = time.monotonic()
        time.sleep(0.3)


def second_row(rows: list[dict[str, Any]]) -> Any:
    """The rest of row 2; every row has its v."""
    found = [row for row in rows if row["id"] == 2]
    assert {row["id"]: row["v"] for row in rows} == {1: "old", 2: "new"}
    rests = [
        {k: v for k, v in row.items() if k not in ("id", "v") and not k.startswith("_")}
        for row in found
    ]
    assert all(rest == rests[0] for rest in rests)
    return rests[0]


def test_each_change_has_the_outcome_that_the_pages_tell(
    spark: Any, changed: tuple[str, str, str, Callable[..., Any]], tmp_path: Path
) -> None:
    kind, url, pattern, execute = changed
    base = tmp_path / "base"
    base.mkdir()
    for change in CHANGES:
        execute(f"CREATE TABLE t_{change.name} (id int PRIMARY KEY, c {change.was}, v text)")
        execute(f"INSERT INTO t_{change.name} VALUES (1, 1, 'old')")
    with capturing(tmp_path, kind, url, pattern) as config:
        wait_for(config, len(CHANGES))
        delta(spark, config, base, "evolve", "*.*")
        files(spark, config, base, "evolve", "*.*")
        for change in CHANGES:
            how = change.postgres if kind == "postgres" else change.mysql
            execute(f"ALTER TABLE t_{change.name} {how}")
            names, values = "id, v", "2, 'new'"
            if change.column is not None:
                names, values = f"{names}, {change.column}", f"{values}, {change.value!r}"
            execute(f"INSERT INTO t_{change.name} ({names}) VALUES ({values})")
        wait_for(config, 2 * len(CHANGES))
        settle(config)
    found, wanted = {}, {}
    for change in CHANGES:
        for place, policy in enumerate(POLICIES):
            where = tmp_path / f"{change.name}-{policy}"
            shutil.copytree(base, where)
            for write, of in ((delta, change.copies), (files, change.events)):
                key = (write.__name__, change.name, policy)
                wanted[key] = of[place]
                try:
                    write(spark, config, where, policy, f"*.t_{change.name}")
                    rows = rows_of(spark, where, write.__name__, change.name)
                    found[key] = second_row(rows)
                except OutputError as error:
                    found[key] = STOP if "column" in str(error) else str(error)
    assert found == wanted


def rows_of(spark: Any, place: Path, kind: str, name: str) -> list[dict[str, Any]]:
    if kind == "delta":
        [path] = (place / "lake").glob(f"*/t_{name}")
        return [row.asDict() for row in spark.read.format("delta").load(str(path)).collect()]
    lines = [
        line
        for file in sorted((place / "files").rglob(f"*t_{name}*/**/*.json"))
        for line in file.read_text().splitlines()
    ]
    rows = [json.loads(line)["after"] for line in lines]
    return [row for row in rows if row is not None]
