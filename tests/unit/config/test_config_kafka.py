"""``control.signal_kafka`` and ``control.notification_kafka``: what is derived, refused, hidden."""

from __future__ import annotations

from pathlib import Path

import pytest

from tidelog.app.web.site import settings_of
from tidelog.config import Config, parse_config
from tidelog.config.loading import config_by_database
from tidelog.errors import ConfigError

pytest.importorskip("confluent_kafka")

from tidelog.app.base.channels import notification_location, signal_key, signal_location

SOURCE = "kind: postgres, url: 'postgresql://u@h/d', slot: tide"


def load(control: str, source: str = SOURCE) -> Config:
    text = f"source: {{{source}}}\nlog: {{path: log}}\ncontrol: {{{control}}}\n"
    return parse_config(text, "tidelog.yaml", Path("/x"), {"PASSWORD": "s3cret"})


def topic_and_key(config: Config) -> tuple[str | None, str]:
    place = signal_location(config)
    return (None if place is None else place.topic, signal_key(config))


@pytest.mark.parametrize(
    ("given", "topic", "key"),
    [
        ("", "tide-signal", "tide"),
        ("key: shop", "shop-signal", "shop"),
        ("key: shop, topic: signals", "signals", "shop"),
        ("topic: signals", "signals", "tide"),
    ],
)
def test_topic_and_key_are_those_of_debezium(given: str, topic: str, key: str) -> None:
    assert topic_and_key(load(f"signal_kafka: {{servers: 'k:9092', {given}}}")) == (topic, key)


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ("", [("tide_a-signal", "tide_a"), ("tide_b-signal", "tide_b")]),
        ("key: shop", [("shop_a-signal", "shop_a"), ("shop_b-signal", "shop_b")]),
        ("key: shop, topic: t", [("t", "shop_a"), ("t", "shop_b")]),
    ],
)
def test_each_of_several_databases_has_a_key_of_its_own(
    given: str, found: list[tuple[str, str]]
) -> None:
    kafka = f"signal_kafka: {{servers: 'k:9092', {given}}}"
    config = load(kafka, f"{SOURCE}, databases: [a, b]")
    assert [topic_and_key(each) for each in config_by_database(config).values()] == found


@pytest.mark.parametrize(
    ("control", "message"),
    [
        ("notifications: [kafka]", "notifications to kafka need notification_kafka"),
        ("signal_kafka: {servers: 'k:9092', topics: t}", "did you mean 'topic'"),
        ("signal_kafka: {servers: 'k:9092', topic: 'a b'}", "topic: must match"),
        ("notification_kafka: {servers: 'k:9092'}", "notification_kafka.topic: is missing"),
        (
            "signal_kafka: {servers: 'k:9092', settings: {group.id: s3cret}}",
            "group.id can't be set here",
        ),
        (
            "notification_kafka: {servers: 'k:9092', topic: t, settings: {acks: s3cret}}",
            "acks can't be set here",
        ),
    ],
)
def test_what_can_not_be_is_reported(control: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(control)
    assert message in str(caught.value)
    assert "s3cret" not in str(caught.value)


def test_a_topic_without_its_channel_gets_nothing() -> None:
    assert notification_location(load("notification_kafka: {servers: 'k:9092', topic: t}")) is None


def test_settings_are_never_shown() -> None:
    kafka = "servers: 'k:9092', settings: {sasl.password: '${PASSWORD}', sasl.username: s3cret}"
    notes = f"notifications: [kafka], notification_kafka: {{topic: t, {kafka}}}"
    config = load(f"signal_kafka: {{{kafka}}}, {notes}")
    places = [signal_location(config), notification_location(config)]
    assert [place and place.given["sasl.password"] for place in places] == ["s3cret"] * 2
    shown = [repr(config), config.model_dump_json(), repr(places), str(settings_of(config))]
    assert "s3cret" not in "".join(shown)
