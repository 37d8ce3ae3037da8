"""Drivers, executors and brokers killed in the middle: what readers of the topics see."""

from __future__ import annotations

import itertools
import os
import random
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from tests.behaviours.outputs.kafka_topics import Read, check_order, read
from tests.support.build_log import BuiltLog
from tests.support.kafka import KafkaServer

from tidelog.errors import OutputError
from tidelog.outputs.base.writer import Delivery
from tidelog.outputs.formatters import formatter
from tidelog.outputs.kafka.output import KafkaOutput
from tidelog.outputs.kafka.writer import transactional_id
from tidelog.spark.datasource.segment_rows import batch_of
from tidelog.spark.formats.json_values import ValueModes
from tidelog.state.sqlite import SqliteState
from tidelog.system import failpoints

pytestmark = [pytest.mark.spark, pytest.mark.integration]

KEYS = 40


def fill(built: BuiltLog, changes: int, seed: int = 1) -> dict[str, list[int]]:
    """Random changes in segments of 250; by key (as messages have it) the versions of its events,
    a delete's twice: its tombstone has it too.
    """
    schema = built.table("public.t", {"id": "int64", "v": "text"})
    random_ = random.Random(seed)
    alive: set[int] = set()
    keys: list[tuple[int, bool]] = []
    expected: dict[str, list[int]] = {}
    for number in range(changes):
        key = random_.randrange(KEYS)
        gone = key in alive and random_.random() < 0.2
        if gone:
            built.delete(schema, str(key))
            alive.discard(key)
        elif key in alive:
            built.update(schema, str(key), f"v{number}")
        else:
            built.insert(schema, str(key), f"v{number}")
            alive.add(key)
        keys.append((key, gone))
        if number % 250 == 249 or number == changes - 1:
            built.flush()
            segment = built.log.chain().segments[-1]
            offsets = [
                offset
                for batch in built.log.batches(built.log.segments(segment.first, segment.next)[0])
                for offset in batch.column("offset").to_pylist()
            ]
            for offset, (each, deleted) in zip(offsets, keys, strict=True):
                expected.setdefault(f'{{"id":{each}}}', []).extend([offset] * (1 + deleted))
            keys = []
    return expected


