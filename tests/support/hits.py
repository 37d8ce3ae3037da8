"""What to do at a failpoint, and when."""

from __future__ import annotations

import itertools
from collections.abc import Callable


def at_hit(number: int, act: Callable[[], None]) -> Callable[[], None]:
    hits = itertools.count(1)

    def acting() -> None:
        if next(hits) == number:
            act()

    return acting


def interrupt() -> None:
    raise KeyboardInterrupt
