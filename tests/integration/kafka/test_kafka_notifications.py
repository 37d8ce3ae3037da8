"""Notifications to a topic: Debezium's form, in order, and no broker that holds anything up."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.integration.kafka.channel_topics import Topic, wait_for
from tests.support.kafka import KafkaServer

from tidelog.capture.notifications import Notification, NotificationType
from tidelog.control.channels import kafka as channels_kafka
from tidelog.control.channels import kafka as kafka_notifications
from tidelog.control.channels.kafka import MOST_WAITING, KafkaNotifications, KafkaTopic
from tidelog.control.channels.notifier import Notifier

pytestmark = pytest.mark.integration


def note(number: int, **data: Any) -> Notification:
    return Notification(f"d{number}", "Incremental Snapshot", NotificationType.STARTED, 17, data)


def ids(topic: Topic) -> list[str]:
    return [json.loads(key or b"{}")["id"] for key, _value in topic.read()]


@pytest.fixture
def topic(kafka: KafkaServer, tmp_path: Path) -> Topic:
    return Topic(kafka.servers, f"{tmp_path.name}-notes")


@pytest.fixture
def sending(topic: Topic) -> Iterator[KafkaNotifications]:
    found = KafkaNotifications(KafkaTopic(topic.servers, topic.name))
    found.start()
    yield found
    found.close()


def test_they_have_the_form_of_debezium_and_keep_their_order(
    topic: Topic, sending: KafkaNotifications
) -> None:
    topic.create()
    notifier = Notifier(["kafka"], connector="shop", callbacks=[sending.send])
    notifier.start()
    notifier.notify(note(0, data_collections=["a.ä", "a.c"], total_rows_scanned=100))
    for number in range(1, 1500):
        notifier.notify(note(number))
    notifier.close()
    sending.close()
    assert ids(topic) == [f"d{number}" for number in range(1500)]
    key, value = topic.read()[0]
    assert json.loads(key or b"") == {"id": "d0"}
    assert json.loads(value or b"") == {
        "id": "d0",
        "aggregate_type": "Incremental Snapshot",
        "type": "STARTED",
        "additional_data": {
            "connector_name": "shop", "data_collections": "a.ä,a.c", "total_rows_scanned": "100",
        },
        "timestamp": 17,
    }  # fmt: skip


def test_what_has_no_topic_yet_waits_for_it_and_comes_in_order(
    topic: Topic, sending: KafkaNotifications, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kafka_notifications, "PATIENCE_S", 0.5)
    for number in range(20):
        sending.send(note(number))
    wait_for(lambda: sending.trouble.now(), "no trouble")
    trouble = sending.trouble.now()
    assert trouble is not None
    assert "there is no such topic" in trouble["reason"]
    assert f"--create --topic {topic.name}" in trouble["remedy"]
    topic.create()
    wait_for(lambda: sending.trouble.now() is None, "it stays", timeout_s=60)
    sending.send(note(20))
    sending.close()
    assert ids(topic) == [f"d{number}" for number in range(21)]


def test_one_that_brokers_never_take_holds_up_no_other(
    topic: Topic, sending: KafkaNotifications, caplog: pytest.LogCaptureFixture
) -> None:
    topic.create(**{"max.message.bytes": "2000"})
    for number in range(30):
        sending.send(note(number, status="s3cret" * 1000 if number in (7, 8, 20) else "x"))
    sending.send(note(30, status="s3cret" * 300_000))  # which the client does not take
    sending.send(note(31))
    wait_for(lambda: not sending._waiting, "some wait")
    sending.close()
    assert ids(topic) == [f"d{n}" for n in range(32) if n not in (7, 8, 20, 30)]
    assert len([r for r in caplog.records if "does not take a notification" in r.message]) == 4
    assert "s3cret" not in caplog.text


def test_brokers_that_are_away_hold_nothing_up(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(kafka_notifications, "PATIENCE_S", 0.2)
    monkeypatch.setattr(channels_kafka, "TIMEOUT_S", 1.0)
    sending = KafkaNotifications(KafkaTopic("127.0.0.1:1", "nowhere"))
    sending.start()
    began = time.monotonic()
    with caplog.at_level(logging.WARNING):
        for number in range(MOST_WAITING + 500):
            sending.send(note(number))
        assert time.monotonic() - began < 5
        wait_for(lambda: sending.trouble.now(), "no trouble")
        assert len(sending._waiting) == MOST_WAITING
        sending.close()
    assert time.monotonic() - began < 20
    assert "notifications for Kafka are dropped" in caplog.text
    assert f"{MOST_WAITING} notifications did not reach Kafka" in caplog.text
