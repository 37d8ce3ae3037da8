"""Where a pipeline starts Spark only when it needs it, Iceberg's library runs in a Java process of
its own.
"""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from tests.integration.iceberg_catalogs.test_idle import CONFIG
from tests.integration.spark.orders import orders
from tests.support.build_log import BuiltLog
from tests.support.iceberg_readers import by_duckdb
from tests.support.pipeline_process import Delivering

from tidelog.errors import OutputError, TableLeftOutError, UsageError
from tidelog.model.schema import TableName
from tidelog.outputs.lake.iceberg.catalog import IcebergCatalog
from tidelog.outputs.lake.iceberg.output import IcebergOutput
from tidelog.outputs.lake.java_libraries import hadoop_settings, start_java
from tidelog.spark.sessions.jars import iceberg_jars
from tidelog.spark.sessions.local import DriverTasks, LocalSession

pytestmark = [pytest.mark.spark, pytest.mark.integration, pytest.mark.timeout(300)]


def rows(directory: Path) -> list[tuple[int, str]]:
    folder = directory / "lake" / "public" / "orders" / "metadata"
    try:
        hint = (folder / "version-hint.text").read_text().strip()
        found = by_duckdb(str(folder / f"v{hint}.metadata.json"))
    except OSError:  # not made yet, or just replaced
        return []
    return [(row["id"], row["name"]) for row in found]


def library_of(process: Delivering) -> list[int]:
    """The Java processes of a pipeline that run Iceberg's library, and not Spark."""
    return [pid for pid in process.processes if b"\0py4j.GatewayServer\0" in _command(pid)]


def _command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def wait_for(held: Callable[[], bool], process: Delivering) -> None:
    deadline = time.monotonic() + 120
    while not held():
        assert process.code is None, process.said[-3000:]
        assert time.monotonic() < deadline, process.said[-3000:]
        time.sleep(0.2)


def test_a_java_process_that_was_killed_is_started_again(tmp_path: Path) -> None:
    built = BuiltLog(tmp_path / "log")
    table = orders(built)
    (tmp_path / "tidelog.yaml").write_text(CONFIG)
    process = Delivering(tmp_path / "tidelog.yaml", tmp_path / "said.txt")
    try:
        wait_for(lambda: len(rows(tmp_path)) == 4, process)
        (library,) = library_of(process)
        os.kill(library, signal.SIGKILL)
        built.update(table, "1", "changed", "2.5")
        built.delete(table, "2")
        built.flush()
        expected = [(0, "n0"), (1, "changed"), (3, "n3")]
        wait_for(lambda: rows(tmp_path) == expected, process)
        assert library_of(process) != [library]
        assert "Traceback" not in process.said
    finally:
        process.close()


def test_options_of_sparks_jvm_that_two_cannot_have_are_left_to_it() -> None:
    options = "-XX:+UseG1GC -Dcom.sun.management.jmxremote.port=1 -Dtidelog.test=yes"
    settings = {"spark.driver.extraJavaOptions": options}
    gateway, process = start_java(settings, iceberg_jars())
    try:
        assert gateway.jvm.java.lang.System.getProperty("tidelog.test") == "yes"
        for number in (signal.SIGTERM, signal.SIGINT):  # they end the pipeline after its batch
            process.send_signal(number)
        time.sleep(0.5)
        assert gateway.jvm.java.lang.Math.abs(-7) == 7
    finally:
        process.kill()
        process.wait()
    with pytest.raises(OutputError, match="Java does not start"):
        start_java({}, [], ["-XX:NoSuchOption"])


def test_a_java_process_is_used_again_after_several_others(tmp_path: Path) -> None:
    """py4j knows methods by the names of their classes: one of a name is right in a JVM."""
    started = [start_java({}, iceberg_jars()) for _ in range(3)]
    try:
        for gateway, _ in [*started, started[0]]:
            catalog = {"type": "hadoop", "warehouse": str(tmp_path)}
            opened = IcebergCatalog(gateway, hadoop_settings(gateway, {}), "lake", catalog)
            assert opened.load(("public", "t")) is None
    finally:
        for _, process in started:
            process.kill()
            process.wait()


def test_only_metadata_that_cannot_be_parsed_leave_a_table_out() -> None:
    """Others also raise IllegalArgumentException, as of a class that is missing."""
    gateway, process = start_java({}, iceberg_jars())
    answers: dict[str, Any] = {"/v1/config": {"defaults": {}, "overrides": {}}}

    class Answers(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(json.dumps(answers[self.path.partition("?")[0]]).encode())

    with ThreadingHTTPServer(("127.0.0.1", 0), Answers) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            api = gateway.jvm.org.apache.iceberg
            spec = api.PartitionSpec.unpartitioned()
            schema = api.SchemaParser.fromJson('{"type": "struct", "fields": []}')
            made = api.TableMetadata.newTableMetadata(schema, spec, "/t", {})
            metadata = json.loads(api.TableMetadataParser.toJson(made))
            told = {"metadata-location": "/t/m.json", "metadata": metadata, "config": {}}
            newer = {**told, "metadata": {**metadata, "format-version": 9}}
            elsewhere = {**told, "config": {"io-impl": "no.such.FileIO"}}
            for name, answer in {"whole": told, "newer": newer, "elsewhere": elsewhere}.items():
                answers[f"/v1/namespaces/public/tables/{name}"] = answer
            properties = {"type": "rest", "uri": f"http://127.0.0.1:{server.server_port}"}
            catalog = IcebergCatalog(gateway, hadoop_settings(gateway, {}), "lake", properties)
            assert catalog.load(("public", "whole")) is not None
            with pytest.raises(TableLeftOutError, match="metadata that Iceberg's library can't"):
                catalog.load(("public", "newer"))
            with pytest.raises(UsageError, match=r"Spark has no class no\.such\.FileIO"):
                catalog.load(("public", "elsewhere"))
        finally:
            server.shutdown()
            process.kill()
            process.wait()


def test_tables_are_opened_again_whatever_is_asked_first(tmp_path: Path) -> None:
    built = BuiltLog(tmp_path / "log")
    orders(built)
    never = LocalSession(lambda: pytest.fail("Spark starts"), lambda _: None, 1, DriverTasks(1))
    catalog = {"type": "hadoop", "warehouse": str(tmp_path / "lake")}
    output = IcebergOutput(never, str(tmp_path / "log"), catalog)
    output.prepare(built.log.generation)
    table = TableName("public", "orders")
    target = output.table_of(built.log.schemas.versions(table)[-1])
    for ask in (
        lambda: output.committed(table),
        lambda: output.take_again(lambda _: None),
        lambda: output.replace_dropped(["public.orders"], lambda _: None),
        lambda: output.prepare(built.log.generation),
        output.keyless_tables,
        lambda: output.table_of(target.schema),
        lambda: output.columns(table),
        lambda: output.row_sources(target, (None, None)),
    ):
        assert output._java is not None
        assert output._java.process is not None
        output._java.process.kill()
        output._java.process.wait()
        ask()
        assert output.committed(table) is None
    output.close()


def test_a_session_that_has_the_library_needs_no_download(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    built = BuiltLog(tmp_path / "log")
    orders(built)
    monkeypatch.setattr(
        "tidelog.outputs.lake.iceberg.output.iceberg_jars", lambda: pytest.fail("a download")
    )
    catalog = {"type": "hadoop", "warehouse": str(tmp_path / "lake")}
    output = IcebergOutput(spark, str(tmp_path / "log"), catalog)
    output.prepare(built.log.generation)
    assert output.committed(TableName("public", "orders")) is None
    output.close()
