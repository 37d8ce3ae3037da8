"""Event log, state, checkpoint, a lake and files on a store other than S3: Azure and GCS by their
emulators; of HDFS what may be there.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hdfs_native
import obstore
import pyarrow.dataset as ds
import pytest
from obstore.store import from_url
from tests.support.azure import AzureServer
from tests.support.build_log import BuiltLog
from tests.support.delta_readers import by_duckdb
from tests.support.gcs import GcsServer

pytestmark = [
    pytest.mark.spark, pytest.mark.integration, pytest.mark.thorough, pytest.mark.timeout(1500)
]  # fmt: skip


def object_store_files(server: AzureServer | GcsServer, prefix: str, to: Path) -> Path:
    """What is below a prefix, as files of this machine."""
    options: Any = dict(server.options)
    allowed: Any = {"allow_http": bool(options.pop("allow_http"))}
    store = from_url(server.url(prefix), config=options, client_options=allowed)
    for each in (meta for part in obstore.list(store) for meta in part):
        target = to / each["path"]
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(bytes(obstore.get(store, each["path"]).bytes()))
    return to


def hdfs_files(name_node: str, folder: str, to: Path) -> Path:
    """What is in a folder, as files of this machine."""
    client = hdfs_native.Client(name_node)
    for each in client.list_status(folder, recursive=True):
        if not each.isdir:
            target = to / each.path.removeprefix(f"{folder}/")
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(client.read(each.path).read())
    return to


def check(
    tmp_path: Path,
    document: dict[str, Any],
    files_of: Callable[[str, Path], Path],
) -> None:
    """Run pipelines over a log that grows, and read what they have written."""
    built = BuiltLog(document["log"]["path"])
    table = built.table("public.t", {"id": "int64", "v": "text"})
    (tmp_path / "tidelog.yaml").write_text(json.dumps(document))

    def run() -> None:
        built.flush()
        done = subprocess.run(
            [sys.executable, "-m", "tidelog", "pipeline", "--once", str(tmp_path / "tidelog.yaml")],
            capture_output=True,
            text=True,
            timeout=900,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr

    def found() -> tuple[list[tuple[int, str]], list[str]]:
        for name in ("lake", "files"):
            shutil.rmtree(tmp_path / name, ignore_errors=True)
        lake = files_of("lake", tmp_path / "lake") / "public/t"
        rows = [(each["id"], each["v"]) for each in by_duckdb(str(lake)).to_pylist()]
        files = ds.dataset(files_of("files", tmp_path / "files"), partitioning="hive")
        return rows, sorted(files.to_table(["op"])["op"].to_pylist())

    for key in range(1, 51):
        built.insert(table, str(key), "new")
    run()
    assert found() == ([(key, "new") for key in range(1, 51)], ["c"] * 50)
    built.update(table, "7", "changed")
    built.delete(table, "9")
    run()
    after = [(key, "changed" if key == 7 else "new") for key in range(1, 51) if key != 9]
    assert found() == (after, sorted(["c"] * 50 + ["u", "d"]))


def outputs(place: str, options: dict[str, str]) -> list[dict[str, Any]]:
    return [
        {"kind": kind, "name": name, "path": f"{place}/{name}", "storage_options": options}
        for kind, name in (("delta", "lake"), ("files", "files"))
    ]


@pytest.mark.parametrize("store", ["azure", "gcs"])
def test_all_is_on_an_object_store(
    store: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    server = request.getfixturevalue(store)
    name = f"all-{os.getpid()}"
    place = server.url(name)
    document = {
        "source": {"kind": "postgres", "url": "postgresql://u@h/d"},
        "log": {"path": f"{place}/log", "storage_options": server.options},
        "state": {"url": "log:"},
        "pipeline": {"checkpoint": f"{place}/checkpoint", "master": "local[2]"},
        "outputs": outputs(place, server.options),
    }
    check(tmp_path, document, lambda what, to: object_store_files(server, f"{name}/{what}", to))


def test_outputs_are_on_hdfs(hdfs: str, tmp_path: Path) -> None:
    document = {
        "source": {"kind": "postgres", "url": "postgresql://u@h/d"},
        "log": {"path": str(tmp_path / "log")},
        "state": {"url": f"sqlite:///{tmp_path}/state.db"},
        "pipeline": {"checkpoint": str(tmp_path / "checkpoint"), "master": "local[2]"},
        "outputs": outputs(f"{hdfs}/user/tidelog/all", {}),
    }
    check(tmp_path, document, lambda what, to: hdfs_files(hdfs, f"/user/tidelog/all/{what}", to))
