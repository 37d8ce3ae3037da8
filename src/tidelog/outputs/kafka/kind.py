"""Kind ``kafka``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from tidelog.model.units import counted
from tidelog.outputs.base.kinds import BuiltinKind, hosts
from tidelog.outputs.base.progress import has_whole_log
from tidelog.outputs.base.reachability import ANSWER_S
from tidelog.outputs.delivery_settings import delivery_of, handling_of, skipped_of
from tidelog.outputs.kafka.config import KafkaSection
from tidelog.ports import Formatter, LogExtent, Output, OutputContext, OutputPlace, TargetTable


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
    from tidelog.outputs.formatters.logical_messages import LogicalMessages
    from tidelog.outputs.kafka.client import topic_name

    topic = section.messages_topic
    if topic is None:
        return None
    return LogicalMessages(topic_name(topic), tuple(section.message_prefixes), handling_of(section))


def _place(section: KafkaSection) -> OutputPlace:
    messages = () if section.messages_topic is None else (section.messages_topic,)
    return OutputPlace([section.topic], hosts(section.servers, 9092), also=messages)


def _names(section: KafkaSection, tables: Sequence[TargetTable]) -> Iterator[str]:
    from tidelog.outputs.base.targets import refused_names
    from tidelog.outputs.kafka.output import table_topic

    def topic(table: TargetTable) -> str:
        return table_topic(section.name, section.topic, table)

    if section.order == "total":
        return refused_names(section.name, tables, topic)
    return refused_names(section.name, tables, topic, lambda table: f"topic {topic(table)}")


def _idle(section: KafkaSection, log: LogExtent) -> bool:
    return has_whole_log(log, section.name) and bool(_probe(section))


KIND = BuiltinKind(KafkaSection, _open, _place, "confluent_kafka", _probe, _names, _idle)
