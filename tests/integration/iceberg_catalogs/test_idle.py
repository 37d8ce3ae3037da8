"""An Iceberg output with nothing to do is known without Java, unless anything may have changed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.integration.iceberg_catalogs.conftest import Delivered, change, written_output
from tests.integration.spark.orders import COLUMNS, orders
from tests.support.build_log import BuiltLog
from tests.support.iceberg_readers import by_duckdb
from tests.support.idle import is_idle

from tidelog.config import load_config
from tidelog.state.sqlite import SqliteState

pytestmark = [pytest.mark.spark, pytest.mark.integration, pytest.mark.timeout(300)]

CONFIG = """
source: {kind: postgres, url: 'postgresql://u@h/d'}
log: {path: log}
state: {url: 'sqlite:///state.db'}
outputs: [{kind: iceberg, path: lake}]
"""
LOADED = """
import sys
from tidelog.cli import main
try:
    main(["pipeline", *sys.argv[1:], "--once", "--json"])
except SystemExit as ended:
    print(ended.code, {"numba", "pyspark", "py4j"} & sys.modules.keys())
"""


class Place:
    """A pipeline that has delivered two batches into a catalog of files."""

    def __init__(self, path: Path) -> None:
        self.path, self.config = path, path / "tidelog.yaml"
        self.config.write_text(CONFIG)
        self.built = BuiltLog(path / "log")
        self.table = orders(self.built)
        self.metadata = path / "lake" / "public" / "orders" / "metadata"
        assert self.run().returncode == 0
        self.insert()
        assert self.run().returncode == 0

    def insert(self) -> None:
        self.built.insert(self.table, "9", "n9", "1.5")
        self.built.flush()

    def run(self, *, java: bool = True) -> subprocess.CompletedProcess[str]:
        away = {} if java else {"PATH": "/nowhere", "JAVA_HOME": "/nowhere"}
        command = [sys.executable, "-c", LOADED, str(self.config)]
        environment = {**os.environ, **away}
        return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=200)

    def is_idle(self) -> bool:
        return is_idle(load_config(self.config))

    @property
    def version(self) -> int:
        return int((self.metadata / "version-hint.text").read_text())

    def file(self, version: int) -> Path:
        return self.metadata / f"v{version}.metadata.json"

    def ids(self) -> list[int]:
        return sorted(row["id"] for row in by_duckdb(str(self.file(self.version))))


def roll_back(metadata: Path) -> None:
    """A commit of somebody else: readers see the first snapshot again."""
    hint = metadata / "version-hint.text"
    now = int(hint.read_text())
    found = json.loads((metadata / f"v{now}.metadata.json").read_text())
    first = min(found["snapshots"], key=lambda each: each["sequence-number"])["snapshot-id"]
    found["current-snapshot-id"] = found["refs"]["main"]["snapshot-id"] = first
    (metadata / f"v{now + 1}.metadata.json").write_text(json.dumps(found))
    hint.write_text(str(now + 1))


def test_a_run_with_nothing_to_do_needs_no_java_until_somebody_commits(tmp_path: Path) -> None:
    place = Place(tmp_path)
    done = place.run(java=False)
    assert done.stdout.endswith("0 set()\n"), done.stderr
    roll_back(place.metadata)
    assert place.ids() == [0, 1, 2, 3]
    done = place.run(java=False)
    assert "needs Java" in done.stderr
    assert place.run().returncode == 0
    assert place.ids() == [0, 1, 2, 3, 9]
    assert place.run(java=False).stdout.endswith("0 set()\n")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    return Place(tmp_path_factory.mktemp("idle"))


def moved(path: Path) -> Callable[[], object]:
    away = path.with_name(f"{path.name}.away")
    path.rename(away)
    return lambda: away.rename(path)


def replaced(path: Path) -> Callable[[], object]:
    back = moved(path)
    path.write_bytes(path.with_name(f"{path.name}.away").read_bytes())
    return back


def created(path: Path) -> Callable[[], object]:
    path.write_text("")
    return path.unlink


def configured(place: Place, given: str) -> Callable[[], object]:
    place.config.write_text(CONFIG.replace("path: lake", given))
    return lambda: place.config.write_text(CONFIG)


@pytest.mark.parametrize(
    "change",
    [
        lambda place: created(place.file(place.version + 1)),
        lambda place: created(place.metadata / f"v{place.version + 1}.gz.metadata.json"),
        lambda place: moved(place.file(place.version)),
        lambda place: moved(place.metadata.parent),
        lambda place: replaced(place.file(place.version)),
        lambda place: replaced(place.metadata / "version-hint.text"),
        lambda place: configured(place, "path: lake, deletes: soft"),
        lambda place: configured(place, "catalog: {type: hadoop, warehouse: /nowhere}"),
    ],
    ids=["commit", "zipped", "lost", "dropped", "other", "hint", "settings", "elsewhere"],
)
def test_what_changed_is_looked_at_with_java(
    place: Place, change: Callable[[Place], Callable[[], object]]
) -> None:
    assert place.is_idle()
    undo = change(place)
    assert not place.is_idle()
    undo()
    assert place.is_idle()


def test_what_came_later_is_delivered(place: Place) -> None:
    """The last one here: a log does not shrink."""
    place.built.table("public.orders", {**COLUMNS, "more": "int32"})
    assert not place.is_idle()
    place.insert()
    assert not place.is_idle()


def test_rows_that_were_taken_back_meanwhile_are_something_to_do(
    delivered: Delivered, built: BuiltLog, tmp_path: Path
) -> None:
    lake, state = tmp_path / "lake", SqliteState(f"sqlite:///{tmp_path / 'state.db'}")
    catalog = {"type": "hadoop", "warehouse": str(lake)}
    with written_output(delivered, catalog, state=state, settings="") as output:
        change(delivered)
        delivered.write(output)
        roll_back(lake / "public" / "orders" / "metadata")
        output.finish(threading.Event())
        assert not state.keys("idle/")
        output.prepare(built.log.generation)  # it writes them again
        output.finish(threading.Event())
        assert state.keys("idle/")
