"""The section that all outputs into a lake share."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, ClassVar, Literal, Self

from pydantic import Field, field_validator

from tidelog.kinds.sections import TYPES, Bytes, Duration, TablePattern, TypesSection
from tidelog.model.patterns import choice, matches
from tidelog.model.schema import TableName
from tidelog.outputs.base.sections import KeylessPolicy, SteppedSection
from tidelog.outputs.delivery_settings import transform_steps


class LakeSection(SteppedSection):
    """Tables of a lake, one for each source table."""

    copies = "by_output"
    vacuum_least: ClassVar = timedelta(days=7), "7d"
    without_type: ClassVar[tuple[str, str]]
    """An option of ``types`` for which the format has no type, and the error that says so."""

    types: TypesSection = TYPES
    parallelism: int = Field(
        default=2,
        ge=1,
        le=256,
        description="Number of tables with steps, or very many changes, that are read at once.",
    )
    vacuum_after: Duration | None = None
    cache_bytes: Bytes = Field(
        default=8 << 30,
        ge=0,
        description="Most bytes that each host of Spark's executors keeps in its temporary "
        "directory (`TMPDIR`) of the keys of tables, and as many of the rows of histories: what is "
        "not kept is read from the table's files again. Never more than it leaves free there.",
    )
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

    def with_source_types(self, types: TypesSection) -> Self:
        found = self.types.beyond(types.model_copy(update={self.without_type[0]: "text"}))
        return self.model_copy(update={"types": found})

    @field_validator("types")
    @classmethod
    def _check_types(cls, types: TypesSection) -> TypesSection:
        option, error = cls.without_type
        if getattr(types, option) != "text":
            raise ValueError(error)
        return types

    @field_validator("vacuum_after")
    @classmethod
    def _vacuum_is_safe(cls, after: timedelta | None) -> timedelta | None:
        least, text = cls.vacuum_least
        if after is not None and after < least:
            raise ValueError(f"vacuum_after: readers may still need younger files; at least {text}")
        return after

    def keeps_copy(self, table: TableName) -> bool:
        """Return whether the table in the lake contains the rows of the source's table, perhaps
        with earlier ones, and not its changes.
        """
        return choice(self.holds, table, "copy") != "changes"

    def keyless_of(self, table: TableName) -> KeylessPolicy | None:
        if not self.keeps_copy(table):
            return None
        altered = any(s.action != "route" and matches(s.tables, table) for s in self.steps)
        return "skip" if self.keyless == "append" and altered else self.keyless

    def lake_options(self) -> dict[str, Any]:
        """The options of `tidelog.outputs.lake.output.LakeOptions` that all lakes have."""
        after = self.vacuum_after
        return {
            "steps": transform_steps(self),
            "holds": self.holds,
            "on_schema_change": self.on_schema_change,
            "keyless": self.keyless,
            "types": self.types.column_types(),
            "cache_bytes": self.cache_bytes,
            "vacuum_after_s": None if after is None else after.total_seconds(),
        }
