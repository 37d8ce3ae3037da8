"""The section of outputs of kind ``kafka``."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from tidelog.kinds.sections import LibrdkafkaSettings
from tidelog.model.schema import TableName
from tidelog.outputs.base.sections import (
    DEBEZIUM,
    SKIPPED,
    DebeziumModes,
    ExecutorSection,
    FormatName,
    Order,
    SkipOrFail,
    SkippedOperations,
    name_field,
)


class KafkaSection(ExecutorSection):
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
        description="Name of each table's topic; `{namespace}` and `{name}` stand for the "
        "source's, `{table}` for the name that a step `route` gives. Characters that topics can't "
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
    debezium: DebeziumModes | None = DEBEZIUM
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
