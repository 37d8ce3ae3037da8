"""Topics, tombstones, security and what brokers reject."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter
from tests.behaviours.outputs.kafka_topics import Read, read
from tests.integration.kafka.test_kafka_crashes import output_of
from tests.support.build_log import BuiltLog
from tests.support.kafka import KafkaServer

from tidelog.errors import OutputRefusedError
from tidelog.outputs.delivery_settings import handling_of
from tidelog.outputs.formatters.messages import LogicalMessages
from tidelog.outputs.kafka.config import KafkaSection
from tidelog.spark.datasource.segment_rows import batch_of
from tidelog.spark.transforms import Step

pytestmark = [pytest.mark.spark, pytest.mark.integration]

COLUMNS = {"id": "int64", "v": "text"}


def bring(output: Any, built: BuiltLog) -> dict[str, str]:
    """The tables that it leaves out, and why."""
    try:
        output.prepare(built.log.generation)
        output.write(batch_of(built.log, built.log.head_offset, built.log.latest_offset()))
        return dict(output.left_out_tables())
    finally:
        output.close()


@pytest.fixture
def built(tmp_path: Path) -> BuiltLog:
    return BuiltLog(tmp_path / "log")


def test_a_delete_is_an_event_and_a_tombstone_with_version_and_schema(
    spark: Any, kafka: KafkaServer, built: BuiltLog, tmp_path: Path
) -> None:
    table = built.table("public.t", COLUMNS)
    built.insert(table, "1", "a")
    built.delete(table, "1")
    built.flush()
    bring(output_of(spark, built, tmp_path, kafka), built)
    found = read(f"{tmp_path.name}-t", servers=kafka.servers)
    assert [each.value and each.value["__op"] for each in found] == ["c", "d", None]
    assert {each.key for each in found} == {'{"id":1}'}
    assert found[0].version < found[1].version == found[2].version
    assert found[0].version == found[0].value["__version"]
    assert {each.headers["tidelog-schema"] for each in found} == {str(table.schema_id)}


def test_a_changed_key_is_reported_in_debeziums_headers(
    spark: Any, kafka: KafkaServer, built: BuiltLog, tmp_path: Path
) -> None:
    """On the delete, its tombstone and the creation, wherever their partitions are."""
    table = built.table("public.t", COLUMNS)
    for key in range(1, 9):
        built.insert(table, str(key), "a")
        built.update(table, str(10 * key), "b", key=[str(key)])
    built.delete(table, "20")
    built.flush()
    bring(output_of(spark, built, tmp_path, kafka, format="debezium"), built)
    told = {
        (each.key, each.value and each.value["op"]): {
            name: value for name, value in each.headers.items() if name.endswith("key")
        }
        for each in read(f"{tmp_path.name}-t", servers=kafka.servers)
    }
    for key in range(1, 9):
        old, new = f'{{"id":{key}}}', f'{{"id":{10 * key}}}'
        assert told[old, "c"] == {}
        assert told[old, "d"] == told[old, None] == {"__debezium.newkey": new}
        assert told[new, "c"] == {"__debezium.oldkey": old}
    assert told['{"id":20}', "d"] == {}


@pytest.mark.parametrize("wanted", [True, False])
def test_format_debezium_has_debeziums_headers_of_connector_and_task(
    spark: Any, kafka: KafkaServer, built: BuiltLog, tmp_path: Path, wanted: bool
) -> None:
    section = TypeAdapter(KafkaSection).validate_python({
        "kind": "kafka", "servers": "x", "debezium": {"extended_headers_enabled": wanted},
    })  # fmt: skip
    table = built.table("public.t", COLUMNS)
    built.insert(table, "1", "a")
    built.delete(table, "1")
    built.flush()
    handling = handling_of(section)
    bring(output_of(spark, built, tmp_path, kafka, format="debezium", handling=handling), built)
    found = read(f"{tmp_path.name}-t", servers=kafka.servers)
    assert len(found) == 3
    for each in found:
        context = {n: v for n, v in each.headers.items() if n.startswith("__debezium.context.")}
        expected = {
            "__debezium.context.connectorLogicalName": "tidelog",
            "__debezium.context.taskId": "0",
            "__debezium.context.connectorName": "postgresql",
        }
        assert context == (expected if wanted else {})


@pytest.mark.parametrize("shared", [False, True])
def test_a_truncate_becomes_tombstones_in_a_compacted_topic(
    spark: Any, kafka: KafkaServer, built: BuiltLog, tmp_path: Path, shared: bool
) -> None:
    """Of the table's keys alone where another table shares the topic."""
    topic = f"{tmp_path.name}-t"
    how: dict[str, Any] = {"order": "total", "topic": topic} if shared else {}
    table = built.table("public.t", COLUMNS)
    other = built.table("public.other", COLUMNS, relation_id=2)
    built.insert(other, "9", "other's")
    for key in "123":
        built.insert(table, key, "a")
    built.truncate(table)
    built.insert(table, "3", "b")
    built.flush()
    bring(output_of(spark, built, tmp_path, kafka, compact=True, **how), built)
    newest = {each.key: each.value for each in read(topic, servers=kafka.servers)}
    assert newest['{"id":1}'] is None
    assert newest['{"id":2}'] is None
    assert newest['{"id":3}']["v"] == "b"
    if shared:
        assert newest['{"id":9}']["v"] == "other's"


