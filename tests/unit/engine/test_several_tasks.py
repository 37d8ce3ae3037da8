"""What tasks of one engine share, and what they must not."""

from __future__ import annotations

import json
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.support.build_log import SOURCE, BuiltLog
from tests.support.engines import (
    COLUMNS,
    Gates,
    Tasks,
    committed,
    engine,
    orders_log,
    running,
    until,
)

from tidelog.app.async_engine.steps import FormatSerializer
from tidelog.engine.events import Events
from tidelog.errors import ConfigError


class Own:
    """A processor of a program, which marks what it was given."""

    def initialize(self, service: Any, transforms: Any, serializer: Any, committer: Any) -> None:
        del service, transforms, serializer
        self.committer = committer

    def process_records(self, records: Events) -> None:
        self.committer.mark_processed(records)
        self.committer.mark_batch_finished()


def two(path: Path) -> Tasks:
    for name in ("a", "b"):
        orders_log(path / name, range(5))
    return Tasks(*(Gates(path / name, name) for name in ("a", "b")))


def test_a_processor_marks_for_its_own_task_alone(tmp_path: Path) -> None:
    """One object for two would mark the records of one as the other's."""
    with running(engine(two(tmp_path), record_processor=Own())) as run:
        assert isinstance(run.join(), ConfigError)
    with running(engine(two(tmp_path / "again"), record_processor=Own)):
        until(lambda: committed(tmp_path / "again" / "a", "a"))
        until(lambda: committed(tmp_path / "again" / "b", "b"))


@pytest.mark.parametrize("columns", [COLUMNS, {"id": "int64", "price": "decimal(10,2)"}])
def test_messages_are_of_their_own_database(tmp_path: Path, columns: dict[str, str]) -> None:
    """Event logs number their schemas each from one."""
    orders_log(tmp_path / "a", range(3))
    other = BuiltLog(tmp_path / "b", source=replace(SOURCE, database="billing"))
    other.insert(other.table("public.bills", columns), "7", "1.50")
    other.flush()
    seen: list[tuple[str, str, str | None]] = []
    lock = threading.Lock()

    def consume(message: Any) -> None:
        source = json.loads(message.value)["source"]
        with lock:
            seen.append((source["db"], source["table"], message.topic))

    tasks = Tasks(Gates(tmp_path / "a", "a"), Gates(tmp_path / "b", "b"))
    core = engine(tasks, consumer=consume, serializer=FormatSerializer("debezium"))
    with running(core) as run:
        until(lambda: len(seen) == 4 or run.error)
    assert run.error is None
    assert {(database, table) for database, table, _ in seen} == {
        ("shop", "orders"), ("billing", "bills"),
    }  # fmt: skip
    assert all(topic and topic.endswith(table) for _, table, topic in seen)
