"""What `tidelog check` finds, whatever the source."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Level = Literal["ok", "warn", "fail"]

SUPERUSER = "a superuser"
ADMINISTRATOR = "an administrator"
"""Who can grant the rights in MySQL and MariaDB, where they differ from server to server."""


SPARE_CONNECTIONS = 5


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was checked.

    ``fix`` is what mends it: SQL, each statement with its semicolon (it may need the fixes of
    findings before it), or else a sentence. ``role`` says who may run the SQL, where it matters: a
    role as SQL spells it, `SUPERUSER` or `ADMINISTRATOR`. ``by_hand``: SQL that nobody should run
    unread, as one of many statements: it drops something, rewrites a table, takes something from
    its owner, or sets what the whole server and its applications go by.
    """

    name: str
    level: Level
    message: str
    fix: str = ""
    role: str = ""
    by_hand: bool = False

    @property
    def remedy(self) -> str:
        """What is shown: the fix, and who runs it."""
        return f"-- as {self.role}:\n{self.fix}" if self.role and self.fix else self.fix


def connections(limit: int, least: int, fix: str, role: str) -> Finding:
    """``limit``: how many the account may hold; 0 or less: any number. ``least``: what capture and
    a dump with one reader need.
    """
    allowed = f"the account may hold {limit} connections"
    needed = f"capture with a dump needs {least}"
    if 0 < limit < least:
        return Finding("connections", "fail", f"{allowed}; {needed}", fix, role)
    if 0 < limit < least + SPARE_CONNECTIONS:
        more = f"{needed}, and more for `tidelog check`, further readers and blocking dumps"
        return Finding("connections", "warn", f"{allowed}; {more}", fix, role)
    if limit <= 0:
        allowed = "the account has no limit of them"
    return Finding("connections", "ok", allowed)


def matched(tables: int) -> str:
    """Says how many tables will be captured."""
    return "1 table matches" if tables == 1 else f"{tables:,} tables match"