@pytest.mark.parametrize(
    ("transactions", "shared"),
    [(False, False), pytest.param(True, False, marks=pytest.mark.thorough), (False, True)],
)
def test_a_whole_dump_removes_absent_keys_from_a_compacted_topic(
    spark: Any,
    kafka: KafkaServer,
    built: BuiltLog,
    tmp_path: Path,
    transactions: bool,
    shared: bool,
) -> None:
    """The table was dropped and created again. Also when its batches come once more, in batches of
    their own, and from an output that knows nothing of what it did.
    """
    topic = f"{tmp_path.name}-t"
    how: dict[str, Any] = {"compact": True, "transactions": transactions}
    if shared:
        how |= {"order": "total", "topic": topic}

    def bring_again(state: str, start: int, end: int) -> dict[str | None, Any]:
        directory = tmp_path / state / tmp_path.name
        directory.mkdir(parents=True, exist_ok=True)
        output = output_of(spark, built, directory, kafka, **how)
        try:
            output.prepare(built.log.generation)
            output.write(batch_of(built.log, start, end))
        finally:
            output.close()
        found = read(topic, servers=kafka.servers)
        check_versions(found)
        return {each.key: each.value and each.value["v"] for each in found}

    head = built.log.head_offset
    table = built.table("public.t", COLUMNS)
    other = built.table("public.other", COLUMNS, relation_id=2)
    for key in "1234":
        built.insert(table, key, "old")
    built.delete(table, "4")
    built.insert(other, "9", "other's")
    built.flush()
    first = built.log.latest_offset()
    others = {'{"id":9}': "other's"} if shared else {}
    of_old = {f'{{"id":{key}}}': "old" for key in (1, 2, 3)} | {'{"id":4}': None} | others
    assert bring_again("state", head, first) == of_old

    built.dump_started("public.t")
    built.insert(table, "2", "new")  # not told by the dump's rows
    built.flush()
    built.chunk(table, [["3", "new"], ["5", "new"]])
    rows_end = built.log.latest_offset()
    told = {f'{{"id":{key}}}': "new" for key in (2, 3, 5)}
    assert bring_again("state", first, rows_end) == of_old | told
    built.dump_completed("public.t", first)
    completed = built.log.latest_offset()
    # A batch that has no row of the table.
    assert bring_again("state", rows_end, completed) == of_old | told | {'{"id":1}': None}
    built.insert(table, "1", "newest")
    built.flush()
    end = built.log.latest_offset()
    newest = of_old | told | {'{"id":1}': "newest"}
    assert bring_again("state", completed, end) == newest
    assert bring_again("lost", head, end) == newest
    found = read(topic, servers=kafka.servers)
    removed, again = [m.version for m in found if m.key == '{"id":1}'][-2:]
    assert rows_end <= removed < completed <= again
    assert len([m for m in found if m.value is None]) == 2


def check_versions(found: list[Read]) -> None:
    """A key's messages are in order, each there once."""
    told: dict[tuple[str | None, int], tuple[int, bool]] = {}
    for each in found:
        rank = each.version, each.value is None
        assert rank > told.get((each.key, each.partition), (-1, False))
        told[each.key, each.partition] = rank


def test_skipped_operations_are_left_out_but_in_a_compacted_topic(
    spark: Any, kafka: KafkaServer, built: BuiltLog, tmp_path: Path
) -> None:
    """Truncates are by default, as Debezium leaves them out: some of its readers fail on them."""
    table = built.table("public.t", COLUMNS)
    built.insert(table, "1", "a")
    built.truncate(table)
    built.update(table, "1", "b")
    built.flush()
    told = {}
    ways = (("", False), ("tu", False), ("t", True))
    for skipped, compact in ways:
        directory = tmp_path / f"skipped-{skipped}-{compact}"
        directory.mkdir()
        how: dict[str, Any] = {"partitions": 1, "compact": compact, "skipped": frozenset(skipped)}
        output = output_of(spark, built, directory, kafka, **how)
        bring(output, built)
        found = read(f"{directory.name}-t", servers=kafka.servers)
        told[skipped, compact] = [each.value and each.value["__op"] for each in found]
    assert told == {
        ("", False): ["c", "t", "u"],
        ("tu", False): ["c"],
        ("t", True): ["c", None, "u"],
    }


