"""Kafka."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from confluent_kafka import admin
from tests.behaviours.outputs import kafka_topics
from tests.faults.outputs.target import Strike, Target, nothing
from tests.integration.spark.frozen_destinations import Place
from tests.support.kafka import KafkaServer

from tidelog.demo.servers.embedded import free_port


@functools.cache
def compacted_broker() -> tuple[KafkaServer, int]:
    """And the port that it tells its clients."""
    port = free_port()
    made = KafkaServer(
        {
            "advertised.listeners": f"PLAINTEXT://127.0.0.1:{port}",
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "allow.everyone.if.no.acl.found": True,
        }
    )
    made.start()
    return made, port


class Kafka(Target):
    """A compacted topic: who reads it keeps the newest message of each key."""

    transactions = False

    def make(self) -> Place:
        self.server, port = compacted_broker()
        self._behind_switch(self.server.port, at=port)
        self.topic = f"compacted-{self._root.name}"
        output = {
            "kind": "kafka", "servers": f"127.0.0.1:{port}", "topic": self.topic,
            "format": "flat", "partitions": 2, "compact": True,
            "transactions": self.transactions,
        }  # fmt: skip
        return Place(output, self._found, None)

    def _found(self) -> list[tuple[Any, ...]]:
        try:
            messages = kafka_topics.read(self.topic, servers=self.place.output["servers"])
        except KeyError:  # no topic yet
            return []
        kafka_topics.check_order(messages)
        rows = {each.key: each.value for each in messages}
        return [(row["id"], row["v"]) for row in rows.values() if row and not row["__deleted"]]

    @contextmanager
    def read_only(self) -> Iterator[Strike]:
        """Nobody may write to the topic."""
        client = admin.AdminClient({"bootstrap.servers": self.place.output["servers"]})

        def rule(operation: Any, permission: Any) -> Any:
            pattern = admin.ResourcePatternType.LITERAL
            topic = (admin.ResourceType.TOPIC, self.topic, pattern)
            return admin.AclBinding(*topic, "User:*", "*", operation, permission)

        rules = [
            rule(admin.AclOperation.ALL, admin.AclPermissionType.ALLOW),
            rule(admin.AclOperation.WRITE, admin.AclPermissionType.DENY),
        ]
        for future in client.create_acls(rules).values():
            future.result(30)
        try:
            yield nothing
        finally:
            filters = [
                admin.AclBindingFilter(
                    each.restype, each.name, each.resource_pattern_type, each.principal,
                    each.host, each.operation, each.permission_type,
                )
                for each in rules
            ]  # fmt: skip
            for future in client.delete_acls(filters).values():
                future.result(30)


class KafkaTransactions(Kafka):
    transactions = True
