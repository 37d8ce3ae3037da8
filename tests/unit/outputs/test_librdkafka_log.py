"""What librdkafka writes again and again is written once."""

from __future__ import annotations

import logging
import threading

import pytest

pytest.importorskip("confluent_kafka")

AWAY = (
    "FAIL [rdkafka#producer-{client}] [thrd:{broker}:9092/bootstrap]: {broker}:9092/bootstrap: "
    "Connect to ipv4#10.0.0.7:9092 failed: Connection refused (after {ms}ms in state CONNECT{more})"
)


def test_a_broker_that_is_away_is_reported_once_and_another_one_too(
    caplog: pytest.LogCaptureFixture,
) -> None:
    from tidelog.outputs.kafka.client import librdkafka_log

    with caplog.at_level(logging.ERROR, "tidelog.librdkafka"):
        for i, broker in enumerate(("b-1", "b-1", "b-2", "b-1", "b-2")):
            more = ", 3 identical error(s) suppressed" if i > 2 else ""
            librdkafka_log.error(AWAY.format(client=i, broker=broker, ms=i, more=more))
    told = [record.getMessage() for record in caplog.records]
    assert [line.split("[thrd:")[1][:3] for line in told] == ["b-1", "b-2"]


def test_many_threads_may_write() -> None:
    from tidelog.outputs.kafka.client import librdkafka_log

    failed: list[BaseException] = []

    def write(number: int) -> None:
        try:
            for i in range(300):
                librdkafka_log.debug("thread %d line %s", number, chr(0x4E00 + i))
                librdkafka_log.filter(
                    logging.makeLogRecord({"msg": f"thread {number} line {chr(0x4E00 + i)}"})
                )
        except BaseException as error:  # noqa: BLE001 - asserted below
            failed.append(error)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed
