"""Reads from the ends of a topic's partitions which messages of a batch it has already; and its
keys.

The messages are the output's progress: each has its version in a header. A batch that is written
again reads back the topic's messages at or above the batch's start and leaves them out. So no state
of a key follows a newer one, whatever crashed; and nothing else has to be stored.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from tidelog.errors import OutputError
from tidelog.outputs.kafka.client import (
    SCHEMA_HEADER,
    VERSION_HEADER,
    common,
    failed,
    librdkafka_log,
)

_FIRST_STEP = 1_000
_READ_AT_ONCE = 10_000
_IDLE_TIMEOUT_S = 120.0
# A partition that was just created, or whose leader changes, has no leader for a moment.
_MOVING = (KafkaError.NOT_LEADER_FOR_PARTITION, KafkaError.LEADER_NOT_AVAILABLE)
_MOVING_S = 10.0

_Longs = npt.NDArray[np.int64]


@dataclass(frozen=True)
class AlreadyWritten:
    """The messages of one topic: ``hashes`` of identities, sorted, and the newest ``ranks`` of
    each.

    With ``exact`` an identity is a message (key, version), else a key: a key's messages were
    written in order, so those older than its newest one were written before it. The rank of a
    version's tombstone is above that of its delete. Python's hash of bytes is of 64 bits; a process
    compares only its own. ``each``: sorted identities of all its messages of the batch, if known.
    """

    hashes: _Longs
    ranks: _Longs
    exact: bool
    each: _Longs | None = None

    def holds(self, keys: Sequence[bytes | None], ranks: _Longs) -> npt.NDArray[np.bool_]:
        """Return bool[n]: which of these messages must not be written again."""
        if not len(self.hashes):
            return np.zeros(len(keys), np.bool_)
        wanted = identities(keys, ranks, self.exact)
        at = np.minimum(np.searchsorted(self.hashes, wanted), len(self.hashes) - 1)
        found: npt.NDArray[np.bool_] = (self.hashes[at] == wanted) & (ranks <= self.ranks[at])
        return found

    def is_missing(self, keys: Sequence[bytes | None], ranks: _Longs) -> npt.NDArray[np.bool_]:
        """Return bool[n]: among messages for which `holds` is true, those that are known not to be
        in the topic themselves.
        """
        if self.each is None:
            return np.zeros(len(keys), np.bool_)
        found: npt.NDArray[np.bool_] = ~np.isin(identities(keys, ranks, True), self.each)
        return found


def ranks_of(versions: Any, values: Sequence[bytes | None]) -> _Longs:
    """Return int64[n]: the order of messages, also of a delete and its tombstone, which have the
    same version.
    """
    empty = np.fromiter((value is None for value in values), np.int64, len(values))
    ranks: _Longs = 2 * np.asarray(versions, np.int64) + empty
    return ranks


def identities(keys: Sequence[bytes | None], ranks: _Longs, exact: bool) -> _Longs:
    """Return int64[n]. Messages without a key are always identified by version."""
    if exact:
        each = (hash((key, rank)) for key, rank in zip(keys, ranks.tolist(), strict=True))
    else:
        each = (
            hash(key) if key is not None else hash((None, rank))
            for key, rank in zip(keys, ranks.tolist(), strict=True)
        )
    return np.fromiter(each, np.int64, len(keys))


class TopicTail:
    """Reads ends of topics. `close` it.

    Args:
        settings: librdkafka's settings.
        committed: whether to leave out messages of aborted transactions, and wait for open ones.
    """

    def __init__(self, settings: Mapping[str, Any], *, committed: bool) -> None:
        self._consumer = _consumer(settings, "read_committed" if committed else "read_uncommitted")
        # The brokers' ends, not those of the first open transaction.
        self._ends = _consumer(settings, "read_uncommitted") if committed else self._consumer

    def close(self) -> None:
        self._consumer.close()
        if self._ends is not self._consumer:
            self._ends.close()

    def ends(self, topic: str) -> dict[int, int]:
        """Return, by partition, the offset after its last message."""
        try:
            return {partition: high for partition, _, high in self._bounds(topic)}
        except KafkaException as error:
            raise failed(f"topic {topic} can't be read", error) from None

    def already_written(
        self,
        topic: str,
        start: int,
        *,
        exact: bool,
        ends: Mapping[int, int] | None = None,
        each: bool = False,
    ) -> AlreadyWritten:
        """Return the messages of ``topic`` with versions of ``start`` and above, before ``ends``
        if given; with ``each`` so that `AlreadyWritten.is_missing` works.
        """
        hashes: list[_Longs] = [np.empty(0, np.int64)]
        ranks: list[_Longs] = [np.empty(0, np.int64)]
        all_of: list[_Longs] = [np.empty(0, np.int64)]
        try:
            for partition, low, high in self._bounds(topic):
                if ends is not None:
                    high = min(high, ends.get(partition, high))
                end, step = high, _FIRST_STEP
                while end > low:
                    begin = max(low, end - step)
                    found, newest = self._read(topic, partition, begin, end, start)
                    for keys, rank in found:
                        hashes.append(identities(keys, rank, exact))
                        ranks.append(rank)
                        if each:
                            all_of.append(identities(keys, rank, True))
                    # Batches follow each other: if none of these messages is of this batch or
                    # later, none before is. Without any message of ours that is unknown.
                    if 0 <= newest < start:
                        break
                    end, step = begin, step * 10
                else:
                    each = each and low == 0  # else retention may have removed some
        except KafkaException as error:
            raise failed(f"topic {topic} can't be read back", error) from None
        found_hashes, found_ranks = np.concatenate(hashes), np.concatenate(ranks)
        order = np.lexsort((found_ranks, found_hashes))
        sorted_hashes, sorted_ranks = found_hashes[order], found_ranks[order]
        last = np.append(sorted_hashes[1:] != sorted_hashes[:-1], True)[: len(sorted_hashes)]
        each_identity = np.sort(np.concatenate(all_of)) if each else None
        return AlreadyWritten(sorted_hashes[last], sorted_ranks[last], exact, each_identity)

    def live_keys(self, topic: str, schema_ids: Collection[int] | None = None) -> list[bytes]:
        """Return the keys whose newest message in ``topic`` has a value and, if given, a schema of
        ``schema_ids``: reads all of it.
        """
        live: dict[bytes, None] = {}
        try:
            for partition, low, high in self._bounds(topic):
                for messages in self._messages(topic, partition, low, high):
                    for message in messages:
                        key = message.key()
                        if key is None:
                            continue
                        if message.value() is None or not _has_schema(message, schema_ids):
                            live.pop(key, None)
                        else:
                            live[key] = None
        except KafkaException as error:
            raise failed(f"topic {topic} can't be read", error) from None
        return list(live)

    def keys_below(
        self, topic: str, version: int, schema_ids: Collection[int] | None = None
    ) -> list[bytes]:
        """Return the keys whose newest message in ``topic`` has a value and a lower version and,
        if given, a schema of ``schema_ids``. Reads all of it, but only keys that are found are in
        memory.
        """
        found: list[bytes] = []
        try:
            for partition, low, high in self._bounds(topic):
                found += self._keys_below(topic, partition, low, high, version, schema_ids)
        except KafkaException as error:
            raise failed(f"topic {topic} can't be read", error) from None
        return found

    def _keys_below(
        self,
        topic: str,
        partition: int,
        low: int,
        high: int,
        version: int,
        schema_ids: Collection[int] | None,
    ) -> list[bytes]:
        newer: list[_Longs] = [np.empty(0, np.int64)]
        end = low  # after the last message of a lower version
        for messages in self._messages(topic, partition, low, high):
            hashes: list[int] = []
            for message in messages:
                message_version = _version(message)
                if message_version is not None and message_version >= version:
                    hashes.append(hash(message.key()))
                elif message_version is not None:
                    end = (message.offset() or 0) + 1
            newer.append(np.unique(np.array(hashes, np.int64)))
        others = np.unique(np.concatenate(newer))
        live: dict[bytes, None] = {}
        for messages in self._messages(topic, partition, low, end):
            keys = np.fromiter((hash(each.key()) for each in messages), np.int64, len(messages))
            for at in np.flatnonzero(~np.isin(keys, others)).tolist():
                message = messages[at]
                key = message.key()
                if key is None or _version(message) is None:
                    continue
                if message.value() is None or not _has_schema(message, schema_ids):
                    live.pop(key, None)
                else:
                    live[key] = None
        return list(live)

    def _bounds(self, topic: str) -> list[tuple[int, int, int]]:
        """Return each partition with its first offset and the one after its last."""
        found = self._ends.list_topics(topic, timeout=_IDLE_TIMEOUT_S).topics[topic]
        if found.error is not None:
            raise failed(f"topic {topic}", found.error)
        bounds = []
        for partition in sorted(found.partitions):
            at = TopicPartition(topic, partition)
            bounds.append((partition, *self._partition_bounds(at)))
        return bounds

    def _partition_bounds(self, at: TopicPartition) -> tuple[int, int]:
        until = time.monotonic() + _MOVING_S
        while True:
            try:
                low, high = self._ends.get_watermark_offsets(at, timeout=_IDLE_TIMEOUT_S)
                return low, high
            except KafkaException as error:
                if error.args[0].code() not in _MOVING or time.monotonic() > until:
                    raise
                time.sleep(0.1)

    def _read(
        self, topic: str, partition: int, begin: int, end: int, start: int
    ) -> tuple[list[tuple[list[bytes | None], _Longs]], int]:
        """Return (keys, ranks) of messages at the offsets, and the newest version among them; -1:
        none of them has one.
        """
        found: list[tuple[list[bytes | None], _Longs]] = []
        newest = -1
        for messages in self._messages(topic, partition, begin, end):
            with_versions = [(message, _version(message)) for message in messages]
            ours = [(m, version) for m, version in with_versions if version is not None]
            newest = max([newest, *(version for _, version in ours)])
            wanted = [(m, version) for m, version in ours if version >= start]
            if not wanted:
                continue
            ranks = ranks_of([version for _, version in wanted], [m.value() for m, _ in wanted])
            found.append(([m.key() for m, _ in wanted], ranks))
        return found, newest

    def _messages(
        self, topic: str, partition: int, begin: int, end: int
    ) -> Iterator[list[Message]]:
        """Yield messages of the offsets, in lists."""
        if begin >= end:
            return
        self._consumer.assign([TopicPartition(topic, partition, begin)])
        received = time.monotonic()
        while True:
            found = self._consumer.consume(_READ_AT_ONCE, timeout=0.2)
            wanted: list[Message] = []
            done = False
            for message in found:
                offset, error = message.offset() or 0, message.error()
                if error is None:
                    # Compacted messages, and marks of transactions, are never delivered.
                    done = done or offset >= end - 1
                    if offset < end:
                        wanted.append(message)
                elif error.code() == KafkaError._PARTITION_EOF:
                    # With read_committed, the end comes before the first open transaction.
                    done = done or offset >= end
                else:
                    raise KafkaException(error)
            if wanted:
                received = time.monotonic()
                yield wanted
            if done:
                return
            if time.monotonic() - received > _IDLE_TIMEOUT_S:
                raise OutputError(
                    f"kafka: topic {topic}, partition {partition}: reading back from offset "
                    f"{begin} does not come to {end}: a transaction is open"
                )


def _consumer(settings: Mapping[str, Any], isolation: str) -> Consumer:
    return Consumer(
        {
            **common(settings),
            "group.id": "tidelog-tail",  # consumers must have one; nothing is committed to it
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "enable.partition.eof": True,
            "isolation.level": isolation,
        },
        logger=librdkafka_log,
    )


def _has_schema(message: Message, schema_ids: Collection[int] | None) -> bool:
    """Was it written by one of these schemas, if they are given?"""
    return schema_ids is None or _number(message, SCHEMA_HEADER) in schema_ids


def _version(message: Message) -> int | None:
    return _number(message, VERSION_HEADER)


def _number(message: Message, header: str) -> int | None:
    headers: Any = message.headers() or ()  # typed as a dict as well, which it never is
    for name, value in headers:
        if name == header and value is not None:
            return int(value)
    return None
