"""Kafka Connect's converters, Debezium's transforms and its JDBC sink in a JVM of their own, called
over Py4J: what reads the messages in production, without a Connect cluster around it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import pyspark
from py4j.java_gateway import (
    CallbackServerParameters,
    GatewayParameters,
    JavaGateway,
    launch_gateway,
)

from tidelog.maven import fetch
from tidelog.testing.connect_jars import CONNECT_JARS
from tidelog.testing.server_jars import java

Message = tuple[bytes | None, bytes | None]


class Connect:
    """A JVM with Connect's classes. A context manager."""

    def __init__(self) -> None:
        own = next((Path(pyspark.__file__).parent / "jars").glob("py4j-*.jar"))
        port, token = launch_gateway(
            jarpath=str(own),
            classpath=":".join(map(str, fetch(CONNECT_JARS, "Kafka Connect's jars"))),
            die_on_exit=True,
            java_path=java("Kafka Connect"),
            enable_auth=True,
        )
        self._gateway = JavaGateway(
            gateway_parameters=GatewayParameters(port=port, auth_token=token, auto_convert=True),
            callback_server_parameters=CallbackServerParameters(port=0),
        )
        callbacks = self._gateway.get_callback_server().get_listening_port()
        client = self._gateway.java_gateway_server.getCallbackClient()
        self._gateway.java_gateway_server.resetCallbackClient(client.getAddress(), callbacks)
        self.jvm = self._gateway.jvm

    def __enter__(self) -> Connect:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._gateway.shutdown()

    def records(self, topic: str, messages: Sequence[Message]) -> list[Any]:
        """The messages as Connect's sink records, by its JSON converter as it is by default: with
        schemas. Raises Py4JJavaError for what it can't read.
        """
        connect = self.jvm.org.apache.kafka.connect
        keys, values = (connect.json.JsonConverter() for _ in range(2))
        keys.configure({}, True)
        values.configure({}, False)
        found = []
        for offset, (key, value) in enumerate(messages):
            told, row = keys.toConnectData(topic, key), values.toConnectData(topic, value)
            parts = (told.schema(), told.value(), row.schema(), row.value())
            found.append(connect.sink.SinkRecord(topic, 0, *parts, offset))
        return found

    def unwrapped(self, records: Sequence[Any], options: Mapping[str, str]) -> list[Any]:
        """What Debezium's ``ExtractNewRecordState`` makes of them; those that it drops left out."""
        transform = self.jvm.io.debezium.transforms.ExtractNewRecordState()
        transform.configure(dict(options))
        found = [transform.apply(record) for record in records]
        return [record for record in found if record is not None]

    def sink(self, records: Sequence[Any], options: Mapping[str, str]) -> None:
        """Have Debezium's JDBC sink write them."""
        task = self.jvm.io.debezium.connector.jdbc.JdbcSinkConnectorTask()
        task.initialize(_Context())
        task.start(dict(options))
        try:
            task.put(list(records))
        finally:
            task.stop()


class _Context:
    """A `SinkTaskContext` of a worker that reports no bad records apart."""

    def errantRecordReporter(self) -> None:  # noqa: N802 - the interface's name
        return None

    def configs(self) -> dict[str, str]:
        return {}

    class Java:
        implements = ("org.apache.kafka.connect.sink.SinkTaskContext",)
