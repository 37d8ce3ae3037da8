"""The client that asks brokers about topics, and makes them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from tidelog.outputs.kafka.client import ClientErrors, common, failed, librdkafka_log


class Administration:
    """Made when it is first wanted.

    Args:
        servers: ``host:port``, several separated by commas; for messages.
        settings: librdkafka's.
    """

    def __init__(self, servers: str, settings: Mapping[str, Any]) -> None:
        self._servers = servers
        self._settings = settings
        self._client: AdminClient | None = None
        self._heard = ClientErrors()

    @property
    def client(self) -> AdminClient:
        if self._client is None:
            settings = common(self._settings) | {"error_cb": self._heard.hear}
            try:
                self._client = AdminClient(settings, logger=librdkafka_log)
            except KafkaException as error:
                raise failed("no client can be made", error) from None
        return self._client

    def brokers(self, timeout_s: float) -> int:
        """How many there are. Raises OutputError if none of the servers answers."""
        try:
            return len(self.client.list_topics(timeout=timeout_s).brokers)
        except KafkaException as error:
            for _ in range(3):
                self.client.poll(0.2)  # calls `ClientErrors.hear`
            raise failed(
                f"no broker of {self._servers} answers", self._heard.error or error
            ) from None
