"""How the channels of a leadership end."""

from __future__ import annotations

import time
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tidelog.app.base.channels import Channels
from tidelog.capture.notifications import Notification, NotificationType
from tidelog.config import parse_config
from tidelog.control.channels import kafka
from tidelog.control.channels.kafka import KafkaNotifications, KafkaTopic
from tidelog.ports import SourceId
from tidelog.state.opening import open_state

CONFIG = """
source: {kind: postgres, url: 'postgresql://h/shop'}
log: {path: log}
state: {url: 'sqlite:///state.db'}
control:
  signal_kafka: {servers: 'broker:9092'}
  notifications: [kafka]
  notification_kafka: {servers: 'broker:9092', topic: told}
"""


def test_channels_close_in_the_reverse_order_of_opening_whatever_one_raises(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = parse_config(CONFIG, "test", tmp_path, {})
    done: list[str] = []

    def noted(what: str, error: Exception | None = None) -> None:
        done.append(what)
        if error is not None:
            raise error

    with closing(open_state(config.state.location)) as state:
        channels = Channels(config, state, SourceId("postgres", "1", "shop", 1), ())
        parts: dict[str, Any] = {
            "to Kafka": channels._kafka_notifications,
            "notifier": channels._notifier,
            "from Kafka": channels._kafka,
        }
        for name, part in parts.items():
            monkeypatch.setattr(part, "start", partial(noted, f"start {name}"))
            failure = OSError("it fails") if name == "from Kafka" else None
            monkeypatch.setattr(part, "close", partial(noted, f"close {name}", failure))
        given: Any = None
        coordinator: Any = type("C", (), {"dumps": staticmethod(list)})()
        channels.open(coordinator, given, dict, given, given, given)
        with pytest.raises(OSError, match="it fails"):
            channels.close()
    started = [f"start {name}" for name in parts]
    assert done == [*started, *(f"close {name}" for name in reversed(parts))]


def test_what_fails_at_once_while_it_is_closed_is_not_tried_without_a_pause(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[float] = []
    real = kafka.Producer

    def counted(*settings: Any, **more: Any) -> Any:
        made.append(time.monotonic())
        return real(*settings, **more)

    monkeypatch.setattr(kafka, "Producer", counted)
    place = KafkaTopic("127.0.0.1:1", "told", {"security.protocol": "nonsense"})
    sending = KafkaNotifications(place)
    sending.send(Notification("d1", "Incremental Snapshot", NotificationType.STARTED, 17))
    begun = time.monotonic()
    sending._closing_at = begun + 1.0
    sending._send_all()
    assert 0.5 < time.monotonic() - begun < 30
    assert 1 <= len(made) <= 3
