"""``errors_tolerance: dead_letter``: what can't be taken is reported, and skipped."""

from __future__ import annotations

import json
import os
import resource
import threading
from pathlib import Path
from typing import Any

import pytest
from tests.support.engines import Gates, committed, engine, orders_log, running, until

from tidelog.app.async_engine.steps import FormatSerializer
from tidelog.engine.chain import DeadLetterFile
from tidelog.engine.events import Event, Events
from tidelog.engine.ports import Committer, Message
from tidelog.errors import ConfigError, ConsumerError

SECRET = "S3cret-value"
TOLERANT: dict[str, Any] = {"errors_tolerance": "dead_letter"}


def read_letters(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def refuse_one(event: Event) -> Event:
    assert event.after is not None
    if event.after["id"] == 1:
        raise ValueError(SECRET)
    return event


class Refusing:
    """A serializer that fails for a batch with the id 1 in it."""

    def serialize(self, events: Events) -> list[Message]:
        return [Message(None, b"", None, "t", refuse_one(event)) for event in events]


MODES: dict[str, dict[str, Any]] = {
    "in order": {},
    "parallel": {"consume_records_async": True},
    "by key": {"consume_records_async": True, "order": "key"},
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("who", ["consumer", "transform", "serializer"])
def test_one_event_is_reported_and_all_others_are_taken(
    tmp_path: Path, mode: str, who: str
) -> None:
    built = orders_log(tmp_path / "log", range(5))
    letters = tmp_path / "letters" / "engine.jsonl"
    seen: list[int] = []

    def consume(each: Any) -> None:
        event = each.event if isinstance(each, Message) else each
        if who == "consumer":
            refuse_one(event)
        seen.append(event.after["id"])

    core = engine(
        Gates(tmp_path / "log"),
        consumer=consume,
        transforms=[refuse_one] if who == "transform" else [],
        serializer=Refusing() if who == "serializer" else None,
        dead_letters=DeadLetterFile(letters),
        **MODES[mode],
        **TOLERANT,
    )
    with running(core) as run:
        until(lambda: committed(tmp_path / "log") == built.writer.next_offset)
    assert run.error is None
    assert sorted(seen) == [0, 2, 3, 4]
    [letter] = read_letters(letters)
    assert letter["table"] == "public.orders"
    assert letter["op"] == "c"
    assert letter["reason"].startswith(f"the {who}" if who != "transform" else "a transform")
    assert "ValueError" in letter["reason"]
    assert SECRET not in letters.read_text()
    assert letters.stat().st_mode & 0o777 == 0o600


def test_a_batch_consumer_that_raises_ends_the_engine_in_any_case(tmp_path: Path) -> None:
    orders_log(tmp_path / "log", range(5))

    def consume(events: Any, committer: Committer) -> None:
        raise ValueError(SECRET)

    letters = DeadLetterFile(tmp_path / "letters")
    core = engine(
        Gates(tmp_path / "log"), change_consumer=consume, dead_letters=letters, **TOLERANT
    )
    with running(core) as run:
        assert isinstance(run.join(), ConsumerError)
    assert not (tmp_path / "letters").exists()


def test_a_letter_that_can_not_be_written_commits_nothing(tmp_path: Path) -> None:
    orders_log(tmp_path / "log", [1])
    (tmp_path / "file").touch()
    letters = DeadLetterFile(tmp_path / "file" / "letters")
    core = engine(
        Gates(tmp_path / "log"),
        consumer=refuse_one,
        dead_letters=letters,
        **TOLERANT,
    )
    with running(core) as run:
        assert isinstance(run.join(), OSError)
    assert committed(tmp_path / "log") == 0


def one_event(path: Path) -> Event:
    orders_log(path, [1])
    task = Gates(path)
    task.start(threading.Event())
    events = task.poll(1.0)
    assert events is not None
    return events[0]


def test_half_a_line_is_no_letter_and_spoils_no_other(tmp_path: Path) -> None:
    event, file = one_event(tmp_path / "log"), tmp_path / "letters"
    letters, error = DeadLetterFile(file), ConsumerError("the consumer raised ValueError")
    letters.put(event, error)
    whole = file.stat().st_size
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (whole + 10, hard))  # as a full disk: a short write
    try:
        with pytest.raises(OSError, match="No space left"):
            letters.put(event, error)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert file.stat().st_size == whole + 10
    letters.put(event, error)
    first, _half, last = file.read_text().splitlines()
    assert json.loads(first) == json.loads(last)


def test_a_letters_name_is_durable_as_its_line_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    event, file = one_event(tmp_path / "log"), tmp_path / "letters" / "engine.jsonl"
    durable: set[int] = set()
    fsync = os.fsync

    def noted(descriptor: int) -> None:
        fsync(descriptor)
        durable.add(os.fstat(descriptor).st_ino)

    monkeypatch.setattr(os, "fsync", noted)
    DeadLetterFile(file).put(event, ConsumerError("the consumer raised ValueError"))
    assert durable == {each.stat().st_ino for each in (file, file.parent, tmp_path)}


def test_what_does_not_go_together_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="go together"):
        engine(Gates(tmp_path), consumer=print, **TOLERANT)
    with pytest.raises(ConfigError, match="go together"):
        engine(Gates(tmp_path), consumer=print, dead_letters=DeadLetterFile(tmp_path))
    with pytest.raises(ConfigError, match="has taken it over"):
        engine(
            Gates(tmp_path),
            record_processor=lambda: object(),
            dead_letters=DeadLetterFile(tmp_path),
            **TOLERANT,
        )


