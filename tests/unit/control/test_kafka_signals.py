"""Where a topic of signals is read on, as far as that needs no broker."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tidelog.control.channels.kafka import (
    NO_TOPIC_ID,
    STATE_KEY,
    KafkaSignals,
    KafkaTopic,
    TopicFacts,
)
from tidelog.ports import StateStore
from tidelog.state.opening import open_state

ONE_ID, OTHER_ID = "//////////8AAAAAAAAABQ", "//////////8AAAAAAAAABg"


@pytest.fixture
def state(tmp_path: Path) -> Iterator[StateStore]:
    with closing(open_state(f"sqlite:///{tmp_path}/state.db")) as store:
        yield store


def signals(state: StateStore) -> KafkaSignals:
    intake: Any = None  # none comes
    place = KafkaTopic("broker:9092", "shop-signal")
    found = KafkaSignals(place, key="shop", begin="latest", state=state, intake=intake)
    found.close()  # so that nothing waits to be polled
    return found


@pytest.mark.parametrize(
    ("known", "told", "read_on"),
    [
        (ONE_ID, ONE_ID, True),
        (ONE_ID, OTHER_ID, False),
        (NO_TOPIC_ID, NO_TOPIC_ID, True),
        (NO_TOPIC_ID, ONE_ID, True),  # the brokers were upgraded
        (ONE_ID, NO_TOPIC_ID, True),
    ],
)
def test_a_topic_without_an_id_is_no_other_topic(
    state: StateStore, known: str, told: str, read_on: bool
) -> None:
    state.put(STATE_KEY, {"topic": "shop-signal", "topic_id": known, "offset": 7}, None)
    assert signals(state)._start(TopicFacts(told, 1), 0, 20) == (7 if read_on else 20)
    assert TopicFacts(told, 1).is_like(TopicFacts(known, 1)) is read_on
    assert not TopicFacts(told, 1).is_like(TopicFacts(known, 2))


def test_signals_keep_their_names_while_the_id_is_unknown(state: StateStore) -> None:
    nameless = TopicFacts(NO_TOPIC_ID, 1)
    assert signals(state)._with_known_id(nameless) == nameless
    state.put(STATE_KEY, {"topic": "shop-signal", "topic_id": ONE_ID, "offset": 7}, None)
    assert signals(state)._with_known_id(nameless).topic_id == ONE_ID
    assert signals(state)._with_known_id(TopicFacts(OTHER_ID, 1)).topic_id == OTHER_ID


def test_a_topic_of_another_name_is_another_one(state: StateStore) -> None:
    state.put(STATE_KEY, {"topic": "former", "topic_id": NO_TOPIC_ID, "offset": 7}, None)
    assert signals(state)._start(TopicFacts(NO_TOPIC_ID, 1), 0, 20) == 20
