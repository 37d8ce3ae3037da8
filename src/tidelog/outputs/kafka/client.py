"""Settings of Kafka clients, names of topics, meanings of errors; for driver and executors."""

from __future__ import annotations

import logging
import re
import threading
import time
from collections.abc import Mapping
from typing import Any

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

from tidelog.errors import ConfigError, OutputError, OutputRefusedError

SELDOM_S = 60.0


class _Seldom(logging.Filter):
    """Logs a line once in `SELDOM_S`: for a broker that is down, each connection logs ten lines a
    second.
    """

    def __init__(self) -> None:
        super().__init__()
        self._told: dict[str, float] = {}
        self._lock = threading.Lock()

    def filter(self, record: logging.LogRecord) -> bool:
        now, line = time.monotonic(), _COUNTS.sub("", record.getMessage())
        with self._lock:
            if now - self._told.get(line, float("-inf")) < SELDOM_S:
                return False
            self._told = {each: at for each, at in self._told.items() if now - at < SELDOM_S}
            self._told[line] = now
        return True


_COUNTS = re.compile(r"#\w+-\d+|\(after \d+ms.*")
"""The parts in which two lines of one event differ: the client, how long and how often."""

# librdkafka's own log: brokers and states, never messages or passwords.
librdkafka_log = logging.getLogger("tidelog.librdkafka")
# About a setting of ours: each producer logs it.
librdkafka_log.addFilter(lambda line: "enable.gapless.guarantee is exp" not in line.getMessage())
librdkafka_log.addFilter(_Seldom())

VERSION_HEADER = "tidelog-version"
SCHEMA_HEADER = "tidelog-schema"

_NAME_MAX = 249
_SETTING = re.compile(r'property:? "([^"]+)"')
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9._-]")

# The settings that the guarantee depends on.
_OURS = {
    "acks",
    "bootstrap.servers",
    "delivery.report.only.error",
    "enable.gapless.guarantee",
    "enable.idempotence",
    "max.in.flight",
    "max.in.flight.requests.per.connection",
    "message.send.max.retries",
    "message.timeout.ms",
    "delivery.timeout.ms",
    "request.required.acks",
    "retries",
    "transactional.id",
    "isolation.level",
    "enable.auto.commit",
    "group.id",
}
# The settings that confluent-kafka itself implements: tasks send by librdkafka alone.
_IN_PYTHON = {
    "default.topic.config",
    "error_cb",
    "logger",
    "oauth_cb",
    "on_commit",
    "on_delivery",
    "stats_cb",
    "throttle_cb",
}
_TOKENS_FROM = "sasl.oauthbearer.metadata.authentication.type"
# Errors that no retry can fix.
_REFUSED = (
    KafkaError._AUTHENTICATION,
    KafkaError._INVALID_ARG,
    KafkaError.SASL_AUTHENTICATION_FAILED,
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED,
    KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    KafkaError.INVALID_REPLICATION_FACTOR,
    KafkaError.INVALID_PARTITIONS,
    KafkaError.INVALID_CONFIG,
    KafkaError.POLICY_VIOLATION,
    KafkaError.TOPIC_EXCEPTION,
)


def settings_of(servers: str, given: Mapping[str, str]) -> dict[str, Any]:
    """Return librdkafka's settings for any client. Raises ConfigError for those that only Tidelog
    may set, and for those that need Python code of confluent-kafka.
    """
    taken = sorted(_OURS & given.keys())
    if taken:
        raise ConfigError(
            f"outputs: kafka: settings {', '.join(taken)} are set by Tidelog: its guarantee "
            "depends on them. Remove them"
        )
    in_python = sorted(_IN_PYTHON & given.keys())
    if given.get(_TOKENS_FROM, "").lower() == "aws_iam":
        in_python.append(f"{_TOKENS_FROM}: aws_iam")
    if in_python:
        raise ConfigError(
            f"outputs: kafka: settings {', '.join(in_python)} need Python code of confluent-kafka, "
            "which the output does not use. Remove them"
        )
    return {"bootstrap.servers": servers, "log_level": 4, **given}


def common(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``settings`` without those of producers: for consumers and administration."""
    return {name: value for name, value in settings.items() if name not in _PRODUCER}


_PRODUCER = {
    "batch.num.messages",
    "batch.size",
    "compression.codec",
    "compression.level",
    "compression.type",
    "linger.ms",
    "partitioner",
    "queue.buffering.max.kbytes",
    "queue.buffering.max.messages",
    "queue.buffering.max.ms",
    "request.timeout.ms",
    "sticky.partitioning.linger.ms",
}


class ClientErrors:
    """A client's errors beside its answers: why there is no connection, which a call that times out
    does not report. Give `on_error` as ``error_cb``.
    """

    def __init__(self) -> None:
        self.error: KafkaError | None = None
        self.all_down = False

    def on_error(self, error: KafkaError) -> None:
        self.all_down = self.all_down or error.code() == KafkaError._ALL_BROKERS_DOWN
        is_specific = error.code() in (KafkaError._AUTHENTICATION, KafkaError._SSL)
        if self.error is None or is_specific:
            self.error = error


def topic_name(wanted: str) -> str:
    """Return ``wanted`` as a topic's name: characters that Kafka does not allow become ``_``."""
    name = _NOT_IN_NAMES.sub("_", wanted)
    if not name or len(name) > _NAME_MAX or name in (".", ".."):
        raise OutputRefusedError(
            f"kafka: {wanted[:80]!r} can't be a topic: 1 to {_NAME_MAX} characters; set `topic`"
        )
    return name


def failed(what: str, error: KafkaError | KafkaException) -> OutputError:
    """Return our error for one of Kafka's, whose texts have brokers and codes."""
    found = error.args[0] if isinstance(error, KafkaException) else error
    kind = OutputRefusedError if found.code() in _REFUSED else OutputError
    return kind(f"kafka: {what}: {error_text(found)}")


def error_text(error: KafkaError) -> str:
    """Return librdkafka's text, but without values of settings: each may be secret."""
    if error.code() != KafkaError._INVALID_ARG:
        return f"{error.name()}: {error.str()}"
    text = error.str()
    name = _SETTING.search(text)
    if name is not None:
        return f"the setting {name[1]} is not one that librdkafka takes"
    what = "sasl.mechanism" if "SASL mechanism" in text else "the settings"
    return f"librdkafka does not take {what}"


class Administration:
    """A client for administration, created on first use.

    Args:
        servers: ``host:port``, several separated by commas; for messages.
        settings: librdkafka's settings.
    """

    def __init__(self, servers: str, settings: Mapping[str, Any]) -> None:
        self._servers = servers
        self._settings = settings
        self._client: AdminClient | None = None
        self._errors = ClientErrors()

    @property
    def client(self) -> AdminClient:
        if self._client is None:
            settings = common(self._settings) | {"error_cb": self._errors.on_error}
            try:
                self._client = AdminClient(settings, logger=librdkafka_log)
            except KafkaException as error:
                raise failed("no client can be created", error) from None
        return self._client

    def brokers(self, timeout_s: float) -> int:
        """Return the number of brokers. Raises OutputError if none of the servers answers."""
        try:
            return len(self.client.list_topics(timeout=timeout_s).brokers)
        except KafkaException as error:
            for _ in range(3):
                self.client.poll(0.2)  # calls `ClientErrors.on_error`
            raise failed(
                f"no broker of {self._servers} answers", self._errors.error or error
            ) from None
