"""The section of outputs of kind ``delta``."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field

from tidelog.kinds.sections import TYPES, Duration, Location, TablePattern, TypesSection
from tidelog.model.patterns import choice, matches
from tidelog.model.schema import TableName
from tidelog.outputs.base.sections import FileStoreSection, KeylessPolicy, name_field
from tidelog.outputs.lake.config import LakeSection


class DeltaSection(FileStoreSection, LakeSection):
    """Delta tables, one for each source table (docs/outputs/delta.md)."""

    kind: Literal["delta"] = Field(description="The kind of output.")
    name: str = name_field(
        "delta",
        "Names the output in the event log and in the Delta transaction log: keep it for as "
        "long as the output's tables live.",
    )
    path: Location = Field(
        description="Directory or URL; the table `public.orders` goes to `<path>/public/orders`.",
        examples=["./data/lake"],
    )
    holds: dict[TablePattern, Literal["copy", "changes", "history"]] = Field(
        default={},
        description="By table or pattern, what the table in the lake contains. `copy` (default): "
        "the rows that the source has. `changes`: every change, as a row. `history`: every state "
        "that a row had, with the time for which it held.",
        examples=[{"public.events": "changes"}],
    )
    keyless: KeylessPolicy = Field(
        default="append",
        description="What to do with a table that has no key, so that there can be no copy. "
        "`append`: its changes are appended, as with `holds: changes`. `skip`: it is left out, "
        "with a warning. `fail`: stop.",
    )
    deletes: Literal["hard", "soft"] = Field(
        default="hard",
        description="For copies. `hard`: a deleted row is removed. `soft`: it stays as it was "
        "last, with `_deleted` true.",
    )
    partition_by: dict[TablePattern, list[str]] = Field(
        default={},
        description="By table or pattern, the columns that its table is partitioned by. They can't "
        "be changed later.",
        examples=[{"public.events": ["day"]}],
    )
    cluster_by: dict[TablePattern, Annotated[list[str], Field(min_length=1, max_length=4)]] = Field(
        default={},
        description="By table or pattern, the columns of Delta's liquid clustering, which OPTIMIZE "
        "lays rows out by. May be changed.",
        examples=[{"public.orders": ["customer_id"]}],
    )
    deletion_vectors: bool = Field(
        default=True,
        description="Whether copies that are created have deletion vectors. With them a changed "
        "row is marked in its file; without, its file is rewritten, which costs much more, but "
        "older readers can read the table.",
    )
    names: Literal["plain", "exact"] = Field(
        default="plain",
        description="Names of new columns. `plain`: a character that Delta refuses without column "
        "mapping (space, tab, newline, `,;{}()=`) becomes `_`, so that any reader can read the "
        "table. `exact`: the source's names; a table with such a character has column mapping, "
        "which some readers read wrongly.",
    )
    types: TypesSection = TYPES
    vacuum_after: Duration | None = Field(
        default=None,
        description="Once a day, files are removed that no version of this last period has. At "
        "least a week. Unset: never.",
        examples=["7d"],
    )
    parallelism: int = Field(
        default=2,
        ge=1,
        le=256,
        description="Number of tables with steps, or very many changes, that are read at once.",
    )

    def with_source_types(self, types: TypesSection) -> Self:
        return self.model_copy(update={"types": self.types.beyond(types)})

    def keyless_of(self, table: TableName) -> KeylessPolicy | None:
        if not self.keeps_copy(table):
            return None
        altered = any(s.action != "route" and matches(s.tables, table) for s in self.steps)
        return "skip" if self.keyless == "append" and altered else self.keyless

    def keeps_copy(self, table: TableName) -> bool:
        """Does the table in the lake contain the rows of the source's table, perhaps with earlier
        ones, and not its changes?
        """
        return choice(self.holds, table, "copy") != "changes"
