"""Avro in Kafka, as readers find it who know the brokers and the schema registry alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import httpx
import pytest
from confluent_kafka import Consumer, Message, TopicPartition
from tests.support.avro_messages import decoded
from tests.support.build_log import BuiltLog
from tests.support.kafka import KafkaServer

from tidelog.app.base.outputs import make_output
from tidelog.app.web.http_server import RestServer
from tidelog.config import RestSection, parse_config
from tidelog.outputs.base.sections import StepSection
from tidelog.spark.datasource.segment_rows import batch_of

pytestmark = [pytest.mark.spark, pytest.mark.integration]

TOKEN = "hunter2-token"
COLUMNS = {"id": "int64", "price": "decimal(10,2)", "seen": "timestamptz"}


def bring(
    spark: Any, built: BuiltLog, path: Path, kafka: KafkaServer, **options: Any
) -> dict[str, str]:
    """All of the log, by an output that remembers nothing; returns the tables left out."""
    text = f"""
source: {{kind: postgres, url: "postgresql://t@localhost/shop", tables: ["public.*"]}}
log: {{path: {built.path}}}
state: {{url: "sqlite:///{path / "state.db"}"}}
outputs:
  - kind: kafka
    servers: {kafka.servers}
    topic: "{path.name}-{{name}}"
    format: avro
    partitions: 2
"""
    config = parse_config(text, "test", path, {})
    section = config.outputs[0].model_copy(update=options)
    (path / "state.db").unlink(missing_ok=True)
    output = make_output(config, section, spark)
    try:
        output.prepare(built.log.generation)
        output.write(batch_of(built.log, built.log.head_offset, built.log.latest_offset()))
        return dict(output.left_out_tables())
    finally:
        output.close()


def read(kafka: KafkaServer, topic: str) -> list[Message]:
    """All of a topic, in the order of versions."""
    settings = {"bootstrap.servers": kafka.servers, "group.id": "g", "enable.auto.commit": False}
    consumer = Consumer(settings | {"enable.partition.eof": True})
    found: list[Message] = []
    try:
        for partition in consumer.list_topics(topic, timeout=20).topics[topic].partitions:
            consumer.assign([TopicPartition(topic, partition, 0)])
            while True:
                message = consumer.poll(20)
                assert message is not None, "the broker is silent"
                if message.error() is not None:
                    break
                found.append(message)
    finally:
        consumer.close()
    return sorted(found, key=lambda m: int(dict(m.headers() or [])["tidelog-version"]))


@pytest.fixture
def built(tmp_path: Path) -> BuiltLog:
    return BuiltLog(tmp_path / "log")


@pytest.fixture
def registry(tmp_path: Path, built: BuiltLog) -> Iterator[httpx.Client]:
    rest = RestSection.model_validate({"port": 0, "token": TOKEN})
    server = RestServer(rest, lambda: None, built.path)
    server.start()
    try:
        with httpx.Client(
            base_url=server.url or "", auth=("reader", TOKEN), trust_env=False
        ) as client:
            yield client
    finally:
        server.close()


@pytest.fixture
def schema_of(registry: httpx.Client) -> Callable[[int], str]:
    def ask(schema_id: int) -> str:
        answer = registry.get(f"/schemas/ids/{schema_id}").raise_for_status()
        text: str = answer.json()["schema"]
        return text

    return ask


def test_messages_are_read_by_the_schemas_that_the_interface_serves(
    spark: Any,
    kafka: KafkaServer,
    built: BuiltLog,
    tmp_path: Path,
    registry: httpx.Client,
    schema_of: Callable[[int], str],
) -> None:
    topic = f"{tmp_path.name}-t"
    table = built.table("public.t", COLUMNS)
    built.insert(table, "1", "12.50", "2026-01-31 12:00:00+00")
    built.delete(table, "1")
    built.flush()
    bring(spark, built, tmp_path, kafka)
    wider = built.table("public.t", {**COLUMNS, "note": "text"})
    built.insert(wider, "1", "-0.01", None, "back")
    built.flush()
    bring(spark, built, tmp_path, kafka)
    messages = read(kafka, topic)
    assert {message.partition() for message in messages} == {messages[0].partition()}
    assert {message.key() for message in messages} == {messages[0].key()}
    assert decoded(messages[0].key(), schema_of) == {"id": 1}
    values = [decoded(message.value(), schema_of) for message in messages]
    assert [value and value["op"] for value in values] == ["c", "d", None, "c"]
    assert str(values[0]["after"]["price"]) == "12.50"
    assert values[0]["after"]["seen"].isoformat() == "2026-01-31T12:00:00+00:00"
    assert values[1]["before"] == {"id": 1, "price": None, "seen": None}
    assert values[3]["after"]["note"] == "back"
    assert registry.get("/subjects").json() == [f"{topic}-key", f"{topic}-value"]
    assert registry.get(f"/subjects/{topic}-value/versions").json() == [1, 2]
    assert registry.get(f"/subjects/{topic}-key/versions").json() == [1]


def test_steps_change_what_schemas_say(
    spark: Any,
    kafka: KafkaServer,
    built: BuiltLog,
    tmp_path: Path,
    schema_of: Callable[[int], str],
) -> None:
    """A masked column is a text whatever the source's type; others keep theirs."""
    table = built.table("public.t", {"id": "int64", "price": "decimal(10,2)", "code": "uuid"})
    unchanged = "0f0f0f0f-0000-4000-8000-00000000000a"
    built.insert(table, "1", "12.50", unchanged)
    built.delete(table, "1")
    built.flush()
    steps = [
        StepSection(rename={"id": "number"}),
        StepSection(compute={"double": "price * 2", "copy": "code"}),
        StepSection(mask={"code": "***"}),
    ]
    bring(spark, built, tmp_path, kafka, steps=steps)
    first, second, tombstone = read(kafka, f"{tmp_path.name}-t")
    assert decoded(first.key(), schema_of) == {"number": 1}
    after = decoded(first.value(), schema_of)["after"]
    assert after == {
        "number": 1, "price": Decimal("12.50"), "code": "***", "double": 25, "copy": unchanged,
    }  # fmt: skip
    assert decoded(second.value(), schema_of)["before"]["number"] == 1
    assert tombstone.value() is None


