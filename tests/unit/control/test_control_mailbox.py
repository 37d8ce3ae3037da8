"""The command channel: in order, one outcome for each command, across restarts."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from tidelog.control.commands import Command, PauseDump, ResumeDump
from tidelog.control.mailbox import MOST_AT_ONCE, Mailbox, Outcome, id_time_ms, new_id
from tidelog.errors import ConnectionLostError, StateConflictError, StateError, UsageError
from tidelog.ports import Document


class MemoryState:
    """The state port over a dict; the channel needs nothing else of a store."""

    def __init__(self) -> None:
        self.documents: dict[str, Document] = {}

    def get(self, key: str) -> Document | None:
        return self.documents.get(key)

    def put(self, key: str, value: Any, expected_version: int | None) -> int:
        version = self.documents[key].version if key in self.documents else 0
        if expected_version is not None and version != expected_version:
            raise StateConflictError(key)
        self.documents[key] = Document(value, version + 1)
        return version + 1

    def delete(self, key: str) -> None:
        self.documents.pop(key, None)

    def keys(self, prefix: str) -> list[str]:
        return sorted(key for key in self.documents if key.startswith(prefix))

    def close(self) -> None: ...


class Unanswering(MemoryState):
    """Does so many puts without saying so."""

    def __init__(self, state: MemoryState, times: int) -> None:
        super().__init__()
        self.documents = state.documents
        self.times = times

    def put(self, key: str, value: Any, expected_version: int | None) -> int:
        version = super().put(key, value, expected_version)
        if self.times:
            self.times -= 1
            raise StateError("no answer")
        return version


class Acted:
    def __init__(self) -> None:
        self.commands: list[Command] = []

    def __call__(self, command_id: str, command: Command) -> dict[str, Any]:
        self.commands.append(command)
        return {"number": len(self.commands)}


def test_commands_are_handled_once_in_the_order_given() -> None:
    state, acted = MemoryState(), Acted()
    given = [PauseDump(dump_id=f"d{n}") for n in range(50)]
    ids = [Mailbox(state).send(command) for command in given]
    assert Mailbox(state).handle_pending(acted) == 50
    assert Mailbox(state).handle_pending(acted) == 0
    assert acted.commands == given
    outcome = Mailbox(state).outcome(ids[3])
    assert outcome is not None
    assert outcome.details == {"number": 4}
    assert state.keys("commands/") == []


def test_command_whose_outcome_stands_is_not_handled_again_after_a_crash() -> None:
    state, acted = MemoryState(), Acted()
    mailbox = Mailbox(state)
    command_id = mailbox.send(PauseDump())
    waiting = state.get(f"commands/{command_id}")
    mailbox.handle_pending(acted)
    assert waiting is not None
    state.put(f"commands/{command_id}", waiting.value, 0)  # killed before the removal
    assert Mailbox(state).handle_pending(acted) == 0
    assert len(acted.commands) == 1
    assert state.keys("commands/") == []


def test_failed_and_malformed_commands_get_an_outcome_and_the_next_is_handled() -> None:
    state = MemoryState()
    mailbox = Mailbox(state)

    def handler(command_id: str, command: Command) -> dict[str, Any]:
        if isinstance(command, PauseDump):
            raise UsageError("no dump is running")
        if isinstance(command, ResumeDump) and command.dump_id == "bug":
            raise ZeroDivisionError("s3cret")
        return {}

    refused = mailbox.send(PauseDump())
    bug = mailbox.send(ResumeDump(dump_id="bug"))
    state.put(f"commands/{new_id()}", {"type": "nonsense"}, 0)
    last = mailbox.send(ResumeDump())
    assert mailbox.handle_pending(handler) == 4
    assert mailbox.wait(refused, 0).error == "no dump is running"  # type: ignore[union-attr]
    assert mailbox.wait(bug, 0).error == "internal error (ZeroDivisionError)"  # type: ignore[union-attr]
    assert mailbox.wait(last, 0).error is None  # type: ignore[union-attr]


def test_command_stays_when_the_handler_says_try_again() -> None:
    state, acted = MemoryState(), Acted()
    mailbox = Mailbox(state)
    mailbox.send(PauseDump())

    def lost(command_id: str, command: Command) -> dict[str, Any]:
        raise ConnectionLostError("gone")

    with pytest.raises(ConnectionLostError):
        mailbox.handle_pending(lost)
    assert mailbox.handle_pending(acted) == 1


def test_command_at_which_capture_ended_twice_is_set_aside() -> None:
    """The next one gets its turn; a failure that passes is no such end, however often it comes."""
    state, acted = MemoryState(), Acted()
    bad, good = (Mailbox(state).send(command) for command in (PauseDump(), ResumeDump()))

    def passing(_id: str, _command: Command) -> dict[str, Any]:
        raise ConnectionLostError("the server went away")

    def ends(_id: str, command: Command) -> dict[str, Any]:
        if isinstance(command, PauseDump):
            raise KeyboardInterrupt  # as a crash: nothing of ours runs after it
        return acted(_id, command)

    for _ in range(3):
        with pytest.raises(ConnectionLostError):
            Mailbox(state).handle_pending(passing)
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            Mailbox(state).handle_pending(ends)
    assert Mailbox(state).handle_pending(ends) == 2
    outcome = Mailbox(state).outcome(bad)
    assert outcome is not None
    assert outcome.error == "set aside: capture ended 2 times while it executed this command"
    assert Mailbox(state).outcome(good) == Outcome(good, {"number": 1})
    assert state.keys("commands/") == []


def test_command_whose_beginning_is_stored_without_an_answer_is_acted_on() -> None:
    """And not set aside: capture did not end meanwhile."""
    state, acted = MemoryState(), Acted()
    leads = Mailbox(Unanswering(state, 2))  # that it is begun, and what came of it
    given = Mailbox(state).send(PauseDump())
    for _ in range(2):
        with pytest.raises(StateError):
            leads.handle_pending(acted)
    assert leads.handle_pending(acted) == 0
    assert Mailbox(state).outcome(given) == Outcome(given, {"number": 1})


def test_command_whose_outcome_can_t_be_stored_is_not_set_aside() -> None:
    """Capture goes on leading meanwhile, however long that is."""

    class Away(MemoryState):
        away = True

        def put(self, key: str, value: Any, expected_version: int | None) -> int:
            if self.away and key.startswith("results/"):
                raise StateError("away")
            return super().put(key, value, expected_version)

    state, acted = Away(), Acted()
    mailbox = Mailbox(state)
    given = mailbox.send(PauseDump())
    for _ in range(4):
        with pytest.raises(StateError):
            mailbox.handle_pending(acted)
    state.away = False
    assert mailbox.handle_pending(acted) == 1
    outcome = mailbox.outcome(given)
    assert outcome is not None
    assert outcome.error is None


def test_a_flood_of_commands_leaves_time_for_other_work() -> None:
    state, acted = MemoryState(), Acted()
    for _ in range(MOST_AT_ONCE + 1):
        Mailbox(state).send(PauseDump())
    assert Mailbox(state).handle_pending(acted) == MOST_AT_ONCE
    assert Mailbox(state).handle_pending(acted) == 1


def test_two_leaders_give_one_outcome() -> None:
    state = MemoryState()
    mailbox = Mailbox(state)
    command_id = mailbox.send(PauseDump())

    def overtaken(identifier: str, command: Command) -> dict[str, Any]:
        Mailbox(state).handle_pending(lambda *_: {"by": "second"})
        return {"by": "first"}

    mailbox.handle_pending(overtaken)
    assert mailbox.outcome(command_id).details == {"by": "second"}  # type: ignore[union-attr]


def test_wait_returns_the_outcome_or_none_when_nobody_acts() -> None:
    state = MemoryState()
    mailbox = Mailbox(state)
    command_id = mailbox.send(PauseDump())
    assert mailbox.wait(command_id, 0.02, 0.01) is None
    timer = threading.Timer(0.05, lambda: mailbox.handle_pending(lambda *_: {}))
    timer.start()
    assert mailbox.wait(command_id, 10, 0.01) is not None
    timer.join()


def test_old_outcomes_are_forgotten() -> None:
    state = MemoryState()
    mailbox = Mailbox(state)
    command_id = mailbox.send(PauseDump())
    mailbox.handle_pending(lambda *_: {})
    given = id_time_ms(command_id)
    assert mailbox.forget_old_outcomes(given + 6 * 86_400_000) == 0
    assert mailbox.forget_old_outcomes(given + 8 * 86_400_000) == 1
    assert state.documents == {}


def test_ids_sort_strictly_and_hold_their_time() -> None:
    ids = [new_id() for _ in range(2000)]
    assert ids == sorted(set(ids))
    assert {len(identifier) for identifier in ids} == {26}
    assert 0 <= id_time_ms(ids[-1]) - id_time_ms(ids[0]) < 60_000
    assert id_time_ms("not an id!") == 0
