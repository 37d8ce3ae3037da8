"""The results of `tidelog check`, for every source."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Level = Literal["ok", "warn", "fail"]

SUPERUSER = "a superuser"
ADMINISTRATOR = "an administrator"
"""Who can grant rights in MySQL and MariaDB; the account's name differs from server to server."""


SPARE_CONNECTIONS = 5


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check.

    Attributes:
        name: the check's name.
        level: ``ok``, ``warn`` or ``fail``.
        message: what was found.
        fix: how to fix it: SQL, each statement with its semicolon (it may need the fixes of earlier
            findings first), or a sentence.
        role: who may run the SQL, where it matters: a role as SQL writes it, `SUPERUSER` or
            `ADMINISTRATOR`.
        by_hand: True for SQL that needs a person's review before it runs: it drops something,
            rewrites a table, changes an owner's rights, or changes a setting of the whole server.
    """

    name: str
    level: Level
    message: str
    fix: str = ""
    role: str = ""
    by_hand: bool = False

    @property
    def remedy(self) -> str:
        """The fix as it is shown, with the role that runs it."""
        return f"-- as {self.role}:\n{self.fix}" if self.role and self.fix else self.fix


def connections(limit: int, least: int, fix: str, role: str) -> Finding:
    """Check how many connections the account may open.

    Args:
        limit: the account's limit; 0 or less means no limit.
        least: the number that capture and a dump with one reader need.
        fix: see `Finding`.
        role: see `Finding`.
    """
    allowed = f"the account may hold {limit} connections"
    needed = f"capture with a dump needs {least}"
    if 0 < limit < least:
        return Finding("connections", "fail", f"{allowed}; {needed}", fix, role)
    if 0 < limit < least + SPARE_CONNECTIONS:
        more = f"{needed}, and more for `tidelog check`, further readers and blocking dumps"
        return Finding("connections", "warn", f"{allowed}; {more}", fix, role)
    if limit <= 0:
        allowed = "the account has no limit"
    return Finding("connections", "ok", allowed)


def matching_message(tables: int) -> str:
    """The message that says how many tables will be captured."""
    return "1 table matches" if tables == 1 else f"{tables:,} tables match"
