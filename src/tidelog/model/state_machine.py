"""State machines as tables of transitions. The docs print them, and a test checks each.

Pure. States and inputs are enums; an input without a row in the table is an error.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum
from typing import Generic, NamedTuple, TypeVar

from tidelog.errors import TransitionError

S = TypeVar("S", bound=Enum)
I = TypeVar("I", bound=Enum)  # noqa: E741 - the input


class Transition(NamedTuple, Generic[S, I]):
    """In ``state``, upon ``input``, the next state is ``then``; ``effect``: what else is done."""

    state: S
    input: I
    then: S
    effect: str = ""


@dataclass(frozen=True)
class Transitions(Generic[S, I]):
    """The transitions of one kind of object.

    Attributes:
        name: the kind of object, for docs and errors.
        about: one or two sentences for the docs.
        start: the first state.
        rows: the transitions.
        stays: by state, late inputs that change nothing.
    """

    name: str
    about: str
    start: S
    rows: tuple[Transition[S, I], ...]
    stays: tuple[tuple[S, tuple[I, ...]], ...] = ()
    _next: dict[tuple[S, I], S] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        for state, event, then in self.moves():
            if self._next.setdefault((state, event), then) is not then:
                raise TransitionError(f"{self.name}: {state.name} and {event.name} are there twice")

    def after(self, state: S, event: I) -> S:
        """The state after ``state`` upon ``event``.

        Raises:
            TransitionError: if the table has no row for it.
        """
        try:
            return self._next[state, event]
        except KeyError:
            raise TransitionError(
                f"a {self.name} that is {_name(state)} can't meet {_name(event)!r}: this is a "
                "mistake in Tidelog, please report it; capture restarts from what is stored"
            ) from None

    def moves(self) -> Iterator[tuple[S, I, S]]:
        """Everything that the table allows."""
        yield from ((row.state, row.input, row.then) for row in self.rows)
        yield from ((state, event, state) for state, several in self.stays for event in several)

    def ends(self) -> set[S]:
        """The states that have no transition to another one."""
        left = {state for state, _news, then in self.moves() if then is not state}
        return {then for _state, _news, then in self.moves()} - left


def _name(member: Enum) -> str:
    return member.name.lower().replace("_", " ")
