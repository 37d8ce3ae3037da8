"""What driver and executors share of Kafka."""

from __future__ import annotations

import numpy as np
import pytest

from tidelog.errors import ConfigError, OutputRefusedError
from tidelog.outputs.kafka.config import KafkaSection as Section

pytest.importorskip("confluent_kafka")

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from tidelog.outputs.kafka.client import common, failed, settings_of, topic_name
from tidelog.outputs.kafka.topic_tail import AlreadyWritten, identities, ranks_of


@pytest.mark.parametrize("name", ["acks", "enable.idempotence", "transactional.id"])
def test_settings_that_the_guarantee_rests_on_are_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=name) as caught:
        settings_of("b:9092", {name: "hidden", "sasl.password": "secret"})
    assert "secret" not in str(caught.value)
    assert "hidden" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("oauth_cb", "s3cret"),
        ("stats_cb", "s3cret"),
        ("logger", "s3cret"),
        ("on_delivery", "s3cret"),
        ("sasl.oauthbearer.metadata.authentication.type", "aws_iam"),
    ],
)
def test_settings_that_confluent_kafka_implements_in_python_are_refused(
    name: str, value: str
) -> None:
    """librdkafka takes the last one, and never gets a token."""
    with pytest.raises(ConfigError, match=rf"settings {name}.* need Python code") as caught:
        settings_of("b:9092", {name: value, "sasl.oauthbearer.method": "oidc"})
    assert "s3cret" not in str(caught.value)


def test_settings_show_no_values() -> None:
    section = Section(kind="kafka", servers="b:9092", settings={"sasl.password": "pa55"})
    assert "pa55" not in repr(section)
    assert "pa55" not in section.model_dump_json()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("security.protocol", "s3cret"),
        ("session.timeout.ms", "s3cret"),
        ("no.such.setting", "s3cret"),
        ("sasl.mechanism", "s3cret"),
    ],
)
def test_a_setting_that_is_refused_is_named_without_its_value(name: str, value: str) -> None:
    with pytest.raises(KafkaException) as caught:
        AdminClient({"bootstrap.servers": "b:9092", "security.protocol": "SASL_SSL", name: value})
    error = failed("no client can be made", caught.value)
    assert isinstance(error, OutputRefusedError)
    assert name in str(error)
    assert value not in str(error)


def test_readers_get_no_settings_of_producers() -> None:
    given = settings_of("b:9092", {"linger.ms": "5", "security.protocol": "SSL"})
    assert common(given) == {
        "bootstrap.servers": "b:9092", "log_level": 4, "security.protocol": "SSL"
    }  # fmt: skip


def test_topics_have_names_that_kafka_takes() -> None:
    assert topic_name("shop.Bestellungen für $") == "shop.Bestellungen_f_r__"
    with pytest.raises(OutputRefusedError):
        topic_name("x" * 250)


def test_what_is_not_newer_than_a_key_s_newest_message_is_held() -> None:
    """A compacted topic may lack what is older."""
    ranks = ranks_of([5, 5], [b"{}", None])  # a delete and its tombstone
    assert ranks.tolist() == [10, 11]
    held = AlreadyWritten(*_sorted([b"a"], ranks[:1], exact=False), exact=False)
    asked = ranks_of([3, 5, 5, 6, 3], [b"{}", b"{}", None, b"{}", b"{}"])
    found = held.holds([b"a", b"a", b"a", b"a", b"b"], asked)
    assert found.tolist() == [True, True, False, False, False]


def test_without_an_order_only_the_message_itself_is_held() -> None:
    ranks = ranks_of([5], [b"{}"])
    held = AlreadyWritten(*_sorted([b"a"], ranks, exact=True), exact=True)
    asked = ranks_of([3, 5], [b"{}", b"{}"])
    assert held.holds([b"a", b"a"], asked).tolist() == [False, True]


def test_messages_without_a_key_are_distinguished_by_version() -> None:
    ranks = ranks_of([5], [b"{}"])
    held = AlreadyWritten(*_sorted([None], ranks, exact=False), exact=False)
    asked = ranks_of([3, 5], [b"{}", b"{}"])
    assert held.holds([None, None], asked).tolist() == [False, True]


def _sorted(
    keys: list[bytes | None], ranks: np.ndarray, *, exact: bool
) -> tuple[np.ndarray, np.ndarray]:
    hashes = identities(keys, ranks, exact)
    order = np.argsort(hashes)
    return hashes[order], ranks[order]
