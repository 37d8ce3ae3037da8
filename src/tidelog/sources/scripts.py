"""Writes the SQL that fixes the findings of `tidelog check` as one script."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import groupby

from tidelog.model.printable import printable
from tidelog.sources.findings import Finding

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


def script(findings: Sequence[Finding]) -> Iterator[str]:
    """The lines of a script: parts, each for one role, in the order of their dependencies, so a
    role may have several.

    Fixes that are not SQL, or are done by hand, and failures without a fix are comments at the
    end.
    """
    wanted = [
        finding
        for finding in findings
        if finding.level == "fail" or (finding.level == "warn" and finding.fix)
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
