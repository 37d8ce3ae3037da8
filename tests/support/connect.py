"""Kafka Connect's converters, Debezium's transforms and its JDBC sink, and Flink's reader, in a JVM
of their own, called over Py4J: what reads the messages in production, without a cluster around it.
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
from py4j.protocol import Py4JJavaError
from tests.support.connect_jars import CONSUMER_JARS
from tests.support.connect_worker_jars import WORKER_JARS
from tests.support.opensearch import java

from tidelog.system.maven import fetch

Message = tuple[bytes | None, bytes | None]


class Connect:
    """A JVM with Connect's classes. A context manager."""

    def __init__(self) -> None:
        own = next((Path(pyspark.__file__).parent / "jars").glob("py4j-*.jar"))
        port, token = launch_gateway(
            jarpath=str(own),
            classpath=":".join(
                map(str, fetch((*CONSUMER_JARS, *WORKER_JARS), "Kafka Connect's jars"))
            ),
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

    def array(self, kind: str, values: Sequence[Any]) -> Any:
        """A Java array."""
        java: Any = self.jvm
        for part in kind.split("."):
            java = getattr(java, part)
        found = self._gateway.new_array(java, len(values))
        for place, value in enumerate(values):
            found[place] = value
        return found

    def records(self, topic: str, messages: Sequence[Message]) -> list[Any]:
        """The messages as Connect's sink records, by its JSON converter as it is by default: with
        schemas. Raises Py4JJavaError for what it can't read.
        """
        keys, values = (self.jvm.org.apache.kafka.connect.json.JsonConverter() for _ in range(2))
        keys.configure({}, True)
        values.configure({}, False)
        read = [
            (keys.toConnectData(topic, key), values.toConnectData(topic, value))
            for key, value in messages
        ]
        return self._records(topic, read)

    def avro_records(
        self, topic: str, messages: Sequence[Message], schemas: tuple[str, str]
    ) -> list[Any]:
        """Likewise of Avro with these schemas of keys and values, by Avro's own reader and the
        ``AvroData`` of Confluent's converter.
        """
        avro = self.jvm.org.apache.avro
        data = self.jvm.io.apicurio.registry.utils.converter.avro.AvroData(100)
        parsed = [avro.Schema.Parser().parse(text) for text in schemas]
        nothing = self.jvm.org.apache.kafka.connect.data.SchemaAndValue.NULL

        def read(schema: Any, message: bytes | None) -> Any:
            if message is None:
                return nothing
            assert message[0] == 0, "not Confluent's wire format"
            decoder = avro.io.DecoderFactory.get().binaryDecoder(message[5:], None)
            record = avro.generic.GenericDatumReader(schema).read(None, decoder)
            assert decoder.isEnd()
            return data.toConnectData(schema, record)

        return self._records(
            topic, [(read(parsed[0], key), read(parsed[1], value)) for key, value in messages]
        )

    def _records(self, topic: str, read: Sequence[tuple[Any, Any]]) -> list[Any]:
        record = self.jvm.org.apache.kafka.connect.sink.SinkRecord
        return [
            record(topic, 0, key.schema(), key.value(), row.schema(), row.value(), offset)
            for offset, (key, row) in enumerate(read)
        ]

    def flink(
        self, messages: Sequence[Message], columns: Mapping[str, str], *, schemas: bool
    ) -> list[tuple[str, dict[str, str | None]]]:
        """What Flink's format ``debezium-json`` makes of the values: (kind of row, row as texts).

        Args:
            messages: those without a value are none to it.
            columns: name → Flink's SQL type without parameters, e.g. ``INT``.
            schemas: are there schemas in the messages (``debezium-json.schema-include``)?
        """
        flink = self.jvm.org.apache.flink
        types = flink.table.api.DataTypes
        fields = self._gateway.new_array(types.Field, len(columns))
        for place, (name, kind) in enumerate(columns.items()):
            kinds = {"DECIMAL": lambda: types.DECIMAL(38, 10), "TIME": lambda: types.TIME(3)}
            fields[place] = types.FIELD(name, kinds.get(kind, getattr(types, kind))())
        row = types.ROW(fields)
        reader = flink.formats.json.debezium.DebeziumJsonDeserializationSchema(
            row,
            self.jvm.java.util.ArrayList(),
            flink.table.runtime.typeutils.InternalTypeInfo.of(row.getLogicalType()),
            schemas,
            False,
            flink.formats.common.TimestampFormat.ISO_8601,
        )
        reader.open(None)
        found = self.jvm.java.util.ArrayList()
        collector = flink.api.common.functions.util.ListCollector(found)
        for _key, value in messages:
            reader.deserialize(value, collector)
        getters = [
            flink.table.data.RowData.createFieldGetter(row.getLogicalType().getTypeAt(at), at)
            for at in range(len(columns))
        ]
        rows = []
        for each in found:
            cells = [getter.getFieldOrNull(each) for getter in getters]
            texts = [None if cell is None else _text(cell) for cell in cells]
            rows.append((each.getRowKind().shortString(), dict(zip(columns, texts, strict=True))))
        return rows

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


class ConnectWorker:
    """A worker of Kafka Connect as ``connect-standalone`` runs it, in the JVM of ``connect``, with
    the converters of its sample configuration: JSON for keys and values, the default for headers.
    """

    def __init__(self, connect: Connect, servers: str, directory: Path) -> None:
        self._jvm = connect.jvm
        arguments = connect.array("java.lang.String", ["worker.properties"])
        program = self._jvm.org.apache.kafka.connect.cli.ConnectStandalone(arguments)
        json_converter = "org.apache.kafka.connect.json.JsonConverter"
        self._connect = program.startConnect(
            {
                "bootstrap.servers": servers,
                "key.converter": json_converter,
                "value.converter": json_converter,
                "offset.storage.file.filename": str(directory / "offsets"),
                "plugin.discovery": "service_load",
                "listeners": "http://127.0.0.1:0",
            }
        )

    def add(self, name: str, configuration: Mapping[str, str]) -> None:
        """Create a connector."""
        done = self._jvm.org.apache.kafka.connect.util.FutureCallback()
        given = {"name": name, **configuration}
        self._connect.herder().putConnectorConfig(name, given, False, done)
        done.get()

    def failure(self, name: str) -> str | None:
        """Why a task of the connector has failed, as its status tells; None if none has."""
        try:
            tasks = self._connect.herder().connectorStatus(name).tasks()
        except Py4JJavaError:  # not there yet
            return None
        return next((str(each.trace()) for each in tasks if each.state() == "FAILED"), None)

    def stop(self) -> None:
        self._connect.stop()
        self._connect.awaitStop()


def _text(cell: Any) -> str:
    return str(cell) if isinstance(cell, (bool, int, float, str)) else str(cell.toString())


class _Context:
    """A `SinkTaskContext` of a worker that reports no bad records apart."""

    def errantRecordReporter(self) -> None:  # noqa: N802 - the interface's name
        return None

    def configs(self) -> dict[str, str]:
        return {}

    class Java:
        implements = ("org.apache.kafka.connect.sink.SinkTaskContext",)
