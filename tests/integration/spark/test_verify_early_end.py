"""What `tidelog verify` has found is kept, whatever ends it early."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psycopg
import pytest
from tests.support.postgres import PostgresServer

import tidelog
from tidelog import app
from tidelog.config import Config, load_config
from tidelog.errors import UsageError
from tidelog.spark.sessions.errors import Py4JJavaError, describe_error

pytestmark = [pytest.mark.spark, pytest.mark.integration]


def test_an_error_or_ctrl_c_keeps_the_results_of_the_other_tables(
    spark: Any, postgres16: PostgresServer, tmp_path: Path
) -> None:
    dsn = postgres16.create_database("early")
    with psycopg.connect(dsn, autocommit=True) as sql:
        for table in "abc":
            sql.execute(f"CREATE TABLE {table} (id int PRIMARY KEY)".encode())
            sql.execute(f"INSERT INTO {table} VALUES (1), (2)".encode())
        sql.execute("CREATE TABLE d (id int)")
    file = tmp_path / "tidelog.yaml"
    file.write_text(
        f"source: {{kind: postgres, url: '{dsn}', slot: early}}\n"
        f"log: {{path: {tmp_path}/log}}\n"
        f"state: {{url: 'sqlite:///{tmp_path}/state.db'}}\n"
        f"outputs: [{{kind: delta, path: {tmp_path}/lake}}]\n"
    )
    config = load_config(file)
    try:
        with tidelog.CaptureGroup([config], pipelines=False):
            wait_for_dump(config)
            app.run_pipeline(config, once=True, stop_event=threading.Event())
            report = app.verify(config).to_dict()
            assert report["equal"]
            assert report["not_compared"] == ["public.d in delta (no key)"]
            refused = app.verify(without_key_of_c(file)).to_dict()
            assert not refused["equal"]
            assert {each["table"] for each in refused["tables"]} == {"public.a", "public.b"}
            [of_c] = [each for each in refused["not_compared"] if each.startswith("public.c")]
            assert of_c.startswith("public.c in delta (not captured: ")
            app.verify(config)
            before = app.status(config).document["verified"]
            with pytest.raises(UsageError, match=r"nothing was compared: public.d in delta \(no"):
                app.verify(config, tables=["public.d"])
            assert app.status(config).document["verified"] == before
            ended_by_ctrl_c(config)
            for rows in (tmp_path / "lake" / "public" / "b").rglob("*.parquet"):
                rows.unlink()
            report = app.verify(config).to_dict()
    finally:
        postgres16.drop_database("early")
    found = {table["table"]: (table["equal"], table["note"]) for table in report["tables"]}
    assert found["public.a"] == found["public.c"] == (True, "")
    equal, note = found["public.b"]
    assert not equal
    assert note.startswith("not compared: ")


HEEDED = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"
"""Python ignores Ctrl-C where its parent does, as a job in a shell's background does."""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_with_a_list_of_what_was_not_compared(
    postgres16: PostgresServer, tmp_path: Path, number: signal.Signals
) -> None:
    """While it waits for a pipeline that nobody runs."""
    dsn = postgres16.create_database("ended")
    postgres16.execute("CREATE TABLE a (id int PRIMARY KEY); INSERT INTO a VALUES (1)", "ended")
    file = tmp_path / "tidelog.yaml"
    file.write_text(
        f"source: {{kind: postgres, url: '{dsn}', slot: ended}}\n"
        f"log: {{path: {tmp_path}/log}}\n"
        f"state: {{url: 'sqlite:///{tmp_path}/state.db'}}\n"
        f"outputs: [{{kind: delta, path: {tmp_path}/lake}}]\n"
    )
    config = load_config(file)
    program = [sys.executable, "-c", f"{HEEDED}; from tidelog.cli import main; main()"]
    try:
        with tidelog.CaptureGroup([config], pipelines=False):
            wait_for_dump(config)
            verify = subprocess.Popen(
                [*program, "verify", str(file)],
                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            )  # fmt: skip
            assert verify.stderr is not None
            for line in verify.stderr:
                if "waits for the output" in line:
                    break
            verify.send_signal(number)
            printed, _ = verify.communicate(timeout=30)
    finally:
        postgres16.drop_database("ended")
    assert (verify.returncode, printed) == (
        130,
        "equal: no\ntables: -\n"
        'not_compared: copy="public.a in delta" reason="verify ended first"\n',
    )


def test_an_error_of_java_is_named_by_its_classes_without_its_text(spark: Any) -> None:
    with pytest.raises(Py4JJavaError) as raised:
        spark._jvm.java.io.FileInputStream("/a value")
    text = describe_error(raised.value)
    assert text.startswith("Py4JJavaError (FileNotFoundException); run it with `tidelog --log-lev")
    assert "a value" not in text


def without_key_of_c(file: Path) -> Config:
    """A configuration with which the table c is refused."""
    refusing = file.with_name("refusing.yaml")
    refusing.write_text(file.read_text().replace("slot:", "exclude_columns: [public.c.id], slot:"))
    return load_config(refusing)


def ended_by_ctrl_c(config: Config) -> None:
    """After the first table has its result."""
    stages: list[str] = []
    counts: list[int] = []

    def interrupt(document: Mapping[str, Any]) -> None:
        counts.extend([document["done"]] if "done" in document else [])
        stages.append(str(document.get("stage", "")))
        if stages[-1].endswith(" rows summed up on both sides"):
            raise KeyboardInterrupt

    partial: list[Any] = []
    with pytest.raises(KeyboardInterrupt):
        app.verify(config, on_progress=interrupt, on_partial=partial.append)
    [report] = [each.to_dict() for each in partial]
    assert [(each["table"], each["equal"]) for each in report["tables"]] == [("public.a", True)]
    assert report["not_compared"] == [f"public.{table} in delta" for table in "bcd"]
    assert not report["equal"]
    assert counts
    assert counts == sorted(counts), "progress counted backward"


def wait_for_dump(config: Config) -> None:
    deadline = time.monotonic() + 120
    while not any(d["status"] == "completed" for d in app.status(config).document.get("dumps", ())):
        assert time.monotonic() < deadline
        time.sleep(0.1)
