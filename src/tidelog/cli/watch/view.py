"""What whoever looks at the picture wants to see of it."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class View:
    """What whoever looks has asked for by keys.

    Attributes:
        config: the configuration's file, for commands to type; empty: none is there (a recording).
        steers: are there keys that do something?
        dump: which of the unfinished dumps is shown with its tables.
        scroll: how many of these are passed over.
        windows, words: shown.
        note: the outcome of the last key.
        here: what this process does beside delivering and capturing, by its part.
        starting: does it begin just now?
    """

    config: str = "CONFIG"
    steers: bool = True
    dump: int = 0
    scroll: int = 0
    windows: bool = False
    words: bool = False
    note: str = ""
    here: dict[str, str] = field(default_factory=dict)
    starting: bool = False
