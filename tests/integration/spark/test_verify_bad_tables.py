"""A table that can't be compared does not keep `tidelog verify` from comparing the others."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import psycopg
import pytest
from tests.support.postgres import PostgresServer

import tidelog
from tidelog import app
from tidelog.app import verification
from tidelog.config import Config, load_config
from tidelog.errors import TableLeftOutError

pytestmark = [pytest.mark.spark, pytest.mark.integration, pytest.mark.timeout(600)]


def configured(dsn: str, name: str, directory: Path, outputs: str) -> Config:
    file = directory / f"{name}.yaml"
    file.write_text(
        f"source: {{kind: postgres, url: '{dsn}', slot: {name}}}\n"
        f"log: {{path: {directory}/log}}\n"
        f"state: {{url: 'sqlite:///{directory}/state.db'}}\n"
        f"outputs: [{outputs}]\n"
    )
    return load_config(file)


def test_tables_that_an_output_refuses_and_that_are_altered_meanwhile(
    spark: Any, postgres16: PostgresServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dsn = postgres16.create_database("bad_tables")
    copies = postgres16.create_database("bad_tables_copy")
    sql = psycopg.connect(dsn, autocommit=True)
    for table in ("a", "altered", "z"):
        sql.execute(f"CREATE TABLE {table} (id int PRIMARY KEY, v int)".encode())
        sql.execute(f"INSERT INTO {table} VALUES (1, 1), (2, 2)".encode())
    sql.execute("CREATE TABLE renamed (id int PRIMARY KEY, w int); INSERT INTO renamed VALUES (1)")
    steps = "steps: [{rename: {v: w}, tables: [public.renamed]}]"
    config = configured(
        dsn,
        "bad_tables",
        tmp_path,
        f"{{kind: delta, path: {tmp_path}/lake, {steps}}}, "
        f"{{kind: postgres, url: '{copies}', {steps}, "
        "tables: [public.a, public.z, public.renamed]}",
    )
    try:
        with sql, tidelog.CaptureGroup([config], pipelines=False):
            wait_for(lambda: dumped(config))
            with contextlib.suppress(TableLeftOutError):
                app.run_pipeline(config, once=True, stop_event=threading.Event())
            of_altered = altering(sql)
            report = app.verify(config, on_progress=of_altered).to_dict()
            status = app.status(config)
            # Nobody captures or delivers from here on.
        monkeypatch.setattr(verification, "ABSENT_S", 0.3)
        monkeypatch.setattr(verification, "ABSENT_WAIT_S", 1.0)
        with psycopg.connect(dsn, autocommit=True) as later:
            later.execute("INSERT INTO a VALUES (3, 3)")
        told: list[Mapping[str, Any]] = []
        begun = time.monotonic()
        alone = app.verify(config, tables=["public.a"], on_progress=told.append).to_dict()
        took = time.monotonic() - begun
    finally:
        postgres16.drop_database("bad_tables")
        postgres16.drop_database("bad_tables_copy")
    found = {(each["output"], each["table"]): each for each in report["tables"]}
    for output in ("delta", "postgres"):
        for table in ("a", "z"):
            each = found[output, f"public.{table}"]
            assert (each["equal"], each["rows"], each["note"]) == (True, 2, ""), each
        refused = found[output, "public.renamed"]
        assert (refused["equal"], refused["left_out"]) == (False, True)
        assert refused["note"].startswith("the output leaves it out: "), refused
        assert "rename" in refused["note"]
    note = found["delta", "public.altered"]["note"]
    assert note.startswith("not compared: public.altered was altered while it was read"), note
    assert not report["equal"]
    assert status.document["verified"]["not_compared"] == ["public.altered in delta"]
    assert not status.document["verified"]["differ"]
    assert any(each.kind == "copy-not-compared" for each in status.overview.problems)
    assert took < 90, "it waited for a capture that does not run"
    stages = [step.get("stage", "") for step in told]
    assert any("no process runs: start `tidelog run" in stage for stage in stages), stages
    assert {each["equal"] for each in alone["tables"]} == {False}


def altering(sql: psycopg.Connection[Any]) -> Callable[[Mapping[str, Any]], None]:
    """Rename a column when the table is summed up: the SELECT of the sums and of rows fail."""

    def on_progress(step: Mapping[str, Any]) -> None:
        if (step.get("table"), step.get("stage")) == (
            "public.altered",
            "rows are summed up on both sides",
        ):
            sql.execute("ALTER TABLE altered RENAME v TO w")

    return on_progress


def test_changes_of_a_table_that_has_a_key_now(
    spark: Any, postgres16: PostgresServer, tmp_path: Path
) -> None:
    dsn = postgres16.create_database("keyed_now")
    with psycopg.connect(dsn, autocommit=True) as sql:
        sql.execute("CREATE TABLE t (id int); INSERT INTO t VALUES (1)")
        sql.execute("ALTER TABLE t REPLICA IDENTITY FULL")
        sql.execute("CREATE TABLE u (id int PRIMARY KEY); INSERT INTO u VALUES (1)")
    output = f"{{kind: delta, path: {tmp_path}/lake}}"
    config = configured(dsn, "keyed_now", tmp_path, output)
    try:
        with tidelog.CaptureGroup([config], pipelines=False):
            wait_for(lambda: dumped(config))
            app.run_pipeline(config, once=True, stop_event=threading.Event())
            with psycopg.connect(dsn, autocommit=True) as sql:
                sql.execute("ALTER TABLE t ADD PRIMARY KEY (id); INSERT INTO t VALUES (2)")
            time.sleep(3)
            app.run_pipeline(config, once=True, stop_event=threading.Event())
            report = app.verify(config).to_dict()
            for_people = app.status(config).document["verified"]
            spark.sql(f"DELETE FROM delta.`{tmp_path}/lake/public/u`")
            repaired = app.verify(config, tables=["public.u"], repair=True).to_dict()
    finally:
        postgres16.drop_database("keyed_now")
    found = {each["table"]: each for each in report["tables"]}
    assert found["public.u"]["equal"]
    note = found["public.t"]["note"]
    assert note.startswith("not compared: public.t has a key now, and output delta still"), note
    assert "move it away and run `tidelog dump" in note
    assert for_people["differ"] == []
    assert for_people["not_compared"] == ["public.t in delta"]
    assert not repaired["equal"]
    assert repaired["repaired"].startswith("public.u in delta: keys that differed are dumped")
    assert "run verify again" in repaired["repaired"]


def dumped(config: Config) -> bool:
    found = app.status(config).document.get("dumps") or ()
    return bool(found) and all(dump["status"] == "completed" for dump in found)


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)
