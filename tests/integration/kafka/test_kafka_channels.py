"""Signals and notifications on Kafka around a running capture, while the broker comes and goes."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from concurrent.futures import wait
from pathlib import Path
from typing import Any

import psycopg
import pytest
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    ResourcePatternType,
    ResourceType,
)
from tests.integration.kafka.channel_topics import KEY, Heard, Topic, wait_for
from tests.integration.test_control_rest import Running
from tests.support.kafka import KafkaServer
from tests.support.oracle.log import read_event_log

from tidelog import app
from tidelog.app.base.channels import signal_key
from tidelog.app.base.log_location import event_log_path
from tidelog.app.sources.preflight import check
from tidelog.config import Config, parse_config
from tidelog.control.channels import kafka
from tidelog.control.channels import kafka as channels_kafka
from tidelog.control.commands import LogMessage
from tidelog.eventlog.reader import EventLog

pytestmark = pytest.mark.integration

DUMP = '{"id": "ad-hoc-1", "type": "execute-snapshot", "data": {"data-collections": ["app\\\\.t"]}}'


@pytest.fixture(scope="module")
def broker() -> Iterator[KafkaServer]:
    """One that a test may stop; whoever comes by password has the rights that were granted."""
    rights = {
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS",
    }
    with KafkaServer(rights, sasl_password="kafka-secret") as server:
        yield server


@pytest.fixture
def config(tmp_path: Path, database: str, broker: KafkaServer) -> Config:
    text = (
        f"source: {{kind: postgres, url: '{database}', tables: ['app.*'], snapshot: no_data}}\n"
        "log: {path: log}\nstate: {url: 'sqlite:///state.db'}\ncapture: {flush_ms: 10}\n"
        "control:\n"
        "  notifications: [eventlog, kafka]\n"
        f"  notification_kafka: {{servers: '{broker.servers}', topic: {tmp_path.name}-notes}}\n"
        f"  signal_kafka: {{servers: '{broker.servers}', key: {tmp_path.name}}}\n"
    )
    return parse_config(text, "test", tmp_path, {})


@pytest.fixture
def topics(tmp_path: Path, broker: KafkaServer) -> list[Topic]:
    """Of signals and of notifications."""
    return [Topic(broker.servers, f"{tmp_path.name}-{what}") for what in ("signal", "notes")]


def captured(config: Config) -> list[int]:
    """Ids of the inserts in the event log."""
    if not EventLog.exists(event_log_path(config)):
        return []
    log = EventLog.open(event_log_path(config))
    changes = read_event_log(log, log.head_offset, log.latest_offset())
    return [int(each.new["id"] or 0) for each in changes if each.op == "I" and each.new]


def failing(config: Config) -> set[str]:
    """Channels that the overview has as problems."""
    problems = app.status(config).document["overview"]["problems"]
    return {each["about"] for each in problems if each["kind"] == "channel-fails"}


def test_a_broker_that_is_away_holds_up_no_capture_and_is_reported(
    config: Config, broker: KafkaServer, topics: list[Topic], database: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(channels_kafka, "TIMEOUT_S", 2.0)
    monkeypatch.setattr(kafka, "PATIENCE_S", 1.0)
    signals, notes = topics
    for each in topics:
        each.create()
    with psycopg.connect(database, autocommit=True) as sql:
        sql.execute("CREATE SCHEMA app; CREATE TABLE app.t (id serial PRIMARY KEY)")
        signals.write([(signal_key(config), DUMP)])
        broker.stop()
        capture = Running(config)
        try:
            wait_for(lambda: goes_on(config, sql), "nothing is captured")
            wait_for(lambda: failing(config) == {"signal_kafka"}, "it is not told")
            broker.start()
            wait_for(lambda: completed(capture), "the dump does not end", timeout_s=60)
            wait_for(lambda: not failing(config), "it is told for ever")
            told = [each.to_json() for each in capture.notified]
            wait_for(lambda: [json.loads(v or b"") for _, v in notes.read()] == told, "not all")
            assert {each["id"] for each in told} == {"ad-hoc-1"}

            broker.stop()
            assert capture.capture.send(LogMessage(message="still here")) is not None
            wait_for(lambda: goes_on(config, sql), "nothing is captured")
            wait_for(lambda: failing(config) == {"signal_kafka"}, "it is not told")
        finally:
            capture.end()
            broker.start()


def test_check_reports_topics_that_are_not_there(config: Config, topics: list[Topic]) -> None:
    found = {
        each["check"]: each
        for each in [each.to_dict() for each in check(config)]
        if "kafka" in each["check"]
    }
    for name, topic in zip(("signal", "notification"), topics, strict=True):
        each = found[f"control.{name}_kafka"]
        wanted = ("warning", f"topic {topic.name}: there is no such topic")
        assert (each["level"], each["message"]) == wanted
        assert f"--create --topic {topic.name} --partitions 1" in each["fix"]
        topic.create(partitions=2)
    found = {
        each["check"]: each
        for each in [each.to_dict() for each in check(config)]
        if "kafka" in each["check"]
    }
    assert found["control.notification_kafka"]["level"] == "ok"
    assert found["control.signal_kafka"]["level"] == "warning"
    assert "it has 2 partitions" in found["control.signal_kafka"]["message"]


def test_to_read_the_topic_is_the_only_right_that_is_needed(
    broker: KafkaServer, topics: list[Topic], tmp_path: Path
) -> None:
    topic = topics[0]
    topic.create()
    right = AclBinding(
        ResourceType.TOPIC, topic.name, ResourcePatternType.LITERAL,
        "User:tidelog", "*", AclOperation.READ, AclPermissionType.ALLOW,
    )  # fmt: skip
    wait(topic.admin.create_acls([right]).values())
    topic.write([(KEY, '{"type": "log", "data": {"message": "a"}}')])
    settings = {
        "security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN",
        "sasl.username": "tidelog", "sasl.password": "kafka-secret",
    }  # fmt: skip
    heard = Heard(Topic(broker.sasl_servers, topic.name), tmp_path, settings=settings)
    try:
        heard.act_on("a")
        time.sleep(2)  # in which the client asks for its group, in vain
        assert heard.trouble == ""
        topic.write([(KEY, '{"type": "log", "data": {"message": "b"}}')])
        heard.act_on("a", "b")
    finally:
        heard.close()


def goes_on(config: Config, sql: psycopg.Connection[Any]) -> bool:
    """Is a row that is inserted now captured?"""
    found = sql.execute("INSERT INTO app.t DEFAULT VALUES RETURNING id").fetchone()
    time.sleep(0.3)
    return found is not None and found[0] in captured(config)


def completed(capture: Running) -> bool:
    return any(each.type == "COMPLETED" for each in capture.notified)