def test_a_table_whose_columns_avro_can_not_have_is_left_out_alone(
    spark: Any, kafka: KafkaServer, built: BuiltLog, tmp_path: Path
) -> None:
    for number, name in enumerate("tu", 1):
        built.insert(built.table(f"public.{name}", COLUMNS, relation_id=number), "1", "1", None)
    built.flush()
    steps = [StepSection(compute={"span": "make_dt_interval(id)"}, tables=["public.t"])]
    refused = bring(spark, built, tmp_path, kafka, steps=steps)
    assert refused.keys() == {"public.t"}
    assert "column span of public.t is duration" in refused["public.t"]
    assert len(read(kafka, f"{tmp_path.name}-u")) == 1


def test_a_batch_that_comes_again_adds_nothing(
    spark: Any,
    kafka: KafkaServer,
    built: BuiltLog,
    tmp_path: Path,
    schema_of: Callable[[int], str],
) -> None:
    topic = f"{tmp_path.name}-t"
    table = built.table("public.t", COLUMNS)
    for number in range(20):
        built.insert(table, str(number), f"{number}.00", None)
    built.delete(table, "7")
    built.flush()
    for _ in range(2):
        bring(spark, built, tmp_path, kafka, format="avro_flat")
        found = [decoded(m.value(), schema_of) for m in read(kafka, topic)]
        assert len(found) == 22
        assert [value["id"] for value in found[:20]] == list(range(20))
    assert [value["__deleted"] for value in found[19:21]] == [False, True]
    assert found[21] is None