@pytest.mark.parametrize("transactions", [False, True])
def test_logical_messages_go_to_a_topic_of_their_own(
    spark: Any, kafka: KafkaServer, built: BuiltLog, tmp_path: Path, transactions: bool
) -> None:
    """Beside rows, alone in their segments, and once where a batch comes again."""
    table = built.table("public.t", COLUMNS)
    built.insert(table, "1", "a")
    for number in range(3):
        built.message("outbox", str(number).encode())
        built.message("other", b"")
    built.flush()
    built.message("outbox", b"3")
    built.flush()
    topic = f"{tmp_path.name}-message"
    how: dict[str, Any] = {
        "format": "debezium",
        "messages": LogicalMessages(topic, ("outbox",)),
        "messages_topic": topic,
        "transactions": transactions,
        "compact": True,
    }
    bring(output_of(spark, built, tmp_path, kafka, **how), built)
    (tmp_path / "state.db").unlink()  # so that it comes again
    bring(output_of(spark, built, tmp_path, kafka, **how), built)
    found = read(topic, servers=kafka.servers)
    assert [(each.value["op"], each.value["message"]["content"]) for each in found] == [
        ("m", base64.b64encode(content).decode()) for content in (b"0", b"1", b"2", b"3")
    ]
    assert {each.key for each in found} == {'{"prefix":"outbox"}'}
    assert len({each.partition for each in found}) == 1
    assert len(read(f"{tmp_path.name}-t", servers=kafka.servers)) == 1


def test_a_table_without_a_key_does_not_go_to_a_compacted_topic(
    spark: Any, kafka: KafkaServer, built: BuiltLog, tmp_path: Path
) -> None:
    table = built.table("public.t", COLUMNS, key=(), identity_kind="f", identity=())
    built.insert(table, "1", "a")
    built.flush()
    with pytest.raises(OutputRefusedError, match=r"compacted.*keyless to skip"):
        bring(output_of(spark, built, tmp_path, kafka, compact=True, keyless="fail"), built)
    output = output_of(spark, built, tmp_path, kafka, compact=True)
    assert bring(output, built) == {}
    assert "compacted" in output.keyless_tables()["public.t"]


@pytest.mark.parametrize(
    "step",
    [Step("cast", {"id": "boolean"}), Step("drop", ["id"]), Step("mask", {"id": "0"})],
    ids=lambda step: step.action,
)
def test_a_step_that_merges_keys_is_refused_for_a_compacted_topic(
    spark: Any, kafka: KafkaServer, built: BuiltLog, tmp_path: Path, step: Step
) -> None:
    table = built.table("public.t", COLUMNS)
    built.insert(table, "1", "a")
    built.flush()
    refused = bring(output_of(spark, built, tmp_path, kafka, compact=True, steps=(step,)), built)
    assert "keeps the last message of each key" in refused["public.t"]


def test_topics_are_not_created_if_they_must_not_be(
    spark: Any, kafka: KafkaServer, built: BuiltLog, tmp_path: Path
) -> None:
    built.insert(built.table("public.t", COLUMNS), "1", "a")
    built.flush()
    refused = bring(output_of(spark, built, tmp_path, kafka, create_topics=False), built)
    assert "create_topics is false" in refused["public.t"]


def test_two_tables_with_one_topic_are_refused(
    spark: Any, kafka: KafkaServer, built: BuiltLog, tmp_path: Path
) -> None:
    for number, name in enumerate(("a.t", "b.t")):
        built.insert(built.table(name, COLUMNS, relation_id=number + 1), "1", "a")
    built.flush()
    refused = bring(output_of(spark, built, tmp_path, kafka), built)
    assert list(refused) == ["b.t"]
    assert "both go to topic" in refused["b.t"]


def test_a_message_that_is_too_long_is_rejected_with_its_version(
    spark: Any, kafka: KafkaServer, built: BuiltLog, tmp_path: Path
) -> None:
    built.insert(built.table("public.t", COLUMNS), "1", "x" * 1_200_000)
    built.flush()
    with pytest.raises(OutputRefusedError, match="MSG_SIZE_TOO_LARGE") as caught:
        bring(output_of(spark, built, tmp_path, kafka), built)
    assert "xxx" not in str(caught.value)


@pytest.mark.parametrize(
    "password", ["kafka-secret", pytest.param("wrong-pa55", marks=pytest.mark.thorough)]
)
def test_a_password_is_used_and_never_shown(
    spark: Any, kafka: KafkaServer, built: BuiltLog, tmp_path: Path, password: str
) -> None:
    built.insert(built.table("public.t", COLUMNS), "1", "a")
    built.flush()
    settings = {
        "security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN",
        "sasl.username": "tidelog", "sasl.password": password,
    }  # fmt: skip
    output = output_of(spark, built, tmp_path, kafka, servers=kafka.sasl_servers, settings=settings)
    if password == "kafka-secret":
        bring(output, built)
        assert len(read(f"{tmp_path.name}-t", servers=kafka.servers)) == 1
    else:
        with pytest.raises(OutputRefusedError, match=r"(?i)authentication") as caught:
            bring(output, built)
        assert password not in str(caught.value)
