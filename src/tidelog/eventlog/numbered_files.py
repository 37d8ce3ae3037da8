"""Files that are numbered from 1 up without a gap, created only if absent and never deleted."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection

from tidelog.eventlog.storage.port import Storage


def new_numbers(
    storage: Storage,
    folder: str,
    pattern: re.Pattern[str],
    name_of: Callable[[int], str],
    known: Collection[int],
) -> list[int]:
    """Numbers of the folder's files that are not known yet, in order.

    A listing is of no one moment, neither a directory's nor a bucket's: it may hold a file, and not
    the one before, which was created while it went on. Who took that for all there are would number
    the same thing twice. So what lies below the last one listed counts as listed; such a file is
    missing only if somebody took it away.

    Where requests are paid, a listing costs twelve times what it costs to ask for the next number.
    """
    if storage.parallel > 1 and known:
        last = max(known)
        while storage.tag(name_of(last + 1)) is not None:
            last += 1
    else:
        listed = (pattern.fullmatch(name) for name in storage.names(folder))
        last = max((int(match[1]) for match in listed if match), default=0)
    return [number for number in range(1, last + 1) if number not in known]
