"""Outputs of kind ``delta``."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated, Literal

from pydantic import Field, model_validator

from tidelog.configoutputs.sections import SteppedSection, named
from tidelog.configtypes import Duration, Location, TablePattern


class DeltaOutput(SteppedSection):
    """Delta tables, one for each source table, kept by MERGE (docs/outputs/delta.md)."""

    kind: Literal["delta"] = Field(description="The kind of output.")
    name: str = named(
        "delta",
        "Names the output in its checkpoint and in the Delta transaction log: keep it for as "
        "long as the output's tables live.",
    )
    path: Location = Field(
        description="Directory or URL; the table `public.orders` goes to `<path>/public/orders`.",
        examples=["./data/lake"],
    )
    deletes: Literal["hard", "soft"] = Field(
        default="hard",
        description="`hard`: a deleted row is removed. `soft`: it stays as it was last, with "
        "`_deleted` true.",
    )
    partition_by: dict[TablePattern, list[str]] = Field(
        default={},
        description="By table or pattern, the columns that the copy is partitioned by; for good.",
        examples=[{"public.events": ["day"]}],
    )
    cluster_by: dict[TablePattern, Annotated[list[str], Field(min_length=1, max_length=4)]] = Field(
        default={},
        description="By table or pattern, the columns of Delta's liquid clustering, which OPTIMIZE "
        "lays rows out by. May be changed.",
        examples=[{"public.orders": ["customer_id"]}],
    )
    optimize_every: Duration | None = Field(
        default=None,
        description="After so long the small files of tables that were written are rewritten as "
        "large ones (OPTIMIZE), between two batches. Unset: never.",
        examples=["1h"],
    )
    vacuum_after: Duration | None = Field(
        default=None,
        description="With `optimize_every`: then files are removed that no version of the last so "
        "long has (VACUUM). At least a week. Unset: never.",
        examples=["7d"],
    )
    parallelism: int = Field(default=2, ge=1, le=256, description="Tables that are merged at once.")

    @model_validator(mode="after")
    def _vacuum_is_safe(self) -> DeltaOutput:
        if self.vacuum_after is None:
            return self
        if self.optimize_every is None:
            raise ValueError("vacuum_after needs optimize_every")
        if self.vacuum_after < timedelta(days=7):
            raise ValueError("vacuum_after: readers may still need younger files; at least 7d")
        return self
