"""The results of `tidelog check`, for every source, and the SQL that fixes them, as one script."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Literal

from tidelog.model.units import printable

Level = Literal["ok", "warning", "error"]

SUPERUSER = "a superuser"
ADMINISTRATOR = "an administrator"
"""Who can grant rights in MySQL and MariaDB; the account's name differs from server to server."""


SPARE_CONNECTIONS = 5


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check.

    Attributes:
        name: the check's name.
        level: ``ok``, ``warning`` or ``error``.
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


def connections_finding(limit: int, least: int, fix: str, role: str) -> Finding:
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
        return Finding("connections", "error", f"{allowed}; {needed}", fix, role)
    if 0 < limit < least + SPARE_CONNECTIONS:
        more = f"{needed}, and more for `tidelog check`, further readers and blocking dumps"
        return Finding("connections", "warning", f"{allowed}; {more}", fix, role)
    if limit <= 0:
        allowed = "the account has no limit"
    return Finding("connections", "ok", allowed)


def matching_message(tables: int) -> str:
    """The message that says how many tables will be captured."""
    return "1 table matches" if tables == 1 else f"{tables:,} tables match"


# The script.

_BEGINS = re.compile(
    r"(ALTER|CALL|COMMENT|CREATE|DO|DROP|GRANT|INSERT|REVOKE|SELECT|SET|UPDATE)\b", re.IGNORECASE
)
_COMMENT = re.compile(r"--.*")
_TO_FILL_IN = "(...)"
CAPTURE = "the user of source.url"


def sql_of(finding: Finding) -> str:
    """The statements of a fix that belong in a script; empty if the fix is a sentence, has gaps to
    fill in, or needs a person's decision.
    """
    bare = _COMMENT.sub("", finding.fix).strip()
    is_sql = _BEGINS.match(bare) and bare.endswith(";") and _TO_FILL_IN not in bare
    runs = is_sql and finding.level != "ok" and not finding.by_hand
    return finding.fix.strip() if runs else ""


def fix_script(findings: Sequence[Finding]) -> Iterator[str]:
    """The lines of a script: parts, each for one role, in the order of their dependencies, so a
    role may have several.

    Fixes that are not SQL, or are done by hand, and failures without a fix are comments at the end.
    """
    wanted = [
        finding
        for finding in findings
        if finding.level == "error" or (finding.level == "warning" and finding.fix)
    ]
    run = [finding for finding in wanted if sql_of(finding)]
    roles = list(dict.fromkeys(finding.role or CAPTURE for finding in run))
    if run:
        yield f"-- Fixes for what tidelog check found: to be run by {_listed(roles)}."
        yield "-- Run part by part, in this order; then run tidelog check again."
    for role, its in groupby(run, key=lambda finding: finding.role or CAPTURE):
        yield ""
        yield f"-- as {printable(role)}:"
        done: set[str] = set()
        for finding in its:
            if (sql := sql_of(finding)) not in done:
                done.add(sql)
                yield f"-- {printable(finding.name)}: {printable(finding.message)}"
                yield sql
    rest = [finding for finding in wanted if not sql_of(finding)]
    if rest:
        yield ""
        yield "-- by hand:"
    for finding in rest:
        yield f"-- {printable(finding.name)}: {printable(finding.message)}"
        if finding.role:
            yield f"--   as {printable(finding.role)}:"
        yield from (f"--   {printable(line)}" for line in finding.fix.split("\n") if line)


def _listed(roles: Sequence[str]) -> str:
    roles = [printable(role) for role in roles]
    return roles[0] if len(roles) == 1 else f"{', '.join(roles[:-1])} and {roles[-1]}"
