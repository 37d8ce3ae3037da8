"""The Kafka output: change events as messages, a topic for each table.

At least once, and monotonic: a key's messages are in one partition in the order of their versions,
without an older one after a newer one, also after crashes; see `tidelog.outputs.kafka.topic_tail`.
With ``transactions`` each task's messages are one transaction, and readers of committed messages
see each once: an attempt first fences the producers of earlier attempts, so that the messages that
it reads back are final.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    ConfigResource,
    NewTopic,
    ResourceType,
)

from tidelog.errors import (
    ConfigError,
    NameRefusedError,
    OutputRefusedError,
    StateConflictError,
    TableLeftOutError,
)
from tidelog.model.patterns import matches
from tidelog.model.schema import TableName
from tidelog.outputs.base.executor_output import ExecutorOutput
from tidelog.outputs.base.left_out import missing_key_error, route_step
from tidelog.outputs.base.ranges import MESSAGES_TABLE, whole_dumps
from tidelog.outputs.base.scheduling import BatchPlan
from tidelog.outputs.base.writer import Delivery, StopAtRejection
from tidelog.outputs.formatters.json_formats import Debezium
from tidelog.outputs.formatters.messages import topic_of
from tidelog.outputs.kafka.client import (
    Administration,
    failed,
    librdkafka_log,
    settings_of,
    topic_name,
)
from tidelog.outputs.kafka.topic_tail import TopicTail
from tidelog.outputs.kafka.writer import (
    AbsentKeys,
    KafkaTopics,
    KafkaWriter,
    close_idle_producers,
    transactional_id,
)
from tidelog.ports import StateStore, TargetTable, TaskWriter
from tidelog.spark.executor_jobs import run_on_executors
from tidelog.spark.sessions.connect import runs_on_this_machine
from tidelog.spark.transforms import steps_of, target_table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_TIMEOUT_S = 30.0
_FENCERS = 8  # at once


def table_topic(output: str, pattern: str, table: TargetTable) -> str:
    """Return the topic of a table's messages. Raises NameRefusedError if Kafka can't have it."""
    try:
        return topic_name(topic_of(pattern, table))
    except OutputRefusedError as error:
        raise NameRefusedError(f"output {output}: {error}. {route_step(table.source)}") from None


class KafkaOutput(ExecutorOutput):
    """`tidelog.ports.Output` over topics.

    Args:
        spark, log_path, state: see `ExecutorOutput`.
        delivery: ordered, with a formatter whose topics are those of ``topic``.
        servers: ``host:port``, several separated by commas.
        topic: pattern of the topic's name: ``{table}``, ``{namespace}``, ``{name}``.
        messages_topic: topic of logical messages, if ``delivery.messages`` are wanted.
        partitions: partitions of topics that are created; None: the brokers' default.
        replication: replication of topics that are created; None: the brokers' default.
        compact: whether to create topics with ``cleanup.policy=compact``.
        create_topics: False: a missing topic is an error.
        transactions: exactly once for readers of committed messages.
        settings: librdkafka's settings, for security and tuning.
        timeout_s: how long brokers may accept none of a task's messages.
    """

    frequent = True
    removes_absent = True

    def __init__(
        self,
        spark: SparkSession,
        log_path: str,
        state: StateStore,
        delivery: Delivery,
        *,
        servers: str,
        topic: str = "{namespace}.{name}",
        messages_topic: str = "",
        partitions: int | None = None,
        replication: int | None = None,
        compact: bool = False,
        create_topics: bool = True,
        transactions: bool = False,
        settings: Mapping[str, str] | None = None,
        timeout_s: float = 120.0,
    ) -> None:
        if delivery.keyed or delivery.formatter is None:
            raise ConfigError("a kafka output delivers every change, as messages")
        self._settings = settings_of(servers, settings or {})
        self._topic = topic
        self._messages_topic = messages_topic
        self._partitions = partitions
        self._replication = replication
        self._compact = compact
        self._create_topics = create_topics
        self._transactions = transactions
        self._timeout_s = timeout_s
        self._topics: dict[str, str] = {}  # topic → table
        self._compacted: set[str] = set()
        self._max_bytes: dict[str, int] = {}
        self._clean: frozenset[str] = frozenset()  # topics without messages of the batch to come
        self._tried_before = True
        # On a cluster a stage is retried where shuffled data is lost, which its tasks can't detect.
        self._stages_retry = not runs_on_this_machine(spark)
        self._administration = Administration(servers, self._settings)
        super().__init__(spark, log_path, state, delivery)

    def check(self, generation: str) -> None:
        self._administration.brokers(_TIMEOUT_S)

    def create(self, table: TargetTable) -> None:
        topic = self.subject(table)
        other = self._topics.setdefault(topic, str(table.source))
        if other != str(table.source) and table.source == MESSAGES_TABLE:
            raise OutputRefusedError(
                f"output {self.name}: the topic {topic} of logical messages is that of {other}: "
                "set `messages_topic`"
            )
        try:
            if topic not in self._administration.client.list_topics(timeout=_TIMEOUT_S).topics:
                policy = "compact" if self._compact else None
                self._create_topic(topic, "delete" if table.source == MESSAGES_TABLE else policy)
            self._describe(topic)
        except KafkaException as error:
            if error.args[0].code() == KafkaError.TOPIC_EXCEPTION:
                # Topics that differ only in "." and "_" would share their metrics' name.
                raise NameRefusedError(
                    f"output {self.name}: brokers refuse the topic {topic} of {table.source} "
                    f"({error.args[0].str()}). {route_step(table.source)}"
                ) from None
            raise failed(f"topic {topic} can't be created", error) from None
        if topic in self._compacted and table.source == MESSAGES_TABLE:
            raise OutputRefusedError(
                f"output {self.name}: topic {topic} is compacted, which keeps only the last "
                "message of each prefix: give messages_topic a topic that is not"
            )
        if topic in self._compacted and table.schema.match_key:
            self._check_key(table, topic)
        if topic in self._compacted and not table.key:
            why = f"has a compacted topic for it, {topic}, which keeps messages by key"
            raise missing_key_error(table.schema, self.name, self.delivery.keyless, why)
        if topic in self._compacted and self.delivery.order == "none":
            raise TableLeftOutError(
                f"output {self.name}: topic {topic} is compacted, which keeps a key's last "
                "message; with order none that need not be its newest: use order key, or a topic "
                "that is not compacted"
            )

    def _check_key(self, table: TargetTable, topic: str) -> None:
        """Raise TableLeftOutError if rows of several keys may have the same key after the steps;
        a step python is responsible for itself.
        """
        if any(step.action == "python" for step in steps_of(self.delivery.steps, table.source)):
            return
        try:
            target_table(
                self._spark, table.schema, self.delivery.steps, self.log.source, keyed=True
            )
        except ConfigError as error:
            raise TableLeftOutError(
                f"output {self.name}: topic {topic} is compacted, which keeps the last message of "
                f"each key. {error}"
            ) from None

    def before_batch(self, *, again: bool) -> None:
        self._tried_before = again

    def subject(self, table: TargetTable) -> str:
        """Return the topic, as in Confluent's TopicNameStrategy."""
        if table.source == MESSAGES_TABLE:
            return topic_name(self._messages_topic)
        return table_topic(self.name, self._topic, table)

    def address(self, table: TargetTable) -> str | None:
        return None if self._shares_topics else f"topic {self.subject(table)}"

    def needs_truncates(self, table: TargetTable) -> bool:
        """Return True for a compacted topic, in which truncates become tombstones: without them
        keys would stay for ever.
        """
        return self.subject(table) in self._compacted

    def remove_below(self, table: TargetTable, version: int) -> bool:
        """Return True if `writing` removes the keys. It does not if a newer state of a row may
        have been skipped: the row would be taken for deleted.
        """
        return self.subject(table) in self._compacted and not self.delivery.skipped & {"c", "u"}

    @contextmanager
    def writing(self, plan: BatchPlan) -> Iterator[TaskWriter]:
        if self._transactions:
            self._fence(list({*plan.removed, *(table.source for table in plan.tables)}))
            self._note_slots(plan.tasks)
        # A run's first batches check as well: the state store may be an older copy.
        clean, self._clean = self._clean, frozenset()
        tail = TopicTail(self._settings, committed=self._transactions)
        try:
            # The topics' current ends; messages of an earlier attempt's tasks are before them.
            ends = {each: tail.ends(each) for each in self._topics if each not in clean}
            yield self._writer(bool(ends), ends)
            self._remove_absent(plan)
            # After a rewind a topic has batches beyond this one.
            until = plan.batch.end
            ahead = {
                topic
                for topic, each in ends.items()
                if len(tail.already_written(topic, until, exact=True, ends=each).hashes)
            }
        finally:
            tail.close()
        self._clean = clean | (ends.keys() - ahead)

    def _remove_absent(self, plan: BatchPlan) -> None:
        """Remove absent keys after the batch's rows: a key's messages among these are newer."""
        dumps = whole_dumps(plan.batch)
        for source in plan.removed:
            table = self._current.find(source)
            assert table is not None
            done = dumps[str(source)]
            ids = self._schema_ids(source) if self._shares_topics else None
            version = done.finalized_until - 1
            absent = AbsentKeys(table, self.subject(table), done.first_offset, version, ids)
            task = self._task(plan.batch, {})
            writer = self._writer(False, None, keep_rejected=False)
            run_on_executors(self._spark, partial(writer.remove_absent, task), [absent])

    def shuffled_writer(self, writer: TaskWriter) -> TaskWriter:
        return self._writer(True, None) if self._stages_retry else writer

    def _writer(
        self,
        repeated: bool,
        ends: Mapping[str, Mapping[int, int]] | None,
        *,
        keep_rejected: bool = True,
    ) -> KafkaWriter:
        known = KafkaTopics(
            frozenset(self._compacted),
            dict(self._max_bytes),
            ends,
            {
                str(each.source): self._schema_ids(each.source)
                for each in self._current.all()
                if each.source != MESSAGES_TABLE
            }
            if self._shares_topics
            else {},
        )
        return KafkaWriter(
            self._settings,
            known,
            transactions=self._transactions,
            exact=self.delivery.order == "none",
            repeated=repeated,
            timeout_s=self._timeout_s,
            keep_rejected=keep_rejected
            and not isinstance(self.delivery.dead_letters, StopAtRejection),
            context=isinstance(form := self.delivery.formatter, Debezium)
            and form.handling.extended_headers,
        )

    @property
    def _shares_topics(self) -> bool:
        """May a topic have messages of several tables?"""
        return self.delivery.order == "total"

    def _schema_ids(self, table: TableName) -> frozenset[int]:
        return frozenset(each.schema_id for each in self.log.schemas.versions(table))

    def close(self) -> None:
        super().close()
        close_idle_producers()

    # ------------------------------------------------------------------ topics

    def _create_topic(self, topic: str, policy: str | None) -> None:
        """``policy``: the clean-up policy; None: the brokers' default."""
        if not self._create_topics:
            raise TableLeftOutError(
                f"output {self.name}: there is no topic {topic}, and create_topics is false"
            )
        wanted = NewTopic(
            topic,
            num_partitions=self._partitions or -1,
            replication_factor=self._replication or -1,
            config={} if policy is None else {"cleanup.policy": policy},
        )
        try:
            self._administration.client.create_topics([wanted])[topic].result(_TIMEOUT_S)
        except KafkaException as error:
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise

    def _describe(self, topic: str) -> None:
        """Read whether the topic is compacted, and how long messages may be. If that is not
        allowed: assume what we create.
        """
        resource = ConfigResource(ResourceType.TOPIC, topic)
        known_by = time.monotonic() + _TIMEOUT_S
        while True:
            try:
                found: Any = self._administration.client.describe_configs([resource])[
                    resource
                ].result(_TIMEOUT_S)
                break
            except KafkaException as error:
                code = error.args[0].code()
                if code == KafkaError.UNKNOWN_TOPIC_OR_PART and time.monotonic() < known_by:
                    time.sleep(0.1)  # brokers learn of a new topic one after the other
                    continue
                if code not in (
                    KafkaError.TOPIC_AUTHORIZATION_FAILED,
                    KafkaError.CLUSTER_AUTHORIZATION_FAILED,
                ):
                    raise
                if self._compact:
                    self._compacted.add(topic)
                return
        if "compact" in found["cleanup.policy"].value:
            self._compacted.add(topic)
        else:
            self._compacted.discard(topic)
        self._max_bytes[topic] = int(found["max.message.bytes"].value)

    # ------------------------------------------------------------------ transactions

    @property
    def _slots_key(self) -> str:
        return f"kafka/{self.log.generation}/{self.name}"

    def _note_slots(self, count: int) -> None:
        """Store the count, durably, before producers with such numbers exist."""
        found = self._state.get(self._slots_key)
        if found is None or found.value["slots"] < count:
            try:
                self._state.put(self._slots_key, {"slots": count}, found.version if found else 0)
            except StateConflictError:
                raise OutputRefusedError(
                    f"output {self.name}: another pipeline uses this output's name"
                ) from None

    def _fence(self, tables: Sequence[TableName]) -> None:
        """After a failed attempt, end the transactions of its tasks, for good. If the state store
        has no attempts, it may have been lost: then end those of all tables.
        """
        found = self._state.get(self._slots_key)
        if found is None:
            known = self.log.schemas.tables()
            tables = [each for each in known if matches(self.delivery.tables, each)]
            tables += [] if self.delivery.messages is None else [MESSAGES_TABLE]
        elif not self._tried_before:
            return
        count = max(self._cores(), found.value["slots"] if found else 0)
        names = [
            transactional_id(self.log.generation, self.name, str(table), number)
            for table in tables
            for number in range(count)
        ]
        with ThreadPoolExecutor(_FENCERS) as pool:
            list(pool.map(self._fence_one, names))

    def _fence_one(self, name: str) -> None:
        settings = self._settings | {"transactional.id": name}
        try:
            producer = Producer(settings, logger=librdkafka_log)
            producer.init_transactions(self._timeout_s)
        except KafkaException as error:
            raise failed("earlier transactions can't be ended", error) from None
