"""The states of a chunk's window on the log; an input without a row voids the window.

`docs/reference/dump-states.md` prints them.
"""

from __future__ import annotations

from enum import Enum, auto

from tidelog.model.state_machine import Row, Transitions


class WindowStatus(Enum):
    """The state of a window."""

    REGISTERED = auto()
    OPEN = auto()
    READ_EARLY = auto()
    READ = auto()
    CLOSED = auto()
    VOID = auto()
    DISCARDED = auto()


class WindowInput(Enum):
    """An event in the life of a window."""

    LOW = "the log shows its low watermark"
    ROWS = "the rows of its SELECT were delivered"
    ROWS_WITH_POSITION = (
        "the same, with the position at which the window closes: no watermark is written"
    )
    HIGH = "the log shows its high watermark, or has reached its position"
    DOUBT = "the same, but the schema changed, or it is not known which rows are stale"
    DISCARD = "its chunk failed, or its high watermark does not come"


class VoidReason(Enum):
    """Why a chunk can't be used and is read again."""

    ORDER = "watermarks out of order"
    SCHEMA = "the table's schema changed inside the window"
    KEYS_NOT_HELD = "an unseen transaction changed the table and its keys are not held"
    UNDECIDED = "transactions emitted before the start are not known yet"
    DISCARDED = "discarded"


_Window = Row[WindowStatus, WindowInput]
_IS, _GETS = WindowStatus, WindowInput
WINDOWS = Transitions(
    "window",
    "From before the low watermark is written until its rows, except superseded ones, are "
    "appended. A chunk whose window is void is read again.",
    WindowStatus.REGISTERED,
    (
        _Window(_IS.REGISTERED, _GETS.LOW, _IS.OPEN),
        _Window(_IS.REGISTERED, _GETS.ROWS, _IS.READ_EARLY, "wait for the low watermark"),
        _Window(_IS.REGISTERED, _GETS.ROWS_WITH_POSITION, _IS.READ),
        _Window(_IS.READ_EARLY, _GETS.LOW, _IS.READ),
        _Window(_IS.OPEN, _GETS.ROWS, _IS.READ),
        _Window(_IS.READ, _GETS.HIGH, _IS.CLOSED, "append the rows except superseded ones"),
        _Window(_IS.READ, _GETS.DOUBT, _IS.VOID, "fail closed"),
        *(
            _Window(status, _GETS.HIGH, _IS.VOID, "watermarks out of order")
            for status in (_IS.REGISTERED, _IS.OPEN, _IS.READ_EARLY)
        ),
        *(
            _Window(status, _GETS.DISCARD, _IS.DISCARDED)
            for status in (_IS.REGISTERED, _IS.OPEN, _IS.READ_EARLY, _IS.READ)
        ),
    ),
    stays=tuple(
        (status, (_GETS.ROWS, _GETS.ROWS_WITH_POSITION, _GETS.DISCARD))
        for status in (_IS.CLOSED, _IS.VOID, _IS.DISCARDED)
    ),
)
