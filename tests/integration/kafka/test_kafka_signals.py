"""Signals from a topic: each of ours once, in order, whatever befalls topic, broker or capture."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.integration.kafka.channel_topics import KEY, Heard, Topic, wait_for
from tests.support.hits import at_hit, interrupt
from tests.support.kafka import KafkaServer

from tidelog.capture.notifications import NotificationType
from tidelog.control.channels import kafka as channels_kafka
from tidelog.control.channels import kafka as kafka_signals
from tidelog.control.channels.kafka import STATE_KEY
from tidelog.control.commands import StartDump
from tidelog.control.mailbox import Mailbox
from tidelog.errors import StateError
from tidelog.ports import MAX_SIGNAL_BYTES
from tidelog.system import failpoints

pytestmark = pytest.mark.integration

# Of Debezium's manual.
DEBEZIUMS = (
    '{"type":"execute-snapshot","data": {"data-collections": ["schema1.table1", '
    '"schema1.table2"], "type": "INCREMENTAL"}}'
)


def signal(message: str) -> str:
    return json.dumps({"type": "log", "data": {"message": message}})


def ours(*messages: str) -> list[tuple[str, str]]:
    return [(KEY, signal(message)) for message in messages]


@pytest.fixture
def topic(kafka: KafkaServer, tmp_path: Path) -> Topic:
    return Topic(kafka.servers, f"{tmp_path.name}-signal")


@pytest.fixture
def heard(topic: Topic, tmp_path: Path) -> Iterator[Heard]:
    topic.create()
    found = Heard(topic, tmp_path)
    yield found
    found.close()


def test_signals_with_our_key_are_acted_on_once_in_order(topic: Topic, heard: Heard) -> None:
    names = [str(number) for number in range(250)]
    topic.write([each for name in names for each in ((None, "{"), *ours(name), ("shop2", "s"))])
    topic.write([(KEY, None), (KEY, "")])  # nothing: Debezium passes them over, too
    heard.act_on(*names)
    assert heard.errors() == []
    heard.lead()
    topic.write(ours("next"))
    heard.act_on(*names, "next")


def test_a_published_signal_without_an_id_starts_its_dump(topic: Topic, heard: Heard) -> None:
    topic.write([("other", DEBEZIUMS), (KEY, DEBEZIUMS)])
    heard.act_on("execute-snapshot")
    name = f"{topic.name}-1"
    assert heard.acted == [
        StartDump(
            dump_id=name,
            tables=("schema1.table1", "schema1.table2"),
            matching="regex",
            signal_id=name,
        )
    ]


def test_what_stands_there_at_first_is_acted_on_unless_asked_otherwise(
    topic: Topic, tmp_path: Path
) -> None:
    topic.create()
    topic.write(ours("before"))
    for name in ("early", "late"):
        (tmp_path / name).mkdir()
    early, late = (
        Heard(topic, tmp_path / "early"),
        Heard(topic, tmp_path / "late", begin="latest"),
    )
    early.act_on("before")
    wait_for(lambda: late.act() or late.state.get(STATE_KEY), "not begun")
    late.lead()  # the place is known from the first look on, not from the first signal
    topic.write(ours("after"))
    early.act_on("before", "after")
    late.act_on("after")
    for each in (early, late):
        each.close()


def test_a_crash_between_mailbox_and_place_acts_once(topic: Topic, heard: Heard) -> None:
    wait_for(lambda: heard.act() or heard.state.get(STATE_KEY), "not begun")
    topic.write(ours(*"abcde"))
    dying = {"kafka_signals.taken_one": at_hit(3, interrupt)}
    with failpoints.arm(dying), pytest.raises(KeyboardInterrupt):
        wait_for(heard.act, "nothing came")
    heard.lead()
    topic.write(ours("f"))
    heard.act_on(*"abcdef")


def test_a_topic_that_is_read_again_repeats_nothing(topic: Topic, heard: Heard) -> None:
    wait_for(lambda: heard.act() or heard.state.get(STATE_KEY), "not begun")
    first = heard.state.get(STATE_KEY)
    assert first is not None
    topic.write(ours(*"abc"))
    heard.act_on(*"abc")
    heard.close()
    heard.state.put(STATE_KEY, first.value, None)
    heard.lead()
    topic.write(ours("d"))
    heard.act_on(*"abcd")


def test_a_state_store_that_fails_in_the_middle_loses_no_signal(
    topic: Topic, heard: Heard, monkeypatch: pytest.MonkeyPatch
) -> None:
    send, calls = Mailbox.send, itertools.count(1)

    def failing(*arguments: Any) -> str:
        if next(calls) == 2:
            raise StateError("disk full")
        return send(*arguments)

    monkeypatch.setattr(Mailbox, "send", failing)
    topic.write(ours(*"abc"))
    with pytest.raises(StateError):
        wait_for(heard.act, "nothing came")
    heard.act_on(*"abc")


def test_signals_that_nobody_took_are_for_the_next_leader(topic: Topic, heard: Heard) -> None:
    topic.write(ours(*"ab"))
    time.sleep(1)  # they are read, and nobody polls
    heard.lead()
    heard.act_on(*"ab")


def test_bad_messages_are_reported_and_the_next_is_acted_on(
    topic: Topic, heard: Heard, caplog: pytest.LogCaptureFixture
) -> None:
    shop = {"data-collections": ["a.b"]}
    condition = {"data-collection": "a.b", "filter": "id IN (SELECT s3cret())"}
    conditional = {"data": shop | {"additional-conditions": [condition]}}
    bad: list[str | bytes] = [
        "{s3cret", b"\xff\xfe", "[]", '{"type": 1}', '{"id": "x", "type": "s3cret"}',
        "s3cret" * (MAX_SIGNAL_BYTES // 5), json.dumps({"type": "execute-snapshot"} | conditional),
    ]  # fmt: skip
    topic.alter("max.message.bytes", str(4 << 20))
    topic.write([*((KEY, each) for each in bad), *ours("good")])
    heard.act_on("good")
    assert len(heard.errors()) == len(bad)
    assert [each.type for each in heard.notified] == [NotificationType.SKIPPED] * len(bad)
    assert len([r for r in caplog.records if "is skipped" in r.message]) == len(bad)
    assert "s3cret" not in caplog.text + str(heard.errors()) + str(heard.notified)
    assert heard.trouble == ""


def test_a_recreated_topic_is_another_one(
    topic: Topic, heard: Heard, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where it has grown to where the old one was read."""
    monkeypatch.setattr(kafka_signals, "CHECK_EVERY_S", 0.5)
    topic.write(ours("a"))
    heard.act_on("a")
    heard.lead()
    topic.delete()
    topic.create()
    topic.write(ours("a"))
    heard.act_on("a", "a")


