"""A receiver for each test, and tasks that send to it without Spark."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.integration.spark.conftest import built, spark  # noqa: F401
from tests.support.http_receiver import HttpReceiver
from tests.support.output_options import body as request_body
from tests.support.output_options import endpoint as request_endpoint

from tidelog.model.schema import TableName, TableSchema
from tidelog.outputs.formatters.messages import HEADERS
from tidelog.outputs.http.requests import Body
from tidelog.outputs.http.writer import HttpWriter
from tidelog.ports import Rejection, SourceId, TargetTable, TaskFence, WriteTask

Message = tuple[int | None, int, str]  # key (None: a truncate), version, text


@pytest.fixture
def api(tmp_path: Path) -> Iterator[HttpReceiver]:
    made = HttpReceiver(tmp_path / "received.db")
    made.start()
    yield made
    made.kill()


def table(name: str = "public.t") -> TargetTable:
    source = TableName.parse(name)
    schema = TableSchema(source, 1, (), (), (), "d", "pgoutput")
    columns = pa.schema([("id", pa.int64())])
    return TargetTable(source, name, schema, columns, ("id",), SourceId("postgres", "7", "s", 1))


def batch(messages: Sequence[Message]) -> pa.RecordBatch:
    keys = [None if key is None else json.dumps({"id": key}).encode() for key, _, _ in messages]
    values = [json.dumps({"k": k, "v": v, "text": text}).encode() for k, v, text in messages]
    return pa.RecordBatch.from_pydict(
        {
            "key": pa.array(keys, pa.binary()),
            "value": pa.array(values, pa.binary()),
            "headers": pa.nulls(len(messages), HEADERS),
            "topic": ["public.t"] * len(messages),
            "version": pa.array([version for _, version, _ in messages], pa.int64()),
        }
    )


@dataclass
class Task:
    """One task's life, as `tidelog.outputs.base.tasks` leads it."""

    api: HttpReceiver
    body: Body = request_body(rows=3)  # noqa: RUF009
    lanes: int = 3
    total: bool = False
    keep_rejected: bool = False
    in_doubt: bool = False
    fence: TaskFence | None = None

    def send(self, *messages: Message, **endpoint: Any) -> list[Rejection]:
        return self.send_tables(("public.t", messages), **endpoint)

    def send_tables(
        self, *tables: tuple[str, Sequence[Message]], **endpoint: Any
    ) -> list[Rejection]:
        settings = {"timeout_s": 5.0, "retry_for_s": 5.0} | endpoint
        writer = HttpWriter(
            request_endpoint(f"{self.api.url}/events/{{table}}", **settings),
            self.body,
            lanes=self.lanes,
            total=self.total,
            keep_rejected=self.keep_rejected,
            in_doubt=self.in_doubt,
        )
        rejections: list[Rejection] = []
        writer.open(WriteTask("api", "g", 0, 1_000, 0, fence=self.fence))
        try:
            for name, messages in tables:
                for at in range(0, len(messages), 10):
                    rejections += writer.write(table(name), batch(messages[at : at + 10])) or ()
            rejections += writer.commit() or ()
        finally:
            writer.close()
        return rejections


@pytest.fixture
def task(api: HttpReceiver) -> Task:
    return Task(api)
