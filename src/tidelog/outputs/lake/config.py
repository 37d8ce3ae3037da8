"""The section that all outputs into a lake share."""

from __future__ import annotations

from datetime import timedelta
from typing import Literal

from pydantic import Field, field_validator

from tidelog.kinds.sections import Duration, TablePattern
from tidelog.model.patterns import choice, matches
from tidelog.model.schema import TableName
from tidelog.outputs.base.sections import KeylessPolicy, SteppedSection


class LakeSection(SteppedSection):
    """Tables of a lake, one for each source table."""

    vacuum_after: Duration | None = None
    keyless: KeylessPolicy = Field(
        default="append",
        description="What to do with a table that has no key, so that there can be no copy. "
        "`append`: its changes are appended, as with `holds: changes`. `skip`: it is left out, "
        "with a warning. `fail`: stop.",
    )
    holds: dict[TablePattern, Literal["copy", "changes", "history"]] = Field(
        default={},
        description="By table or pattern, what the table in the lake contains. `copy` (default): "
        "the rows that the source has. `changes`: every change, as a row. `history`: every state "
        "that a row had, with the time for which it held.",
        examples=[{"public.events": "changes"}],
    )

    @field_validator("vacuum_after")
    @classmethod
    def _vacuum_is_safe(cls, after: timedelta | None) -> timedelta | None:
        if after is not None and after < timedelta(days=7):
            raise ValueError("vacuum_after: readers may still need younger files; at least 7d")
        return after

    def keeps_copy(self, table: TableName) -> bool:
        """Does the table in the lake contain the rows of the source's table, perhaps with earlier
        ones, and not its changes?
        """
        return choice(self.holds, table, "copy") != "changes"

    def keyless_of(self, table: TableName) -> KeylessPolicy | None:
        if not self.keeps_copy(table):
            return None
        altered = any(s.action != "route" and matches(s.tables, table) for s in self.steps)
        return "skip" if self.keyless == "append" and altered else self.keyless
