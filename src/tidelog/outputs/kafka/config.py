"""Kind ``kafka``: its section, its probe, and how it is opened."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Literal

from pydantic import Field, model_validator

from tidelog.kinds.sections import LibrdkafkaSettings
from tidelog.model.schema import TableName
from tidelog.model.units import counted
from tidelog.outputs.base.builtin_kind import ANSWER_S, BuiltinKind, normal_hosts
from tidelog.outputs.base.progress import has_whole_log
from tidelog.outputs.base.sections import (
    DEBEZIUM,
    SKIPPED,
    DebeziumSection,
    FormatName,
    MessageSection,
    Order,
    SkipOrFail,
    SkippedOperations,
    name_field,
)
from tidelog.outputs.delivery_settings import delivery_of, handling_of, skipped_of
from tidelog.ports import Formatter, LogExtent, Output, OutputContext, OutputLocation, TargetTable


class KafkaSection(MessageSection):
    """Change events as messages, a topic for each table (docs/outputs/kafka.md)."""

    kind: Literal["kafka"] = Field(description="The kind of output.")
    name: str = name_field("kafka")
    servers: str = Field(
        min_length=1,
        description="Brokers to connect to first, separated by commas.",
        examples=["kafka1:9092,kafka2:9092"],
    )
    topic: str = Field(
        default="{namespace}.{name}",
        min_length=1,
        description="Name of each table's topic, from the source's `{namespace}` and "
        "`{name}`, or the `{table}` that a step `route` gives. Characters that topics can't "
        "have become `_`.",
    )
    messages_topic: str | None = Field(
        default=None,
        min_length=1,
        description="Topic of the application's logical messages (`pg_logical_emit_message`), as "
        "Debezium's `<prefix>.message`. Format `debezium` alone. Unset: they are left out.",
        examples=["shop.message"],
    )
    message_prefixes: list[str] = Field(
        default=["*"],
        min_length=1,
        description="Which logical messages, by prefix, as Debezium's "
        "`message.prefix.include.list`; `*` stands for any text.",
        examples=[["outbox*"]],
    )
    format: FormatName = Field(default="debezium", description="The form of the messages' values.")
    debezium: DebeziumSection | None = DEBEZIUM
    skipped_operations: SkippedOperations | None = SKIPPED
    tombstones: bool = Field(
        default=True, description="After a delete, a message with its key and no value."
    )
    order: Order = Field(
        default="key",
        description="`key`: a key's changes in order. `total`: all in one task, in the log's "
        "order. `none`: as it comes.",
    )
    create_topics: bool = Field(default=True, description="Create missing topics. `false`: stop.")
    partitions: int | None = Field(
        default=None, ge=1, description="For topics that are created. Unset: the brokers' default."
    )
    replication: int | None = Field(
        default=None, ge=1, description="For topics that are created. Unset: the brokers' default."
    )
    compact: bool = Field(default=False, description="Create topics with `cleanup.policy=compact`.")
    keyless: SkipOrFail = Field(
        default="skip",
        description="What to do with a table that has no key where its topic is compacted. `skip`: "
        "it is left out, with a warning. `fail`: stop. Other topics take it.",
    )
    transactions: bool = Field(
        default=False,
        description="Exactly once for readers with `isolation.level=read_committed`: each task's "
        "messages are a transaction.",
    )
    settings: LibrdkafkaSettings = Field(default={})

    def keyless_of(self, table: TableName) -> SkipOrFail | None:
        return self.keyless if self.compact else None

    @model_validator(mode="after")
    def _messages_in_debeziums_format(self) -> KafkaSection:
        if self.messages_topic is not None and self.format != "debezium":
            raise ValueError("messages_topic needs format debezium")
        return self


def _probe(section: KafkaSection) -> str:
    from tidelog.outputs.kafka.client import Administration, settings_of

    settings = settings_of(section.servers, _settings(section))
    count = Administration(section.servers, settings).brokers(ANSWER_S)
    return f"{section.servers} answers: {counted(count, 'broker')}"


def _open(section: KafkaSection, context: OutputContext) -> Output:
    from tidelog.outputs.formatters import formatter
    from tidelog.outputs.kafka.output import KafkaOutput

    delivery = delivery_of(section, keyed=False, keyless=section.keyless, order=section.order)
    made = formatter(
        section.format,
        topic=section.topic,
        tombstones=section.tombstones,
        handling=handling_of(section),
    )
    return KafkaOutput(
        context.spark,
        context.log_path,
        context.open_state(),
        # Formatting and sending cost more than reading: several tasks pay off sooner.
        replace(
            delivery,
            formatter=made,
            part_bytes=4 << 20,
            skipped=skipped_of(section),
            messages=_messages(section),
            types=section.column_types(),
        ),
        servers=section.servers,
        topic=section.topic,
        messages_topic=section.messages_topic or "",
        partitions=section.partitions,
        replication=section.replication,
        compact=section.compact,
        create_topics=section.create_topics,
        transactions=section.transactions,
        settings=_settings(section),
    )


def _settings(section: KafkaSection) -> dict[str, str]:
    return {name: value.get_secret_value() for name, value in section.settings.items()}


def _messages(section: KafkaSection) -> Formatter | None:
    from tidelog.outputs.formatters.messages import LogicalMessages
    from tidelog.outputs.kafka.client import topic_name

    topic = section.messages_topic
    if topic is None:
        return None
    return LogicalMessages(topic_name(topic), tuple(section.message_prefixes), handling_of(section))


def _location(section: KafkaSection) -> OutputLocation:
    messages = () if section.messages_topic is None else (section.messages_topic,)
    return OutputLocation([section.topic], normal_hosts(section.servers, 9092), further=messages)


def _names(section: KafkaSection, tables: Sequence[TargetTable]) -> Iterator[str]:
    from tidelog.outputs.base.left_out import refused_names
    from tidelog.outputs.kafka.output import table_topic

    def topic(table: TargetTable) -> str:
        return table_topic(section.name, section.topic, table)

    if section.order == "total":
        return refused_names(section.name, tables, topic)
    return refused_names(section.name, tables, topic, lambda table: f"topic {topic(table)}")


def _idle(section: KafkaSection, log: LogExtent) -> bool:
    return has_whole_log(log, section.name) and bool(_probe(section))


KIND = BuiltinKind(KafkaSection, _open, _location, "confluent_kafka", _probe, _names, _idle)
