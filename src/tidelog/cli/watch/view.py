"""The user's choices of what the view shows."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class View:
    """The user's choices, changed by keys.

    Attributes:
        config: the configuration's file, for commands to type; empty for a recording.
        steers: whether keys do something.
        dump: the index of the unfinished dump that is shown with its tables.
        scroll: how many of its tables are skipped.
        windows, words: whether they are shown.
        note: the result of the last key.
        question: what `y` confirms; empty: nothing waits for it.
        quits: whether `q` ends the process: it shows the view, and does nothing else.
        here: what this process does besides capturing and delivering, by part.
        starting: whether it has just started.
    """

    config: str = "CONFIG"
    steers: bool = True
    dump: int = 0
    scroll: int = 0
    windows: bool = False
    words: bool = False
    note: str = ""
    question: str = ""
    quits: bool = True
    here: dict[str, str] = field(default_factory=dict)
    starting: bool = False
