"""A writer without put-if-absent replaces a commit of ours on S3, once there is a newer one: the
table is left out, also by a pipeline that has started since, until what its message says is done.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from tests.support.delta_readers import by_duckdb
from tests.support.pipeline_process import Delivering
from tests.support.s3 import S3Server

import tidelog
from tidelog import app
from tidelog.config import load_config
from tidelog.outputs.base.stores import open_file_store
from tidelog.spark import output_loop

pytestmark = [pytest.mark.spark, pytest.mark.integration, pytest.mark.timeout(600)]

SQL = """
CREATE TABLE t (id int PRIMARY KEY, v text);
INSERT INTO t SELECT i, 'first' FROM generate_series(1, 100) i;
"""


class Shop:
    """A source that is captured, and its copy on S3."""

    def __init__(self, dsn: str, directory: Path, s3: S3Server) -> None:
        self.directory = directory
        self.sql = psycopg.connect(dsn, autocommit=True)
        self.sql.execute(SQL)
        name = directory.name
        self.place = s3.url(name)
        self.files, self.log = s3.files(name), s3.files(name) / "public/t/_delta_log"
        output = {"kind": "delta", "path": self.place, "storage_options": s3.options}
        source = {"kind": "postgres", "url": dsn, "slot": dsn.rpartition("/")[2]}
        self.file = directory / "tidelog.yaml"
        self.file.write_text(
            f"source: {json.dumps(source)}\nlog: {{path: log}}\ncapture: {{flush_ms: 10}}\n"
            "state: {url: 'sqlite:///state.db'}\npipeline: {trigger_ms: 50, master: 'local[2]'}\n"
            f"outputs: {json.dumps([output])}\n"
        )
        self.config = load_config(self.file, {})
        self._keys = iter(range(1001, 2000))

    def insert(self) -> None:
        self.sql.execute("INSERT INTO t VALUES (%s, 'new')", (next(self._keys),))
        self.sql.execute("UPDATE t SET v = v || '.' WHERE id = 1")

    def is_equal(self) -> bool:
        if not any(self.log.glob("*.json")):
            return False
        copy = [(row["id"], row["v"]) for row in by_duckdb(f"{self.files}/public/t").to_pylist()]
        return copy == self.sql.execute("SELECT id, v FROM t ORDER BY id").fetchall()

    def newest(self) -> int:
        return max(int(each.stem) for each in self.log.glob("*.json"))

    def left_out(self) -> str:
        """Why the table is, as ``tidelog status`` has it."""
        (output,) = app.status(self.config).document["outputs"]
        refused: dict[str, str] = output.get("refused", {})
        return refused.get("public.t", "")


@pytest.fixture
def shop(database: str, tmp_path: Path, s3: S3Server) -> Iterator[Shop]:
    made = Shop(database, tmp_path, s3)
    with tidelog.Capture(made.config):
        yield made
    made.sql.close()


def wait_for(what: Callable[[], object], timeout_s: float = 120) -> None:
    deadline = time.monotonic() + timeout_s
    while not what():
        assert time.monotonic() < deadline
        time.sleep(0.1)


@pytest.mark.parametrize(
    "when", ["after a kill", pytest.param("while it runs", marks=pytest.mark.thorough)]
)
def test_a_replaced_commit_is_found_and_the_message_s_way_gives_an_equal_copy(
    spark: Any, shop: Shop, when: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert spark  # it runs: each start of the pipeline uses it
    monkeypatch.setattr(output_loop, "_TAKE_AGAIN_S", 1.0)
    replaced = -1

    def replace() -> None:
        """As a writer does whose put does not ask whether there is one."""
        nonlocal replaced
        replaced = shop.newest() - 1
        theirs = {"commitInfo": {"timestamp": 1, "operation": "WRITE", "engineInfo": "Theirs"}}
        data = json.dumps(theirs).encode()
        open_file_store(shop.place).put(f"public/t/_delta_log/{replaced:020d}.json", data)

    with tidelog.Pipeline(shop.config):
        wait_for(shop.is_equal)
        if when == "while it runs":
            for _ in range(3):
                shop.insert()
                wait_for(shop.is_equal)
            replace()
            while not shop.left_out():  # with the next checkpoint
                shop.insert()
                time.sleep(0.5)
                assert shop.newest() < replaced + 30
    if when == "after a kill":
        process = Delivering(
            shop.file, shop.directory / "pipeline.log", "delta.commit.after:kill:3"
        )
        try:
            while process.code is None:
                shop.insert()
                time.sleep(0.2)
        finally:
            process.close()
        assert process.code == -9, process.said
        replace()
    with tidelog.Pipeline(shop.config):
        wait_for(shop.left_out)
    with tidelog.Pipeline(shop.config):  # it is still so
        shop.insert()
        time.sleep(3)
        why = shop.left_out()
        assert f"version {replaced} was replaced by another writer's commit" in why
        assert not shop.is_equal()
        way = re.search(r"Then (.*)$", why)
        assert way is not None
        assert way[1] == "move the table away: it is created and dumped again."
        shop.log.parent.rename(shop.files / "away")
        wait_for(shop.is_equal)
        wait_for(lambda: not shop.left_out())
        shop.insert()
        wait_for(shop.is_equal)
