"""The file of signals: each line once, whatever happens to the file or to capture."""

from __future__ import annotations

import itertools
import json
import logging
from pathlib import Path
from typing import Any

import pytest
from tests.support.hits import at_hit, interrupt

from tidelog.capture.notifications import Notification, NotificationType
from tidelog.control.channels.file import MAX_LINE_BYTES, STATE_KEY, SignalFile
from tidelog.control.commands import Command, LogMessage, StartDump
from tidelog.control.mailbox import Mailbox
from tidelog.control.signal_intake import KEPT_LENGTH, SignalIntake, SignalTable
from tidelog.errors import StateError
from tidelog.ports import MAX_SIGNAL_BYTES, SignalSeen
from tidelog.state.sqlite import SqliteState
from tidelog.system import failpoints


class Channel:
    """A file, a mailbox over a real state store, and what was acted on."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / "signals.jsonl"
        self.state = SqliteState(directory / "state.db")
        self.mailbox = Mailbox(self.state)
        self.notified: list[Notification] = []
        self.acted: list[Command] = []
        self.intake = SignalIntake(self.mailbox, self.notified.append)
        self.restart()

    def restart(self) -> None:
        self.file = SignalFile(self.path, self.state, self.intake)

    def append(self, *messages: str) -> None:
        with self.path.open("a") as file:
            file.write("".join(line(message) for message in messages))

    def poll(self) -> list[str]:
        """Messages that were acted on since the last time."""
        while self.file.poll():
            pass
        self.acted.clear()
        while self.mailbox.handle_pending(self._act):
            pass
        return [c.message if isinstance(c, LogMessage) else c.type for c in self.acted]

    def _act(self, _command_id: str, command: Command) -> dict[str, Any]:
        self.acted.append(command)
        return {}

    def tell(self, source: str, *signals: SignalSeen) -> None:
        """The log shows these, one behind the other."""
        table = SignalTable(self.intake, source, self.state)
        table.on_signals(signals)
        table.deliver()

    def errors(self) -> list[str]:
        documents = [self.state.get(key) for key in self.state.keys("results/")]
        return [d.value["error"] for d in documents if d is not None and d.value["error"]]


def line(message: str, end: str = "\n") -> str:
    return json.dumps({"id": "i", "type": "log", "data": {"message": message}}) + end


@pytest.fixture
def channel(tmp_path: Path) -> Channel:
    return Channel(tmp_path)


def test_appended_lines_are_acted_on_once_in_order(channel: Channel) -> None:
    assert channel.poll() == []  # no file yet
    channel.append("a", "b")
    assert channel.poll() == ["a", "b"]
    assert channel.poll() == []
    channel.append("c", "a")
    assert channel.poll() == ["c", "a"]


def test_lines_left_while_capture_was_down_are_acted_on_once(channel: Channel) -> None:
    channel.append("a")
    assert channel.poll() == ["a"]
    channel.append("b")
    channel.restart()
    assert channel.poll() == ["b"]
    channel.restart()
    assert channel.poll() == []


def test_line_without_an_end_waits_for_it(channel: Channel) -> None:
    whole = line("a")
    for cut in range(0, len(whole) - 1, 7):
        channel.path.write_text(whole[:cut])
        assert channel.poll() == []
    channel.path.write_text(whole)
    assert channel.poll() == ["a"]


def test_whole_signal_needs_no_newline(channel: Channel) -> None:
    channel.path.write_text(line("a", end=""))
    assert channel.poll() == ["a"]
    with channel.path.open("a") as file:
        file.write("\n" + line("b"))
    assert channel.poll() == ["b"]


def test_crash_between_mailbox_and_place_acts_once(channel: Channel) -> None:
    channel.append("a")
    channel.poll()
    place = channel.state.get(STATE_KEY)
    assert place is not None
    channel.append("b", "c")
    assert channel.poll() == ["b", "c"]
    channel.state.put(STATE_KEY, place.value, None)  # as if it had not been stored
    channel.restart()
    assert channel.poll() == []
    channel.append("d")
    assert channel.poll() == ["d"]


def test_state_store_that_fails_in_the_middle_loses_no_line(
    channel: Channel, monkeypatch: pytest.MonkeyPatch
) -> None:
    channel.append("a", "b", "c")
    send, calls = Mailbox.send, []

    def failing(*arguments: Any) -> str:
        calls.append(arguments)
        if len(calls) == 2:
            raise StateError("disk full")
        return send(*arguments)

    monkeypatch.setattr(Mailbox, "send", failing)
    with pytest.raises(StateError):
        channel.file.poll()
    assert channel.poll() == ["a", "b", "c"]


@pytest.mark.parametrize("replace", ["truncate", "rename"])
def test_file_that_was_emptied_or_replaced_is_read_from_its_start(
    channel: Channel, replace: str
) -> None:
    channel.append("a", "b")
    assert channel.poll() == ["a", "b"]
    if replace == "rename":
        channel.path.rename(channel.path.with_suffix(".1"))
    channel.path.write_text(line("a") if replace == "truncate" else line("x") + line("y"))
    assert channel.poll() == (["a"] if replace == "truncate" else ["x", "y"])


def test_editor_that_rewrites_the_file_repeats_nothing(channel: Channel) -> None:
    channel.append("a", "b")
    assert channel.poll() == ["a", "b"]
    copy = channel.path.with_suffix(".tmp")
    copy.write_text(channel.path.read_text() + line("c"))
    copy.rename(channel.path)
    assert channel.poll() == ["c"]


def test_bad_lines_are_reported_and_the_next_is_acted_on(
    channel: Channel, caplog: pytest.LogCaptureFixture
) -> None:
    bad = [b"{s3cret", b"\xff\xfe", b'{"id": "x", "type": "s3cret"}', b"[]", b"  ", b'{"type": 1}']
    channel.path.write_bytes(b"\n".join(bad) + b"\n" + line("good").encode())
    assert channel.poll() == ["good"]
    assert len(channel.errors()) == 5
    assert {n.type for n in channel.notified} == {NotificationType.SKIPPED}
    assert len(channel.notified) == 5
    assert len(caplog.records) == 5
    assert "s3cret" not in caplog.text + str(channel.errors()) + str(channel.notified)
    channel.restart()
    assert channel.poll() == []
    assert len(channel.errors()) == 5


def test_line_without_bounds_is_refused_in_bounded_memory(channel: Channel) -> None:
    with channel.path.open("w") as file:
        file.write("x" * (3 * MAX_LINE_BYTES))
    assert channel.poll() == []
    with channel.path.open("a") as file:
        file.write("y" * 10 + "\n" + line("a"))
    assert channel.poll() == ["a"]
    assert channel.errors() == [f"a line of more than {MAX_LINE_BYTES} bytes"]


def test_many_lines_are_taken_a_megabyte_at_a_time(channel: Channel) -> None:
    messages = [f"{number:04}" + "m" * 900 for number in range(2500)]
    with channel.path.open("w") as file:
        file.writelines(line(message) for message in messages)
    assert channel.file.poll()
    assert 0 < len(channel.state.keys("commands/")) < 2500
    assert channel.poll() == messages


def test_file_that_cannot_be_read_is_logged_once(
    channel: Channel, caplog: pytest.LogCaptureFixture
) -> None:
    channel.path.mkdir()
    with caplog.at_level(logging.WARNING):
        assert channel.poll() == []
        assert channel.poll() == []
    assert len(caplog.records) == 1
    channel.path.rmdir()
    channel.append("a")
    assert channel.poll() == ["a"]


def seen(position: int, data: str | None, kind: str = "execute-snapshot") -> SignalSeen:
    return SignalSeen("ad-hoc-1", kind, data, position, 0)


def test_signal_row_seen_again_after_a_crash_is_acted_on_once(channel: Channel) -> None:
    data = '{"data-collections": ["public.a"]}'
    channel.tell("postgres:1:shop", seen(10, data))
    channel.tell("postgres:1:shop", seen(10, data))
    channel.poll()
    assert channel.acted == [
        StartDump(dump_id="ad-hoc-1", tables=("public.a",), matching="regex", signal_id="ad-hoc-1")
    ]
    channel.tell("postgres:1:shop", seen(10, data))
    assert channel.poll() == []


def test_same_id_in_another_row_is_another_signal(channel: Channel) -> None:
    for position in (10, 20):
        channel.tell("postgres:1:shop", seen(position, '{"data-collections": ["public.a"]}'))
    channel.tell("postgres:2:shop", seen(10, "{}", "stop-snapshot"))
    assert channel.poll() == ["execute-snapshot", "execute-snapshot", "stop-snapshot"]


def test_malformed_row_returns_normally_and_is_reported_once(channel: Channel) -> None:
    for _ in range(2):
        channel.tell("postgres:1:shop", seen(10, "{s3cret"))
    assert channel.poll() == []
    assert channel.errors() == ["execute-snapshot: data is not JSON"]
    assert channel.notified[0].to_json()["id"] == "ad-hoc-1"


def test_row_with_a_text_beyond_all_measure_is_refused(channel: Channel) -> None:
    channel.tell("postgres:1:shop", seen(10, "é" * MAX_SIGNAL_BYTES))
    channel.tell("postgres:1:shop", SignalSeen("x" * (MAX_SIGNAL_BYTES + 1), "log", None, 20, 0))
    channel.tell(
        "postgres:1:shop", seen(30, json.dumps({"message": "x" * (MAX_SIGNAL_BYTES - 20)}), "log")
    )
    assert [len(text) for text in channel.poll()] == [1000]
    assert channel.errors() == ["a column of more than 1048576 bytes"] * 2


def test_log_row_tells_its_position(channel: Channel) -> None:
    channel.tell("s", seen(77, '{"message": "at {}"}', "log"))
    assert channel.poll() == ["at table:s:77:0"]


def test_what_was_forgotten_with_its_outcome_may_be_given_again(channel: Channel) -> None:
    channel.append("a")
    channel.poll()
    week_ms = 8 * 86_400_000
    channel.mailbox.forget_old_outcomes(2**47 + week_ms)
    assert channel.state.keys("given/") == channel.state.keys("results/") == []


def test_many_signals_are_few_writes_and_each_is_acted_on_once_in_order(
    channel: Channel, monkeypatch: pytest.MonkeyPatch
) -> None:
    signals = [seen(n, json.dumps({"message": str(n)}), "log") for n in range(250)]
    put, puts = channel.state.put, itertools.count()

    def counting(*arguments: Any) -> int:
        next(puts)
        return put(*arguments)

    table = SignalTable(channel.intake, "s", channel.state)
    monkeypatch.setattr(channel.state, "put", counting)
    table.on_signals(signals)
    assert next(puts) == 3
    monkeypatch.undo()
    # The process dies amid the second document; then the log shows all of it again, and more.
    dying = {"signals.delivered_one": at_hit(120, interrupt)}
    with failpoints.arm(dying), pytest.raises(KeyboardInterrupt):
        table.deliver()
    more = [seen(n, json.dumps({"message": str(n)}), "log") for n in range(100, 300)]
    channel.tell("s", *more)
    assert channel.poll() == [str(n) for n in range(300)]
    assert channel.state.keys("signals/") == []
    channel.tell("s", *more)
    assert channel.poll() == []


def test_large_signals_are_kept_apart(channel: Channel) -> None:
    large = json.dumps({"message": "x" * (KEPT_LENGTH // 2)})
    table = SignalTable(channel.intake, "s", channel.state)
    table.on_signals([seen(n, large, "log") for n in range(4)])
    assert len(channel.state.keys("signals/")) == 4
    table.deliver()
    assert len(channel.poll()) == 4