def versions(messages: list[Read]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for message in messages:
        assert message.key is not None
        found.setdefault(message.key, []).append(message.version)
    return found


def output_of(spark: Any, built: BuiltLog, path: Path, kafka: KafkaServer, **how: Any) -> Any:
    topic = how.pop("topic", f"{path.name}-{{name}}")
    handling = how.pop("handling", ValueModes())
    made = formatter(how.pop("format", "flat"), topic=topic, handling=handling)
    skipped = how.pop("skipped", frozenset())
    messages = how.pop("messages", None)
    order = how.pop("order", "key")
    delivery = Delivery(
        "kafka", keyed=False, formatter=made, skipped=skipped, messages=messages, order=order,
        steps=how.pop("steps", ()), keyless=how.pop("keyless", "skip"),
    )  # fmt: skip
    return KafkaOutput(
        spark, built.path, SqliteState(f"sqlite:///{path / 'state.db'}"), delivery,
        topic=topic, **{"servers": kafka.servers, "partitions": 2} | how,
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.parametrize("transactions", [False, True])
def test_a_driver_killed_again_and_again_loses_and_doubles_nothing(
    kafka: KafkaServer, tmp_path: Path, transactions: bool
) -> None:
    """Invariants 2 and 8, at the reader's end of a topic. Each start cuts batches differently."""
    built = BuiltLog(tmp_path / "log")
    expected = fill(built, 6_000)
    topic = f"{tmp_path.name}-{{name}}"
    seeded = random.Random(7)
    kills = 0
    for attempt in range(6):
        batch_bytes = [400_000, 60_000, 150_000][attempt % 3]
        command = [
            sys.executable, str(Path(__file__).with_name("kafka_process.py")), built.path,
            str(tmp_path / "state.db"), kafka.servers, topic,
            str(transactions).lower(), str(batch_bytes),
        ]  # fmt: skip
        environment = dict(os.environ)
        if attempt < 3:
            point = ["written", "commit", "committed"][attempt % 3]
            hit = seeded.choice([1, 2])
            environment[failpoints.ENVIRONMENT_VARIABLE] = f"output.task.{point}:kill:{hit}"
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, text=True, env=environment, start_new_session=True
        ) as process:
            assert process.stdout is not None
            lines = []
            for line in process.stdout:
                lines.append(line.strip())
                if line.startswith("ready") and attempt < 3:
                    # The executor dies by its failpoint; the driver soon after, in the middle.
                    timer = threading.Timer(seeded.uniform(3, 12), os.killpg, (process.pid, 9))
                    timer.start()
            process.wait()
        if attempt < 3:
            timer.cancel()
        if "finished" in lines:
            break
        kills += 1
    assert "finished" in lines
    assert kills >= 2
    messages = read(f"{tmp_path.name}-t", servers=kafka.servers)
    check_order(messages)
    assert versions(messages) == expected


@pytest.mark.parametrize("lost", ["the state store", "the state store, in part"])
def test_a_topic_knows_what_it_holds(
    spark: Any, kafka: KafkaServer, tmp_path: Path, lost: str
) -> None:
    """A rewind of everything writes nothing twice: the topic itself is the progress."""
    built = BuiltLog(tmp_path / "log")
    expected = fill(built, 1_500)
    ends = [segment.next for segment in built.log.chain().segments]
    output = output_of(spark, built, tmp_path, kafka)
    output.prepare(built.log.generation)
    output.write(batch_of(built.log, built.log.head_offset, ends[1]))
    older = (tmp_path / "state.db").read_bytes()
    output.write(batch_of(built.log, ends[1], ends[-1]))
    output.close()
    for file in tmp_path.glob("state.db*"):
        file.unlink()
    if lost.endswith("in part"):
        (tmp_path / "state.db").write_bytes(older)
    output = output_of(spark, built, tmp_path, kafka)
    output.prepare(built.log.generation)
    # In batches that end elsewhere: not the first one alone finds what is there.
    for start, end in itertools.pairwise([built.log.head_offset, *ends[1::2]]):
        output.write(batch_of(built.log, start, end))
    output.close()
    messages = read(f"{tmp_path.name}-t", servers=kafka.servers)
    check_order(messages)
    assert versions(messages) == expected


def test_a_task_that_outlived_the_state_store_commits_nothing(
    spark: Any, kafka: KafkaServer, tmp_path: Path
) -> None:
    """Whatever its number, and whether its table comes again in the first batch or later."""
    from confluent_kafka import KafkaException, Producer
    from confluent_kafka.admin import AdminClient, NewTopic

    built = BuiltLog(tmp_path / "log")
    expected = fill(built, 200)
    other = built.table("public.other", {"id": "int64", "v": "text"}, relation_id=2)
    built.insert(other, "1", "a")
    built.flush()
    topic = f"{tmp_path.name}-other"
    admin = AdminClient({"bootstrap.servers": kafka.servers})
    admin.create_topics([NewTopic(topic, 1, 1)])[topic].result()
    name = transactional_id(built.log.generation, "kafka", "public.other", 1)
    late = Producer({"bootstrap.servers": kafka.servers, "transactional.id": name})
    late.init_transactions(30)
    late.begin_transaction()
    version = built.log.latest_offset() - 1
    late.produce(topic, b"{}", b'{"id":1}', headers=[("tidelog-version", str(version).encode())])
    late.flush(10)
    middle = built.log.chain().segments[-1].first
    output = output_of(spark, built, tmp_path, kafka, transactions=True)
    output.prepare(built.log.generation)
    output.write(batch_of(built.log, built.log.head_offset, middle))
    with pytest.raises(KafkaException):
        late.commit_transaction(10)
    output.write(batch_of(built.log, middle, built.log.latest_offset()))
    output.close()
    assert versions(read(f"{tmp_path.name}-t", servers=kafka.servers)) == expected
    assert len(read(topic, servers=kafka.servers)) == 1


def test_a_compacted_topic_gets_no_older_state_of_a_key(
    spark: Any, kafka: KafkaServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What compaction took away must not come back behind what it left."""
    built = BuiltLog(tmp_path / "log")
    fill(built, 500)
    end = built.log.latest_offset()
    output = output_of(spark, built, tmp_path, kafka, compact=True)
    output.prepare(built.log.generation)
    monkeypatch.setenv(failpoints.ENVIRONMENT_VARIABLE, "output.task.committed:kill")
    with pytest.raises(OutputError):
        output.write(batch_of(built.log, built.log.head_offset, end))
    monkeypatch.delenv(failpoints.ENVIRONMENT_VARIABLE)
    before = read(f"{tmp_path.name}-t", servers=kafka.servers)
    keep_newest(kafka, f"{tmp_path.name}-t", before)
    output.write(batch_of(built.log, built.log.head_offset, end))
    output.close()
    assert len(read(f"{tmp_path.name}-t", servers=kafka.servers)) == KEYS


def keep_newest(kafka: KafkaServer, topic: str, messages: list[Read]) -> None:
    """What compaction leaves, at once: a topic of the newest messages in the topic's place."""
    from confluent_kafka import Producer
    from confluent_kafka.admin import AdminClient, NewTopic

    admin = AdminClient({"bootstrap.servers": kafka.servers})
    admin.delete_topics([topic])[topic].result()
    deadline = time.monotonic() + 30
    while topic in admin.list_topics(timeout=10).topics and time.monotonic() < deadline:
        time.sleep(0.1)
    made = NewTopic(topic, 2, 1, config={"cleanup.policy": "compact"})
    admin.create_topics([made])[topic].result()
    newest = {message.key: message for message in messages}
    producer = Producer({"bootstrap.servers": kafka.servers, "partitioner": "murmur2_random"})
    for key, message in newest.items():
        value = None if message.value is None else b"{}"
        headers = [("tidelog-version", str(message.version).encode())]
        producer.produce(topic, value, key, partition=message.partition, headers=headers)
    assert producer.flush(20) == 0
