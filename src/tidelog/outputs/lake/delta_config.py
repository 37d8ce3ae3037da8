"""Outputs of kind ``delta``."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from tidelog.kinds.sections import Location, TablePattern
from tidelog.outputs.base.sections import named
from tidelog.outputs.lake.config import LakeSection


class DeltaSection(LakeSection):
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