@pytest.mark.parametrize("tolerated", [True, False])
@pytest.mark.parametrize("kind", ["batch", "messages"])
def test_a_value_that_is_none_of_the_columns_type_is_the_transforms_fault(
    tmp_path: Path, kind: str, tolerated: bool
) -> None:
    """Arrow's own error has the value in its text."""
    built = orders_log(tmp_path / "log", range(5))
    letters = tmp_path / "letters" / "engine.jsonl"
    seen: list[int] = []

    def spoil(event: Event) -> Event:
        if event.after and event.after["id"] == 2:
            return event.replace(after={**event.after, "id": "4111-S3cret"})
        return event

    def consume(taken: Any, committer: Any = None) -> None:
        for each in taken if committer else [taken]:
            event = each.event if isinstance(each, Message) else each
            seen.append(event.after["id"])
        if committer:
            committer.mark_processed(taken)
            committer.mark_batch_finished()

    given: dict[str, Any] = (
        {"change_consumer": consume}
        if kind == "batch"
        else {"consumer": consume, "serializer": FormatSerializer("debezium")}
    )
    if tolerated:
        given |= {"dead_letters": DeadLetterFile(letters), **TOLERANT}
    core = engine(Gates(tmp_path / "log"), transforms=[spoil], **given)
    with running(core) as run:
        until(lambda: run.error or committed(tmp_path / "log") == built.writer.next_offset)
    if tolerated:
        assert run.error is None
        assert seen == [0, 1, 3, 4]
        assert len(letters.read_text().splitlines()) == 1
        assert "S3cret" not in letters.read_text()
    else:
        assert isinstance(run.error, ConsumerError)
        assert "public.orders" in str(run.error)
        assert "S3cret" not in str(run.error)


def test_one_event_of_many_is_found_by_halves(tmp_path: Path) -> None:
    built = orders_log(tmp_path / "log", range(1024))
    letters = tmp_path / "letters"
    calls: list[int] = []
    seen: list[int] = []

    class Counting(Refusing):
        def serialize(self, events: Events) -> list[Message]:
            calls.append(len(events))
            return super().serialize(events)

    core = engine(
        Gates(tmp_path / "log"),
        consumer=lambda each: seen.append(each.event.after["id"]),
        serializer=Counting(),
        dead_letters=DeadLetterFile(letters),
        **TOLERANT,
    )
    with running(core) as run:
        until(lambda: committed(tmp_path / "log") == built.writer.next_offset)
    assert run.error is None
    assert seen == [number for number in range(1024) if number != 1]
    assert len(read_letters(letters)) == 1
    assert len(calls) == 1 + 2 * 10  # both halves, ten times
