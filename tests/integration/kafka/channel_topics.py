"""Topics of signals and notifications, and a mailbox that signals come to."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from concurrent.futures import wait
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
)

from tidelog.capture.notifications import Notification
from tidelog.control.channels.kafka import KafkaSignals, KafkaTopic
from tidelog.control.commands import Command, LogMessage
from tidelog.control.mailbox import Mailbox
from tidelog.control.signal_intake import SignalIntake
from tidelog.state.sqlite import SqliteState

KEY = "shop"


class Topic:
    """One topic of a broker."""

    def __init__(self, servers: str, name: str) -> None:
        self.servers = servers
        self.name = name
        self.admin = AdminClient({"bootstrap.servers": servers})

    def create(self, partitions: int = 1, **config: str) -> None:
        wanted = NewTopic(self.name, num_partitions=partitions, config=config)
        self.admin.create_topics([wanted])[self.name].result(30)
        wait_for(lambda: self.name in self.admin.list_topics(timeout=10).topics, "no topic")

    def delete(self) -> None:
        self.admin.delete_topics([self.name])[self.name].result(30)
        wait_for(lambda: self.name not in self.admin.list_topics(timeout=10).topics, "a topic")

    def alter(self, name: str, value: str) -> None:
        entry = ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(ResourceType.TOPIC, self.name, incremental_configs=[entry])
        wait(self.admin.incremental_alter_configs([resource]).values())

    def forget(self, before: int) -> None:
        """As retention does."""
        partition = TopicPartition(self.name, 0, before)
        wait(self.admin.delete_records([partition]).values())

    def write(self, messages: Iterable[tuple[str | None, str | bytes | None]]) -> None:
        settings = {"bootstrap.servers": self.servers, "acks": "all"}
        producer = Producer(settings | {"message.max.bytes": 8 << 20})
        for key, value in messages:
            producer.produce(self.name, value, key, partition=0)
        assert producer.flush(30) == 0

    def read(self) -> list[tuple[bytes | None, bytes | None]]:
        """Keys and values, in order; of its first partition."""
        settings = {"bootstrap.servers": self.servers, "group.id": "test"}
        consumer = Consumer(settings | {"enable.partition.eof": True})
        try:
            consumer.assign([TopicPartition(self.name, 0, 0)])
            found: list[tuple[bytes | None, bytes | None]] = []
            while True:
                message = consumer.poll(20)
                assert message is not None, "the broker is silent"
                if (error := message.error()) is not None:
                    assert error.code() == KafkaError._PARTITION_EOF
                    return found
                found.append((message.key(), message.value()))
        finally:
            consumer.close()


class Heard:
    """What a capture hears from a topic; `lead` begins another leadership."""

    def __init__(self, topic: Topic, directory: Path, **how: Any) -> None:
        self.place = KafkaTopic(topic.servers, topic.name, how.pop("settings", {}))
        self.how = {"key": KEY, "begin": "earliest"} | how
        self.state = SqliteState(directory / "state.db")
        self.mailbox = Mailbox(self.state)
        self.notified: list[Notification] = []
        self.acted: list[Command] = []
        self.intake = SignalIntake(self.mailbox, self.notified.append)
        self.signals: KafkaSignals | None = None
        self.lead()

    def lead(self) -> None:
        self.close()
        channel = {"state": self.state, "intake": self.intake}
        self.signals = KafkaSignals(self.place, **channel, **self.how)
        self.signals.start()

    def act(self) -> list[str]:
        """What was acted on so far: messages, and types of what is no message."""
        assert self.signals is not None
        self.signals.poll()
        self.mailbox.handle_pending(self._handle)
        return [c.message if isinstance(c, LogMessage) else c.type for c in self.acted]

    def act_on(self, *wanted: str, timeout_s: float = 30) -> None:
        """Wait until just these were acted on, in this order."""
        wait_for(lambda: self.act() == list(wanted), lambda: f"{self.act()} {self.trouble}")

    @property
    def trouble(self) -> str:
        assert self.signals is not None
        now = self.signals.trouble.now()
        return "" if now is None else f"{now['reason']}. {now['remedy']}"

    def errors(self) -> list[str]:
        documents = [self.state.get(key) for key in sorted(self.state.keys("results/"))]
        return [d.value["error"] for d in documents if d is not None and d.value["error"]]

    def close(self) -> None:
        if self.signals is not None:
            self.signals.close()

    def _handle(self, _command_id: str, command: Command) -> dict[str, Any]:
        self.acted.append(command)
        return {}


def wait_for(
    condition: Callable[[], Any], what: str | Callable[[], str], timeout_s: float = 30
) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, what if isinstance(what, str) else what()
        time.sleep(0.02)