def test_what_retention_removed_is_reported_and_the_rest_acted_on(
    topic: Topic, heard: Heard, caplog: pytest.LogCaptureFixture
) -> None:
    topic.write(ours(*"ab"))
    heard.act_on(*"ab")
    heard.close()
    topic.write(ours(*"cdef"))
    topic.forget(4)
    heard.lead()
    heard.act_on(*"abef")
    assert "has no offset 2 any more, and is read on from 4" in caplog.text


def test_a_topic_that_is_not_there_is_reported_with_the_command_that_makes_it(
    topic: Topic, tmp_path: Path
) -> None:
    heard = Heard(topic, tmp_path)
    try:
        wait_for(lambda: heard.trouble, "no trouble")
        assert "there is no such topic" in heard.trouble
        assert f"--create --topic {topic.name} --partitions 1" in heard.trouble
        topic.create(partitions=3)
        topic.write(ours("a"))
        heard.act_on("a")
        assert "it has 3 partitions, and signals are read from the first alone" in heard.trouble
    finally:
        heard.close()


def test_a_refused_password_is_reported_and_not_shown(
    kafka: KafkaServer, topic: Topic, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    monkeypatch.setattr(channels_kafka, "TIMEOUT_S", 3.0)
    topic.create()
    topic.write(ours("a"))
    settings = {
        "security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN",
        "sasl.username": "tidelog", "sasl.password": "wr0ng",
    }  # fmt: skip
    locked = Topic(kafka.sasl_servers, topic.name)
    heard = Heard(locked, tmp_path, settings=settings)
    try:
        wait_for(lambda: "uthentication" in heard.trouble, lambda: heard.trouble)
        assert "wr0ng" not in heard.trouble + caplog.text
    finally:
        heard.close()
    (tmp_path / "right").mkdir()
    heard = Heard(locked, tmp_path / "right", settings=settings | {"sasl.password": "kafka-secret"})
    try:
        heard.act_on("a")
    finally:
        heard.close()


def test_a_setting_that_is_none_is_reported_without_its_value(
    topic: Topic, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    heard = Heard(topic, tmp_path, settings={"security.protocol": "s3cret"})
    try:
        wait_for(lambda: heard.trouble, "no trouble")
        assert "the setting security.protocol is not one that librdkafka takes" in heard.trouble
        assert "s3cret" not in heard.trouble + caplog.text
    finally:
        heard.close()
