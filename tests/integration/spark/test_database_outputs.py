"""The documented examples of database outputs run as they stand, with the rights they ask for."""

from __future__ import annotations

import re
import threading
from pathlib import Path
from typing import Any

import pytest
from tests.behaviours.outputs.database_tables import server

from tidelog.config import load_config
from tidelog.errors import OutputRefusedError
from tidelog.runtime.piping import pipeline
from tidelog.testing.build_log import BuiltLog

pytestmark = pytest.mark.spark

DOCS = Path(__file__).parents[3] / "docs/outputs"
KINDS = ["postgres", "mysql", pytest.param("mariadb", marks=pytest.mark.thorough)]


def page(kind: str) -> tuple[str, list[str]]:
    """The configuration and the set-up's statements of a kind's page."""
    text = (DOCS / f"{'postgres' if kind == 'postgres' else 'mysql'}.md").read_text()
    outputs = re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)[0]
    statements = re.findall(r"```sql\n(.*?)```", text, re.DOTALL)[0]
    plain = re.sub(r"--.*", "", statements)
    return outputs, [each.strip() for each in plain.split(";") if each.strip()]


def run(path: Path, outputs: str) -> None:
    (path / "tidelog.yaml").write_text(
        "source: {kind: postgres, url: 'postgresql://u@h/d'}\nlog: {path: ./log}\n"
        f"state: {{url: 'sqlite:///state.db'}}\n{outputs}"
    )
    secrets = {"PGPASSWORD": "change-me", "MYSQL_PASSWORD": "change-me"}
    config = load_config(path / "tidelog.yaml", secrets)
    pipeline(config, once=True, stop_event=threading.Event())


@pytest.fixture
def filled(built: BuiltLog) -> BuiltLog:
    table = built.table("public.orders", {"id": "int64", "v": "text"})
    for key in ("1", "2", "3"):
        built.insert(table, key, f"v{key}")
    built.delete(table, "2")
    built.flush()
    return built


@pytest.mark.parametrize("kind", KINDS)
def test_documented_example_runs(spark: Any, filled: BuiltLog, tmp_path: Path, kind: str) -> None:
    outputs, statements = page(kind)
    place = server(kind)
    if kind == "postgres":
        place.create_database("copy")
        for statement in statements:
            place.execute(statement, "copy")
    else:
        place.execute("CREATE DATABASE IF NOT EXISTS shop")
        place.execute("DELETE FROM mysql.user WHERE user = ''")  # of MariaDB's installation
        place.execute("FLUSH PRIVILEGES")
        for statement in statements:
            place.execute(statement)
    outputs = re.sub(r"@db:\d+", f"@127.0.0.1:{place.port}", outputs)
    run(tmp_path, outputs)
    read = "SELECT id, v FROM shop.orders ORDER BY id"
    arguments = (read, "copy") if kind == "postgres" else (read,)
    assert place.execute(*arguments) == [(1, "v1"), (3, "v3")]
    # A later run, with a column more.
    wider = filled.table("public.orders", {"id": "int64", "v": "text", "n": "int32"})
    filled.insert(wider, "4", "v4", "4")
    filled.flush()
    run(tmp_path, outputs)
    read = "SELECT id, v, n FROM shop.orders ORDER BY id"
    arguments = (read, "copy") if kind == "postgres" else (read,)
    assert place.execute(*arguments) == [(1, "v1", None), (3, "v3", None), (4, "v4", 4)]


def test_a_missing_right_is_named_with_what_to_run(
    spark: Any, filled: BuiltLog, tmp_path: Path
) -> None:
    """A table of somebody else's, which lacks our column."""
    place = server("postgres")
    place.create_database("theirs")
    for statement in (
        "CREATE ROLE guest LOGIN",
        "CREATE SCHEMA tidelog AUTHORIZATION guest",
        "CREATE SCHEMA sales",
        "GRANT USAGE ON SCHEMA sales TO guest",
        "CREATE TABLE sales.orders_by_id (key bigint PRIMARY KEY, title text NOT NULL)",
        "GRANT ALL ON sales.orders_by_id TO guest",
    ):
        place.execute(statement, "theirs")
    outputs = (
        "outputs:\n- kind: postgres\n"
        f"  url: {place.dsn('theirs', user='guest')}\n"
        "  steps:\n"
        "  - {rename: {id: key, v: title}}\n"
        "  - {route: 'sales.{name}_by_id'}\n"
    )
    with pytest.raises(OutputRefusedError, match=r'run: ALTER TABLE "sales"."orders_by_id" ADD'):
        run(tmp_path, outputs)
    place.execute("ALTER TABLE sales.orders_by_id ADD _tidelog_version bigint", "theirs")
    run(tmp_path, outputs)
    found = place.execute("SELECT key, title FROM sales.orders_by_id ORDER BY 1", "theirs")
    assert found == [(1, "v1"), (3, "v3")]
