"""A kind of source: PostgreSQL, for which `tidelog check` also limits how many tables are captured.

source: {kind: limited, url: "postgresql://…", tables: ["public.*"], most_tables: 100}

It takes all else from Tidelog's PostgreSQL. These classes may change with any release.
"""

from __future__ import annotations

from contextlib import closing
from typing import Literal

from pydantic import Field

from tidelog.app.sources.postgres import PostgresKind
from tidelog.config import Config
from tidelog.config.source import PostgresSourceSection
from tidelog.ext import Finding


class LimitedSection(PostgresSourceSection):
    """As of kind ``postgres``, and one option more."""

    kind: Literal["limited"]
    most_tables: int = Field(default=100, ge=1)


class LimitedPostgres(PostgresKind):
    """The kind; see `tidelog.ext.SourceKind`."""

    section = LimitedSection

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        assert isinstance(config.source, LimitedSection)
        self._patterns, self._most = config.source.tables, config.source.most_tables

    def check(self) -> list[Finding]:
        found = super().check()
        if any(finding.level == "error" for finding in found):
            return found  # the server can't be asked, perhaps
        with closing(self.catalogue()) as catalogue:
            count = len(catalogue.tables(self._patterns))
        if count <= self._most:
            return [*found, Finding("most_tables", "ok", f"{count} of {self._most} tables")]
        message = f"{count} tables match, source.most_tables allows {self._most}"
        return [*found, Finding("most_tables", "error", message, "narrow source.tables")]
